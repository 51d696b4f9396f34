//! The deployment's secret, where the database keeps it.
//!
//! A database can be emptied or replaced while processes run. So every claim names the secret that its process uses, and
//! comes to nothing where the database keeps another (`same_secret` in `sql.rs`). A process that finds none puts its own back.

use sqlx::Row as _;

use super::fault::{Cure, Fate, Fault};
use super::shared::Shared;
use crate::record::DecodeError;
use crate::secret::Secret;
use crate::store::given::{GivenSecret, Kept};
use crate::store::{Error, ErrorKind};

/// The secret for this process: the one that it has, or that is kept, or else `candidate`.
pub(super) async fn give(shared: &Shared, candidate: &Secret) -> Result<Secret, Fault> {
    let kept = keep(shared, shared.given.get().unwrap_or(candidate)).await?;
    let bytes = kept.try_into().map_err(|_| {
        let damaged = DecodeError::Damaged("secret");
        Fault::row(&shared.settings.target, &damaged.into())
    })?;
    let given = shared.given.give(&Secret::from_bytes(bytes), &shared.settings.target);
    given.map_err(|error| refused(&error))
}

/// Keeps a secret if there is none, and reads the one that is kept.
async fn keep(shared: &Shared, secret: &Secret) -> Result<Vec<u8>, Fault> {
    let statements = &shared.settings.statements;
    let kept: Result<Vec<u8>, sqlx::Error> = async {
        let read = || shared.fetch(shared.settings.query(&statements.read_secret));
        if let Some(row) = read().await?.first() {
            return row.try_get(0);
        }
        let query = shared.settings.query(&statements.keep_secret);
        shared.fetch(query.bind(secret.expose().as_slice())).await?;
        read().await?.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)
    }
    .await;
    kept.map_err(|error| Fault::statement(&shared.settings.target, &error))
}

fn refused(error: &Error) -> Fault {
    Fault::new(ErrorKind::SecretDiffers, error.to_string(), Fate::Undone, Cure::None)
}

impl Shared {
    /// Sees whether the database keeps the secret of this process, and puts it back where there is none.
    pub(super) async fn compare_secret(&self) -> Result<Kept, Fault> {
        let Some(given) = self.given.get() else { return Ok(Kept::Same) };
        let kept = self.given.compare(Some(&keep(self, given).await?));
        self.agree(self.given.found(kept, &self.settings.target));
        Ok(kept)
    }

    /// Why claims that came to nothing are refused; `None` where the secret is not the reason, and they are to be tried
    /// again.
    pub(super) async fn secret_differs(&self) -> Option<Fault> {
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
