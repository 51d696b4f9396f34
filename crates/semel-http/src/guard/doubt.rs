//! What becomes of a key in doubt when it is asked for again: it waits, the upstream is asked, or it is run again.

use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, Response, StatusCode};
use semel::key::KeyId;
use semel::outcome::Outcome;
use semel::record::{Phase, Ruling, Settlement};
use tokio::time::Instant;

use super::admit::Admitted;
use super::read::{Read, read};
use super::{Inner, name_upstream};
use crate::body::Body;
use crate::policy::{Absent, CallTemplate, OnDoubt, Probe, RoutePolicy};
use crate::scope::Scope;
use crate::stored;

/// How long a probe may take.
const PROBE: Duration = Duration::from_secs(10);

/// What became of doubt.
pub(super) enum Settled {
    /// It happened, and this came of it.
    Done(Arc<Outcome>),
    /// It may run.
    Run,
    /// It stays in doubt.
    Not {
        /// When that may change, where it can change by itself.
        retry_after: Option<Duration>,
    },
}

const STAYS: Settled = Settled::Not { retry_after: None };

impl Inner {
    pub(super) async fn settle(
        &self,
        policy: &RoutePolicy,
        admitted: &Admitted,
        headers: &HeaderMap,
    ) -> Settled {
        if policy.on_doubt == OnDoubt::Hold {
            return STAYS;
        }
        let Ok(id) = self.engine.id(&self.key(admitted)).await else { return STAYS };
        match (policy.on_doubt, &policy.probe) {
            (OnDoubt::Probe, Some(probe)) => self.probe(policy, probe, admitted, id, headers).await,
            (OnDoubt::Release, _) => self.release(policy, id).await,
            _ => STAYS,
        }
    }

    /// Runs again what has been in doubt for `in_flight_max` since it was claimed.
    async fn release(&self, policy: &RoutePolicy, id: KeyId) -> Settled {
        let Ok(Some(snapshot)) = self.engine.store().get(id).await else { return STAYS };
        if snapshot.phase() != Phase::InDoubt {
            return Settled::Run;
        }
        let left = snapshot.record.claimed_at.after(policy.terms.in_flight_max).left(snapshot.now);
        if !left.is_zero() {
            return Settled::Not { retry_after: Some(left) };
        }
        tracing::warn!(target: "semel", key = %snapshot.record.hint, "a key in doubt is run again (on_doubt = release)");
        self.settled(id, Settlement::Run).await
    }

    /// Asks the upstream.
    async fn probe(
        &self,
        policy: &RoutePolicy,
        probe: &Probe,
        admitted: &Admitted,
        id: KeyId,
        headers: &HeaderMap,
    ) -> Settled {
        let soon = Settled::Not { retry_after: Some(Duration::from_secs(1)) };
        // One question at a time, however many ask for the key.
        if !self.probing.lock().insert(id) {
            return soon;
        }
        let _asking = Asking { inner: self, id };
        let deadline = Instant::now() + PROBE;
        let call = self.call(policy, &probe.call, &admitted.key, headers);
        let Ok(Some(answer)) = tokio::time::timeout_at(deadline, call).await else { return soon };
        match answer.status() {
            status if status.is_success() => {
                let (parts, body) = answer.into_parts();
                let outcome = match read(body, policy.response_limit, deadline).await {
                    Read::Whole(whole) => stored::keep(
                        parts.status,
                        &parts.headers,
                        &whole.pieces,
                        whole.trailers.as_ref(),
                        &policy.stored_headers,
                    ),
                    Read::Partly(_, stopped) => stored::tombstone(stopped.reason()),
                    Read::Cut(_) => return soon,
                };
                let outcome = Arc::new(outcome);
                match self.settled(id, Settlement::Done(Arc::clone(&outcome))).await {
                    Settled::Run => Settled::Done(outcome),
                    not => not,
                }
            }
            StatusCode::NOT_FOUND if probe.absent == Absent::Run => self.settled(id, Settlement::Run).await,
            _ => STAYS,
        }
    }

    /// Settles, and has the key asked for again.
    async fn settled(&self, id: KeyId, settlement: Settlement) -> Settled {
        match self.engine.settle(id, settlement).await {
            Ok(Ruling::Accepted { .. }) => Settled::Run,
            // Somebody else settled it, or its owner came back.
            Ok(Ruling::Refused { phase }) if phase != Phase::InDoubt => Settled::Run,
            _ => STAYS,
        }
    }

    /// Makes a call of the guard's own, with those headers of the client's that say who asks.
    pub(super) async fn call(
        &self,
        policy: &RoutePolicy,
        call: &CallTemplate,
        key: &str,
        headers: &HeaderMap,
    ) -> Option<Response<Body>> {
        let caller = self.caller.as_ref()?;
        let mut of_client = HeaderMap::new();
        let scope = match policy.scope.as_ref().unwrap_or(&self.scope) {
            Scope::Header(name) if *name != AUTHORIZATION && *name != COOKIE => Some(name.clone()),
            _ => None,
        };
        for name in [AUTHORIZATION, COOKIE].into_iter().chain(scope) {
            for value in headers.get_all(&name) {
                of_client.append(name.clone(), value.clone());
            }
        }
        let mut request = call.request(key, of_client)?;
        name_upstream(&mut request, policy);
        match caller.call(request).await {
            Ok(answer) => Some(answer),
            Err(error) => {
                tracing::warn!(target: "semel", %error, "a call of the gateway's own failed");
                None
            }
        }
    }
}

/// A question that is under way.
struct Asking<'a> {
    inner: &'a Inner,
    id: KeyId,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.inner.probing.lock().remove(&self.id);
    }
}
