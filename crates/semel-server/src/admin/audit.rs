//! The audit log: what people change by hand is written down before it is done.
//!
//! A line is written first and the change follows, so a crash in between leaves a line too many and never one too few. A
//! change that is refused afterwards gets a second line that says so. Without a ledger there is no durable place: then
//! the lines are in the log of this process only, and the answer says `"audit": "log"`.

use axum::http::StatusCode;
use semel_pipeline::ledger::AuditLine;

use super::Admin;
use super::access::Caller;
use super::answer::Refusal;

/// Where the audit line of the change is: in the ledger, or, without a ledger, in the log of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum AuditPlace {
    Ledger,
    Log,
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
) -> Result<AuditPlace, Refusal> {
    let Some(pipeline) = &admin.pipeline else { return Ok(AuditPlace::Log) };
    let line =
        AuditLine { who: caller.name.clone(), action: action.to_owned(), subject, reason: reason.to_owned() };
    pipeline.ledger.audit(line).await?;
    Ok(AuditPlace::Ledger)
}

/// Writes that what was announced was refused. The refusal stands whether or not this can be written.
pub(super) async fn write_refused(
    admin: &Admin,
    caller: &Caller,
    action: &str,
    subject: String,
    reason: &str,
) {
    let action = format!("{action} refused");
    if let Err(error) = write(admin, caller, &action, subject, reason).await {
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
pub(super) async fn run_to_completion<T: Send + 'static>(
    action: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    let ended = tokio::spawn(action).await;
    ended.unwrap_or_else(|error| {
        Err(Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            format!("it was not finished: {error}"),
        ))
    })
}
