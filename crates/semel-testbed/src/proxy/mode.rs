//! The current faults and the counters of the proxy.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::ProxyCounts;

/// All connections read it at each step.
#[derive(Clone, Debug)]
pub(super) struct ProxyMode {
    pub(super) target: SocketAddr,
    pub(super) to_server: BytePace,
    pub(super) to_client: BytePace,
    pub(super) admission: ConnectionAdmission,
    /// Connections with a lower number must be cut.
    pub(super) cut_before: u64,
    /// Connections with a lower number must be half-open.
    pub(super) half_open_before: u64,
    pub(super) trap: Trap,
}

impl ProxyMode {
    pub(super) fn new(target: SocketAddr) -> Self {
        Self {
            target,
            to_server: BytePace::default(),
            to_client: BytePace::default(),
            admission: ConnectionAdmission::Forward,
            cut_before: 0,
            half_open_before: 0,
            trap: Trap::sprung(),
        }
    }

    /// The same mode without faults. Connections that were cut or half-open stay so.
    pub(super) fn healed(&self) -> Self {
        Self {
            cut_before: self.cut_before,
            half_open_before: self.half_open_before,
            ..Self::new(self.target)
        }
    }
}

/// The faults of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BytePace {
    pub(super) held: HeldBytes,
    pub(super) delay: Duration,
    pub(super) trickle: Option<(usize, Duration)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HeldBytes {
    Yes,
    #[default]
    No,
}

/// Handling of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionAdmission {
    Forward,
    Refuse,
    HalfOpen,
}

/// Catches one request of any client.
#[derive(Clone, Debug)]
pub(super) struct Trap {
    needle: Arc<[u8]>,
    // Shared by all copies of the mode: the first connection that takes it owns it.
    armed: Arc<AtomicBool>,
}

impl Trap {
    pub(super) fn new(needle: &[u8]) -> Self {
        Self { needle: needle.into(), armed: Arc::new(true.into()) }
    }

    fn sprung() -> Self {
        Self { needle: Arc::new([]), armed: Arc::default() }
    }

    /// True if this piece is the expected request.
    pub(super) fn catches(&self, piece: &[u8]) -> bool {
        let fits =
            self.needle.is_empty() || piece.windows(self.needle.len()).any(|part| part == &*self.needle);
        fits && self.armed.swap(false, Ordering::Relaxed)
    }
}

/// Updated by the connections, read by the test.
#[derive(Debug, Default)]
pub(super) struct TrafficCounters {
    pub(super) accepted: AtomicU64,
    pub(super) open: AtomicU64,
    pub(super) to_server: AtomicU64,
    pub(super) to_client: AtomicU64,
    pub(super) dropped_replies: AtomicU64,
}

impl TrafficCounters {
    pub(super) fn read(&self) -> ProxyCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ProxyCounts {
            accepted: read(&self.accepted),
            open: read(&self.open),
            to_server: read(&self.to_server),
            to_client: read(&self.to_client),
            dropped_replies: read(&self.dropped_replies),
        }
    }
}
