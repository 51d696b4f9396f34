//! The audit log: what people change by hand is written down before it is done.
//!
//! A line is written first and the change follows, so a crash in between leaves a line too many and never one too few. A
//! change that is refused afterwards gets a second line that says so. Without a ledger there is no durable place: then
//! the lines are in the log of this process only, and the answer says `"audit": "log"`.

use axum::http::StatusCode;
use axum::response::Response;
use semel_pipeline::ledger::AuditLine;

use super::Admin;
use super::access::Caller;
use super::answer::Refusal;

/// Where the line of a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// In the ledger, durably.
    Ledger,
    /// In the log of this process.
    Log,
}

impl Kept {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ledger => "ledger",
            Self::Log => "log",
        }
    }
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
) -> Result<Kept, Refusal> {
    let Some(pipeline) = &admin.pipeline else { return Ok(Kept::Log) };
    let line =
        AuditLine { who: caller.name.clone(), action: action.to_owned(), subject, reason: reason.to_owned() };
    pipeline.ledger.audit(line).await?;
    Ok(Kept::Ledger)
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
            "the audit log has the change and not that it was refused"
        );
    }
}

/// Runs what a person asked for in a task of its own: a client that hangs up midway leaves no gap in the audit log.
pub(super) async fn to_the_end(
    action: impl Future<Output = Result<Response, Refusal>> + Send + 'static,
) -> Result<Response, Refusal> {
    let ended = tokio::spawn(action).await;
    ended.unwrap_or_else(|error| {
        Err(Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            format!("it was not finished: {error}"),
        ))
    })
}
