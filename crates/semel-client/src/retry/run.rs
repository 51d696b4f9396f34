//! Runs an operation until it succeeds, may not be repeated, or is out of attempts, time or budget.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::call::Call;
use super::destination::{Admit, Permit};
use super::observe::{RetryAction, RetryDecision, report};
use super::policy::{Delay, DelaySource, Retry};
use super::signal::{Judged, Signal, TryFate, Verdict};
use semel::engine::Failure;

/// What an operation is told about a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Try {
    /// 1 for the first.
    pub number: u32,
    /// How many there may be.
    pub max: u32,
    /// How long this one may take before it is cancelled.
    pub timeout: Duration,
}

/// How a try ended, for operations that keep the time themselves.
#[derive(Debug)]
pub(crate) enum TryResult<T, E> {
    Done(T, Judged),
    Failed(E),
    TimedOut,
}

/// Why an operation was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// It failed for good.
    Fatal,
    /// Nobody knows whether it happened, and it must not be repeated.
    Unknown,
    /// Every attempt was used up.
    Exhausted,
    /// The total time is over, or no pause would fit into it.
    Deadline,
    /// The server wants to be asked again later than anybody waits for. See [`Error::retry_after`].
    Later,
    /// The destination's budget for retries is spent.
    Budget,
    /// The destination's breaker is open. See [`Error::retry_after`].
    Open,
}

impl Stop {
    /// Its name in logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fatal => "fatal",
            Self::Unknown => "unknown",
            Self::Exhausted => "exhausted",
            Self::Deadline => "deadline",
            Self::Later => "later",
            Self::Budget => "budget",
            Self::Open => "open",
        }
    }
}

/// An operation that was given up. `E` is the operation's own error.
#[derive(Debug)]
#[non_exhaustive]
pub struct Error<E> {
    /// Why it was given up.
    pub stop: Stop,
    /// The error of the last try. None where that was cancelled at its timeout, or none was made.
    pub last: Option<E>,
    /// How many tries were made.
    pub attempts: u32,
    /// When to come back, where the server or the breaker said so.
    pub retry_after: Option<Duration>,
    /// Whether the effect happened, all tries taken together.
    pub fate: TryFate,
}

impl<E> Error<E> {
    /// Whether the same call, with the same key, may succeed later without anybody repairing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        !matches!(self.stop, Stop::Fatal | Stop::Unknown)
    }

    /// The engine's word for it: [`Failure::Failed`] only where surely nothing happened.
    #[must_use]
    pub fn into_failure(self) -> Failure<Self> {
        match self.fate {
            TryFate::Undone => Failure::Failed(self),
            TryFate::Unknown | TryFate::Done => Failure::Unknown(self),
        }
    }
}

impl<E, F: From<Error<E>>> From<Error<E>> for Failure<F> {
    fn from(error: Error<E>) -> Self {
        match error.into_failure() {
            Failure::Failed(error) => Self::Failed(error.into()),
            Failure::Unknown(error) => Self::Unknown(error.into()),
        }
    }
}

impl<E> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempts, .. } = self;
        match self.stop {
            Stop::Fatal => write!(f, "failed for good at attempt {attempts}"),
            Stop::Unknown => {
                write!(
                    f,
                    "nobody knows whether attempt {attempts} took effect, and without a key it is not repeated"
                )
            }
            Stop::Exhausted => write!(f, "failed in all {attempts} attempts"),
            Stop::Deadline => write!(f, "out of time after {attempts} attempts"),
            Stop::Later => write!(f, "the server asked to be left alone for longer than there is time"),
            Stop::Budget => write!(f, "not tried again after {attempts} attempts: the retry budget is spent"),
            Stop::Open => write!(f, "not tried: the destination does not answer at present"),
        }?;
        match self.retry_after {
            Some(after) => write!(f, "; come back in {after:?}"),
            None => Ok(()),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Error<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.last.as_ref().map(|error| error as _)
    }
}

