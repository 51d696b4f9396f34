//! The answer to a tool call whose claim was won: stored if it says that the call had an effect.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap};
use http::{Response, StatusCode};
use semel::engine::Running;
use semel::outcome::Outcome;
use tokio::time::Instant;

use super::super::read::ReadStop;
use super::super::{Answered, Inner, Steering, unprotected};
use super::hear::{Hearing, NoAnswer, Until, read_answer};
use super::live::LiveStream;
use crate::body::Body;
use crate::call::CallError;
use crate::codec::CallForm;
use crate::mcp::McpCall;
use crate::mcp::call::{JudgedAnswer, is_of_one_answer, judge};
use crate::observe::AnswerOutcome;
use crate::policy::RoutePolicy;
use crate::stored;

impl Inner {
    /// Stores the answer if it says that the call had an effect, and returns it. If another outcome is stored already, returns that
    /// one.
    pub(in crate::guard) async fn keep_message(
        self: &Arc<Self>,
        route: Option<usize>,
        call: &Arc<McpCall>,
        running: Running,
        answer: Response<Body>,
        steering: Steering,
        limit: Instant,
    ) -> Answered {
        let policy = &self.route(route).policy;
        let asked = CallForm::Message(Arc::clone(call));
        let id = call.id.as_deref().expect("a call without an id is not admitted");
        let (head, body) = answer.into_parts();
        let error =
            match read_answer(&head.headers, body, id, Until::AnyEvent, policy.response_limit, limit).await {
                Hearing::Heard(heard) => {
                    let (judged, message) = (judge(&heard.message, id), heard.message.clone());
                    let answer = Response::from_parts(head, heard.into_body());
                    if judged != Some(JudgedAnswer::Success) {
                        let own = (unprotected(answer), AnswerOutcome::Released);
                        return self.release_claim(policy, &asked, running, own).await;
                    }
                    let kept = of_message(policy, answer.status(), answer.headers(), message);
                    let steering = self.bounded(policy, steering);
                    return self
                        .conclude(policy, &asked, running, kept, steering, (answer, AnswerOutcome::Ran))
                        .await;
                }
                Hearing::Not(body, NoAnswer::Others) => {
                    return self.go_live(route, call, LiveStream { running, head, body, steering, limit });
                }
                Hearing::Not(body, NoAnswer::TooLarge) => {
                    let answer = (Response::from_parts(head, body), AnswerOutcome::Tombstone);
                    let kept = stored::tombstone(ReadStop::TooLarge.reason());
                    return self.conclude(policy, &asked, running, kept, steering, answer).await;
                }
                Hearing::Not(_, NoAnswer::Late) => CallError::timed_out("no answer within in_flight_max"),
                Hearing::Not(_, NoAnswer::Missing) => {
                    CallError::unknown("the upstream's response is not an answer to the call")
                }
                Hearing::Cut(error) => CallError::unknown(error),
            };
        self.failed(policy, &asked, running, &error).await
    }

    /// Keeps the upstream's retention between the published promise and the profile's maximum.
    pub(in crate::guard) fn bounded(&self, policy: &RoutePolicy, mut steering: Steering) -> Steering {
        if let Some((_, most)) = self.profile.retention_bounds {
            let promised = policy.terms.retention;
            steering.retention = steering.retention.map(|wish| wish.max(promised).min(most));
        }
        steering
    }
}

/// The outcome of a message.
pub(in crate::guard) fn of_message(
    policy: &RoutePolicy,
    status: StatusCode,
    headers: &HeaderMap,
    message: Bytes,
) -> Outcome {
    let mut kept: HeaderMap = headers
        .iter()
        .filter(|(name, _)| !is_of_one_answer(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if let Some(form) = headers.get(CONTENT_TYPE) {
        kept.insert(CONTENT_TYPE, form.clone());
    }
    stored::keep(status, &kept, &[message], None, &policy.stored_headers)
}
