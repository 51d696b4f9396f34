//! One part of the key space: an index of small entries, and the records in chunks.
//!
//! The small index fits into the CPU caches, and recently claimed records are next to each other.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::key::KeyId;
use crate::record::Record;

/// Records by id. Places of removed records are reused, the first ones first.
#[derive(Default)]
pub(super) struct Shard {
    index: HashMap<KeyId, u32, BuildHasherDefault<IdHasher>>,
    places: Places,
    free: Vec<u32>,
    /// The size of the outcomes.
    pub(super) outcome_bytes: u64,
}

/// Numbered places for records, in chunks: a record is never moved, and only the last chunk has spare capacity. One
/// growing vector would copy all of its records repeatedly.
#[derive(Default)]
struct Places {
    /// All but the last are full.
    chunks: Vec<Vec<Option<Record>>>,
}

/// Records of a chunk: some 8 KiB.
const CHUNK: usize = 48;

impl Places {
    fn len(&self) -> usize {
        match self.chunks.split_last() {
            Some((last, full)) => full.len() * CHUNK + last.len(),
            None => 0,
        }
    }

    fn at(&self, place: u32) -> &Option<Record> {
        &self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }

    fn at_mut(&mut self, place: u32) -> &mut Option<Record> {
        &mut self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }

    fn push(&mut self, record: Record) {
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK => {
                if last.len() == last.capacity() {
                    last.reserve_exact(last.len().max(4).min(CHUNK - last.len()));
                }
                last.push(Some(record));
            }
            // The first chunk grows gradually: most shards of a small store have few records.
            None => self.chunks.push(vec![Some(record)]),
            Some(_) => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(Some(record));
                self.chunks.push(chunk);
            }
        }
    }

    /// Frees empty places at the end.
    fn trim(&mut self) {
        while let Some(last) = self.chunks.last_mut() {
            while let Some(None) = last.last() {
                last.pop();
            }
            if !last.is_empty() {
                return;
            }
            self.chunks.pop();
        }
    }
}

