//! The memory store: the rules over a sharded map. Fast, and lost with the process.

mod shard;
mod transfer;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use self::shard::Shard;
use super::local::Local;
use super::transfer::{TransferState, TransferWatch, apply_closed};
use super::{
    BoxFuture, Durability, Error, Invalidate, MarkId, MarkStore, Page, Scan, Snapshot, Store, Swept, Watch,
};
use crate::key::KeyId;
use crate::record::{self, Command, Fence, Phase, Record, Ruling, State, Sweep};
use crate::secret::Secret;
use crate::sync::Mutex;
use crate::time::{Clock, SystemClock, Timestamp};

/// Enough that threads rarely contend, and that sweeping one shard holds its lock only briefly.
const SHARDS: usize = 256;

/// Stores records in memory, for tests and for effects that need not survive the process.
///
/// It is not a cache: nothing is evicted, only [`Store::sweep`] removes records.
pub struct MemoryStore {
    /// By the first byte of the id, so that the order of the shards is the order of the ids.
    shards: Box<[Mutex<Shard>]>,
    /// The highest fence of any removed record, so that a key's fence never goes back.
    floor: AtomicU64,
    /// The shard of the next sweep. Two concurrent sweeps may read the same one, which does no harm.
    sweep_next: AtomicUsize,
    marks: Mutex<BTreeMap<MarkId, u64>>,
    secret: Mutex<Option<Secret>>,
    state: Mutex<TransferState>,
    transfer: TransferWatch,
    clock: Arc<dyn Clock>,
    local: Local,
}

/// How far a sweep got in one shard.
enum ShardSwept {
    Whole,
    Partly,
}

impl MemoryStore {
    /// An empty store on the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(SystemClock)
    }

    /// An empty store on the caller's clock.
    pub fn with_clock(clock: impl Clock) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect(),
            floor: AtomicU64::new(0),
            sweep_next: AtomicUsize::new(0),
            marks: Mutex::default(),
            secret: Mutex::default(),
            state: Mutex::default(),
            transfer: TransferWatch::default(),
            clock: Arc::new(clock),
            local: Local::default(),
        }
    }

    /// [`Store::apply`] without a future: it never waits.
    #[inline]
    pub fn apply_now(&self, id: KeyId, command: &Command) -> Ruling {
        let ruling = {
            let mut shard = self.shard(id).lock();
            let floor = Fence::new(self.floor.load(Ordering::Acquire));
            match shard.get_mut(id) {
                Some(record) => {
                    let now = self.time_of(command, record);
                    // An answer from the record changes nothing and must not pay for the size of its outcome.
                    let is_replay = matches!(command, Command::Claim(_)) && record.phase(now) == Phase::Done;
                    let before = if is_replay { 0 } else { outcome_bytes(record) };
                    let ruling = record.apply(command, now, floor);
                    if matches!(ruling, Ruling::Won(_) | Ruling::Accepted { .. }) {
                        let after = outcome_bytes(record);
                        shard.outcome_bytes =
                            shard.outcome_bytes.saturating_add(after).saturating_sub(before);
                    }
                    ruling
                }
                None => {
                    let mut record = None;
                    let ruling = record::apply(&mut record, command, self.clock.now(), floor);
                    if let Some(record) = record {
                        shard.insert(id, record);
                    }
                    ruling
                }
            }
        };
        self.local.announce(id, command, &ruling);
        ruling
    }

    /// The time for a command. Read inside the lock: a claim must not use a time before the change that it sees.
    /// Reading the clock exactly costs as much as the rest of an answer from the record, so it happens only if a
    /// lease is set or the rest of a lease is reported.
    #[inline]
    fn time_of(&self, command: &Command, record: &Record) -> Timestamp {
        // Not before the change that it sees, or more than the whole retention would be left.
        let coarse = || self.clock.now_coarse().max(record.changed_at);
        match (command, &record.state) {
            (Command::Complete { .. } | Command::Release(_) | Command::Bind(_) | Command::Abandon(_), _) => {
                coarse()
            }
            // A claim of an expired record may be granted and then has a lease.
            (Command::Claim(_), State::Done(_)) => Some(coarse())
                .filter(|now| record.phase(*now) == Phase::Done)
                .unwrap_or_else(|| self.clock.now()),
            _ => self.clock.now(),
        }
    }

    fn shard(&self, id: KeyId) -> &Mutex<Shard> {
        &self.shards[usize::from(id.as_bytes()[0])]
    }

    /// Sweeps one shard up to `limit` and says whether it reached the end.
    fn sweep_shard(&self, shard: &mut Shard, now: Timestamp, limit: usize, swept: &mut Swept) -> ShardSwept {
        let mut end = ShardSwept::Whole;
        let mut freed = 0;
        shard.retain(|record| match record.sweep(now) {
            Sweep::Keep => true,
            Sweep::Shrink(_) | Sweep::Remove if swept.removed + swept.shrunk >= limit => {
                end = ShardSwept::Partly;
                true
            }
            Sweep::Shrink(shrunk) => {
                freed += outcome_bytes(record);
                *record = shrunk;
                swept.shrunk += 1;
                true
            }
            Sweep::Remove => {
                freed += outcome_bytes(record);
                self.floor.fetch_max(record.fence.get(), Ordering::AcqRel);
                swept.removed += 1;
                false
            }
        });
        shard.outcome_bytes = shard.outcome_bytes.saturating_sub(freed);
        end
    }
}

