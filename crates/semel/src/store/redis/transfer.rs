//! Reading and filling a Redis store, and its state in `PREFIX:transfer`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::task::JoinSet;

use super::error::CallReach;
use super::link::NumberedConnection;
use super::listing::KeyWalk;
use super::script::{self, Dialect, unexpected_reply};
use super::{RedisStore, Shared, mark_value, number, secret, without_script};
use crate::key::KeyId;
use crate::record::{Fence, Record, State};
use crate::secret::Secret;
use crate::store::transfer::{
    BATCH, DataLoss, RecordWalk, TransferRun, TransferSource, TransferState, TransferStore, not_filled,
};
use crate::store::{BoxFuture, Error, ErrorKind, MarkId};
use crate::time::{Timestamp, instant};

/// A stub lives at least this long, as in rules.lua.
const STUB: Duration = Duration::from_secs(3600);

/// How long a fill waits until the server's clock has passed the fences of the other store.
const LONGEST_CLOCK_WAIT: Duration = Duration::from_secs(60);

impl Shared {
    /// Reads whether the store grants claims, and remembers it.
    pub(super) async fn read_transfer(
        &self,
        numbered: &mut NumberedConnection,
    ) -> Result<TransferState, Error> {
        let asked = instant();
        let mut get = redis::cmd("GET");
        get.arg(self.names.transfer());
        let found = self.link.query_on(numbered, &get, CallReach::Read).await?;
        self.transfer.saw(secret::bytes(&found), asked, &self.name)
    }

    /// Checks that a claim or a begin mark counts, now that it was written.
    pub(super) async fn confirm_open(&self, numbered: &mut NumberedConnection) -> Result<(), Error> {
        if self.transfer.is_confirmed() {
            return Ok(());
        }
        match self.read_transfer(numbered).await?.refusal(&self.name) {
            Some(refusal) => Err(refusal),
            None => Ok(()),
        }
    }

    async fn change_transfer(&self, seen: &TransferState, next: &TransferState) -> Result<bool, Error> {
        let mut numbered = self.link.connection().await?;
        let key = self.names.transfer();
        let arguments = [seen.to_stored().into_bytes(), next.to_stored().into_bytes()];
        let changed =
            self.link.call(&mut numbered, &self.rules.transfer, &key, &arguments, CallReach::Write).await?;
        self.replicas.wait_for_replicas(&self.link, &mut numbered, &key).await?;
        self.read_transfer(&mut numbered).await?;
        Ok(number(&changed) == 1)
    }

    async fn import(&self, run: TransferRun, records: &[(KeyId, Record)]) -> Result<Vec<KeyId>, Error> {
        let mut numbered = self.link.connection().await?;
        if !self.read_transfer(&mut numbered).await?.is_filled_by(run) {
            return Err(not_filled(&self.address()));
        }
        let mut calls = JoinSet::new();
        for (id, record) in records {
            let (id, mut numbered, link) = (*id, numbered.clone(), Arc::clone(&self.link));
            let (key, script) = (self.names.record(id), Arc::clone(&self.rules.import));
            let expires = expiry(record).map_or_else(Vec::new, |millis| millis.to_string().into_bytes());
            let arguments = [record.encode(), expires];
            calls.spawn(async move {
                let written = link.call(&mut numbered, &script, &key, &arguments, CallReach::Write).await;
                written.map(|written| (id, written))
            });
        }
        let mut ahead = Vec::new();
        while let Some(done) = calls.join_next().await {
            let (id, written) = done.map_err(|_| unexpected_reply("was not waited for"))??;
            if number(&written) != 1 {
                ahead.push(id);
            }
        }
        // A wait covers all writes of its server.
        let waits = match self.link.address.dialect() {
            Dialect::One => 1,
            Dialect::Cluster => records.len(),
        };
        for (id, _) in records.iter().take(waits) {
            let key = self.names.record(*id);
            self.replicas.wait_for_replicas(&self.link, &mut numbered, &key).await?;
        }
        Ok(ahead)
    }

    /// Redis has no floor: a fence is not below the clock. So the clock must be past the floor.
    async fn wait_for_clock(&self, floor: Fence) -> Result<(), Error> {
        let left = Timestamp::from_micros(floor.get()).left(self.server_time().await?);
        if left > LONGEST_CLOCK_WAIT {
            return Err(Error::new(
                ErrorKind::Setup,
                format!(
                    "the clock of {} is {} seconds behind the fences of the other store: set it",
                    self.name,
                    left.as_secs()
                ),
            ));
        }
        tokio::time::sleep(left).await;
        Ok(())
    }

