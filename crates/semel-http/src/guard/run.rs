//! Runs a request whose claim was won, in a task of its own, and writes the result to its record.

use std::sync::Arc;

use http::Response;
use semel::engine::{Claim, Concluded, NotBegun, Running};
use tokio::time::Instant;

use super::forward::ForwardedCall;
use super::read::{Read, ReadStop, Resumed, is_event_stream, read, within};
use super::{AnswerBody, Answered, Callee, Inner, Steering, StoreError, unprotected};
use crate::body::Body;
use crate::call::{CallError, CallFate};
use crate::capacity::CallPlace;
use crate::codec::CallForm;
use crate::observe::{AnswerOutcome, CallFailure};
use crate::policy::{RoutePolicy, StatusVerdict};
use crate::problem::{Problem, Situation};
use crate::stored;

/// The result of running a claim.
pub(super) enum RunResult<S> {
    Answered(Answered),
    /// The claim was lost before the call began. Carries the call for another claim, and the store error if that was the reason.
    NotStarted(Box<ForwardedCall<S>>, Option<StoreError>),
}

impl Inner {
    /// Begins, calls, reads, and stores, releases or abandons. Continues to the end after the client has disconnected.
    pub(super) async fn run<S, R>(
        self: Arc<Self>,
        route: Option<usize>,
        asked: CallForm,
        claim: Claim,
        // Boxed, because the whole future is moved into its task.
        mut call: Box<ForwardedCall<S>>,
        // Held until everything is written and the answer has been streamed.
        place: CallPlace,
    ) -> RunResult<S>
    where
        S: Callee<R>,
        R: AnswerBody,
    {
        let policy = &self.route(route).policy;
        if policy.sends_derived_key() {
            let key = claim.attempt().derived_key(&policy.derived.provider);
            call.put_derived_key(policy, &self.profile.key_header, &key);
        }
        let running = match claim.begin().await {
            Ok(running) => running,
            Err(not) => {
                let error = match not {
                    NotBegun::Store(error) => Some(error),
                    _ => None,
                };
                return RunResult::NotStarted(call, error);
            }
        };
        let limit = Instant::from_std(running.limit());
        let ForwardedCall { mut service, request, .. } = *call;
        // No value of the service's error type lives across the next await, because it need not be `Send`.
        let called = match within(limit, service.call(request)).await {
            Some(called) => called.map_err(|error| CallError::from_any(error.into())),
            None => Err(CallError::timed_out("no answer within in_flight_max")),
        };
        let answer = match called {
            Ok(answer) => answer,
            Err(error) => {
                return RunResult::Answered(Box::pin(self.failed(policy, &asked, running, &error)).await);
            }
        };
        let mut answer = answer.map(|body| Body::stream(body).holding(place.clone()));
        let steering = Steering::take(answer.headers_mut());
        RunResult::Answered(match policy.verdict(answer.status()) {
            StatusVerdict::Keep if !steering.discard => match &asked {
                CallForm::Request => self.keep(policy, running, answer, steering, limit).await,
                #[cfg(feature = "mcp")]
                CallForm::Message(call) => {
                    Box::pin(self.keep_message(route, call, running, answer, steering, limit)).await
                }
            },
            StatusVerdict::Keep | StatusVerdict::Release => {
                let own = (unprotected(answer), AnswerOutcome::Released);
                self.release_claim(policy, &asked, running, own).await
            }
            StatusVerdict::Doubt => {
                let own = (unprotected(answer), AnswerOutcome::Doubtful);
                self.abandon_claim(policy, &asked, running, own).await
            }
        })
    }

    /// Releases a claim whose call left no outcome and answers with `own`. If the store refuses the release, answers from the record.
    pub(super) async fn release_claim(
        &self,
        policy: &RoutePolicy,
        asked: &CallForm,
        running: Running,
        own: Answered,
    ) -> Answered {
        match running.release_or_follow(policy.wait()).await {
            None => own,
            Some(instead) => self.tell(policy, asked, instead),
        }
    }

