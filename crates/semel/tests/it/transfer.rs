//! Records move from every store to every other, and a store that was moved grants no claims.

mod closed;
mod live;
mod transactions;

use std::sync::Arc;
use std::time::Duration;

use semel::key::KeyId;
use semel::record::{Begin, Command, Fence, Force, Mode, NewClaim, Phase, Ruling, Settlement, Terms};
use semel::secret::Secret;
use semel::store::transfer::{Transfer, TransferState, TransferStore};
use semel::store::{EmbeddedStore, MarkId, MemoryStore, PostgresStore, RedisStore, Snapshot, Store};
use semel_testbed::{Postgres, Redis};

use crate::by_hand::*;

const PATIENCE: Duration = Duration::from_secs(30);

/// Servers and folders for many stores.
struct Places {
    redis: Redis,
    postgres: Postgres,
    folder: tempfile::TempDir,
}

const KINDS: [&str; 4] = ["memory", "embedded", "redis", "postgres"];

impl Places {
    fn start() -> Self {
        Self {
            redis: Redis::start().expect("redis-server starts"),
            postgres: Postgres::start().expect("a PostgreSQL server can be started"),
            folder: tempfile::tempdir().expect("a temporary folder can be made"),
        }
    }

    /// An empty store.
    async fn store(&self, kind: &str, name: &str) -> Arc<dyn TransferStore> {
        match kind {
            "memory" => Arc::new(MemoryStore::new()),
            "embedded" => Arc::new(EmbeddedStore::open(self.folder.path().join(name)).expect("it works")),
            "redis" => Arc::new(
                RedisStore::builder(&self.redis.url()).prefix(name).connect().await.expect("it works"),
            ),
            _ => Arc::new(
                PostgresStore::builder(self.postgres.url()).schema(name).open().await.expect("it works"),
            ),
        }
    }
}

fn number(number: u8) -> KeyId {
    KeyId::from_bytes([number; 16])
}

fn claim_for(terms: Terms, begin: Begin) -> NewClaim {
    NewClaim { terms: Arc::new(terms), begin, ..claim() }
}

async fn ask(
    store: &(impl Store + ?Sized),
    id: KeyId,
    claim: NewClaim,
) -> Result<Ruling, semel::store::Error> {
    store.apply(id, Command::Claim(claim)).await
}

async fn run(store: &(impl Store + ?Sized), id: KeyId, terms: Terms) {
    let grant = won(ask(store, id, claim_for(terms, Begin::Later)).await);
    accepted(store.apply(id, complete(grant, &format!("{id}"))).await);
}

