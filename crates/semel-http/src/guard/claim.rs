//! Claims the key of a request, and answers requests whose claim is not won.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, StatusCode};
use semel::engine::{Acquired, Claim, RunError};
use semel::key::{Key, Origin};
use semel::outcome::Outcome;
use semel::record::Phase;
use semel::store::ErrorKind;

use super::admit::Admitted;
use super::doubt::SettleResult;
use super::{Answered, GuardedRoute, Inner, StoreError, replayed, unprotected};
use crate::codec::CallForm;
use crate::key_source::KeySource;
use crate::limits::BudgetKind;
use crate::observe::AnswerOutcome;
use crate::policy::RoutePolicy;
use crate::problem::{Problem, Situation};
use crate::scope::Principal;
use crate::stored::{self, Replay};

const REQUEST_ID: &str = "x-request-id";
/// Maximum stored length of a request id, in bytes.
const MOST_REQUEST_ID: usize = 128;
/// Namespace of the hashes that name callers.
const CALLERS: &str = "semel callers";
/// Length of the name of a caller.
const CALLER: usize = 8;
/// Timeout for the check of a credential.
const VERIFY: Duration = Duration::from_secs(10);

/// The result of a claim.
pub(super) enum Claimed {
    /// The claim was won: run the call.
    Won(Claim),
    /// The key was in doubt and is not any more: claim again.
    Again,
    /// Another request runs or ran the effect, or nobody may run it.
    Answer(Answered),
    /// The store is unavailable.
    StoreAway(StoreError),
}

impl Inner {
    /// The key of a request.
    pub(super) fn key(&self, admitted: &Admitted) -> Key {
        let Admitted { principal, account, key, .. } = admitted;
        Principal::key(principal.as_ref(), account.as_ref(), &self.namespace, key)
    }

    /// The request as its record shows it, without the key: a path that contains it is replaced by the pattern of the route, and a
    /// header that is both key and request id is left out.
    pub(super) fn origin(&self, policy: &RoutePolicy, admitted: &Admitted, parts: &Parts) -> Origin {
        let path = parts.uri.path();
        let has_key = matches!(policy.key, KeySource::Route(_)) || path.contains(&admitted.key);
        let pattern = has_key.then(|| policy.pattern().to_string());
        let path = pattern.as_deref().map_or(path, |pattern| pattern.rsplit(' ').next().unwrap_or_default());
        // Hashed under the deployment's secret: a weak credential could be guessed from its plain hash.
        let caller = admitted.principal.as_ref().and_then(|principal| {
            let caller = Principal::key(Some(principal), None, CALLERS, "caller");
            self.engine.id_at_hand(&caller).map(|id| id.to_string())
        });
        let caller = caller.as_deref().and_then(|id| id.get(..CALLER));
        let request_id = request_id(&parts.headers).filter(|id| !id.contains(&admitted.key));
        Origin::new(parts.method.as_str(), path, request_id, caller)
    }

    /// Claims the key. Returns the answer if the claim is not won.
    pub(super) async fn claim(
        self: &Arc<Self>,
        route: &GuardedRoute,
        admitted: &Admitted,
        origin: &Origin,
        headers: &HeaderMap,
    ) -> Claimed {
        let (policy, asked) = (&route.policy, &admitted.asked);
        let budgeted = match self.within_budget(route, admitted).await {
            Ok(budgeted) => budgeted,
            Err(claimed) => return claimed,
        };
        let once = self.engine.once(self.key(admitted)).payload(admitted.payload);
        let terms = asked.terms().unwrap_or(&route.terms);
        let once = once.terms(Arc::clone(terms)).origin(origin.clone());
        let once = match request_id(headers) {
            Some(id) => once.request_id(id),
            None => once,
        };
        let acquired = match once.wait(policy.wait()).claim().await {
            Ok(acquired) => acquired,
            Err(error) => return self.failed_claim(policy, asked, error),
        };
        if let (Budgeted::Write, Some(limiter)) = (budgeted, &route.limiter)
            && !matches!(acquired, Acquired::Won(_))
        {
            let principal = admitted.principal.as_ref();
            limiter.give_back_write(principal);
            if let Err(after) = limiter.take(principal, BudgetKind::Reads) {
                return Claimed::Answer(self.limited(policy, asked, after));
            }
        }
        match acquired {
            Acquired::Won(claim) => {
                let scope = policy.scope.as_ref().unwrap_or(&self.scope);
                let request = (admitted.key.as_str(), admitted.payload);
                if self.rotation.first_run(scope, admitted.principal.as_ref(), request) {
                    self.observers.iter().for_each(|observer| observer.credential_rotated());
                }
                Claimed::Won(claim)
            }
            Acquired::Replay(outcome) => {
                Claimed::Answer(self.replay_to(policy, asked, &outcome, headers).await)
            }
            Acquired::InDoubt => match Box::pin(self.settle(policy, admitted, headers)).await {
                SettleResult::ClaimAgain => Claimed::Again,
                SettleResult::Not { retry_after } => {
                    let problem = Problem { retry_after, ..Situation::InDoubt.into() };
                    Claimed::Answer(self.refuse(policy, asked, &problem))
                }
            },
            other => Claimed::Answer(self.tell(policy, asked, other)),
        }
    }

