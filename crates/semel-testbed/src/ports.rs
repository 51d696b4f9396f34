//! Ports for servers that do not support port 0.
//!
//! They are below the range that the kernel uses for outgoing connections, so the port of a killed server is still free when it is
//! restarted. Two test processes may pick the same port; then one of them picks another.

use std::{
    collections::HashSet,
    fs,
    hash::{BuildHasher, RandomState},
    net::{Ipv4Addr, TcpListener},
};

use parking_lot::Mutex;

use crate::{Error, Result};

static TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

const LOWEST: u16 = 10_000;
const TRIES: u64 = 1_000;

/// A port that is reserved in this process until it is dropped.
#[derive(Debug)]
pub(crate) struct Port(u16);

impl Port {
    /// Picks a port without a listener.
    pub(crate) fn pick() -> Result<Self> {
        let highest = first_outgoing().max(LOWEST + 1_000);
        let random = RandomState::new();
        for attempt in 0..TRIES {
            let span = u64::from(highest - LOWEST);
            let port = LOWEST + u16::try_from(random.hash_one(attempt) % span).unwrap_or_default();
            let mut taken = TAKEN.lock();
            let taken = taken.get_or_insert_default();
            if !taken.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                taken.insert(port);
                return Ok(Self(port));
            }
        }
        Err(Error::Io {
            doing: format!("looking for a free port between {LOWEST} and {highest}"),
            source: std::io::ErrorKind::AddrInUse.into(),
        })
    }

    pub(crate) fn number(&self) -> u16 {
        self.0
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Some(taken) = TAKEN.lock().as_mut() {
            taken.remove(&self.0);
        }
    }
}

fn first_outgoing() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768)
}
