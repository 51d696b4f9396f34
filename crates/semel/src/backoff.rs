//! Waits between retries.

use std::time::Duration;

/// The waits of a loop that retries or reconnects. Each is twice as long as the last, up to a maximum, and varies by a
/// quarter in both directions, so that many processes do not retry at the same time.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Waits that begin with `first` and do not grow above `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// The next wait.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.next.mul_f64(0.75 + 0.5 * rand::random::<f64>());
        self.next = (self.next * 2).min(self.longest);
        wait
    }

    /// Waits.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next_wait()).await;
    }

    /// Begins again with the first wait.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_begin_again() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(35));
        for _ in 0..2 {
            for expected in [10, 20, 35, 35] {
                let (wait, expected) = (backoff.next_wait(), Duration::from_millis(expected));
                assert!(wait >= expected * 3 / 4 && wait <= expected * 5 / 4, "{wait:?}, not {expected:?}");
            }
            backoff.reset();
        }
    }
}