    /// The answer for a claim that was not won.
    pub(super) fn tell(&self, policy: &RoutePolicy, asked: &CallForm, acquired: Acquired) -> Answered {
        let problem = match acquired {
            Acquired::Replay(outcome) => return self.replay(policy, asked, &outcome),
            Acquired::Conflict => Situation::Conflict.into(),
            Acquired::InFlight { retry_after } => Problem::from(Situation::InFlight).retry_after(retry_after),
            Acquired::InDoubt => Situation::InDoubt.into(),
            Acquired::Expired => Situation::Expired.into(),
            Acquired::TooManyWaiters { retry_after } => return self.limited(policy, asked, retry_after),
            // The other variants are claims that nobody runs. Dropping them releases them.
            _ => Problem::from(Situation::InFlight).retry_after(super::STORE_AWAY),
        };
        self.refuse(policy, asked, &problem)
    }

    /// Answers from the record.
    fn replay(&self, policy: &RoutePolicy, asked: &CallForm, outcome: &Arc<Outcome>) -> Answered {
        let reason = match stored::replay(outcome) {
            Replay::Answer(kept) => match asked.replay(kept) {
                Some(answer) => return (replayed(answer), AnswerOutcome::Replayed),
                None => "the stored outcome is not an answer to this kind of call".to_owned(),
            },
            Replay::NotKept(reason) => reason,
        };
        let detail = format!("{}; {reason}", Situation::OutcomeNotKept.detail());
        self.refuse(policy, asked, &Problem::new(Situation::OutcomeNotKept, detail))
    }

    /// Answers from the record after checking the credential, if the route requires the check (`reauthorise_replay`).
    async fn replay_to(
        &self,
        policy: &RoutePolicy,
        asked: &CallForm,
        outcome: &Arc<Outcome>,
        headers: &HeaderMap,
    ) -> Answered {
        let Some(verify) = &policy.verify else { return self.replay(policy, asked, outcome) };
        let call = Box::pin(self.call(policy, verify, "", headers));
        match tokio::time::timeout(VERIFY, call).await {
            Ok(Some(answer)) if answer.status().is_success() => self.replay(policy, asked, outcome),
            Ok(Some(answer))
                if matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) =>
            {
                (unprotected(answer), AnswerOutcome::VerifyRefused)
            }
            _ => {
                let problem = Problem::from(Situation::VerifyUnavailable).retry_after(super::STORE_AWAY);
                self.refuse(policy, asked, &problem)
            }
        }
    }

    fn limited(&self, policy: &RoutePolicy, asked: &CallForm, after: Duration) -> Answered {
        self.refuse(policy, asked, &Problem::from(Situation::RateLimited).retry_after(after))
    }

    /// Checks the principal's budget for new keys. Without budget, only a known key is answered.
    async fn within_budget(&self, route: &GuardedRoute, admitted: &Admitted) -> Result<Budgeted, Claimed> {
        let Some(limiter) = &route.limiter else { return Ok(Budgeted::No) };
        let principal = admitted.principal.as_ref();
        let Err(after) = limiter.take(principal, BudgetKind::Writes) else { return Ok(Budgeted::Write) };
        let refused = |after| Claimed::Answer(self.limited(&route.policy, &admitted.asked, after));
        limiter.take(principal, BudgetKind::Reads).map_err(refused)?;
        match Box::pin(self.engine.get(&self.key(admitted))).await {
            Ok(Some(snapshot)) if snapshot.phase() != Phase::Vacant => Ok(Budgeted::Read),
            Ok(_) => Err(refused(after)),
            Err(error) => Err(self.failed_claim(&route.policy, &admitted.asked, error)),
        }
    }

    fn failed_claim(
        &self,
        policy: &RoutePolicy,
        asked: &CallForm,
        error: RunError<std::convert::Infallible>,
    ) -> Claimed {
        match error {
            // The store works. If the request were passed on unprotected here, a flood of requests could switch the protection off.
            RunError::Store(error) if error.is_over_limit() => {
                let situation = match error.kind() {
                    ErrorKind::TooManyNewKeys => Situation::RateLimited,
                    _ => Situation::StoreUnavailable,
                };
                let after = error.retry_after().unwrap_or(super::STORE_AWAY);
                let detail = format!("{error}; {}", situation.detail());
                let problem = Problem::new(situation, detail).retry_after(after);
                Claimed::Answer(self.refuse(policy, asked, &problem))
            }
            RunError::Store(error) => Claimed::StoreAway(error),
            RunError::Key(error) => {
                let problem = Problem::new(Situation::KeyMalformed, error.to_string());
                Claimed::Answer(self.refuse(policy, asked, &problem))
            }
            error => {
                tracing::error!(target: "semel", %error, "claim failed with an error that the validated policy excludes");
                let problem = Problem::from(Situation::StoreUnavailable).retry_after(super::STORE_AWAY);
                Claimed::Answer(self.refuse(policy, asked, &problem))
            }
        }
    }
}

/// The request id from the headers.
pub(super) fn request_id(headers: &HeaderMap) -> Option<&str> {
    headers.get(REQUEST_ID)?.to_str().ok().filter(|id| (1..=MOST_REQUEST_ID).contains(&id.len()))
}

/// The budget that a claim was counted against.
enum Budgeted {
    No,
    Write,
    Read,
}
