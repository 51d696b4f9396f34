//! What a process knows about the state of its store: whether it may grant claims.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::{CONFIRMED_FOR, TransferState};
use crate::record::Command;
use crate::store::Error;
use crate::sync::Mutex;
use crate::time::instant;

/// The state that was last read, and until when it permits claims.
#[derive(Debug, Default)]
pub(in crate::store) struct TransferWatch {
    /// True if the state is not [`TransferState::Open`]. Read by every command, before the lock.
    is_closed: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    state: TransferState,
    /// When the read that found it was sent; `None` before the first.
    asked: Option<Instant>,
}

impl TransferWatch {
    /// Remembers the text of a state that was asked for at `asked`, and logs a change. Returns the state that counts.
    ///
    /// # Errors
    /// A newer version wrote it.
    pub(in crate::store) fn saw(
        &self,
        stored: Option<&[u8]>,
        asked: Instant,
        store: &dyn fmt::Display,
    ) -> Result<TransferState, Error> {
        let state = TransferState::from_stored(stored)?;
        let mut seen = self.seen.lock();
        // Of two concurrent reads the older may arrive last.
        if seen.asked.is_some_and(|last| asked < last) {
            return Ok(state);
        }
        // Emptied after it was moved: nothing may run here again, unless it is opened explicitly.
        if stored.is_none() && matches!(seen.state, TransferState::Moved { .. }) {
            return Ok(seen.state.clone());
        }
        seen.asked = Some(asked);
        if seen.state == state {
            return Ok(state);
        }
        self.is_closed.store(state != TransferState::Open, Ordering::Release);
        match &state {
            TransferState::Open => tracing::info!(%store, "the store is open again: claims are granted"),
            TransferState::Filling { from, .. } => {
                tracing::error!(%store, %from, "the store is being filled: no claims are granted");
            }
            TransferState::Moved { to, .. } => {
                tracing::error!(%store, %to, "the store was moved: no claims are granted, use the other store");
            }
        }
        seen.state = state.clone();
        Ok(state)
    }

    /// Why a command is refused: it would change a record that another store has by now.
    ///
    /// Owners may end their claims. A claim is refused only if it would be won.
    pub(in crate::store) fn refusal(&self, command: &Command, store: &dyn fmt::Display) -> Option<Error> {
        if !self.is_closed.load(Ordering::Acquire) {
            return None;
        }
        match command {
            Command::Claim(_)
            | Command::Begin(_)
            | Command::Settle(_)
            | Command::SettleAttempt(..)
            | Command::Forget(_)
            | Command::Reexecute => self.closed(store),
            Command::Renew(_)
            | Command::Complete { .. }
            | Command::Release(_)
            | Command::Bind(_)
            | Command::Abandon(_) => None,
        }
    }

    /// Why no claim is granted now.
    pub(in crate::store) fn closed(&self, store: &dyn fmt::Display) -> Option<Error> {
        if !self.is_closed.load(Ordering::Acquire) {
            return None;
        }
        self.seen.lock().state.refusal(store)
    }

    /// Why no high-water mark is raised now: the other store would not know of it. A store that is being filled gets
    /// the marks of the first one.
    pub(in crate::store) fn moved(&self, store: &dyn fmt::Display) -> Option<Error> {
        if !self.is_closed.load(Ordering::Acquire) {
            return None;
        }
        let seen = self.seen.lock();
        matches!(seen.state, TransferState::Moved { .. }).then(|| seen.state.refusal(store)).flatten()
    }