/// Uses the id as its own hash: ids are keyed BLAKE3, so no client can choose the position of one.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        // The first byte already chose the shard; the last eight are independent of it.
        if let Some(tail) = bytes.last_chunk() {
            self.0 = u64::from_le_bytes(*tail);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Shard {
    /// A record in its place and its entry in the index, which is up to half empty.
    pub(super) const BYTES_PER_RECORD: u64 = (size_of::<Option<Record>>() + 48) as u64;

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn get(&self, id: KeyId) -> Option<&Record> {
        self.places.at(*self.index.get(&id)?).as_ref()
    }

    pub(super) fn get_mut(&mut self, id: KeyId) -> Option<&mut Record> {
        self.places.at_mut(*self.index.get(&id)?).as_mut()
    }

    /// Inserts a record for an id that has none.
    pub(super) fn insert(&mut self, id: KeyId, record: Record) {
        let place = match self.free.pop() {
            Some(place) => {
                *self.places.at_mut(place) = Some(record);
                place
            }
            None => {
                let place = u32::try_from(self.places.len()).expect("no machine holds 2^32 records a shard");
                self.places.push(record);
                place
            }
        };
        self.index.insert(id, place);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (KeyId, &Record)> {
        self.index.iter().filter_map(|(id, place)| Some((*id, self.places.at(*place).as_ref()?)))
    }

    /// Visits every record and removes those that `keep` rejects.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut Record) -> bool) {
        let Self { index, places, free, .. } = self;
        index.retain(|_, place| {
            let slot = places.at_mut(*place);
            let kept = slot.as_mut().is_some_and(&mut keep);
            if !kept {
                *slot = None;
                free.push(*place);
            }
            kept
        });
        // Free the end, and use the rest from the front, so that new records are next to each other.
        places.trim();
        let end = places.len();
        free.retain(|place| (*place as usize) < end);
        free.sort_unstable_by(|one, other| other.cmp(one));
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;
    use std::sync::Arc;

    use super::*;
    use crate::fingerprint::Fingerprint;
    use crate::key::Hint;
    use crate::record::{Begin, Command, Fence, NewClaim, Owner, Terms};
    use crate::time::Timestamp;

    fn id(number: usize) -> KeyId {
        KeyId::from_bytes((number as u128).to_be_bytes())
    }

    /// A record that is identified by its fence.
    fn record(number: usize) -> Record {
        let claim = NewClaim {
            owner: Owner::random(),
            fingerprint: Fingerprint::from_bytes([1; 32]),
            terms: Arc::new(Terms::default()),
            begin: Begin::Later,
            hint: Hint::default(),
        };
        let mut record = None;
        let (now, floor) = (Timestamp::from_micros(0), Fence::new(number as u64));
        let _ = crate::record::apply(&mut record, &Command::Claim(claim), now, floor);
        record.expect("a first claim is granted")
    }

    #[test]
    fn records_keep_their_places_over_many_chunks() {
        let mut shard = Shard::default();
        let count = 3 * CHUNK + 7;
        let holds = |shard: &Shard, number| shard.get(id(number)).map(|record| record.fence.get());
        for number in 0..count {
            shard.insert(id(number), record(number));
            assert_eq!((shard.places.len(), holds(&shard, number)), (number + 1, Some(number as u64 + 1)));
        }
        for number in 0..count {
            assert_eq!(holds(&shard, number), Some(number as u64 + 1));
        }
        // Two of three go, and so does everything in the last two chunks.
        let kept = |number: usize| number.is_multiple_of(3) && number < 2 * CHUNK - 5;
        shard.retain(|record| kept(record.fence.get() as usize - 1));
        let last = (0..count).rev().find(|number| kept(*number)).expect("some are kept");
        assert_eq!(shard.places.len(), last + 1, "the end is given back");
        assert_eq!(shard.len() + shard.free.len(), last + 1, "every other place is used or free");
        for number in 0..count {
            assert_eq!(holds(&shard, number), kept(number).then_some(number as u64 + 1));
        }
        let free = shard.free.len();
        for number in count..count + free {
            shard.insert(id(number), record(number));
        }
        assert_eq!(shard.places.len(), last + 1, "free places are used first");
        shard.retain(|_| false);
        assert_eq!((shard.len(), shard.places.len(), shard.free.len()), (0, 0, 0));
    }

    // hash_flood: keys that a client found to share a bucket under one secret are spread under the secret of a deployment, which
    // the client does not know.
    #[test]
    fn hash_flood() {
        use crate::key::Key;
        use crate::secret::Secret;

        /// Bits of the hash that choose a bucket of a table with some thousand entries.
        const BUCKETS: u64 = 1 << 10;
        let bucket = |id: KeyId| BuildHasherDefault::<IdHasher>::default().hash_one(id) % BUCKETS;
        let id = |secret: &Secret, number: usize| {
            Key::new("pay").scope("mallory").value(number.to_string()).id(secret).expect("a key is valid")
        };
        let (known, of_deployment) = (Secret::from_bytes([1; 32]), Secret::from_bytes([2; 32]));
        let crafted: Vec<usize> =
            (0..200_000).filter(|number| bucket(id(&known, *number)) == 0).take(128).collect();
        assert_eq!(crafted.len(), 128, "they collide under the secret for which they were made");
        let mut load = std::collections::BTreeMap::<u64, usize>::new();
        for number in crafted {
            *load.entry(bucket(id(&of_deployment, number))).or_default() += 1;
        }
        assert!(load.len() > 100, "{} buckets", load.len());
        assert!(load.values().all(|keys| *keys <= 5), "{load:?}");
    }

    #[test]
    fn the_tail_of_an_id_is_its_hash() {
        let id = KeyId::from_bytes(std::array::from_fn(|i| i as u8));
        let hash = BuildHasherDefault::<IdHasher>::default().hash_one(id);
        assert_eq!(hash, u64::from_le_bytes([8, 9, 10, 11, 12, 13, 14, 15]));
    }
}
