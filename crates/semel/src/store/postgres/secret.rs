//! The deployment's secret in the database.
//!
//! A database can be emptied or replaced while processes run. Every claim therefore names the secret of its process,
//! and is not granted if the database has another (`same_secret` in `sql.rs`). A process that finds none writes its
//! own back.

use semel_postgres::{PostgresError, PostgresErrorKind};
use sqlx::Row as _;

use super::shared::StoreShared;
use crate::record::DecodeError;
use crate::secret::Secret;
use crate::store::Error;
use crate::store::given::{GivenSecret, Kept};

/// The secret for this process: the one that it has, or the stored one, or else `candidate`.
pub(super) async fn give(shared: &StoreShared, candidate: &Secret) -> Result<Secret, PostgresError> {
    let kept = keep(shared, shared.given.get().unwrap_or(candidate)).await?;
    let given = shared.given.give(&of_bytes(shared, kept)?, &shared.settings.target);
    given.map_err(|error| refused(&error))
}

/// The secret in the database, if there is one.
pub(super) async fn stored(shared: &StoreShared) -> Result<Option<Secret>, PostgresError> {
    let rows = shared.fetch(shared.settings.query(&shared.settings.statements.read_secret)).await?;
    let kept = rows.first().map(|row| row.try_get(0)).transpose();
    let kept = kept.map_err(|error| shared.settings.explain(&error))?;
    kept.map(|kept| of_bytes(shared, kept)).transpose()
}

fn of_bytes(shared: &StoreShared, kept: Vec<u8>) -> Result<Secret, PostgresError> {
    let bytes = kept.try_into().map_err(|_| {
        let damaged = DecodeError::Damaged("secret");
        shared.settings.explain_row(&damaged.into())
    })?;
    Ok(Secret::from_bytes(bytes))
}

/// Stores a secret if there is none, and reads the stored one.
async fn keep(shared: &StoreShared, secret: &Secret) -> Result<Vec<u8>, PostgresError> {
    let statements = &shared.settings.statements;
    let read = || shared.fetch(shared.settings.query(&statements.read_secret));
    let explain = |error| shared.settings.explain(&error);
    if let Some(row) = read().await?.first() {
        return row.try_get(0).map_err(explain);
    }
    let query = shared.settings.query(&statements.keep_secret);
    shared.fetch(query.bind(secret.expose().as_slice())).await?;
    let rows = read().await?;
    rows.first().ok_or(sqlx::Error::RowNotFound).and_then(|row| row.try_get(0)).map_err(explain)
}

fn refused(error: &Error) -> PostgresError {
    PostgresError::new(PostgresErrorKind::SecretDiffers, error.to_string())
}

impl StoreShared {
    /// Checks that the database has the secret of this process, and writes it back if there is none.
    pub(super) async fn compare_secret(&self) -> Result<Kept, PostgresError> {
        let Some(given) = self.given.get() else { return Ok(Kept::Same) };
        let kept = self.given.compare(Some(&keep(self, given).await?));
        self.agree(self.given.found(kept, &self.settings.target));
        Ok(kept)
    }

    /// Why claims were not granted; `None` if the secret is not the reason and they must be retried.
    pub(super) async fn secret_differs(&self) -> Option<PostgresError> {
        match self.compare_secret().await {
            Ok(Kept::Other) => Some(refused(&GivenSecret::error(&self.settings.target))),
            Ok(Kept::Same | Kept::Nothing) => None,
            Err(fault) => {
                tracing::debug!(%fault, "could not compare the deployment's secret");
                None
            }
        }
    }
}
