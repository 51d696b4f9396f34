//! Single triggers, and concurrent triggers of one key.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Value, json};

use super::environment::{DrillEnvironment, DrillServer};

/// A `[gate]` on the drill's Redis server.
pub(super) fn gate(environment: &DrillEnvironment, more: &str) -> anyhow::Result<String> {
    gate_at(environment, &environment.redis()?.url, more)
}

/// A `[gate]` on a Redis server behind a wire.
pub(super) fn gate_at(environment: &DrillEnvironment, url: &str, more: &str) -> anyhow::Result<String> {
    let prefix = &environment.redis()?.prefix;
    Ok(format!("[gate]\nmode = \"on\"\nbuffer = {url:?}\nprefix = \"{prefix}\"\n{more}\n"))
}

/// Buffers every run.
pub(super) const SHUT: &str = "threshold = 0\n";

/// Buffers no run.
pub(super) const WIDE: &str = "threshold = 1000\n";

/// Number of concurrent callers of one key.
pub(super) const MANY: usize = 20;

pub(super) fn trigger(key: &str) -> Value {
    json!({ "target": "crm", "payload": { "key": key, "empty": [], "big": 1 }, "idempotency_key": key })
}

/// The answers to concurrent triggers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CrowdAnswers {
    pub(super) ids: BTreeSet<String>,
    /// Number of answers that called the run new.
    pub(super) first: usize,
    /// Number of new runs that were buffered.
    pub(super) buffered: usize,
    pub(super) answers: usize,
}

impl CrowdAnswers {
    /// True if all answers name the same run.
    pub(super) fn is_one(&self) -> bool {
        self.ids.len() == 1 && self.ids.iter().all(|id| id.starts_with("run_"))
    }

    /// Adds one answer.
    pub(super) fn and(mut self, answer: &Value) -> Self {
        self.ids.insert(answer["id"].as_str().unwrap_or_default().to_owned());
        self.first += usize::from(answer["cached"] != true);
        self.buffered += usize::from(answer["cached"] != true && answer["buffered"] == true);
        self.answers += 1;
        self
    }
}

impl fmt::Display for CrowdAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ids, first, answers, .. } = self;
        write!(f, "{answers} answers, {} ids, {first} first", ids.len())?;
        if ids.len() > 1 { write!(f, ": {ids:?}") } else { Ok(()) }
    }
}

/// Triggers one key many times concurrently.
///
/// # Errors
/// A caller got no answer.
pub(super) async fn crowd(servers: &[DrillServer], key: &str, count: usize) -> anyhow::Result<CrowdAnswers> {
    trigger_all(servers, (0..count).map(|_| trigger(key))).await
}

/// Sends triggers concurrently, to one server after the other.
///
/// # Errors
/// A caller got no answer.
pub(super) async fn trigger_all(
    servers: &[DrillServer],
    triggers: impl Iterator<Item = Value>,
) -> anyhow::Result<CrowdAnswers> {
    let asked: Vec<_> = triggers
        .enumerate()
        .map(|(number, trigger)| {
            let server = &servers[number % servers.len()];
            Box::pin(async move { server.post("/v1/runs", &trigger).await })
        })
        .collect();
    join_all(asked).await.into_iter().try_fold(CrowdAnswers::default(), |told, answer| Ok(told.and(&answer?)))
}

/// Polls all futures until the last one has ended.
pub(super) async fn join_all<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut waiting = false;
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none() {
                match std::pin::Pin::new(future).poll(context) {
                    std::task::Poll::Ready(output) => *done = Some(output),
                    std::task::Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // A drill must be able to fail: wrong answers are detected.
    #[test]
    fn two_runs_two_firsts_and_no_run_are_seen() {
        let new = json!({ "id": "run_1", "cached": false, "buffered": true });
        let cached = json!({ "id": "run_1", "cached": true, "buffered": true });
        let told = |answers: &[&Value]| {
            answers.iter().fold(CrowdAnswers::default(), |told, answer| told.and(answer))
        };
        let fine = told(&[&new, &cached, &cached]);
        assert!(fine.is_one() && fine.first == 1 && fine.answers == 3 && fine.buffered == 1);
        assert_eq!(told(&[&new, &new]).first, 2);
        assert!(!told(&[&new, &json!({ "id": "run_2", "cached": true })]).is_one());
        assert!(!told(&[]).is_one());
        assert!(!told(&[&json!({ "detail": "no" })]).is_one());
    }
}
