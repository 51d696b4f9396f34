//! Outages of PostgreSQL, for the store and the ledger.

use std::sync::Arc;
use std::time::Duration;

use semel_postgres::{PostgresError, PostgresErrorKind, PostgresSettings, Remedy};
use tokio::runtime::Handle;

use super::{Availability, NoAnswer, ProbeFailure, Reach, Server, Timing, Verdict};

/// More than the limit of a pool or of the server itself, which know better why there was no answer.
const MORE: Duration = Duration::from_millis(500);

impl Availability {
    /// For connections with these settings. Probes run in the current runtime.
    pub fn of_postgres(settings: &Arc<PostgresSettings>, used_for: &'static str) -> Arc<Self> {
        let server = Server::of(format!("postgres://{}", settings.address), used_for);
        let timing = Timing::within(settings.timeout);
        let settings = Arc::clone(settings);
        Self::new(server, timing, Some(Handle::current()), move || {
            let settings = Arc::clone(&settings);
            Box::pin(async move {
                let probed = semel_postgres::probe(&settings).await;
                probed.map_err(|error| ProbeFailure { reach: Reach::Unreachable, message: error.message })
            })
        })
    }

    /// Connects, or waits for a connection of a pool.
    ///
    /// # Errors
    /// Nothing was sent.
    pub async fn connect<T>(
        self: &Arc<Self>,
        settings: &PostgresSettings,
        connecting: impl Future<Output = Result<T, PostgresError>>,
    ) -> Result<T, PostgresError> {
        match self.watch(settings.timeout + MORE, connecting).await {
            Ok(connected) => connected,
            Err(NoAnswer::NotSent(message) | NoAnswer::Outage(message)) => {
                Err(PostgresError::outage(message))
            }
            Err(NoAnswer::TimedOut) => Err(PostgresError::unreachable(&settings.target)),
        }
    }

    /// Runs statements on a connection. After an error the connection may be in any state.
    ///
    /// # Errors
    /// Those of the statements, or there was no answer.
    pub async fn execute<T, E: From<PostgresError>>(
        self: &Arc<Self>,
        settings: &PostgresSettings,
        statements: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        match self.watch(settings.timeout * 2 + MORE, statements).await {
            Ok(executed) => {
                if executed.is_ok() {
                    self.answered();
                }
                executed
            }
            Err(NoAnswer::NotSent(message)) => Err(PostgresError::outage(message).into()),
            Err(NoAnswer::Outage(message)) => Err(PostgresError::outage(message).unknown().into()),
            Err(NoAnswer::TimedOut) => Err(PostgresError::timed_out(&settings.target).into()),
        }
    }

    /// The error of a call, once it is known whether it belongs to an outage: then a retry does not help.
    pub async fn judge_error(self: &Arc<Self>, error: PostgresError) -> PostgresError {
        if error.kind == PostgresErrorKind::Full {
            self.refused_writes.refused(&error.message);
        }
        if error.remedy != Remedy::Reconnect {
            return error;
        }
        match self.judge().await {
            Verdict::Available => error,
            Verdict::Outage => {
                // The probe knows better than a broken connection what is wrong.
                let outage = PostgresError::outage(self.refusal().unwrap_or(error.message));
                PostgresError { execution: error.execution, ..outage }
            }
        }
    }
}