/// The size of a record's outcome.
fn outcome_bytes(record: &Record) -> u64 {
    match &record.state {
        State::Done(outcome) => (size_of::<crate::outcome::Outcome>() + outcome.size()) as u64,
        _ => 0,
    }
}

impl Store for MemoryStore {
    fn apply(&self, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>> {
        Box::pin(async move {
            match self.transfer.refusal(&command, self) {
                None => Ok(self.apply_now(id, &command)),
                Some(refusal) => apply_closed(self.get(id).await?, &command, refusal),
            }
        })
    }

    fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        Box::pin(async move {
            let shard = self.shard(id).lock();
            let now = self.clock.now();
            Ok(shard.get(id).map(|record| Snapshot { id, record: record.clone(), now }))
        })
    }

    fn scan(&self, query: Scan) -> BoxFuture<'_, Result<Page, Error>> {
        Box::pin(async move {
            let mut page = Page::default();
            let first = query.after.map_or(0, |after| usize::from(after.as_bytes()[0]));
            for shard in &self.shards[first..] {
                let mut found: Vec<Snapshot> = {
                    let shard = shard.lock();
                    let now = self.clock.now();
                    let wanted = |record: &Record| query.phase.is_none_or(|phase| record.phase(now) == phase);
                    shard
                        .iter()
                        .filter(|(id, record)| query.after.is_none_or(|after| *id > after) && wanted(record))
                        .map(|(id, record)| Snapshot { id, record: record.clone(), now })
                        .collect()
                };
                found.sort_unstable_by_key(|snapshot| snapshot.id);
                page.items.append(&mut found);
                if page.items.len() > query.limit {
                    page.items.truncate(query.limit);
                    page.next = page.items.last().map(|snapshot| snapshot.id);
                    break;
                }
            }
            Ok(page)
        })
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, Error>> {
        Box::pin(async move {
            let mut swept = Swept { more: true, ..Swept::default() };
            let mut looked_at = 0;
            let mut next = self.sweep_next.load(Ordering::Relaxed);
            while swept.more && looked_at < limit {
                let mut shard = self.shards[next].lock();
                looked_at += shard.len();
                match self.sweep_shard(&mut shard, self.clock.now(), limit, &mut swept) {
                    ShardSwept::Partly => break,
                    ShardSwept::Whole => next = (next + 1) % SHARDS,
                }
                // The round is complete: a caller that sweeps while there is more can stop, however many records are
                // alive.
                swept.more = next != 0;
            }
            self.sweep_next.store(next, Ordering::Relaxed);
            Ok(swept)
        })
    }

    fn watch(&self, id: KeyId) -> Watch {
        self.local.watch(id)
    }

    fn attach(&self, cache: Weak<dyn Invalidate>) {
        self.local.attach(cache);
    }

    fn secret(&self, candidate: Secret) -> BoxFuture<'_, Result<Secret, Error>> {
        Box::pin(async move { Ok(self.secret.lock().get_or_insert(candidate).clone()) })
    }

    fn used_bytes(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(async move {
            let bytes = |shard: &Mutex<Shard>| {
                let shard = shard.lock();
                shard.len() as u64 * Shard::BYTES_PER_RECORD + shard.outcome_bytes
            };
            Ok(Some(self.shards.iter().map(bytes).sum()))
        })
    }

    fn durability(&self) -> Durability {
        Durability::Process
    }
}

impl MarkStore for MemoryStore {
    fn read_mark(&self, mark: MarkId) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(async move { Ok(self.marks.lock().get(&mark).copied()) })
    }

    fn raise_mark(&self, mark: MarkId, value: u64) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(async move {
            if let Some(refusal) = self.transfer.moved(self) {
                return Err(refusal);
            }
            let mut marks = self.marks.lock();
            let stands = marks.entry(mark).or_insert(value);
            *stands = value.max(*stands);
            Ok(*stands)
        })
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("local", &self.local).finish_non_exhaustive()
    }
}

