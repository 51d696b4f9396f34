//! Commands without a script: they cost the server a third of a script call.
//!
//! - A claim of an unused key. `SET … NX GET` writes the record that the rules would write, or returns the existing
//!   one.
//! - An answer from the record: a GET, or the result of the same SET.
//!
//! The server's clock decides here too. The record is written with this process's estimate of that clock, and the
//! server returns its time along with its answer. If a claim turns out to be written with an old time, the rules
//! decide.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use redis::Value;
use redis::aio::ConnectionLike as _;

use super::Shared;
use super::address::SharedConnection;
use super::error::CallReach;
use super::link::NumberedConnection;
use super::script;
use crate::mutant::{self, Mutant};
use crate::record::{self, Begin, Command, Fence, Mode, NewClaim, Ruling, State, Win};
use crate::store::Error;
use crate::time::Timestamp;

/// An outcome this close to its end is left to the rules.
const EDGE: Duration = Duration::from_secs(2);

impl Shared {
    /// True if a claim without a script is worth trying.
    pub(super) fn may_skip_script(&self, command: &Command) -> bool {
        let Command::Claim(claim) = command else { return false };
        // If it is written late, a claim whose effect has begun would be in doubt instead of free.
        let may_be_in_doubt = claim.terms.mode == Mode::Marked && claim.begin == Begin::WithClaim;
        let knows = self.rules.server_is_new() && !self.guess.scripts_only.load(Ordering::Relaxed);
        knows && !may_be_in_doubt
    }

    /// A claim without the rules, if that is possible; `None` if they must decide.
    pub(super) async fn claim_without_script(
        &self,
        numbered: &mut NumberedConnection,
        key: &[u8],
        command: &Command,
    ) -> Result<Option<Ruling>, Error> {
        let (Command::Claim(claim), SharedConnection::One(connection)) = (command, &mut numbered.wire) else {
            return Ok(None);
        };
        if !self.may_skip_script(command) {
            return Ok(None);
        }
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        let (Some(written), mut granted) = (self.clock.now(), None) else { return Ok(None) };
        let ruling = record::apply(&mut granted, command, written, Fence::default());
        let (Ruling::Won(win), Some(record)) = (ruling, granted) else { return Ok(None) };
        let mut exchange = redis::Pipeline::with_capacity(3);
        exchange.cmd("SET").arg(key).arg(record.encode()).arg("NX").arg("GET").cmd("TIME");
        if let Some(secret) = self.secret_query() {
            exchange.add_command(secret);
        }
        let number = numbered.number;
        let answers = connection.req_packed_commands(&exchange, 0, exchange.len()).await;
        let mut answers = match answers {
            Ok(answers) => answers.into_iter().map(Value::extract_error),
            Err(error) => return Err(self.link.failed(error, number, CallReach::Write)),
        };
        let (Some(before), Some(time), kept) = (answers.next(), answers.next(), answers.next()) else {
            return Err(script::unexpected_reply("lacks an answer"));
        };
        let (before, time) = match before.and_then(|before| Ok((before, time?))) {
            // Nothing was written. Not every new server supports NX together with GET.
            Err(error) if error.code() == Some("ERR") => {
                self.guess.scripts_only.store(true, Ordering::Relaxed);
                return Ok(None);
            }
            answers => answers.map_err(|error| self.link.failed(error, number, CallReach::Write))?,
        };
        let kept = kept.map(|kept| self.link.read(kept, number));
        let now = server_time(time)?;
        // The heartbeat reports a step back.
        let _ = self.clock.saw(now);
        let ruling = match before {
            Value::Nil if mutant::is(Mutant::NoClockCheck) => Some(Ruling::Won(win)),
            Value::Nil => {
                let lease_left = record.lease_until.left(now).min(win.lease_left);
                (lease_left >= win.lease_left / 2).then_some(Ruling::Won(Win { lease_left, ..win }))
            }
            Value::BulkString(before) => replay(&before, now, claim)?,
            _ => return Err(script::unexpected_reply("is neither a record nor nothing")),
        };
        match ruling {
            Some(ruling) => self.confirm_grant(numbered, key, ruling, kept).await.map(Some),
            // The rules are applied next, and check the secret.
            None => Ok(None),
        }
    }

    /// A claim that is answered from the record.
    pub(super) async fn replay(
        &self,
        numbered: &mut NumberedConnection,
        key: &[u8],
        claim: &NewClaim,
    ) -> Result<Option<Ruling>, Error> {
        let mut get = redis::cmd("GET");
        get.arg(key);
        let secret = self.secret_query();
        let (found, kept) = self.link.query_then(numbered, get, secret.as_ref(), CallReach::Read).await?;
        let (Value::BulkString(bytes), Some(now)) = (found, self.clock.now()) else { return Ok(None) };
        match replay(&bytes, now, claim)? {
            Some(ruling) => self.confirm_grant(numbered, key, ruling, kept).await.map(Some),
            None => Ok(None),
        }
    }
}

/// The outcome of a done record with the same payload, far from its end.
fn replay(bytes: &[u8], now: Timestamp, claim: &NewClaim) -> Result<Option<Ruling>, Error> {
    let record = script::decode(bytes)?;
    let expires_in = record.expires_at.left(now.max(record.changed_at));
    Ok(match record.state {
        State::Done(outcome) if record.fingerprint == claim.fingerprint && expires_in > EDGE => {
            Some(Ruling::Replay { outcome, expires_in })
        }
        _ => None,
    })
}

