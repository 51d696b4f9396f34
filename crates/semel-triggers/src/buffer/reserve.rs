//! Keeps puts out of the buffer whose callers read a ledger that has changed.

use std::time::Duration;

use semel::key::KeyId;
use semel::store::{Effect, Error};
use semel_pipeline::event::Generation;

use super::{Buffer, BufferedHolder, key_name, millis};

/// The longest reservation: the numbers of a script are exact for this long.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 86_400);

impl Buffer {
    /// As [`find`](Self::find), for a caller that writes a run of the key to the ledger if there is none in the
    /// buffer: then nobody can buffer one for the time `keep`, or until
    /// [`end_reservation`](Self::end_reservation) is called.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn reserve(
        &self,
        tenant: &str,
        (key, generation): (KeyId, Generation),
        keep: Duration,
    ) -> Result<Option<BufferedHolder>, Error> {
        let keep = millis(keep.min(LONGEST)).max(1).to_string();
        let key = key_name(key, generation);
        let arguments = [key.as_bytes(), keep.as_bytes()];
        let answer = self.call(&self.scripts.reserve, tenant, &arguments, Effect::Writes).await?;
        Self::read_holder(answer)
    }

    /// The generation of a key has ended: a put whose caller read the ledger before is refused.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn outdate(&self, tenant: &str, key: (KeyId, Generation)) -> Result<(), Error> {
        self.note_change(tenant, key, b"GT").await
    }

    /// The ledger has a run of the key now: ends the reservation. A put whose caller read the ledger before is refused.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn end_reservation(&self, tenant: &str, key: (KeyId, Generation)) -> Result<(), Error> {
        self.note_change(tenant, key, b"CH").await
    }

    async fn note_change(
        &self,
        tenant: &str,
        (key, generation): (KeyId, Generation),
        option: &[u8],
    ) -> Result<(), Error> {
        let key = key_name(key, generation);
        self.call(&self.scripts.outdate, tenant, &[key.as_bytes(), option], Effect::Writes).await.map(drop)
    }
}