    /// Abandons a claim whose call may have had an effect. If the store refuses, answers from the record.
    async fn abandon_claim(
        &self,
        policy: &RoutePolicy,
        asked: &CallForm,
        running: Running,
        own: Answered,
    ) -> Answered {
        match running.abandon_or_follow(policy.wait()).await {
            None => own,
            Some(instead) => self.tell(policy, asked, instead),
        }
    }

    /// Stores an answer and returns it. If another outcome is stored already, returns that one.
    async fn keep(
        self: &Arc<Self>,
        policy: &RoutePolicy,
        running: Running,
        answer: Response<Body>,
        steering: Steering,
        limit: Instant,
    ) -> Answered {
        let (parts, body) = answer.into_parts();
        let read = if is_event_stream(&parts.headers) {
            Read::Partly(Resumed::unread(body), ReadStop::Streaming)
        } else {
            read(body, policy.response_limit, limit).await
        };
        let (outcome, body, word) = match read {
            Read::Whole(whole) => {
                let (data, trailers) = whole.join();
                let pieces = std::slice::from_ref(&data);
                let rule = &policy.stored_headers;
                let kept = stored::keep(parts.status, &parts.headers, pieces, trailers.as_ref(), rule);
                let is_refusal = parts.status.is_client_error() || parts.status.is_server_error();
                let (kept, word) = if is_refusal && kept.size() > policy.refusal_limit {
                    (stored::large_refusal(parts.status, kept.size()), AnswerOutcome::Tombstone)
                } else {
                    (kept, AnswerOutcome::Ran)
                };
                (kept, Body::with_trailers(data, trailers), word)
            }
            Read::Partly(rest, stopped) => {
                (stored::tombstone(stopped.reason()), rest.into_body(), AnswerOutcome::Tombstone)
            }
            Read::Cut(error) => {
                let error = CallError::unknown(error);
                return Box::pin(self.failed(policy, &CallForm::Request, running, &error)).await;
            }
        };
        let answer = Response::from_parts(parts, body);
        self.conclude(policy, &CallForm::Request, running, outcome, steering, (answer, word)).await
    }

    /// Writes the outcome and returns the stored answer.
    pub(super) async fn conclude(
        &self,
        policy: &RoutePolicy,
        asked: &CallForm,
        running: Running,
        outcome: semel::outcome::Outcome,
        steering: Steering,
        (answer, word): Answered,
    ) -> Answered {
        // Before the client gets the first byte: a client that has seen an answer can rely on it.
        match running.complete_or_follow(&Arc::new(outcome), steering.retention, policy.wait()).await {
            Concluded::Kept if word == AnswerOutcome::Ran => (answer, word),
            Concluded::Kept => (unprotected(answer), word),
            Concluded::Instead(acquired) => self.tell(policy, asked, acquired),
            _ => (unprotected(answer), AnswerOutcome::NotStored),
        }
    }

    /// Handles a call without an answer: releases the claim if the request was not delivered, abandons it otherwise. If the store
    /// refuses, answers from the record.
    pub(super) async fn failed(
        &self,
        policy: &RoutePolicy,
        asked: &CallForm,
        running: Running,
        error: &CallError,
    ) -> Answered {
        tracing::warn!(target: "semel", %error, "guarded call failed");
        match error.fate() {
            CallFate::Undelivered => {
                let problem =
                    Problem { status: Some(error.status()), ..Situation::UpstreamUnreachable.into() };
                let own = self.refuse(policy, asked, &problem);
                self.release_claim(policy, asked, running, own).await
            }
            CallFate::Unknown => {
                let mut own = self.unknown(policy, asked, error.status());
                own.0.extensions_mut().insert(CallFailure(error.to_string().into()));
                self.abandon_claim(policy, asked, running, own).await
            }
        }
    }
}
