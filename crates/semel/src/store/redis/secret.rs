//! The deployment's secret at the server.
//!
//! The server can lose it with all data (`FLUSHALL`, a failover to an empty replica), and a process that starts then
//! finds none. Two measures handle that:
//!
//! - *Every claim is followed by a `GET` of the secret*, on one server in the same packet. A claim counts only if the
//!   secret is still the one of this process. Because it is read after the claim was written, no two processes can
//!   win one key under two secrets, unless the data were lost again in between; then the claim is lost too. The same
//!   `GET` is sent with every beat and over every new connection.
//! - *A process that finds none asks the others first.* Every process writes its own secret back if there is none,
//!   and clears its caches. Usually no process has to stop.

use redis::{Cmd, Value};

use super::Shared;
use super::error::CallReach;
use super::link::{NumberedConnection, ReadReply};
use crate::key::KeyId;
use crate::record::{Command, Ruling};
use crate::secret::Secret;
use crate::store::given::{GivenSecret, Kept};
use crate::store::{Error, ErrorKind};

/// The message to all processes that the secret is missing: an id that no key has.
pub(super) const SECRET_IS_MISSING: KeyId = KeyId::from_bytes([0; 16]);

impl Shared {
    /// The secret for this process: the one that it has, or the stored one, or the one of another process;
    /// `candidate` if no process has one.
    pub(super) async fn secret(&self, candidate: Secret) -> Result<Secret, Error> {
        let mut numbered = self.link.connection().await?;
        let mut kept = self.read_secret(&mut numbered).await?;
        if kept.is_none() && self.given.get().is_none() {
            kept = self.ask_others(&mut numbered).await?;
        }
        if kept.is_none() {
            self.put_back(&mut numbered, self.given.get().unwrap_or(&candidate)).await?;
            kept = self.read_secret(&mut numbered).await?;
        }
        let Some(kept) = kept else {
            return Err(Error::new(ErrorKind::Ambiguous, "the secret was lost right after it was written"));
        };
        self.given.give(&of_bytes(kept)?, &self.name)
    }

    /// The secret, once a process that has it has written it back. `None` once all processes have answered, or have
    /// been silent for longer than they may answer from their caches.
    async fn ask_others(&self, numbered: &mut NumberedConnection) -> Result<Option<Vec<u8>>, Error> {
        let mut told = self.tell_all(SECRET_IS_MISSING).await?;
        loop {
            let all = self.all_confirmed(&mut told).await?;
            let kept = self.read_secret(numbered).await?;
            if all || kept.is_some() {
                return Ok(kept);
            }
        }
    }

    /// The secret at the server, if there is one.
    pub(super) async fn stored_secret(&self) -> Result<Option<Secret>, Error> {
        let mut numbered = self.link.connection().await?;
        self.read_secret(&mut numbered).await?.map(of_bytes).transpose()
    }

    /// The command that follows every claim. `None` if the secret was configured.
    pub(super) fn secret_query(&self) -> Option<Cmd> {
        self.given.get().map(|_| self.get_secret())
    }

    /// The ruling of a claim, given the secret that was read right after it.
    pub(super) async fn confirm_grant(
        &self,
        numbered: &mut NumberedConnection,
        key: &[u8],
        ruling: Ruling,
        kept: Option<ReadReply>,
    ) -> Result<Ruling, Error> {
        match kept.map(|kept| kept.map(|kept| self.given.compare(bytes(&kept)))) {
            None | Some(Ok(Kept::Same))
                if !matches!(ruling, Ruling::Won(_)) || self.transfer.is_confirmed() =>
            {
                Ok(ruling)
            }
            None | Some(Ok(Kept::Same)) => Box::pin(self.confirm_win(numbered, key, ruling)).await,
            // Boxed: it is rare, and one more call.
            Some(found) => Err(Box::pin(self.refuse_grant(numbered, key, &ruling, found)).await),
        }
    }

    /// The ruling of a won claim, given the state of the store that is read now. See [`crate::store::transfer`].
    async fn confirm_win(
        &self,
        numbered: &mut NumberedConnection,
        key: &[u8],
        ruling: Ruling,
    ) -> Result<Ruling, Error> {
        match self.confirm_open(numbered).await {
            Ok(()) => Ok(ruling),
            Err(error) => Err(self.give_back(numbered, key, &ruling, error).await),
        }
    }

    /// Gives back a claim that does not count, and returns why.
    async fn refuse_grant(
        &self,
        numbered: &mut NumberedConnection,
        key: &[u8],
        ruling: &Ruling,
        found: Result<Kept, Error>,
    ) -> Error {
        let found = match found {
            Ok(Kept::Nothing) => self.compare_secret(numbered).await,
            found => found,
        };
        let error = match found {
            Ok(Kept::Other) => {
                self.found(Kept::Other);
                GivenSecret::error(&self.name)
            }
            // The data may have been lost before the claim or right after it. A repeated claim is certain.
            Ok(_) => {
                let lost = "the Redis server lost its data while a key was claimed: ask again";
                return Error::new(ErrorKind::Ambiguous, lost);
            }
            Err(error) => error,
        };
        self.give_back(numbered, key, ruling, error).await
    }

    /// Releases a claim that does not count because of `error`.
    async fn give_back(
        &self,
        numbered: &mut NumberedConnection,
        key: &[u8],
        ruling: &Ruling,
        error: Error,
    ) -> Error {
        let Ruling::Won(win) = ruling else { return error };
        match self.execute(numbered, key, &Command::Release(win.grant)).await {
            Ok(_) => error,
            Err(_) => Error::new(ErrorKind::Ambiguous, error.to_string()),
        }
    }

    /// Checks that the server has the secret of this process, and writes it back if there is none.
    pub(super) async fn compare_secret(&self, numbered: &mut NumberedConnection) -> Result<Kept, Error> {
        let Some(given) = self.given.get() else { return Ok(Kept::Same) };
        let mut kept = self.read_secret(numbered).await?;
        if kept.is_none() {
            self.put_back(numbered, given).await?;
            kept = self.read_secret(numbered).await?;
        }
        let found = self.given.compare(kept.as_deref());
        self.found(found);
        Ok(found)
    }

    /// Caches that were filled under another secret must not answer.
    fn found(&self, kept: Kept) {
        self.caches.set_agreed(self.given.found(kept, &self.name));
    }

    async fn put_back(&self, numbered: &mut NumberedConnection, secret: &Secret) -> Result<(), Error> {
        let mut set = redis::cmd("SET");
        set.arg(self.names.secret()).arg(&secret.expose()[..]).arg("NX");
        self.link.query_on(numbered, &set, CallReach::Write).await.map(drop)
    }

    async fn read_secret(&self, numbered: &mut NumberedConnection) -> Result<Option<Vec<u8>>, Error> {
        let kept = self.link.query_on(numbered, &self.get_secret(), CallReach::Read).await?;
        Ok(bytes(&kept).map(<[u8]>::to_vec))
    }

    fn get_secret(&self) -> Cmd {
        let mut get = redis::cmd("GET");
        get.arg(self.names.secret());
        get
    }
}

fn of_bytes(kept: Vec<u8>) -> Result<Secret, Error> {
    kept.try_into().map(Secret::from_bytes).map_err(|_| {
        Error::new(
            ErrorKind::Corrupt,
            "the key of Semel's secret holds something else: choose another prefix",
        )
    })
}

pub(super) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}