impl fmt::Display for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory:")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fingerprint::Fingerprint;
    use crate::key::Hint;
    use crate::record::{Begin, NewClaim, Owner, Terms, Win};
    use crate::time::ManualClock;

    fn claim() -> Command {
        Command::Claim(NewClaim {
            owner: Owner::random(),
            fingerprint: Fingerprint::from_bytes([1; 32]),
            terms: Arc::new(Terms::default()),
            begin: Begin::Later,
            hint: Hint::default(),
        })
    }

    fn win(store: &MemoryStore, id: KeyId) -> Win {
        match store.apply_now(id, &claim()) {
            Ruling::Won(win) => win,
            other => panic!("expected a win, got {other:?}"),
        }
    }

    /// A store whose keys `ids` were released long ago.
    fn with_stubs(ids: &[KeyId]) -> (MemoryStore, ManualClock) {
        let clock = ManualClock::default();
        let store = MemoryStore::with_clock(clock.clone());
        for id in ids {
            let released = store.apply_now(*id, &Command::Release(win(&store, *id).grant));
            assert!(matches!(released, Ruling::Accepted { .. }));
        }
        clock.advance(Duration::from_secs(24 * 60 * 60));
        (store, clock)
    }

    #[test]
    fn ids_with_one_hash_are_two_keys() {
        let store = MemoryStore::new();
        let [mut one, mut other] = [[7; 16]; 2];
        (one[3], other[3]) = (1, 2);
        win(&store, KeyId::from_bytes(one));
        win(&store, KeyId::from_bytes(other));
    }

    /// A clock whose coarse time is far behind.
    #[derive(Clone, Debug)]
    struct Lagging(ManualClock);

    impl Clock for Lagging {
        fn now(&self) -> Timestamp {
            self.0.now()
        }

        fn now_coarse(&self) -> Timestamp {
            Timestamp::from_micros(self.0.now().as_micros() - 5_000_000)
        }
    }

    // The coarse time may report an end late, never early, and no lease depends on it.
    #[test]
    fn a_rough_clock_ends_nothing_early() {
        let clock = ManualClock::default();
        let store = MemoryStore::with_clock(Lagging(clock.clone()));
        let id = KeyId::from_bytes([1; 16]);
        let lease = Terms::default().lease;
        assert_eq!(win(&store, id).lease_left, lease);
        clock.advance(lease - Duration::from_micros(1));
        assert_eq!(store.apply_now(id, &claim()), Ruling::Busy { lease_left: Duration::from_micros(1) });
        clock.advance(Duration::from_micros(1));
        let taken_over = win(&store, id);
        assert_eq!((taken_over.attempt, taken_over.lease_left), (2, lease));

        let outcome = Arc::new(crate::outcome::Outcome::new("text", "done"));
        let fingerprint = Fingerprint::from_bytes([1; 32]);
        let complete = Command::Complete { grant: taken_over.grant, fingerprint, outcome, retention: None };
        assert!(matches!(store.apply_now(id, &complete), Ruling::Accepted { .. }));
        let whole = Terms::default().retention + Terms::default().grace;
        let Ruling::Replay { expires_in, .. } = store.apply_now(id, &claim()) else { panic!("it is done") };
        assert_eq!(expires_in, whole, "counted from the completion, not from before it");
    }

    // One floor for all keys, so that removed records need not be remembered.
    #[tokio::test]
    async fn a_removed_record_raises_the_floor_for_every_key() {
        let id = KeyId::from_bytes([1; 16]);
        let (store, clock) = with_stubs(&[id]);
        let gone = store.get(id).await.unwrap().unwrap().record.fence;
        assert_eq!(store.sweep(10).await.unwrap(), Swept { shrunk: 0, removed: 1, more: false });
        clock.set(Timestamp::default());
        assert!(win(&store, KeyId::from_bytes([2; 16])).grant.fence() > gone);
    }

    // A sweep must stop at its limit in the middle of a shard.
    #[tokio::test]
    async fn sweep_stops_in_the_middle_of_a_shard_and_goes_on_there() {
        let ids: [KeyId; 10] = std::array::from_fn(|i| {
            let mut bytes = [7; 16];
            bytes[15] = i as u8;
            KeyId::from_bytes(bytes)
        });
        let (store, _clock) = with_stubs(&ids);
        for left in [6, 2] {
            assert_eq!(store.sweep(4).await.unwrap(), Swept { shrunk: 0, removed: 4, more: true });
            assert_eq!(store.shard(ids[0]).lock().len(), left);
        }
        assert_eq!(store.sweep(4).await.unwrap(), Swept { shrunk: 0, removed: 2, more: false });
        assert_eq!(store.sweep(0).await.unwrap().removed, 0);
    }

    // A sweep must not report more work forever when more records are alive than the limit.
    #[tokio::test]
    async fn sweep_rests_after_a_round_over_the_living() {
        let store = MemoryStore::new();
        for number in 0..=255 {
            win(&store, KeyId::from_bytes([number; 16]));
        }
        for _ in 0..3 {
            let mut calls = 1;
            while store.sweep(10).await.unwrap().more {
                calls += 1;
            }
            assert_eq!(calls, 26, "256 records, 10 at a time");
        }
    }

    #[tokio::test]
    async fn a_listing_goes_on_in_the_middle_of_a_shard() {
        let store = MemoryStore::new();
        let mut ids: Vec<KeyId> = (0..30_u8)
            .map(|i| {
                let mut bytes = [i / 10; 16];
                bytes[9] = i.wrapping_mul(37);
                KeyId::from_bytes(bytes)
            })
            .collect();
        for id in &ids {
            win(&store, *id);
        }
        ids.sort_unstable();
        let mut listed = Vec::new();
        let mut query = Scan { phase: None, after: None, limit: 7 };
        loop {
            let page = store.scan(query).await.unwrap();
            listed.extend(page.items.iter().map(|item| item.id));
            query.after = page.next;
            if page.next.is_none() {
                break;
            }
        }
        assert_eq!(listed, ids);
    }
}
