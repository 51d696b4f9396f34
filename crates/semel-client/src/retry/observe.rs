//! Reports the decision after each try to logs and observers.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use super::call::{Call, StoryIds};
use super::policy::Delay;
use super::run::Stop;
use super::signal::Judged;
use semel::key::Hint;

/// One decision: how a try ended, and what is done about it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RetryDecision<'a> {
    /// What was called.
    pub operation: &'a str,
    /// Where, if it has a destination.
    pub destination: Option<&'a str>,
    /// The key's first eight characters.
    pub key: Option<&'a Hint>,
    /// The ids of the action it belongs to.
    pub story: &'a StoryIds,
    /// Which try it was. Zero where none was made.
    pub attempt: u32,
    /// How many there may be.
    pub max_attempts: u32,
    /// How long the try took.
    pub latency: Duration,
    /// How it was judged. None where no try was made.
    pub judged: Option<Judged>,
    /// What is done.
    pub action: RetryAction,
    /// How many retries the destination is granted still.
    pub budget_left: Option<u64>,
    /// How its breaker stands.
    pub breaker: Option<&'static str>,
}

/// What is done after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryAction {
    /// It succeeded.
    Return,
    /// It is tried again after a pause.
    Retry(Delay),
    /// It is given up.
    Stop(Stop),
}

impl RetryDecision<'_> {
    /// What came of it, in one word: `success`, `retry`, or why it was given up.
    #[must_use]
    pub fn outcome(&self) -> &'static str {
        match self.action {
            RetryAction::Return => "success",
            RetryAction::Retry(_) => "retry",
            RetryAction::Stop(stop) => stop.name(),
        }
    }
}

/// Is told every decision, on the path of the call: it must be quick and must not block.
pub trait RetryObserver: Send + Sync + 'static {
    /// A try ended and something was decided.
    fn decided(&self, decision: &RetryDecision<'_>);
}

/// Logs a decision and hands it on.
pub(super) fn report(call: &Call, decision: &RetryDecision<'_>, observer: Option<&dyn RetryObserver>) {
    log(&call.story, decision);
    if let Some(observer) = observer {
        let told = std::panic::catch_unwind(AssertUnwindSafe(|| observer.decided(decision)));
        if told.is_err() {
            tracing::error!(target: "semel", "an observer of retries panicked; retries continue");
        }
    }
}

fn log(story: &StoryIds, decision: &RetryDecision<'_>) {
    let StoryIds {
        request_id,
        trace_id,
        user,
        org,
        run_id,
        event_id,
        delivery_id,
        dlq_id,
        target,
        source,
        event_type,
    } = story;
    let (delay_ms, delay_source) = match decision.action {
        RetryAction::Retry(delay) => (Some(millis(delay.wait)), Some(delay.source.name())),
        RetryAction::Return | RetryAction::Stop(_) => (None, None),
    };
    let status = decision.judged.and_then(|judged| judged.status);
    let class = decision.judged.map(|judged| judged.class());
    let retryable = decision.judged.map(|judged| judged.verdict.is_retryable());
    macro_rules! say {
        ($level:ident) => {
            tracing::$level!(
                target: "semel",
                operation = decision.operation,
                destination = decision.destination,
                outcome = decision.outcome(),
                attempt = decision.attempt,
                max_attempts = decision.max_attempts,
                latency_ms = millis(decision.latency),
                http_status = status,
                class,
                retryable,
                delay_ms,
                delay_source,
                budget_left = decision.budget_left,
                breaker = decision.breaker,
                key = decision.key.map(tracing::field::display),
                request_id = request_id.as_deref(),
                trace_id = trace_id.as_deref(),
                user = user.as_deref(),
                org = org.as_deref(),
                run_id = run_id.as_deref(),
                event_id = event_id.as_deref(),
                delivery_id = delivery_id.as_deref(),
                dlq_id = dlq_id.as_deref(),
                "target" = target.as_deref(),
                source = source.as_deref(),
                event_type = event_type.as_deref(),
                "call",
            )
        };
    }
    match decision.action {
        RetryAction::Return => say!(debug),
        RetryAction::Retry(_) => say!(info),
        RetryAction::Stop(_) => say!(warn),
    }
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
