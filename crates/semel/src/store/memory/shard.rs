//! One part of the key space: an index of small entries, and the records side by side.
//!
//! The index stays in the caches where a table of whole records would not, and what was claimed last lies where
//! it is still warm.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::key::KeyId;
use crate::record::Record;

/// Records by id. Places of removed ones are used again, the first ones first.
#[derive(Default)]
pub(super) struct Shard {
    index: HashMap<KeyId, u32, BuildHasherDefault<IdHasher>>,
    places: Vec<Option<Record>>,
    free: Vec<u32>,
}

/// Takes the id as its own hash: ids are keyed BLAKE3, so nobody outside can choose where one falls.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        // The first byte chose the shard already; the last eight are fresh.
        if let Some(tail) = bytes.last_chunk() {
            self.0 = u64::from_le_bytes(*tail);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn get(&self, id: KeyId) -> Option<&Record> {
        self.places[*self.index.get(&id)? as usize].as_ref()
    }

    pub(super) fn get_mut(&mut self, id: KeyId) -> Option<&mut Record> {
        self.places[*self.index.get(&id)? as usize].as_mut()
    }

    /// Keeps a record for an id that has none.
    pub(super) fn insert(&mut self, id: KeyId, record: Record) {
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = Some(record);
                place
            }
            None => {
                let place = u32::try_from(self.places.len()).expect("no machine holds 2^32 records a shard");
                self.places.push(Some(record));
                place
            }
        };
        self.index.insert(id, place);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (KeyId, &Record)> {
        self.index.iter().filter_map(|(id, place)| Some((*id, self.places[*place as usize].as_ref()?)))
    }

    /// Looks at every record and removes those for which `keep` says so.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut Record) -> bool) {
        let Self { index, places, free } = self;
        index.retain(|_, place| {
            let slot = &mut places[*place as usize];
            let kept = slot.as_mut().is_some_and(&mut keep);
            if !kept {
                *slot = None;
                free.push(*place);
            }
            kept
        });
        // Give back the end, and use the rest from the front: what is claimed next lies together.
        while let Some(None) = places.last() {
            places.pop();
        }
        let end = places.len();
        free.retain(|place| (*place as usize) < end);
        free.sort_unstable_by(|one, other| other.cmp(one));
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn the_tail_of_an_id_is_its_hash() {
        let id = KeyId::from_bytes(std::array::from_fn(|i| i as u8));
        let hash = BuildHasherDefault::<IdHasher>::default().hash_one(id);
        assert_eq!(hash, u64::from_le_bytes([8, 9, 10, 11, 12, 13, 14, 15]));
    }
}