impl Retry {
    /// Runs `operation` until it succeeds or is given up. It is told which attempt it is, and is cancelled (dropped) at
    /// its timeout. `classify` says of its errors what is to be done: a [`Verdict`], or a judged [`Signal`].
    ///
    /// Dropping the future cancels the current try. A request that was sent may still take effect.
    ///
    /// # Errors
    /// Why it was given up, with the last error and whether anything may have happened.
    pub async fn run<T, E, J, F, Fut>(
        &self,
        call: &Call,
        classify: impl Fn(&E) -> J,
        mut operation: F,
    ) -> Result<T, Error<E>>
    where
        J: Into<Judged>,
        F: FnMut(Try) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let mut timed = |attempt: Try| {
            let until = Instant::now() + attempt.timeout;
            let running = timeout_at(until, operation(attempt));
            async {
                match running.await {
                    Ok(Ok(value)) => TryResult::Done(value, Verdict::Success.into()),
                    Ok(Err(error)) => TryResult::Failed(error),
                    Err(_) => TryResult::TimedOut,
                }
            }
        };
        self.drive(call, |error| classify(error).into(), &mut timed).await
    }

    /// The same for an operation that keeps its time itself, and so knows more about how it ended.
    pub(crate) async fn drive<T, E, F, Fut>(
        &self,
        call: &Call,
        classify: impl Fn(&E) -> Judged,
        mut operation: F,
    ) -> Result<T, Error<E>>
    where
        F: FnMut(Try) -> Fut,
        Fut: Future<Output = TryResult<T, E>>,
    {
        let mut course = Course::new(self, call);
        let mut last = None;
        loop {
            let permit = match course.admit() {
                Ok(permit) => permit,
                Err((stop, after)) => {
                    course.report(Duration::ZERO, None, RetryAction::Stop(stop));
                    return Err(course.end(stop, Some(after), last));
                }
            };
            let attempt = course.next_try();
            let begun = Instant::now();
            let tried = operation(attempt).await;
            let latency = begun.elapsed();
            let judged;
            (judged, last) = match tried {
                TryResult::Done(value, judged) => {
                    if let Some(permit) = permit {
                        permit.done(judged);
                    }
                    course.report(latency, Some(judged), RetryAction::Return);
                    return Ok(value);
                }
                TryResult::Failed(error) => (classify(&error), Some(error)),
                TryResult::TimedOut => (Signal::timed_out().judge(call.repeat), None),
            };
            if let Some(permit) = permit {
                permit.done(judged);
            }
            match course.decide(judged) {
                Ok(delay) => {
                    course.report(latency, Some(judged), RetryAction::Retry(delay));
                    sleep(delay.wait).await;
                }
                Err((stop, retry_after)) => {
                    course.report(latency, Some(judged), RetryAction::Stop(stop));
                    return Err(course.end(stop, retry_after, last));
                }
            }
        }
    }
}

/// One operation on its way through its attempts.
struct Course<'a> {
    retry: &'a Retry,
    call: &'a Call,
    until: Instant,
    attempt: u32,
    /// The worst of all tries: one that nobody knows of is not undone by a later one that surely failed.
    fate: TryFate,
}

impl<'a> Course<'a> {
    fn new(retry: &'a Retry, call: &'a Call) -> Self {
        let until = Instant::now() + retry.deadline;
        Self { retry, call, until, attempt: 0, fate: TryFate::Undone }
    }

    /// Asks the destination before a try. Held back, it ends here: somebody waits for the answer.
    fn admit(&self) -> Result<Option<Permit>, (Stop, Duration)> {
        let Some(destination) = &self.call.destination else { return Ok(None) };
        match if self.attempt == 0 { destination.admit() } else { destination.admit_retry() } {
            Admit::Go(permit) => Ok(Some(permit)),
            Admit::Wait { until } => Err((Stop::Open, destination.left(until))),
            Admit::Spent { until } => Err((Stop::Budget, destination.left(until))),
        }
    }

    fn next_try(&mut self) -> Try {
        self.attempt += 1;
        let timeout = self.retry.timeout.min(self.left());
        Try { number: self.attempt, max: self.retry.attempts, timeout }
    }

    /// What is done about a try that did not succeed: the pause before the next, or why there is none.
    fn decide(&mut self, judged: Judged) -> Result<Delay, (Stop, Option<Duration>)> {
        self.fate = self.fate.max(judged.fate);
        let hint = judged.verdict.after();
        match judged.verdict {
            Verdict::Unknown => return Err((Stop::Unknown, None)),
            // An error that its classifier calls a success cannot be returned as one.
            Verdict::Fatal | Verdict::Success => return Err((Stop::Fatal, None)),
            Verdict::RetryOnce { .. } if self.attempt > 1 => return Err((Stop::Fatal, hint)),
            Verdict::Retry { .. } | Verdict::RetryOnce { .. } | Verdict::InFlight { .. } => {}
        }
        if self.attempt >= self.retry.attempts {
            return Err((Stop::Exhausted, hint));
        }
        let left = self.left();
        if hint.is_some_and(|hint| hint >= left) {
            return Err((Stop::Later, hint));
        }
        let delay = self.retry.delay(self.attempt, hint);
        let delay = match delay.source {
            _ if delay.wait < left => delay,
            // What the server asked for fits; only what was added to it does not.
            DelaySource::Server => Delay { wait: hint.unwrap_or_default(), ..delay },
            DelaySource::Backoff => return Err((Stop::Deadline, hint)),
        };
        // Nobody is kept waiting for a try that will not be let go.
        match self.call.destination.as_ref().and_then(|destination| destination.foresee(delay.wait)) {
            None => Ok(delay),
            Some((stop, after)) => Err((stop, Some(hint.unwrap_or_default().max(after)))),
        }
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn report(&self, latency: Duration, judged: Option<Judged>, action: RetryAction) {
        let Call { operation, destination, key, story, .. } = self.call;
        let state = destination.as_ref().map(super::Destination::state);
        let decision = RetryDecision {
            operation,
            destination: destination.as_ref().map(|destination| &**destination.name()),
            key: key.as_ref(),
            story,
            attempt: self.attempt,
            max_attempts: self.retry.attempts,
            latency,
            judged,
            action,
            budget_left: state.as_ref().map(|state| state.budget_left),
            breaker: state.as_ref().map(|state| state.circuit.name()),
        };
        report(self.call, &decision, self.retry.observer.as_deref());
    }

    fn end<E>(&self, stop: Stop, retry_after: Option<Duration>, last: Option<E>) -> Error<E> {
        Error { stop, last, attempts: self.attempt, retry_after, fate: self.fate }
    }
}
