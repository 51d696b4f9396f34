//! Finds buffered runs, by key, by id and by tenant, and counts them.

use std::time::Duration;

use bytes::Bytes;
use semel::key::KeyId;
use semel::store::redis_driver::{Value, cmd};
use semel::store::{Effect, Error};
use semel_pipeline::event::Generation;
use semel_pipeline::id::{EventId, EventKind};

use super::format::unhex;
use super::{Buffer, BufferedHolder, BufferedRun, Depth, UnreadableRun, answer, key_name};

impl Buffer {
    /// The run that has a generation of a key in the buffer; `None` if there is none.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn find(
        &self,
        tenant: &str,
        (key, generation): (KeyId, Generation),
    ) -> Result<Option<BufferedHolder>, Error> {
        let key = key_name(key, generation);
        // Most keys are new, and a plain read costs Redis a tenth of a script.
        let mut get = cmd("HGET");
        get.arg(self.tenant_key(tenant, "keys")).arg(&key);
        if self.client.query(&get, Effect::Reads).await? == Value::Nil {
            return Ok(None);
        }
        Self::read_holder(self.call(&self.scripts.find, tenant, &[key.as_bytes()], Effect::Writes).await?)
    }

    /// The run that has a key, from a script's answer.
    pub(super) fn read_holder(answer: Value) -> Result<Option<BufferedHolder>, Error> {
        let Value::Array(parts) = answer else { return Err(answer::unexpected_answer()) };
        let [id, print, expired] = answer::read_bytes::<3>(parts)?;
        let text = |blob: &Bytes| {
            std::str::from_utf8(blob).map(str::to_owned).map_err(|_| answer::unexpected_answer())
        };
        let found = text(&id)?.parse().ok().zip(unhex(&text(&print)?));
        Ok(found.map(|(run, fingerprint)| BufferedHolder { run, fingerprint, expired: &expired[..] == b"1" }))
    }

    /// A buffered run with its changes, and its version.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn get(
        &self,
        tenant: &str,
        id: EventId,
    ) -> Result<Option<(Result<BufferedRun, UnreadableRun>, u64)>, Error> {
        let id_text = id.to_string();
        let answer = self.call(&self.scripts.get, tenant, &[id_text.as_bytes()], Effect::Reads).await?;
        let Value::Array(parts) = answer else { return Ok(None) };
        let [run, changes, version, expires] = answer::read_bytes::<4>(parts)?;
        Ok(Some((
            BufferedRun::read(&run, &changes, answer::read_expiry(&expires)?),
            answer::read_number(&version)?,
        )))
    }

    /// The tenant of a buffered run, by its id alone; `None` if it is not in the buffer.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn tenant_of(&self, run: EventId) -> Result<Option<String>, Error> {
        let mut get = cmd("HGET");
        get.arg(self.tenants_key()).arg(run.to_string());
        match self.client.query(&get, Effect::Reads).await? {
            Value::BulkString(name) => Ok(String::from_utf8(name).ok()),
            _ => Ok(None),
        }
    }

    /// The number of buffered runs of a tenant.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn depth(&self, tenant: &str) -> Result<Depth, Error> {
        let answer = self.call(&self.scripts.depth, tenant, &[], Effect::Reads).await?;
        let Value::Array(parts) = answer else { return Err(answer::unexpected_answer()) };
        let number = |at: usize| parts.get(at).map_or(0, answer::read_int);
        Ok(Depth { queued: number(0), leased: number(1), oldest: Duration::from_millis(number(2)) })
    }

    /// The tenants that may have buffered runs.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn tenants(&self) -> Result<Vec<String>, Error> {
        self.tenants_up_to(-1).await
    }

    /// The first tenants in the order of their turns, at most `limit`.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn first_tenants(&self, limit: u32) -> Result<Vec<String>, Error> {
        match limit {
            0 => Ok(Vec::new()),
            limit => self.tenants_up_to(i64::from(limit) - 1).await,
        }
    }

    async fn tenants_up_to(&self, last: i64) -> Result<Vec<String>, Error> {
        let mut list = cmd("ZRANGE");
        let [turns, _] = self.list_keys();
        list.arg(turns).arg(0).arg(last);
        let Value::Array(names) = self.client.query(&list, Effect::Reads).await? else {
            return Err(answer::unexpected_answer());
        };
        let text = |name| match name {
            Value::BulkString(name) => String::from_utf8(name).ok(),
            _ => None,
        };
        Ok(names.into_iter().filter_map(text).collect())
    }

    /// Some buffered runs of a tenant, about `limit`, and where the next ones begin; `None` after the last. Runs that stay in the
    /// buffer are all listed, in no order. A run can be listed twice while the buffer changes.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn list(
        &self,
        tenant: &str,
        after: Option<u64>,
        limit: u32,
    ) -> Result<(Vec<EventId>, Option<u64>), Error> {
        let mut scan = cmd("HSCAN");
        scan.arg(self.tenant_key(tenant, "about")).arg(after.unwrap_or(0)).arg("COUNT").arg(limit.max(1));
        let Value::Array(parts) = self.client.query(&scan, Effect::Reads).await? else {
            return Err(answer::unexpected_answer());
        };
        let mut parts = parts.into_iter();
        let (Some(Value::BulkString(next)), Some(Value::Array(pairs))) = (parts.next(), parts.next()) else {
            return Err(answer::unexpected_answer());
        };
        let next: Option<u64> = std::str::from_utf8(&next).ok().and_then(|next| next.parse().ok());
        let next = next.ok_or_else(answer::unexpected_answer)?;
        let read = |name| match name {
            Value::BulkString(name) => std::str::from_utf8(&name).ok().and_then(|id| id.parse().ok()),
            _ => None,
        };
        // Each id is followed by its value.
        let mut ids: Vec<EventId> = pairs.into_iter().step_by(2).filter_map(read).collect();
        ids.retain(|id| id.kind() == EventKind::Run);
        ids.sort_unstable();
        Ok((ids, (next > 0).then_some(next)))
    }
}
