//! Reading and filling a memory store, for tests and for programs that change their store while they run.

use std::sync::atomic::Ordering;

use super::{MemoryStore, outcome_bytes};
use crate::key::KeyId;
use crate::record::{Fence, Record};
use crate::secret::Secret;
use crate::store::transfer::{
    RecordWalk, ScanWalk, TransferRun, TransferSource, TransferState, TransferStore, is_ahead, not_filled,
};
use crate::store::{BoxFuture, Error, MarkId};
use crate::time::{Timestamp, instant};

impl TransferSource for MemoryStore {
    fn address(&self) -> String {
        // Two stores of one process are two stores.
        format!("memory:{:x}", std::ptr::from_ref(self).addr())
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(async move { Ok(self.clock.now()) })
    }

    fn state(&self) -> BoxFuture<'_, Result<TransferState, Error>> {
        Box::pin(async move { Ok(self.state.lock().clone()) })
    }

    fn stored_secret(&self) -> BoxFuture<'_, Result<Option<Secret>, Error>> {
        Box::pin(async move { Ok(self.secret.lock().clone()) })
    }

    fn fence_floor(&self) -> BoxFuture<'_, Result<Fence, Error>> {
        Box::pin(async move { Ok(Fence::new(self.floor.load(Ordering::Acquire))) })
    }

    fn marks(&self) -> BoxFuture<'_, Result<Vec<(MarkId, u64)>, Error>> {
        Box::pin(async move { Ok(self.marks.lock().iter().map(|(mark, value)| (*mark, *value)).collect()) })
    }

    fn records(&self) -> Box<dyn RecordWalk + '_> {
        Box::new(ScanWalk::new(self))
    }
}

impl TransferStore for MemoryStore {
    fn import(
        &self,
        run: TransferRun,
        records: Vec<(KeyId, Record)>,
    ) -> BoxFuture<'_, Result<Vec<KeyId>, Error>> {
        Box::pin(async move {
            // Held to the end, so that the state cannot change meanwhile.
            let state = self.state.lock();
            if !state.is_filled_by(run) {
                return Err(not_filled(&self.address()));
            }
            let mut ahead = Vec::new();
            for (id, record) in records {
                let mut shard = self.shard(id).lock();
                match shard.get_mut(id) {
                    Some(stored) if is_ahead(stored, &record) => ahead.push(id),
                    Some(stored) => {
                        let (before, after) = (outcome_bytes(stored), outcome_bytes(&record));
                        *stored = record;
                        shard.outcome_bytes =
                            shard.outcome_bytes.saturating_add(after).saturating_sub(before);
                    }
                    None => {
                        shard.outcome_bytes = shard.outcome_bytes.saturating_add(outcome_bytes(&record));
                        shard.insert(id, record);
                    }
                }
            }
            Ok(ahead)
        })
    }

    fn raise_fence_floor(&self, floor: Fence) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.floor.fetch_max(floor.get(), Ordering::AcqRel);
            Ok(())
        })
    }

    fn change_state<'a>(
        &'a self,
        seen: &'a TransferState,
        next: &'a TransferState,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let mut state = self.state.lock();
            if *state != *seen {
                return Ok(false);
            }
            state.clone_from(next);
            self.transfer.saw(Some(next.to_stored().as_bytes()), instant(), &self.address())?;
            Ok(true)
        })
    }
}