/// Seconds and microseconds, as TIME returns them.
pub(super) fn server_time(time: Value) -> Result<Timestamp, Error> {
    let (seconds, micros): (u64, u64) =
        redis::from_redis_value(time).map_err(|_| script::unexpected_reply("lacks a time"))?;
    Ok(Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros)))
}

/// Which command a claim tries first. An answer from the record is cheapest by GET, a first claim by SET; callers
/// mostly send one kind for a while.
#[derive(Debug, Default)]
pub(super) struct Guess {
    /// The share of answers from the record among the last claims.
    share: AtomicU32,
    /// Set if the server refused SET with NX and GET.
    scripts_only: AtomicBool,
}

impl Guess {
    const WHOLE: u32 = 1 << 16;

    /// True if at least half of about the last dozen claims were answered from the record.
    pub(super) fn replay_is_likely(&self) -> bool {
        self.share.load(Ordering::Relaxed) > Self::WHOLE / 2
    }

    /// Records the result of a claim. Concurrent calls may lose an update, which does no harm: it is an estimate.
    pub(super) fn note(&self, ruling: &Ruling) {
        let share = self.share.load(Ordering::Relaxed);
        let share = match ruling {
            Ruling::Replay { .. } => share + (Self::WHOLE - share) / 8,
            _ => share - share / 8,
        };
        self.share.store(share, Ordering::Relaxed);
    }
}

#[cfg(all(test, feature = "testkit"))]
mod tests {
    use std::sync::Arc;

    use semel_testbed::Redis;

    use super::*;
    use crate::fingerprint::Fingerprint;
    use crate::key::{Hint, KeyId};
    use crate::record::{Owner, Terms};
    use crate::store::{RedisStore, Store as _};

    const HOUR: Duration = Duration::from_secs(3600);

    fn claim(mode: Mode) -> Command {
        Command::Claim(NewClaim {
            owner: Owner::random(),
            fingerprint: Fingerprint::from_bytes([7; 32]),
            terms: Arc::new(Terms { mode, ..Terms::default() }),
            begin: Begin::WithClaim,
            hint: Hint::new("order-1"),
        })
    }

    fn key() -> KeyId {
        KeyId::from_bytes(*Owner::random().as_bytes())
    }

    async fn store(server: &Redis) -> RedisStore {
        RedisStore::connect(&server.url()).await.expect("a healthy server")
    }

    // A process that slept counts the server's clock wrongly, and wins nothing that is over already
    #[tokio::test]
    async fn a_claim_written_by_a_time_long_past_is_as_good_as_any() {
        let server = Redis::start().expect("redis-server starts");
        let store = store(&server).await;
        for mode in [Mode::Keyed, Mode::Rerun, Mode::Marked] {
            let now = store.shared.clock.now().expect("the server was asked");
            store.shared.clock.saw(Timestamp::from_micros(now.as_micros() - micros(HOUR)));
            let id = key();
            let Ok(Ruling::Won(win)) = store.apply(id, claim(mode)).await else { panic!("it is free") };
            assert!(win.lease_left > Terms::default().lease / 2, "{mode:?}: {:?}", win.lease_left);
            let found = store.get(id).await.expect("a healthy server").expect("it is there");
            assert!(found.record.lease_until.left(found.now) > Terms::default().lease / 2, "{mode:?}");
            assert!(matches!(store.apply(id, claim(mode)).await, Ok(Ruling::Busy { .. })), "{mode:?}");
            let release = store.apply(id, Command::Release(win.grant)).await;
            assert!(matches!(release, Ok(Ruling::Accepted { .. })), "{mode:?}: {release:?}");
        }
    }

    #[tokio::test]
    async fn a_claim_written_by_a_time_to_come_promises_no_more_than_its_lease() {
        let server = Redis::start().expect("redis-server starts");
        let store = store(&server).await;
        let now = store.shared.clock.now().expect("the server was asked");
        store.shared.clock.saw(now.after(HOUR));
        let Ok(Ruling::Won(win)) = store.apply(key(), claim(Mode::Keyed)).await else { panic!("it is free") };
        assert!(win.lease_left <= Terms::default().lease, "{:?}", win.lease_left);
        let counted = store.shared.clock.now().expect("the server was asked");
        assert!(counted.left(now) < HOUR / 2, "its answer put the count right");
    }

    #[tokio::test]
    async fn a_claim_on_what_is_there_is_for_the_rules() {
        let server = Redis::start().expect("redis-server starts");
        let (store, other) = (store(&server).await, store(&server).await);
        let (id, first) = (key(), claim(Mode::Keyed));
        let won = store.apply(id, first.clone()).await;
        assert!(matches!(&won, Ok(Ruling::Won(win)) if win.attempt == 1), "{won:?}");
        let again = store.apply(id, first).await;
        assert!(
            matches!(&again, Ok(Ruling::Won(win)) if win.attempt == 1),
            "repeated by its owner: {again:?}"
        );
        assert!(matches!(other.apply(id, claim(Mode::Keyed)).await, Ok(Ruling::Busy { .. })));
        let Command::Claim(stranger) = claim(Mode::Keyed) else { unreachable!("it is a claim") };
        let stranger = NewClaim { fingerprint: Fingerprint::from_bytes([8; 32]), ..stranger };
        assert!(matches!(other.apply(id, Command::Claim(stranger)).await, Ok(Ruling::Conflict)));
    }

    fn micros(duration: Duration) -> u64 {
        u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
    }
}