async fn phase_is(store: &(impl Store + ?Sized), id: KeyId, phase: Phase) {
    let reached = async {
        while found(store, id).await.phase() != phase {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{id} is not {phase:?}"));
}

async fn found(store: &(impl Store + ?Sized), id: KeyId) -> Snapshot {
    store.get(id).await.expect("it works").unwrap_or_else(|| panic!("{id} is not there"))
}

/// What each key of [`fill`] is.
const PHASES: [Phase; 11] = [
    Phase::Done,
    Phase::Expired,
    Phase::InDoubt,
    Phase::Claimed,
    Phase::Begun,
    Phase::Bound,
    Phase::Vacant,
    Phase::Vacant,
    Phase::Bound,
    Phase::Lapsed,
    Phase::Done,
];

/// One key of each kind, by number from 1 on.
async fn fill(store: &(impl Store + ?Sized)) {
    let usual = Terms::default();
    let moment = Duration::from_millis(20);
    let short = Terms { lease: moment, in_flight_max: moment, ..usual };
    run(store, number(1), usual).await;
    let expired =
        won(ask(store, number(2), claim_for(Terms { grace: Duration::ZERO, ..usual }, Begin::Later)).await);
    let outcome = Arc::new(semel::outcome::Outcome::new("text", "soon over"));
    let complete_for_a_moment =
        Command::Complete { grant: expired, fingerprint: PAYLOAD, outcome, retention: Some(moment) };
    accepted(store.apply(number(2), complete_for_a_moment).await);
    won(ask(store, number(3), claim_for(short, Begin::WithClaim)).await);
    won(ask(store, number(4), claim_for(usual, Begin::Later)).await);
    won(ask(store, number(5), claim_for(usual, Begin::WithClaim)).await);
    let bound = won(ask(store, number(6), claim()).await);
    accepted(store.apply(number(6), Command::Bind(bound)).await);
    let released = won(ask(store, number(7), claim()).await);
    accepted(store.apply(number(7), Command::Release(released)).await);
    run(store, number(8), usual).await;
    accepted(store.apply(number(8), Command::Forget(Force::No)).await);
    run(store, number(9), usual).await;
    accepted(store.apply(number(9), Command::Reexecute).await);
    won(ask(store, number(10), claim_for(Terms { mode: Mode::Keyed, ..short }, Begin::WithClaim)).await);
    let tombstone = won(ask(store, number(11), claim()).await);
    let outcome = Arc::new(semel::outcome::Outcome::tombstone("http", "too large").with_metadata("201"));
    let complete = Command::Complete { grant: tombstone, fingerprint: PAYLOAD, outcome, retention: None };
    accepted(store.apply(number(11), complete).await);
    for (id, phase) in (1..).map(number).zip(PHASES) {
        phase_is(store, id, phase).await;
    }
}

/// The parts of a record that a clock does not change.
fn lasting(snapshot: &Snapshot) -> impl PartialEq + std::fmt::Debug + use<> {
    let record = snapshot.record.clone();
    let outcome = record.outcome(snapshot.now).cloned();
    let person = (record.hint.to_stored().into_owned(), record.terms, record.attempt, record.epoch);
    (snapshot.phase(), record.fence, record.owner, record.fingerprint, outcome, person)
}

async fn copy(from: &dyn TransferStore, to: &Arc<dyn TransferStore>) {
    let mut transfer = Transfer::begin(from, Arc::clone(to), [None, None]).await.expect("it works");
    let moved = TransferState::Moved { run: transfer.run(), to: to.address() };
    let pass = transfer.pass(from).await.expect("it works");
    assert_eq!((pass.records, pass.in_progress), (11, 2));
    assert!(from.change_state(&TransferState::Open, &moved).await.expect("it works"));
    assert_eq!(transfer.pass(from).await.expect("it works").changed, 0);
    let done = transfer.finish(from).await.expect("it works");
    assert_eq!((done.records, done.in_progress, done.in_doubt, done.marks), (11, 2, 1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_each_store_to_each_other() {
    let places = Places::start();
    let marks = [MarkId::of_session(b"one"), MarkId::of_session(b"two")];
    for from_kind in KINDS {
        for to_kind in KINDS {
            let pair = format!("{from_kind} to {to_kind}");
            let from = places.store(from_kind, &format!("{from_kind}_{to_kind}_old")).await;
            let to = places.store(to_kind, &format!("{from_kind}_{to_kind}_new")).await;
            let secret = from.secret(Secret::random()).await.expect("it works");
            fill(&*from).await;
            for (mark, value) in marks.iter().zip([3, 1 << 60]) {
                from.raise_mark(*mark, value).await.expect("it works");
            }
            copy(&*from, &to).await;

            assert_eq!(
                to.stored_secret().await.expect("it works").expect("it works").expose(),
                secret.expose(),
                "{pair}"
            );
            assert_eq!(to.read_mark(marks[1]).await.expect("it works"), Some(1 << 60), "{pair}");
            for id in (1..).map(number).take(PHASES.len()) {
                let (old, new) = (found(&*from, id).await, found(&*to, id).await);
                assert_eq!(lasting(&new), lasting(&old), "{pair}, {id}");
            }
            let refused = ask(&*from, number(99), claim()).await.expect_err("it is refused");
            assert_eq!(refused.kind(), semel::store::ErrorKind::Moved, "{pair}: {refused}");
            go_on(&*from, &*to, &pair).await;
        }
    }
}

/// Every key goes on as it would have on the old store, with a higher fence.
async fn go_on(old: &dyn TransferStore, new: &dyn TransferStore, pair: &str) {
    let fence = async |id| found(old, id).await.record.fence;
    for id in [1, 11].map(number) {
        assert!(matches!(ask(new, id, claim()).await, Ok(Ruling::Replay { .. })), "{pair}, {id}");
    }
    // The clock of a claim may be some milliseconds behind that of a reading.
    let expired = async {
        while !matches!(ask(new, number(2), claim()).await, Ok(Ruling::Expired)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, expired).await.unwrap_or_else(|_| panic!("{pair}: key 2 is expired"));
    assert!(matches!(ask(new, number(3), claim()).await, Ok(Ruling::InDoubt)), "{pair}");
    for id in [4, 5].map(number) {
        busy(ask(new, id, claim()).await);
    }
    let other = NewClaim { fingerprint: semel::fingerprint::Fingerprint::from_bytes([8; 32]), ..claim() };
    assert!(matches!(ask(new, number(6), other).await, Ok(Ruling::Conflict)), "{pair}");
    for id in [6, 7, 8, 9, 10].map(number) {
        let grant = won(ask(new, id, claim()).await);
        assert!(grant.fence() > fence(id).await, "{pair}, {id}");
    }
    accepted(new.apply(number(3), Command::Settle(Settlement::Run)).await);
    assert!(found(new, number(3)).await.record.fence > fence(number(3)).await, "{pair}");
    let floor = old.fence_floor().await.expect("it works");
    assert!(won(ask(new, number(99), claim()).await).fence() > floor, "{pair}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fence_floor_goes_along() {
    let places = Places::start();
    let high = Fence::new(semel::time::Clock::now(&semel::time::SystemClock).as_micros() + 3_600_000_000);
    for kind in ["memory", "embedded", "postgres"] {
        let from = places.store(kind, &format!("{kind}_floor_old")).await;
        run(&*from, number(1), Terms::default()).await;
        from.raise_fence_floor(high).await.expect("it works");
        from.secret(Secret::random()).await.expect("it works");
        let to = places.store(kind, &format!("{kind}_floor_new")).await;
        let mut transfer = Transfer::begin(&*from, Arc::clone(&to), [None, None]).await.expect("it works");
        transfer.pass(&*from).await.expect("it works");
        transfer.finish(&*from).await.expect("it works");
        assert_eq!(to.fence_floor().await.expect("it works"), high, "{kind}");
        assert!(won(ask(&*to, number(2), claim()).await).fence() > high, "{kind}");

        // Redis has no floor but its clock, which is an hour behind.
        let to = places.store("redis", &format!("{kind}_floor")).await;
        let mut transfer = Transfer::begin(&*from, Arc::clone(&to), [None, None]).await.expect("it works");
        transfer.pass(&*from).await.expect("it works");
        let refused = transfer.finish(&*from).await.expect_err("it is refused");
        assert!(refused.to_string().contains("behind the fences"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_a_cluster_and_back() {
    let cluster = semel_testbed::RedisCluster::start().expect("a cluster starts");
    let nodes: Vec<String> = cluster.addrs().iter().map(ToString::to_string).collect();
    let url = format!("redis-cluster://{}", nodes.join(","));
    let (from, back): (Arc<dyn TransferStore>, Arc<dyn TransferStore>) =
        (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    let middle: Arc<dyn TransferStore> = Arc::new(RedisStore::connect(&url).await.expect("it works"));
    fill(&*from).await;
    from.secret(Secret::random()).await.expect("it works");
    for session in [b"one", b"two"] {
        from.raise_mark(MarkId::of_session(session), 3).await.expect("it works");
    }
    copy(&*from, &middle).await;
    copy(&*middle, &back).await;
    for id in (1..).map(number).take(PHASES.len()) {
        let (old, new) = (found(&*from, id).await, found(&*back, id).await);
        assert_eq!(lasting(&new), lasting(&old), "{id}");
    }
    go_on(&*from, &*back, "through a cluster").await;
}

#[cfg(feature = "encryption")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sealed_outcomes_stay_sealed_and_open_with_the_same_ring() {
    use semel::store::{EncryptedStore, ErrorKind, Keyring, SealingKey};

    let places = Places::start();
    let ring = Keyring::new("2026-11", &SealingKey::random()).expect("it works");
    let from = places.store("embedded", "sealed").await;
    from.secret(Secret::random()).await.expect("it works");
    // Some before encryption was enabled.
    run(&*from, number(50), Terms::default()).await;
    let sealed_from = EncryptedStore::over(Arc::clone(&from) as Arc<dyn Store>, ring.clone());
    fill(&sealed_from).await;
    for kind in ["redis", "postgres"] {
        let to = places.store(kind, "sealed").await;
        let mut transfer = Transfer::begin(&*from, Arc::clone(&to), [None, None]).await.expect("it works");
        transfer.pass(&*from).await.expect("it works");
        transfer.finish(&*from).await.expect("it works");
        let stored = found(&*to, number(1)).await;
        assert_eq!(stored.record.state, found(&*from, number(1)).await.record.state, "{kind}: byte for byte");
        let sealed_to = EncryptedStore::over(Arc::clone(&to) as Arc<dyn Store>, ring.clone());
        for id in [1, 11, 50].map(number) {
            let (old, new) = (found(&sealed_from, id).await, found(&sealed_to, id).await);
            assert_eq!(lasting(&new), lasting(&old), "{kind}, {id}");
            assert!(matches!(ask(&sealed_to, id, claim()).await, Ok(Ruling::Replay { .. })), "{kind}, {id}");
        }
        let foreign = Keyring::new("other", &SealingKey::random()).expect("it works");
        let without_key = EncryptedStore::over(Arc::clone(&to) as Arc<dyn Store>, foreign);
        let refused = ask(&without_key, number(1), claim()).await.expect_err("it is refused");
        assert_eq!(refused.kind(), ErrorKind::Setup, "{kind}: never run again for a missing key: {refused}");
    }
}
