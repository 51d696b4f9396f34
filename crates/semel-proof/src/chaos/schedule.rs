//! The faults of a run, drawn from a seed: the same seed gives the same faults in the same order, after the same pauses.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChaosFault {
    /// Kill a process and start its successor.
    KillProcess(usize),
    /// Stop a process, for longer than its leases, and let it go on.
    StopProcess(usize),
    /// Kill the server and start it again.
    KillServer,
    /// Reset all connections through the proxy.
    CutConnections,
    /// Delay everything through the proxy for a while.
    DelayBytes(Duration),
    /// Hold the replies of the server for a while.
    HoldReplies,
    /// Execute a command, and lose its reply.
    LoseReply,
}

/// The faults of a seed, each after a pause.
#[derive(Debug)]
pub struct FaultSchedule {
    rng: StdRng,
    processes: usize,
    longest_pause: Duration,
}

impl FaultSchedule {
    /// The faults for this number of processes.
    pub fn new(seed: u64, processes: usize, longest_pause: Duration) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), processes, longest_pause }
    }
}

impl Iterator for FaultSchedule {
    type Item = (Duration, ChaosFault);

    fn next(&mut self) -> Option<Self::Item> {
        let pause = self.longest_pause.mul_f64(self.rng.random_range(0.2..1.0));
        let process = self.rng.random_range(0..self.processes);
        Some((
            pause,
            match self.rng.random_range(0..100) {
                0..70 => ChaosFault::KillProcess(process),
                70..80 => ChaosFault::StopProcess(process),
                80..83 => ChaosFault::KillServer,
                83..90 => ChaosFault::CutConnections,
                90..93 => ChaosFault::DelayBytes(Duration::from_millis(self.rng.random_range(1..30))),
                93..96 => ChaosFault::HoldReplies,
                _ => ChaosFault::LoseReply,
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_faults_again() {
        let faults =
            |seed| FaultSchedule::new(seed, 4, Duration::from_millis(500)).take(100).collect::<Vec<_>>();
        assert_eq!(faults(7), faults(7));
        assert_ne!(faults(7), faults(8));
    }
}
