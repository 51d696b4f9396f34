//! Keeps the runs of previous owners out of the buffer.

use std::time::Duration;

use semel::key::KeyId;
use semel::record::Fence;
use semel::store::{Effect, Error};
use semel_pipeline::event::Generation;

use super::{Buffer, key_name, millis};

impl Buffer {
    /// Records that the claim on a generation of a key was taken over with this fence: its previous owner cannot
    /// buffer a run under it from now on. Stored for as long as that owner can exist.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn take_over(
        &self,
        tenant: &str,
        (key, generation): (KeyId, Generation),
        fence: Fence,
        keep: Duration,
    ) -> Result<(), Error> {
        let taken = self.tenant_key(tenant, "taken");
        let (key, fence) = (key_name(key, generation), fence.get().to_string());
        let keep = millis(keep).max(1).to_string();
        let arguments = [key.as_bytes(), fence.as_bytes(), keep.as_bytes()];
        let script = &self.scripts.take_over;
        self.client.call(script, &[taken.as_bytes()], &arguments, Effect::Writes).await.map(drop)
    }

    /// Records that a generation of a key has ended: no claim can buffer a run under it from now on.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn close(
        &self,
        tenant: &str,
        (key, generation): (KeyId, Generation),
        keep: Duration,
    ) -> Result<(), Error> {
        self.take_over(tenant, (key, generation), Fence::new(u64::MAX), keep).await
    }
}
