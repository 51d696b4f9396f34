//! Claim, then call: for providers that honour no key but can be asked what became of a request.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use semel::engine::{Answer, Attempt, Failure, Once, RunError};
use semel::record::Mode;
use semel::secret::DerivedKey;

/// The id under which a request goes to a provider: fixed by the claim, before anything is sent, and the same on every
/// attempt of its epoch. It is kept in no other place than the record: key id and epoch give it back.
///
/// Displays as 64 hex characters; [`uuid`](Self::uuid) is for providers that want one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReservedId(DerivedKey);

impl ReservedId {
    /// The id of an attempt at `provider`.
    #[must_use]
    pub fn of(attempt: &Attempt, provider: &str) -> Self {
        Self(attempt.derived_key(provider))
    }

    /// The same as a UUID (version 8: its bits are the deployment's own).
    #[must_use]
    pub fn uuid(&self) -> String {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.0.as_bytes()[..16]);
        bytes[6] = 0x80 | (bytes[6] & 0x0f);
        bytes[8] = 0x80 | (bytes[8] & 0x3f);
        let hex = format!("{:032x}", u128::from_be_bytes(bytes));
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

impl fmt::Display for ReservedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ReservedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReservedId({:?})", self.0)
    }
}

/// What a provider knows of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reconciled<T> {
    /// It was done, and this came of it.
    Found(T),
    /// The provider surely has no record of it.
    NoRecord,
    /// The provider could not be asked, or its answer made no sense: a 5xx, the network, a malformed body. The reason is for
    /// people and must hold no key.
    Ambiguous(String),
}

/// Asks a provider what became of a request.
pub trait Reconcile<T>: Send + Sync + 'static {
    /// Looks the request up. It must not change anything, and must answer [`Reconciled::NoRecord`] only where the provider
    /// said so.
    fn find(&self, id: ReservedId) -> impl Future<Output = Reconciled<T>> + Send;
}

impl<T, F, Fut> Reconcile<T> for F
where
    F: Fn(ReservedId) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Reconciled<T>> + Send,
{
    fn find(&self, id: ReservedId) -> impl Future<Output = Reconciled<T>> + Send {
        self(id)
    }
}

/// When a provider is asked before it is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AskPolicy {
    /// On every attempt but the first of a record's life.
    #[default]
    OnRecovery,
    /// On the first too: for stores that may lose a record, and where operators forget keys.
    Always,
}

/// Why a claim-first call has no answer. `E` is the error of the call itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error<E> {
    /// The call failed; its own word on whether anything happened counts.
    #[error("the call failed: {0}")]
    Call(E),
    /// An earlier attempt may have happened and the provider cannot say. Nothing was sent. Ask again later.
    #[error("{provider} cannot say what became of an earlier attempt, so nothing was sent: {reason}")]
    Ambiguous {
        /// Who.
        provider: String,
        /// Why.
        reason: String,
    },
    /// The lookup took longer than the claim is valid. Nothing was sent. Try again.
    #[error("asking {provider} took longer than the claim surely stands, so nothing was sent")]
    OutOfTime {
        /// Who.
        provider: String,
    },
}

impl<E> Error<E> {
    /// Whether the same call may succeed later without anybody repairing anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Call(_))
    }
}

/// Calls one provider claim-first.
///
/// 1. The claim is written, and with it the [`ReservedId`].
/// 2. On recovery the provider is asked for that id. Found: that is the outcome, nothing is sent. No record: go on.
///    Ambiguous: nothing is sent, and the caller gets a transient error.
/// 3. The provider is called with the id.
///
/// The promise is one effect where the provider refuses a second request of the same id. Where it only records ids, an owner
/// that was paused between asking and calling, for longer than its lease, can still act beside its successor.
#[derive(Debug)]
pub struct ClaimFirst<R> {
    provider: Arc<str>,
    reconcile: Arc<R>,
    ask: AskPolicy,
}

impl<R> Clone for ClaimFirst<R> {
    fn clone(&self) -> Self {
        Self { provider: Arc::clone(&self.provider), reconcile: Arc::clone(&self.reconcile), ask: self.ask }
    }
}

impl<R> ClaimFirst<R> {
    /// Calls `provider`, which `reconcile` can ask.
    pub fn new(provider: &str, reconcile: R) -> Self {
        Self { provider: provider.into(), reconcile: Arc::new(reconcile), ask: AskPolicy::default() }
    }

    /// When the provider is asked.
    #[must_use]
    pub fn ask(mut self, ask: AskPolicy) -> Self {
        self.ask = ask;
        self
    }

    /// Makes the call once. It runs in mode `keyed`, whatever `once` says: a lost owner is taken over, and asks.
    ///
    /// As with [`Once::run`], a caller that is dropped changes nothing.
    ///
    /// # Errors
    /// As [`Once::run`]. [`Error::Ambiguous`] comes as [`RunError::Failed`]: it is transient, and the key stays bound to
    /// its payload.
    pub async fn run<T, E, F, Fut>(&self, once: Once, call: F) -> Result<Answer<T>, RunError<Error<E>>>
    where
        R: Reconcile<T>,
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Send + 'static,
        F: FnOnce(ReservedId) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Failure<E>>> + Send + 'static,
    {
        let Self { provider, reconcile, ask } = self.clone();
        once.mode(Mode::Keyed)
            .error()
            .run_with(move |attempt: Attempt| async move {
                let id = ReservedId::of(&attempt, &provider);
                if attempt.number() > 1 || ask == AskPolicy::Always {
                    match reconcile.find(id).await {
                        Reconciled::Found(value) => return Ok(value),
                        Reconciled::NoRecord => {}
                        // This attempt did nothing, so it may say failed: in `keyed` the record stays, and the next one
                        // asks again.
                        Reconciled::Ambiguous(reason) => {
                            let provider = provider.to_string();
                            return Err(Failure::Failed(Error::Ambiguous { provider, reason }));
                        }
                    }
                }
                if attempt.time_left().is_zero() {
                    return Err(Failure::Failed(Error::OutOfTime { provider: provider.to_string() }));
                }
                call(id).await.map_err(|failure| match failure {
                    Failure::Failed(error) => Failure::Failed(Error::Call(error)),
                    Failure::Unknown(error) => Failure::Unknown(Error::Call(error)),
                })
            })
            .await
    }
}
