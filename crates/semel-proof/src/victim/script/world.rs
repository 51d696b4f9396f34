//! The expected content of a store, by the rules alone.

use std::collections::BTreeMap;

use semel::key::KeyId;
use semel::record::{self, Fence, Record, Ruling, Sweep};
use semel::store::{EmbeddedStore, Error, MarkId, MarkStore as _, Scan, Store as _, Swept};

use super::{Deed, ScriptStep};

/// Records and marks, as the rules leave them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    records: BTreeMap<KeyId, Record>,
    marks: BTreeMap<MarkId, u64>,
    floor: Fence,
}

impl World {
    /// The marks a script raises.
    pub fn marks() -> [MarkId; 3] {
        [b"a", b"b", b"c"].map(|session| MarkId::of_session(session))
    }

    /// The record of a key.
    pub fn record(&self, id: KeyId) -> Option<&Record> {
        self.records.get(&id)
    }

    /// Executes a step; the answer has the form of [`ScriptStep::run`].
    pub fn execute(&mut self, step: &ScriptStep) -> String {
        match &step.deed {
            Deed::Apply(id, command) => {
                let mut record = self.records.get(id).cloned();
                let ruling = record::apply(&mut record, command, step.at, self.floor);
                if let (Ruling::Won(_) | Ruling::Accepted { .. }, Some(record)) = (&ruling, record) {
                    self.records.insert(*id, record);
                }
                format!("{ruling:?}")
            }
            Deed::Raise(mark, value) => {
                let stands = self.marks.entry(*mark).or_insert(*value);
                *stands = (*stands).max(*value);
                format!("{stands:?}")
            }
            Deed::Sweep => format!("{:?}", self.sweep(step)),
        }
    }

    fn sweep(&mut self, step: &ScriptStep) -> Swept {
        let mut swept = Swept::default();
        let floor = &mut self.floor;
        self.records.retain(|_, record| match record.sweep(step.at) {
            Sweep::Keep => true,
            Sweep::Shrink(shrunk) => {
                swept.shrunk += 1;
                *record = shrunk;
                true
            }
            Sweep::Remove => {
                swept.removed += 1;
                *floor = (*floor).max(record.fence);
                false
            }
        });
        swept
    }

    /// Reads a whole store. The floor cannot be seen from outside; it shows in later fences.
    ///
    /// # Errors
    /// What the store says.
    pub async fn read(store: &EmbeddedStore) -> Result<Self, Error> {
        let mut world = Self::default();
        let mut after = None;
        loop {
            let page = store.scan(Scan { phase: None, after, limit: 500 }).await?;
            world.records.extend(page.items.into_iter().map(|found| (found.id, found.record)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        for mark in Self::marks() {
            if let Some(value) = store.read_mark(mark).await? {
                world.marks.insert(mark, value);
            }
        }
        Ok(world)
    }

    /// True if everything that is visible from outside is equal.
    pub fn looks_like(&self, other: &Self) -> bool {
        self.records == other.records && self.marks == other.marks
    }

    /// The differences, for people; empty if there are none.
    pub fn differences(&self, found: &Self) -> Vec<String> {
        let ids = self.records.keys().chain(found.records.keys());
        let mut differences: Vec<_> = ids
            .filter(|id| self.records.get(id) != found.records.get(id))
            .map(|id| {
                format!("{id:?}: expected {:?}, found {:?}", self.records.get(id), found.records.get(id))
            })
            .collect();
        differences.dedup();
        if self.marks != found.marks {
            differences.push(format!("marks: expected {:?}, found {:?}", self.marks, found.marks));
        }
        differences
    }
}
