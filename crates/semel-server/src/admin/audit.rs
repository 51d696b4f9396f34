//! The audit log: what people change by hand is written down before it is done.
//!
//! A line is written first and the change follows, so a crash in between leaves a line too many and never one too few. A
//! change that is refused afterwards gets a second line that says so. Without a ledger there is no durable place: then
//! the lines are in the log of this process only, and the answer says `"audit": "log"`.
//!
//! A line has the state before and after the change, and may say which attempt was changed. The ledger keeps them behind the reason,
//! each after a unit separator, so that lines of earlier versions need no migration: they have a reason only.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use semel_pipeline::id::JobId;
use semel_pipeline::ledger::AuditLine;
use tracing::Instrument as _;

use super::Admin;
use super::access::Caller;
use super::answer::Refusal;
use crate::config::EffectiveConfig;

/// Where the audit line of the change is: in the ledger, or, without a ledger, in the log of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum AuditPlace {
    Ledger,
    Log,
}

/// Between the reason and the states of a stored line.
const SEPARATOR: char = '\u{1f}';

/// The state of something before and after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct States {
    pub(crate) before: String,
    pub(crate) after: String,
    /// What the change removes from where it was: the attempt of a key. Empty for most changes.
    pub(crate) attempt: String,
}

impl States {
    pub(super) fn new(before: impl Into<String>, after: impl Into<String>) -> Self {
        Self { before: before.into(), after: after.into(), attempt: String::new() }
    }

    /// The states of a change that was refused.
    pub(crate) fn unchanged(self) -> Self {
        Self { after: self.before.clone(), ..self }
    }
}

/// A reason as it is stored: nobody can write states into it.
pub(super) fn plain(reason: &str) -> String {
    reason.replace(SEPARATOR, " ")
}

/// A line about a change.
pub(super) fn line(
    caller: &Caller,
    action: &str,
    subject: String,
    reason: &str,
    states: &States,
) -> AuditLine {
    line_of(&caller.name, action, subject, reason, states)
}

/// A line about a reload of the configuration by a signal.
pub(crate) fn reload_line(action: &str, states: &States) -> AuditLine {
    line_of("signal", action, "config".to_owned(), "SIGHUP", states)
}

/// The most settings that the line of a reload names.
const NAMED: usize = 20;

/// The configuration before and after a reload: a hash of the settings as the console shows them, without secrets, and the names of
/// those that differ. Values are not part of it: a line stays in the ledger when a setting that should not have been there is gone.
pub(crate) fn reload_states(before: &EffectiveConfig, after: &EffectiveConfig) -> States {
    let settings = |config: &EffectiveConfig| -> BTreeMap<String, String> {
        let name = |table: &str, name: &str| match table {
            "" => name.to_owned(),
            table => format!("{table}.{name}"),
        };
        let all = config.settings.iter();
        all.map(|setting| (name(&setting.table, &setting.name), setting.value.clone())).collect()
    };
    let hash = |settings: &BTreeMap<String, String>| {
        let mut hasher = blake3::Hasher::new();
        for (name, value) in settings {
            for text in [name, value] {
                hasher.update(&(text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            }
        }
        format!("settings {}", &hasher.finalize().to_hex()[..12])
    };
    let (before, after) = (settings(before), settings(after));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed: Vec<&str> =
        names.into_iter().filter(|name| before.get(*name) != after.get(*name)).map(String::as_str).collect();
    let named = changed.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let changes = match changed.len() {
        0 => "no setting changed".to_owned(),
        number if number > NAMED => format!("changed: {named}, and {} more", number - NAMED),
        _ => format!("changed: {named}"),
    };
    States::new(hash(&before), format!("{}; {changes}", hash(&after)))
}

fn line_of(who: &str, action: &str, subject: String, reason: &str, states: &States) -> AuditLine {
    let [reason, before, after, attempt] =
        [reason, &states.before, &states.after, &states.attempt].map(plain);
    let mut stored = format!("{reason}{SEPARATOR}{before}{SEPARATOR}{after}");
    if !attempt.is_empty() {
        stored.push(SEPARATOR);
        stored.push_str(&attempt);
    }
    AuditLine { who: who.to_owned(), action: action.to_owned(), subject, reason: stored }
}

/// The reason of a stored line, and the states if it has them.
pub(crate) fn read(line: &AuditLine) -> (&str, Option<States>) {
    let mut parts = line.reason.split(SEPARATOR);
    let reason = parts.next().unwrap_or_default();
    if let (Some(before), Some(after)) = (parts.next(), parts.next()) {
        let attempt = parts.next().unwrap_or_default().to_owned();
        return (reason, Some(States { attempt, ..States::new(before, after) }));
    }
    // The line of a pause has the reason that the pause shows, and nothing else.
    let is_job = line.subject.parse::<JobId>().is_ok();
    let states = match line.action.as_str() {
        "pause" if !is_job => Some(States::new("delivering", "paused")),
        "resume" if !is_job => Some(States::new("paused", "delivering")),
        _ => None,
    };
    (reason, states)
}

/// Writes a line about what the caller is about to do.
///
/// # Errors
/// The ledger does not write it. Then nothing may be done.
pub(super) async fn write(
    admin: &Admin,
    caller: &Caller,
    action: &str,
    subject: String,
    reason: &str,
    states: &States,
) -> Result<AuditPlace, Refusal> {
    let Some(pipeline) = &admin.pipeline else { return Ok(AuditPlace::Log) };
    pipeline.ledger.audit(line(caller, action, subject, reason, states)).await?;
    Ok(AuditPlace::Ledger)
}

/// Writes that what was announced was refused. The refusal stands whether or not this can be written.
pub(super) async fn write_refused(
    admin: &Admin,
    caller: &Caller,
    action: &str,
    subject: String,
    reason: &str,
    before: &str,
) {
    let action = format!("{action} refused");
    // Nothing was changed.
    let states = States::new(before, before);
    if let Err(error) = write(admin, caller, &action, subject, reason, &states).await {
        tracing::warn!(
            target: "semel::audit",
            user = caller.name,
            operation = action,
            error = error.detail(),
            "audit entry not updated: the change was refused"
        );
    }
}

/// Runs what a person asked for in a task of its own: a client that hangs up midway leaves no gap in the audit log.
pub(crate) async fn run_to_completion<T: Send + 'static>(
    action: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    let ended = tokio::spawn(action.in_current_span()).await;
    ended.unwrap_or_else(|error| {
        Err(Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            format!("it was not finished: {error}"),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(action: &str, subject: &str, reason: &str) -> AuditLine {
        let [who, action, subject, reason] = ["ann", action, subject, reason].map(str::to_owned);
        AuditLine { who, action, subject, reason }
    }

    #[test]
    fn a_line_keeps_its_states_behind_the_reason() {
        let caller = Caller::nobody();
        let states = States::new("pending", "discarded");
        let written = line(&caller, "discard", "dlq_1".to_owned(), "not needed\u{1f}x\u{1f}y", &states);
        assert_eq!(read(&written), ("not needed x y", Some(states.clone())));
        let states = States { attempt: "attempt 1".to_owned(), ..states };
        let written = line(&caller, "forget", "k".to_owned(), "tidy", &states);
        assert_eq!(read(&written), ("tidy", Some(states)));
        // Of an earlier version.
        assert_eq!(read(&stored("discard", "dlq_1", "not needed")), ("not needed", None));
        let paused = Some(States::new("delivering", "paused"));
        assert_eq!(read(&stored("pause", "billing", "they move")), ("they move", paused));
        assert_eq!(read(&stored("pause", "rpl_00000000000000000000000000", "x")).1, None);
    }
}