    /// True if a claim or a begin mark whose answer has just arrived counts: the store was open when it was written, or
    /// its last pass has not started.
    #[cfg_attr(
        not(any(test, feature = "postgres", feature = "redis")),
        expect(dead_code, reason = "for stores of many processes")
    )]
    pub(in crate::store) fn is_confirmed(&self) -> bool {
        let seen = self.seen.lock();
        seen.state == TransferState::Open
            && seen.asked.is_some_and(|asked| instant().saturating_duration_since(asked) < CONFIRMED_FOR)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::outcome::Outcome;
    use crate::record::{Fence, Force, Grant, Owner, Settlement};
    use crate::store::ErrorKind;
    use crate::store::transfer::TransferRun;

    fn moved() -> TransferState {
        TransferState::Moved { run: TransferRun::random(), to: "postgres://db/app".to_owned() }
    }

    fn see(watch: &TransferWatch, state: &TransferState, asked: Instant) {
        let stored = state.to_stored();
        watch.saw(Some(stored.as_bytes()), asked, &"redis:").expect("a known state");
    }

    #[test]
    fn a_read_permits_claims_for_a_while() {
        let watch = TransferWatch::default();
        assert!(!watch.is_confirmed(), "nothing was read yet");
        let now = instant();
        let Some(old) = now.checked_sub(CONFIRMED_FOR + Duration::from_millis(1)) else { return };
        see(&watch, &TransferState::Open, old);
        assert!(!watch.is_confirmed(), "it was sent too long ago");
        watch.saw(None, now, &"redis:").expect("nothing is stored");
        assert!(watch.is_confirmed());
        see(&watch, &moved(), now);
        assert!(!watch.is_confirmed());
        see(&watch, &TransferState::Open, old);
        assert!(watch.closed(&"redis:").is_some(), "a late answer of an older read changes nothing");
    }

    #[test]
    fn a_moved_store_that_was_emptied_stays_closed() {
        let watch = TransferWatch::default();
        see(&watch, &moved(), instant());
        let state = watch.saw(None, instant(), &"redis:").expect("nothing is stored");
        assert!(matches!(state, TransferState::Moved { .. }));
        assert!(watch.closed(&"redis:").is_some() && !watch.is_confirmed());
        see(&watch, &TransferState::Open, instant());
        assert!(watch.closed(&"redis:").is_none() && watch.is_confirmed(), "it was opened explicitly");
    }

    #[test]
    fn owners_may_end_their_claims_on_a_closed_store() {
        let watch = TransferWatch::default();
        let grant = Grant::from_parts(Owner::random(), Fence::new(7));
        let outcome = Arc::new(Outcome::new("text", "done"));
        let fingerprint = crate::fingerprint::Fingerprint::from_bytes([1; 32]);
        let complete =
            Command::Complete { grant, fingerprint, outcome: Arc::clone(&outcome), retention: None };
        let settle = Command::Settle(Settlement::Done(outcome));
        let refused = [Command::Begin(grant), settle, Command::Forget(Force::Yes), Command::Reexecute];
        let allowed = [
            complete,
            Command::Renew(grant),
            Command::Release(grant),
            Command::Bind(grant),
            Command::Abandon(grant),
        ];
        assert!(refused.iter().all(|command| watch.refusal(command, &"redis:").is_none()), "it is open");
        see(&watch, &moved(), instant());
        for command in &refused {
            let refusal = watch.refusal(command, &"redis:").expect("refused");
            assert_eq!(refusal.kind(), ErrorKind::Moved);
            assert!(refusal.to_string().contains("postgres://db/app"), "{refusal}");
        }
        assert!(allowed.iter().all(|command| watch.refusal(command, &"redis:").is_none()));
    }

    #[test]
    fn a_state_reads_back_and_an_unknown_one_is_an_error() {
        let filling =
            TransferState::Filling { run: TransferRun::random(), from: "embedded:/var/my data".to_owned() };
        for state in [TransferState::Open, filling, moved()] {
            let stored = state.to_stored();
            assert_eq!(TransferState::from_stored(Some(stored.as_bytes())).unwrap(), state);
        }
        assert_eq!(TransferState::from_stored(None).unwrap(), TransferState::Open);
        for unknown in ["", "frozen 0011223344556677 x", "moved 00 x", "moved 0011223344556677"] {
            let error = TransferState::from_stored(Some(unknown.as_bytes())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{unknown}");
        }
    }
}