    async fn server_time(&self) -> Result<Timestamp, Error> {
        without_script::server_time(self.link.query(&redis::cmd("TIME"), CallReach::Read).await?)
    }

    fn address(&self) -> String {
        format!("{} (prefix {})", self.name, self.names.prefix())
    }

    /// Sends one GET for each key concurrently, and preserves their order.
    async fn get_all(&self, keys: impl Iterator<Item = Vec<u8>> + Send) -> Result<Vec<Value>, Error> {
        let gets = keys.map(|key| {
            let mut get = Cmd::new();
            get.arg("GET").arg(key);
            get
        });
        self.query_all(gets).await
    }

    async fn marks(&self) -> Result<Vec<(MarkId, u64)>, Error> {
        let mut found = BTreeSet::new();
        let mut walk = KeyWalk::over(self.names.marks());
        while !walk.is_over() {
            let keys = walk.step_keys(self, BATCH).await?;
            found.extend(keys.iter().filter_map(|key| self.names.mark_id(key)));
        }
        let mut marks = Vec::with_capacity(found.len());
        let ids: Vec<MarkId> = found.into_iter().collect();
        for ids in ids.chunks(BATCH) {
            let values = self.get_all(ids.iter().map(|mark| self.names.mark(*mark))).await?;
            for (mark, value) in ids.iter().zip(values) {
                marks.push((*mark, mark_value(&value)?));
            }
        }
        Ok(marks)
    }
}

/// When nothing of a record is needed any more, in milliseconds; `None` while an owner or a person may act. As in
/// rules.lua.
fn expiry(record: &Record) -> Option<u64> {
    if let State::Claimed | State::Begun = record.state {
        return None;
    }
    let terms = &record.terms;
    let gone = record
        .forget_at
        .max(record.changed_at.after(terms.in_flight_max).after(terms.lease))
        .max(record.changed_at.after(STUB));
    Some(gone.as_micros().div_ceil(1000))
}

/// A walk with SCAN, in the server's order.
struct ValueWalk<'a> {
    store: &'a RedisStore,
    walk: Arc<tokio::sync::Mutex<KeyWalk>>,
}

impl RecordWalk for ValueWalk<'_> {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Vec<(KeyId, Record)>>, Error>> {
        let (shared, walk) = (Arc::clone(&self.store.shared), Arc::clone(&self.walk));
        self.store.run(async move {
            let mut walk = walk.lock().await;
            if walk.is_over() {
                return Ok(None);
            }
            // The server may name a key twice.
            let ids: BTreeSet<KeyId> = walk.step(&shared, BATCH).await?.into_iter().collect();
            let values = shared.get_all(ids.iter().map(|id| shared.names.record(*id))).await?;
            let mut records = Vec::with_capacity(ids.len());
            for (id, value) in ids.into_iter().zip(values) {
                // It may have expired since.
                if let Value::BulkString(bytes) = value {
                    records.push((id, script::decode(&bytes)?));
                }
            }
            Ok(Some(records))
        })
    }
}

impl TransferSource for RedisStore {
    fn address(&self) -> String {
        self.shared.address()
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.server_time().await })
    }

    fn state(&self) -> BoxFuture<'_, Result<TransferState, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.read_transfer(&mut shared.link.connection().await?).await })
    }

    fn stored_secret(&self) -> BoxFuture<'_, Result<Option<Secret>, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.stored_secret().await })
    }

    /// The fence of a removed record was not above the clock.
    fn fence_floor(&self) -> BoxFuture<'_, Result<Fence, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.server_time().await.map(|now| Fence::new(now.as_micros())) })
    }

    fn marks(&self) -> BoxFuture<'_, Result<Vec<(MarkId, u64)>, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.marks().await })
    }

    fn data_loss(&self) -> BoxFuture<'_, Result<Option<DataLoss>, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.data_loss().await })
    }

    fn records(&self) -> Box<dyn RecordWalk + '_> {
        Box::new(ValueWalk { store: self, walk: Arc::default() })
    }
}

impl TransferStore for RedisStore {
    fn import(
        &self,
        run: TransferRun,
        records: Vec<(KeyId, Record)>,
    ) -> BoxFuture<'_, Result<Vec<KeyId>, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.import(run, &records).await })
    }

    fn raise_fence_floor(&self, floor: Fence) -> BoxFuture<'_, Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.wait_for_clock(floor).await })
    }

    fn change_state<'a>(
        &'a self,
        seen: &'a TransferState,
        next: &'a TransferState,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        let (shared, seen, next) = (Arc::clone(&self.shared), seen.clone(), next.clone());
        self.run(async move { shared.change_transfer(&seen, &next).await })
    }
}
