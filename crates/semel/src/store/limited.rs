//! Limits on the cost of invented keys: a wrapper around any store.
//!
//! A client that can reach a gateway can invent keys and principals. Limits per principal do not bound that, so this
//! store limits the total: the stored bytes, and the rate of new keys. Above a limit it refuses only *new* keys. A
//! known key is claimed, completed, answered and settled as usual, so work in progress ends and retries get their
//! answers.
//!
//! The bytes are measured periodically ([`LimitedStore::measure`]). Between two measurements the store counts the
//! bytes that it passes on, so a flood does not go unnoticed. Nothing is refused before the first measurement.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::forward::{forward_marks, forward_upkeep};
use super::{
    BoxFuture, Durability, Error, ErrorKind, Invalidate, MarkId, MarkStore, Page, Scan, Snapshot, Store,
    Swept, Watch,
};
use crate::key::KeyId;
use crate::record::{Command, Phase, Ruling, Settlement};
use crate::secret::Secret;
use crate::sync::Mutex;
use crate::time::instant;

/// Approximate size of a record without its outcome, indexes included.
const RECORD_BYTES: u64 = 512;
/// When to retry with a full store. Space is freed only when the retention of records ends.
const FULL_RETRY_AFTER: Duration = Duration::from_secs(10);
const RATE_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Limits on new keys. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreLimits {
    /// The maximum size of the stored data. New keys are refused from seven eighths of it on: the rest is for the
    /// outcomes of work in progress.
    pub max_bytes: Option<u64>,
    /// The maximum rate of new keys of all callers together.
    pub new_keys: Option<NewKeyRate>,
}

/// New keys at a rate, with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewKeyRate {
    /// New keys a second.
    pub per_second: u32,
    /// The largest burst of new keys.
    pub burst: u32,
}

impl StoreLimits {
    /// The size from which on new keys are refused.
    pub fn refuse_from(&self) -> Option<u64> {
        self.max_bytes.map(|most| most - most / 8)
    }
}

/// Refuses new keys above a limit, with [`ErrorKind::OverCapacity`] or [`ErrorKind::TooManyNewKeys`].
///
/// Call [`measure`](Self::measure) at least every second if `max_bytes` is set.
pub struct LimitedStore<S: ?Sized = dyn Store> {
    limits: StoreLimits,
    /// The last measurement.
    measured: AtomicU64,
    is_measured: AtomicBool,
    /// Bytes passed on since then.
    added: AtomicU64,
    bucket: Mutex<NewKeyBucket>,
    /// Since when new keys are refused because the store is full.
    full_since: Mutex<Option<Instant>>,
    refused_for_bytes: AtomicU64,
    refused_for_rate: AtomicU64,
    inner: Arc<S>,
}

/// A token bucket. It can go below zero: a claim pays after it has turned out to be new.
#[derive(Clone, Copy)]
struct NewKeyBucket {
    tokens: f64,
    at: Instant,
}

impl NewKeyBucket {
    fn refill(&mut self, rate: NewKeyRate, now: Instant) {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + since * f64::from(rate.per_second)).min(f64::from(rate.burst));
        self.at = now;
    }
}

impl<S: Store + ?Sized> LimitedStore<S> {
    /// Wraps a store.
    pub fn over(inner: Arc<S>, limits: StoreLimits) -> Self {
        let tokens = limits.new_keys.map_or(0.0, |rate| f64::from(rate.burst));
        Self {
            limits,
            measured: AtomicU64::new(0),
            is_measured: AtomicBool::new(false),
            added: AtomicU64::new(0),
            bucket: Mutex::new(NewKeyBucket { tokens, at: instant() }),
            full_since: Mutex::new(None),
            refused_for_bytes: AtomicU64::new(0),
            refused_for_rate: AtomicU64::new(0),
            inner,
        }
    }

    /// Measures the size of the inner store. `None` if it cannot tell; nothing is then refused for its size.
    ///
    /// # Errors
    /// The inner store failed; the last measurement stays valid.
    pub async fn measure(&self) -> Result<Option<u64>, Error> {
        let before = self.added.load(Ordering::Acquire);
        let Some(bytes) = self.inner.used_bytes().await? else { return Ok(None) };
        self.measured.store(bytes, Ordering::Release);
        self.is_measured.store(true, Ordering::Release);
        // Bytes passed on before the measurement are part of it.
        self.added.fetch_sub(before, Ordering::AcqRel);
        self.log_change(bytes);
        Ok(Some(bytes))
    }

