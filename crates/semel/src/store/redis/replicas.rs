//! `require_replicas`: a write counts once enough replicas have it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};

use super::address::SharedConnection;
use super::error::CallReach;
use super::link::{Link, NumberedConnection};
use crate::store::{Error, ErrorKind};

/// Sends one WAIT for all writes that wait for replicas.
#[derive(Debug)]
pub(super) struct Replicas {
    required: usize,
    timeout: Duration,
    turn: tokio::sync::Mutex<ReplicaWait>,
    written: AtomicU64,
}

/// Which writes the last WAIT covered, and how it ended.
#[derive(Debug, Default)]
struct ReplicaWait {
    connection: u64,
    covered: u64,
    acknowledged: usize,
}

impl Replicas {
    pub(super) fn new(required: usize, timeout: Duration) -> Self {
        Self { required, timeout, turn: tokio::sync::Mutex::default(), written: 0.into() }
    }

    /// True if a write counts as soon as the server has it.
    pub(super) fn are_ignored(&self) -> bool {
        self.required == 0
    }

    /// Returns once enough replicas have the writes of this connection.
    ///
    /// # Errors
    /// Ambiguous if they do not: the server may preserve the write or lose it. A repetition asks again.
    pub(super) async fn wait_for_replicas(
        &self,
        link: &Link,
        numbered: &mut NumberedConnection,
        key: &[u8],
    ) -> Result<(), Error> {
        if self.are_ignored() {
            return Ok(());
        }
        let mine = self.written.fetch_add(1, Ordering::AcqRel) + 1;
        let mut turn = self.turn.lock().await;
        let shards = matches!(numbered.wire, SharedConnection::Cluster(_));
        if shards || turn.connection != numbered.number || turn.covered < mine {
            // Writes that were counted before this WAIT is sent were answered before: it covers them too.
            let covered = self.written.load(Ordering::Acquire);
            let acknowledged = self.wait(link, numbered, key).await?;
            *turn = ReplicaWait { connection: numbered.number, covered, acknowledged };
        }
        if turn.acknowledged < self.required {
            return Err(Error::new(
                ErrorKind::Ambiguous,
                format!(
                    "{} of the {} required Redis replicas have the write: it may be lost in a failover",
                    turn.acknowledged, self.required
                ),
            ));
        }
        Ok(())
    }

    async fn wait(&self, link: &Link, numbered: &mut NumberedConnection, key: &[u8]) -> Result<usize, Error> {
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.required).arg(u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX));
        let answer = match &mut numbered.wire {
            SharedConnection::One(connection) => wait.query_async(connection).await,
            SharedConnection::Cluster(connection) => {
                let route = Route::new(slot(key), SlotAddr::Master);
                let routing = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route));
                let answer = connection.route_command(wait, routing).await;
                answer.and_then(|value| Ok(redis::from_redis_value(value)?))
            }
        };
        match answer {
            Ok(acknowledged) => Ok(acknowledged),
            Err(error) => Err(link.failed(error, numbered.number, CallReach::Write)),
        }
    }
}

/// The slot of a key, by its hash tag: CRC16 of the cluster specification.
fn slot(key: &[u8]) -> u16 {
    let tagged =
        key.split(|byte| *byte == b'{').nth(1).and_then(|rest| rest.split(|byte| *byte == b'}').next());
    let crc = tagged.filter(|tag| !tag.is_empty()).unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::slot;

    #[test]
    fn slots_are_as_the_specification_has_them() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"semel:{foo}"), slot(b"foo"));
    }
}
