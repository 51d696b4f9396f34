//! Handles a request whose key is in doubt: it waits, probes the upstream, or executes the key again.

use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Response, StatusCode};
use semel::key::KeyId;
use semel::record::{Phase, Ruling, Settlement};
use tokio::time::Instant;

use super::admit::Admitted;
use super::read::{Read, read};
use super::{Inner, name_upstream};
use crate::body::Body;
use crate::policy::{ACCOUNT_HEADERS, Absent, CallTemplate, OnDoubt, Probe, RoutePolicy};
use crate::stored;

/// Timeout of a probe.
const PROBE: Duration = Duration::from_secs(10);

/// The result of handling a key in doubt.
pub(super) enum SettleResult {
    /// The key is no longer in doubt. Claim it again and answer from the store.
    ///
    /// No variant carries the result of the probe. Another gateway may have settled the key first, or its owner may have completed
    /// during the probe; only the store knows which outcome is stored.
    ClaimAgain,
    /// The key stays in doubt.
    Not {
        /// When to retry, if the key can leave doubt without an operator.
        retry_after: Option<Duration>,
    },
}

const STAYS: SettleResult = SettleResult::Not { retry_after: None };
/// The key stays in doubt because of a temporary failure.
const SOON: SettleResult = SettleResult::Not { retry_after: Some(Duration::from_secs(1)) };

impl Inner {
    pub(super) async fn settle(
        &self,
        policy: &RoutePolicy,
        admitted: &Admitted,
        headers: &HeaderMap,
    ) -> SettleResult {
        if policy.on_doubt == OnDoubt::Hold {
            return STAYS;
        }
        let Ok(id) = self.engine.id(&self.key(admitted)).await else { return SOON };
        match (policy.on_doubt, &policy.probe) {
            (OnDoubt::Probe, Some(probe)) => self.probe(policy, probe, admitted, id, headers).await,
            (OnDoubt::Release, _) => self.release(id).await,
            _ => STAYS,
        }
    }

    /// Executes a key again once `in_flight_max` has passed since its claim.
    async fn release(&self, id: KeyId) -> SettleResult {
        let snapshot = match self.engine.store().get(id).await {
            Ok(Some(snapshot)) if snapshot.phase() == Phase::InDoubt => snapshot,
            Ok(_) => return SettleResult::ClaimAgain,
            Err(_) => return SOON,
        };
        let record = &snapshot.record;
        let left = record.claimed_at.after(record.terms.in_flight_max).left(snapshot.now);
        if !left.is_zero() {
            return SettleResult::Not { retry_after: Some(left) };
        }
        tracing::warn!(target: "semel", key = %snapshot.record.hint, "key in doubt is executed again (on_doubt = release)");
        self.write_settlement(id, Settlement::Run).await
    }

    /// Probes the upstream.
    async fn probe(
        &self,
        policy: &RoutePolicy,
        probe: &Probe,
        admitted: &Admitted,
        id: KeyId,
        headers: &HeaderMap,
    ) -> SettleResult {
        // At most one probe per key, however many requests wait for it.
        if !self.probing.lock().insert(id) {
            return SOON;
        }
        let _asking = Asking { inner: self, id };
        let deadline = Instant::now() + PROBE;
        let call = self.call(policy, &probe.call, &admitted.key, headers);
        let Ok(Some(answer)) = tokio::time::timeout_at(deadline, call).await else { return SOON };
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
                    Read::Cut(_) => return SOON,
                };
                self.write_settlement(id, Settlement::Done(Arc::new(outcome))).await
            }
            StatusCode::NOT_FOUND if probe.absent == Absent::Run => {
                self.write_settlement(id, Settlement::Run).await
            }
            _ => STAYS,
        }
    }

    /// Writes a settlement. The store decides which outcome stands, whether it accepts the settlement or not.
    async fn write_settlement(&self, id: KeyId, settlement: Settlement) -> SettleResult {
        match self.engine.settle(id, settlement).await {
            Ok(Ruling::Accepted { .. }) => SettleResult::ClaimAgain,
            // Another gateway or an operator settled the key, or its owner completed.
            Ok(Ruling::Refused { phase }) if phase != Phase::InDoubt => SettleResult::ClaimAgain,
            Ok(_) => STAYS,
            Err(error) => {
                if error.is_logged() {
                    tracing::debug!(target: "semel", %error, "cannot settle a key in doubt");
                } else {
                    tracing::warn!(target: "semel", %error, "cannot settle a key in doubt");
                }
                SOON
            }
        }
    }

    /// Makes one of the guard's own calls, with the client's headers that identify the caller.
    pub(super) async fn call(
        &self,
        policy: &RoutePolicy,
        call: &CallTemplate,
        key: &str,
        headers: &HeaderMap,
    ) -> Option<Response<Body>> {
        let caller = self.caller.as_ref()?;
        let mut of_client = HeaderMap::new();
        let scope = policy.scope.as_ref().unwrap_or(&self.scope);
        // Without the account header the upstream would answer for another account.
        for name in [AUTHORIZATION].iter().chain(&ACCOUNT_HEADERS).chain(scope.headers()) {
            if of_client.contains_key(name) {
                continue;
            }
            for value in headers.get_all(name) {
                of_client.append(name.clone(), value.clone());
            }
        }
        let mut request = call.request(key, of_client)?;
        name_upstream(&mut request, policy);
        match caller.call(request).await {
            Ok(answer) => Some(answer),
            Err(error) => {
                tracing::warn!(target: "semel", %error, "a call made by the gateway failed");
                None
            }
        }
    }
}

/// Marks a probe as in progress until it is dropped.
struct Asking<'a> {
    inner: &'a Inner,
    id: KeyId,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.inner.probing.lock().remove(&self.id);
    }
}