    /// The limits.
    pub fn limits(&self) -> &StoreLimits {
        &self.limits
    }

    /// Size of the stored data: the last measurement plus the bytes passed on since. `None` before the first
    /// measurement.
    pub fn bytes(&self) -> Option<u64> {
        let is_measured = self.is_measured.load(Ordering::Acquire);
        is_measured.then(|| self.measured.load(Ordering::Acquire) + self.added.load(Ordering::Acquire))
    }

    /// True if new keys are currently refused because the store has reached `max_bytes`.
    pub fn is_full(&self) -> bool {
        matches!((self.bytes(), self.limits.refuse_from()), (Some(bytes), Some(most)) if bytes >= most)
    }

    /// Number of new keys refused because the store has reached `max_bytes`.
    pub fn refused_for_bytes(&self) -> u64 {
        self.refused_for_bytes.load(Ordering::Relaxed)
    }

    /// Number of new keys refused because of their rate.
    pub fn refused_for_rate(&self) -> u64 {
        self.refused_for_rate.load(Ordering::Relaxed)
    }

    /// The inner store.
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// Logs the first refusal and the end of refusals, so that a flood does not fill the log.
    fn log_change(&self, bytes: u64) {
        let mut since = self.full_since.lock();
        let max_bytes = self.limits.max_bytes.unwrap_or_default();
        match (self.is_full(), *since) {
            (true, None) => {
                *since = Some(instant());
                tracing::warn!(
                    target: "semel", store = %self.inner, bytes, max_bytes,
                    "the store has reached its limit: new keys are refused, known keys are served; raise max_bytes or \
                     shorten the retention"
                );
            }
            (false, Some(began)) => {
                *since = None;
                let seconds = instant().saturating_duration_since(began).as_secs();
                let refused = self.refused_for_bytes();
                tracing::info!(target: "semel", store = %self.inner, bytes, seconds, refused, "the store accepts new keys again");
            }
            (true, Some(_)) | (false, None) => {}
        }
    }

    /// Why no new key is accepted now.
    fn refusal(&self) -> Option<ErrorKind> {
        if self.is_full() {
            return Some(ErrorKind::OverCapacity);
        }
        let rate = self.limits.new_keys?;
        let mut bucket = self.bucket.lock();
        bucket.refill(rate, instant());
        (bucket.tokens < 1.0).then_some(ErrorKind::TooManyNewKeys)
    }

    fn refuse(&self, kind: ErrorKind) -> Error {
        if kind == ErrorKind::OverCapacity {
            self.refused_for_bytes.fetch_add(1, Ordering::Relaxed);
            return Error::new(kind, "the store has reached max_bytes: it accepts no new keys now")
                .with_retry_after(FULL_RETRY_AFTER);
        }
        self.refused_for_rate.fetch_add(1, Ordering::Relaxed);
        Error::new(kind, "the rate of new keys is above the limit (new_keys)")
            .with_retry_after(RATE_RETRY_AFTER)
    }

    async fn claim(&self, id: KeyId, command: Command) -> Result<Ruling, Error> {
        if let Some(kind) = self.refusal() {
            let found = self.inner.get(id).await?;
            if found.is_none_or(|snapshot| snapshot.phase() == Phase::Vacant) {
                return Err(self.refuse(kind));
            }
        }
        let ruling = self.inner.apply(id, command).await?;
        if let Ruling::Won(win) = &ruling
            && win.attempt == 1
        {
            self.added.fetch_add(RECORD_BYTES, Ordering::AcqRel);
            if self.limits.new_keys.is_some() {
                self.bucket.lock().tokens -= 1.0;
            }
        }
        Ok(ruling)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: Store + ?Sized> Store for LimitedStore<S> {
    fn apply(&self, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>> {
        match &command {
            Command::Claim(_) => return Box::pin(self.claim(id, command)),
            Command::Complete { outcome, .. }
            | Command::Settle(Settlement::Done(outcome))
            | Command::SettleAttempt(_, Settlement::Done(outcome)) => {
                self.added.fetch_add(outcome.size() as u64, Ordering::AcqRel);
            }
            _ => {}
        }
        self.inner.apply(id, command)
    }

    fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        self.inner.get(id)
    }

    fn scan(&self, query: Scan) -> BoxFuture<'_, Result<Page, Error>> {
        self.inner.scan(query)
    }

    forward_upkeep!();
}

forward_marks!(LimitedStore);

impl<S: Store + ?Sized> fmt::Debug for LimitedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedStore")
            .field("limits", &self.limits)
            .field("bytes", &self.bytes())
            .field("inner", &&*self.inner)
            .finish()
    }
}

