//! Whether the time of an operation tells two classes of inputs apart: Welch's t-test over interleaved samples.
//!
//! The time is that of the processor in this thread, so other programs on the machine add little. The class of each sample is
//! drawn at random: drift and noise hit both classes alike.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// One of the two classes of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// What an attacker guesses right, for example.
    A,
    /// What the attacker guesses wrong.
    B,
}

/// The share of the slowest samples that are left out: interrupts and page faults, not the operation.
const CUT_PERCENT: usize = 10;

/// A t value that equal operations exceed in fewer than one of 100,000 measurements.
const BOUND: f64 = 4.5;

/// Measurements of which all must show a difference.
const ROUNDS: usize = 3;

/// Measures `samples` operations and returns Welch's t of their times. `prepare` is not measured.
pub fn welch_t<T>(
    samples: usize,
    mut prepare: impl FnMut(Class, usize) -> T,
    mut operation: impl FnMut(T),
) -> f64 {
    let random = RandomState::new();
    let mut times: Vec<(Class, f64)> = Vec::with_capacity(samples);
    for number in 0..samples {
        let class = if random.hash_one(number) % 2 == 0 { Class::A } else { Class::B };
        let input = prepare(class, number);
        let before = thread_time();
        operation(input);
        times.push((class, (thread_time() - before).as_nanos() as f64));
    }
    times.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    times.truncate(samples - samples * CUT_PERCENT / 100);
    let (a, b) = (Moments::of(&times, Class::A), Moments::of(&times, Class::B));
    (a.mean - b.mean) / (a.variance / a.count + b.variance / b.count).sqrt()
}

/// Whether the times of the classes differ: in each of several measurements, and in the same direction.
pub fn differ<T>(
    samples: usize,
    mut prepare: impl FnMut(Class, usize) -> T,
    mut operation: impl FnMut(T),
) -> bool {
    let mut first = 0.0;
    for round in 0..ROUNDS {
        let t = welch_t(samples, |class, number| prepare(class, round * samples + number), &mut operation);
        if round == 0 {
            first = t;
        }
        if t.abs() < BOUND || t.signum() != f64::signum(first) {
            return false;
        }
    }
    true
}

struct Moments {
    count: f64,
    mean: f64,
    variance: f64,
}

impl Moments {
    fn of(times: &[(Class, f64)], class: Class) -> Self {
        let of_class = || times.iter().filter(|(of, _)| *of == class).map(|(_, time)| time);
        let count = of_class().count() as f64;
        let mean = of_class().sum::<f64>() / count;
        let variance = of_class().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0);
        Self { count, mean, variance }
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanos)
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    fn sum(of: usize) {
        black_box((0..of).fold(0_usize, |sum, one| sum.wrapping_add(black_box(one))));
    }

    #[test]
    fn a_tenth_more_work_is_noticed_and_equal_work_is_not() {
        let uneven = |class, _| if class == Class::A { 2_200 } else { 2_000 };
        assert!(differ(4_000, uneven, sum));
        assert!(!differ(4_000, |_, _| 2_000, sum));
    }
}