impl<S: Store + ?Sized> fmt::Display for LimitedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::Fingerprint;
    use crate::key::Hint;
    use crate::outcome::Outcome;
    use crate::record::{Begin, NewClaim, Owner, Terms};
    use crate::store::MemoryStore;

    fn id(number: u64) -> KeyId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        bytes[8..].copy_from_slice(&number.to_be_bytes());
        KeyId::from_bytes(bytes)
    }

    fn claim() -> Command {
        Command::Claim(NewClaim {
            owner: Owner::random(),
            fingerprint: Fingerprint::from_bytes([1; 32]),
            terms: Arc::new(Terms::default()),
            begin: Begin::WithClaim,
            hint: Hint::default(),
        })
    }

    fn store(limits: StoreLimits) -> LimitedStore<MemoryStore> {
        LimitedStore::over(Arc::new(MemoryStore::new()), limits)
    }

    async fn won(store: &LimitedStore<MemoryStore>, number: u64) -> crate::record::Win {
        match store.apply(id(number), claim()).await {
            Ok(Ruling::Won(win)) => win,
            other => panic!("expected a win, got {other:?}"),
        }
    }

    // Work in progress ends, its outcome is given again, and only unknown keys are refused.
    #[tokio::test]
    async fn beyond_max_bytes_only_new_keys_are_refused() {
        let store = store(StoreLimits { max_bytes: Some(1 << 20), new_keys: None });
        let in_flight = won(&store, 0).await;
        store.measure().await.unwrap();
        let mut taken = 1;
        let refused = loop {
            match store.apply(id(taken), claim()).await {
                Ok(_) => taken += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(
            (refused.kind(), refused.retry_after()),
            (ErrorKind::OverCapacity, Some(FULL_RETRY_AFTER))
        );
        assert!((1_000..2_000).contains(&taken), "{taken} records of about {RECORD_BYTES} bytes");
        assert!(store.is_full() && store.refused_for_bytes() == 1);

        let outcome = Arc::new(Outcome::new("text", vec![b'x'; 100_000]));
        let fingerprint = Fingerprint::from_bytes([1; 32]);
        let complete = Command::Complete { grant: in_flight.grant, fingerprint, outcome, retention: None };
        assert!(matches!(store.apply(id(0), complete).await.unwrap(), Ruling::Accepted { .. }));
        assert!(matches!(store.apply(id(0), claim()).await.unwrap(), Ruling::Replay { .. }));
        assert!(matches!(store.apply(id(1), claim()).await.unwrap(), Ruling::Busy { .. }));

        // A smaller measurement admits new keys again.
        let measured = store.measure().await.unwrap().unwrap();
        assert!(measured < 1 << 20, "{measured}");
        assert_eq!(store.bytes(), Some(measured));
    }

    #[tokio::test]
    async fn new_keys_beyond_the_rate_are_refused_and_known_ones_are_not() {
        let rate = NewKeyRate { per_second: 1, burst: 10 };
        let store = store(StoreLimits { max_bytes: None, new_keys: Some(rate) });
        for number in 0..10 {
            won(&store, number).await;
        }
        let refused = store.apply(id(11), claim()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooManyNewKeys);
        assert!(refused.is_retryable() && refused.retry_after().is_some());
        assert!(matches!(store.apply(id(3), claim()).await.unwrap(), Ruling::Busy { .. }));
        assert_eq!((store.refused_for_rate(), store.refused_for_bytes()), (1, 0));
    }

    #[tokio::test]
    async fn an_engine_over_a_full_store_is_healthy() {
        let store = Arc::new(store(StoreLimits { max_bytes: Some(1), new_keys: None }));
        won(&store, 1).await;
        store.measure().await.unwrap();
        assert!(store.is_full());
        let engine = crate::Engine::builder(store).build().unwrap();
        engine.verify(1).await.unwrap();
    }
}
