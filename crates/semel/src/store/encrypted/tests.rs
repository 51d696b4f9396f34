use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::seal::{self, Cover, OutcomeOrigin, SEALED};
use super::*;
use crate::fingerprint::Fingerprint;
use crate::key::Hint;
use crate::outcome::OutcomeBody;
use crate::record::{Begin, Fence, Force, NewClaim, Owner, Terms};
use crate::store::MemoryStore;
use crate::time::ManualClock;

const PAYLOAD: Fingerprint = Fingerprint::from_bytes([7; 32]);

fn key(number: u8) -> SealingKey {
    SealingKey::from_bytes([number; 32])
}

fn ring(id: &str, number: u8) -> Keyring {
    Keyring::new(id, &key(number)).expect("a good id")
}

fn record(number: u8) -> KeyId {
    KeyId::from_bytes([number; 16])
}

fn grant(fence: u64) -> Grant {
    Grant::from_parts(Owner::from_bytes([9; 16]), Fence::new(fence))
}

fn completed() -> OutcomeOrigin {
    OutcomeOrigin::Completed(grant(5))
}

fn outcome(body: &str) -> Arc<Outcome> {
    Arc::new(Outcome::new("json", body).with_metadata("meta"))
}

fn bytes(sealed: &Outcome) -> &[u8] {
    match sealed.body() {
        OutcomeBody::Kept(bytes) => bytes,
        OutcomeBody::Tombstone(_) => panic!("a sealed outcome is kept"),
    }
}

fn open(ring: &Keyring, id: KeyId, sealed: &Outcome) -> Result<(Outcome, OutcomeOrigin), Error> {
    match seal::cover(id, sealed)? {
        Cover::Sealed(head) => seal::open(ring, id, &head),
        Cover::Plain => panic!("it is not sealed"),
    }
}

/// An inner memory store, and a clock to move.
struct Bench {
    clock: ManualClock,
    below: Arc<MemoryStore>,
    store: EncryptedStore<MemoryStore>,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::default();
        let below = Arc::new(MemoryStore::with_clock(clock.clone()));
        Self { clock, store: EncryptedStore::over(Arc::clone(&below), ring("k1", 1)), below }
    }

    async fn ask(&self, id: KeyId) -> Result<Ruling, Error> {
        let claim = NewClaim {
            owner: Owner::random(),
            fingerprint: PAYLOAD,
            terms: Arc::new(Terms::default()),
            begin: Begin::WithClaim,
            hint: Hint::new("order-12"),
        };
        self.store.apply(id, Command::Claim(claim)).await
    }

    async fn win(&self, id: KeyId) -> Grant {
        match self.ask(id).await {
            Ok(Ruling::Won(win)) => win.grant,
            other => panic!("expected a win, got {other:?}"),
        }
    }

    async fn done(&self, id: KeyId, body: &str) -> Grant {
        let grant = self.win(id).await;
        accepted(&self.store.apply(id, complete(grant, &outcome(body))).await);
        grant
    }

    /// The outcome in the inner store.
    async fn kept(&self, id: KeyId) -> Arc<Outcome> {
        let snapshot = self.below.get(id).await.expect("it cannot fail").expect("it is known");
        Arc::clone(snapshot.record.outcome(snapshot.now).expect("it is done"))
    }

    /// Writes an outcome to the inner store directly.
    async fn put(&self, id: KeyId, kept: &Arc<Outcome>) {
        let grant = self.win(id).await;
        accepted(&self.below.apply(id, complete(grant, kept)).await);
    }
}

fn complete(grant: Grant, outcome: &Arc<Outcome>) -> Command {
    Command::Complete { grant, fingerprint: PAYLOAD, outcome: Arc::clone(outcome), retention: None }
}

#[track_caller]
fn accepted(ruling: &Result<Ruling, Error>) {
    assert!(matches!(ruling, Ok(Ruling::Accepted { .. })), "expected it to be accepted, got {ruling:?}");
}

#[track_caller]
fn replayed(ruling: Result<Ruling, Error>) -> Arc<Outcome> {
    match ruling {
        Ok(Ruling::Replay { outcome, .. }) => outcome,
        other => panic!("expected a replay, got {other:?}"),
    }
}

#[track_caller]
fn refused(ruling: Result<Ruling, Error>, kind: ErrorKind, says: &[&str]) {
    let error = ruling.expect_err("it cannot be opened");
    assert_eq!(error.kind(), kind, "{error}");
    for word in says {
        assert!(error.to_string().contains(word), "`{word}` is missing: {error}");
    }
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    let body = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(|body| Outcome::new("", body)),
        ".{0,40}".prop_map(|reason| Outcome::tombstone("", reason)),
    ];
    (".{0,12}", proptest::collection::vec(any::<u8>(), 0..40), body).prop_map(|(kind, metadata, body)| {
        let outcome = match body.body() {
            OutcomeBody::Kept(bytes) => Outcome::new(kind, bytes.clone()),
            OutcomeBody::Tombstone(reason) => Outcome::tombstone(kind, reason.clone()),
        };
        outcome.with_metadata(metadata)
    })
}

fn any_origin() -> impl Strategy<Value = OutcomeOrigin> {
    prop_oneof![
        Just(OutcomeOrigin::Settled),
        (any::<[u8; 16]>(), any::<u64>()).prop_map(|(owner, fence)| {
            OutcomeOrigin::Completed(Grant::from_parts(Owner::from_bytes(owner), Fence::new(fence)))
        }),
    ]
}

proptest! {
    #[test]
    fn what_is_sealed_is_opened(outcome in any_outcome(), origin in any_origin(), id in any::<[u8; 16]>()) {
        let (ring, id) = (ring("k1", 1), KeyId::from_bytes(id));
        let sealed = seal::seal(ring.current(), id, origin, &outcome);
        prop_assert_eq!(open(&ring, id, &sealed).expect("it was sealed with it"), (outcome.clone(), origin));
        prop_assert_eq!(&*sealed, &*seal::seal(ring.current(), id, origin, &outcome), "a repeat is the same");
        // The sealed bytes reveal only the length of the plain text.
        let plain = outcome.encode();
        if plain.len() >= 16 {
            prop_assert!(!bytes(&sealed).windows(16).any(|window| plain.windows(16).any(|part| part == window)));
        }
    }

    #[test]
    fn nothing_else_opens(outcome in any_outcome(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let ring = ring("k1", 1);
        let sealed = seal::seal(ring.current(), record(1), completed(), &outcome);
        let mut bytes = bytes(&sealed).to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(open(&ring, record(1), &Outcome::new(SEALED, bytes)).is_err());
    }

    #[test]
    fn different_plain_texts_have_different_nonces(
        inputs in proptest::collection::hash_set((any::<[u8; 2]>(), 0..3u64, 0..3u8), 2..40),
    ) {
        let ring = ring("k1", 1);
        let nonces: std::collections::HashSet<Vec<u8>> = inputs.iter().map(|(body, fence, id)| {
            let outcome = Outcome::new("json", body.to_vec());
            let sealed = seal::seal(ring.current(), record(*id), OutcomeOrigin::Completed(grant(*fence)), &outcome);
            // Head: format, origin, length, "k1", check, owner and fence.
            bytes(&sealed)[3 + 2 + 4 + 24..][..24].to_vec()
        }).collect();
        prop_assert_eq!(nonces.len(), inputs.len());
    }
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let ring = ring("k1", 1);
    let sealed = seal::seal(ring.current(), record(1), completed(), &outcome("a body"));
    let whole = bytes(&sealed);
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 1 << bit;
            let opened = open(&ring, record(1), &Outcome::new(SEALED, bytes));
            let error = opened.expect_err("a bit was flipped");
            // A flipped key id or check looks like another key; a flipped format like a newer version.
            assert_ne!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(!error.is_retryable(), "{error}");
        }
        let cut = open(&ring, record(1), &Outcome::new(SEALED, &whole[..at]));
        assert_eq!(cut.expect_err("it was cut").kind(), ErrorKind::Corrupt, "cut at {at}");
    }
    for longer in [&[whole, &[0]].concat(), &[whole, whole].concat()] {
        let opened = open(&ring, record(1), &Outcome::new(SEALED, longer.clone()));
        assert_eq!(opened.expect_err("it is longer").kind(), ErrorKind::Corrupt);
    }
    let with_metadata = Outcome::new(SEALED, whole).with_metadata("x");
    assert_eq!(
        open(&ring, record(1), &with_metadata).expect_err("it was changed").kind(),
        ErrorKind::Corrupt
    );
    let tombstone = Outcome::tombstone(SEALED, "gone");
    assert_eq!(open(&ring, record(1), &tombstone).expect_err("it was changed").kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn an_outcome_moved_to_another_record_is_not_served() {
    let bench = Bench::new();
    bench.done(record(1), "one").await;
    bench.put(record(2), &bench.kept(record(1)).await).await;
    let says = ["was moved there from another record", "not run again"];
    refused(bench.ask(record(2)).await, ErrorKind::Corrupt, &says);
    assert_eq!(bench.store.get(record(2)).await.expect_err("moved").kind(), ErrorKind::Corrupt);
    let all = Scan { phase: None, after: None, limit: 10 };
    assert_eq!(bench.store.scan(all).await.expect_err("moved").kind(), ErrorKind::Corrupt);
    assert_eq!(*replayed(bench.ask(record(1)).await), *outcome("one"), "the other one is as it was");
}

// A claim's answer contains no fence, so only a read of the record detects this one.
#[tokio::test]
async fn an_outcome_of_an_earlier_epoch_is_noticed_by_whoever_reads_the_record() {
    let bench = Bench::new();
    bench.done(record(1), "one").await;
    let earlier = bench.kept(record(1)).await;
    accepted(&bench.store.apply(record(1), Command::Reexecute).await);
    bench.put(record(1), &earlier).await;
    assert_eq!(bench.store.get(record(1)).await.expect_err("moved").kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn a_newer_format_is_named() {
    let bench = Bench::new();
    bench.done(record(1), "one").await;
    let kept = bench.kept(record(1)).await;
    let mut bytes = bytes(&kept).to_vec();
    bytes[0] = 2;
    bench.put(record(2), &Arc::new(Outcome::new(SEALED, bytes))).await;
    refused(bench.ask(record(2)).await, ErrorKind::Incompatible, &["format 2", "upgrade"]);
}

#[tokio::test]
async fn a_missing_key_is_named_and_helps_when_it_is_back() {
    let bench = Bench::new();
    bench.done(record(1), "one").await;
    bench.store.rotate(ring("k2", 2));
    refused(bench.ask(record(1)).await, ErrorKind::Setup, &["`k1`", "(k2)", "put it back", "not run again"]);
    // Another key under the old id is not damage, and gets its own error.
    bench.store.rotate(ring("k1", 3));
    refused(bench.ask(record(1)).await, ErrorKind::Setup, &["another key than the `k1`", "put the one back"]);
    bench.store.rotate(ring("k2", 2).also_opens("k1", &key(1)).expect("a good id"));
    assert_eq!(*replayed(bench.ask(record(1)).await), *outcome("one"));
}

// One record under a lost key must not hide the others of its page, and must be readable before it is forgotten.
#[tokio::test]
async fn a_record_under_a_lost_key_is_listed_and_forgotten() {
    let bench = Bench::new();
    bench.done(record(1), "one").await;
    bench.store.rotate(ring("k2", 2));
    bench.done(record(2), "two").await;
    let all = Scan { phase: None, after: None, limit: 10 };
    let listed = bench.store.scan(all).await.expect("it is listed").items;
    assert_eq!(listed.iter().map(Snapshot::phase).collect::<Vec<_>>(), [Phase::Done, Phase::Done]);
    let lost = bench.store.get(record(1)).await.expect("it is shown").expect("it is known");
    let State::Done(outcome) = &lost.record.state else { panic!("it is done") };
    assert!(matches!(outcome.body(), OutcomeBody::Tombstone(why) if why.contains("`k1`")), "{outcome:?}");
    refused(bench.ask(record(1)).await, ErrorKind::Setup, &["`k1`"]);
    accepted(&bench.store.apply(record(1), Command::Forget(Force::No)).await);
    let forgotten = bench.store.get(record(1)).await.expect("it is shown").expect("a stub is left");
    assert_eq!(forgotten.phase(), Phase::Vacant);
}

#[tokio::test]
async fn a_key_is_not_needed_for_what_is_over() {
    let bench = Bench::new();
    bench.done(record(1), "one").await;
    bench.store.rotate(ring("k2", 2));
    bench.clock.advance(Terms::default().retention + Terms::default().grace);
    let snapshot = bench.store.get(record(1)).await.expect("no key is needed").expect("it is remembered");
    assert_eq!((snapshot.phase(), &snapshot.record.state), (Phase::Expired, &State::Expired));
    assert_eq!(bench.ask(record(1)).await.expect("no key is needed"), Ruling::Expired);
}

#[tokio::test]
async fn a_repeated_complete_is_accepted_whatever_key_is_current() {
    let bench = Bench::new();
    let grant = bench.done(record(1), "one").await;
    accepted(&bench.store.apply(record(1), complete(grant, &outcome("one"))).await);
    bench.store.rotate(ring("k2", 2).also_opens("k1", &key(1)).expect("a good id"));
    accepted(&bench.store.apply(record(1), complete(grant, &outcome("one"))).await);

    // Another outcome, another owner and another fence are refused, and get the stored outcome.
    let stranger = Grant::from_parts(Owner::random(), grant.fence());
    let later = Grant::from_parts(grant.owner(), Fence::new(grant.fence().get() + 1));
    for (grant, body) in [(grant, "two"), (stranger, "one"), (later, "one")] {
        let ruling = bench.store.apply(record(1), complete(grant, &outcome(body))).await;
        assert_eq!(ruling.expect("it can be opened"), Ruling::Lost { winner: Some(outcome("one")) });
    }
}

#[tokio::test]
async fn settlements_are_sealed_too() {
    let bench = Bench::new();
    let grant = bench.win(record(1)).await;
    accepted(&bench.store.apply(record(1), Command::Abandon(grant)).await);
    accepted(&bench.store.apply(record(1), Command::Settle(Settlement::Done(outcome("found")))).await);
    assert_eq!(bench.kept(record(1)).await.kind(), SEALED);
    assert_eq!(*replayed(bench.ask(record(1)).await), *outcome("found"));
    let snapshot = bench.store.get(record(1)).await.expect("it opens").expect("it is known");
    assert_eq!(snapshot.record.state, State::Done(outcome("found")));
}

#[tokio::test]
async fn plain_outcomes_are_read_until_they_are_refused() {
    let Bench { below, store, clock } = Bench::new();
    let bench = Bench { store: EncryptedStore::over(Arc::clone(&below), ring("k1", 1)), below, clock };
    bench.put(record(1), &outcome("before")).await;
    assert_eq!(*replayed(bench.ask(record(1)).await), *outcome("before"));
    drop(store);
    let strict = EncryptedStore::over(Arc::clone(&bench.below), ring("k1", 1)).plain(Plain::Refuse);
    let bench = Bench { store: strict, ..bench };
    refused(bench.ask(record(1)).await, ErrorKind::Incompatible, &["not sealed", "Plain::Read"]);
    bench.done(record(2), "after").await;
    assert_eq!(*replayed(bench.ask(record(2)).await), *outcome("after"));
}

#[tokio::test]
async fn the_keys_in_use_are_counted() {
    let bench = Bench::new();
    bench.put(record(1), &outcome("plain")).await;
    bench.done(record(2), "old").await;
    bench.store.rotate(ring("k2", 2));
    bench.done(record(3), "new").await;
    bench.done(record(4), "new").await;
    bench.win(record(5)).await;
    let found = bench.store.sealings().await.expect("it can be read without a key");
    assert_eq!(found.plain, 1);
    assert_eq!(found.by_key, BTreeMap::from([("k1".to_owned(), 1), ("k2".to_owned(), 2)]));
    bench.clock.advance(Terms::default().retention + Duration::from_secs(3600));
    assert_eq!(bench.store.sealings().await.expect("it can be read"), Sealings::default());
}

#[test]
fn keys_are_never_shown() {
    let key = SealingKey::from_bytes([0xab; 32]);
    let ring = Keyring::new("k1", &key).expect("a good id");
    let store = EncryptedStore::new(MemoryStore::new(), ring.clone());
    for shown in [format!("{key:?}"), format!("{ring:?}"), format!("{store:?}"), store.to_string()] {
        assert!(!shown.contains("ab, ab") && !shown.contains("171") && !shown.contains("abab"), "{shown}");
    }
    assert_eq!(format!("{ring:?}"), r#"["k1"]"#);
}

#[test]
fn a_ring_that_cannot_be_is_refused() {
    let long = "k".repeat(65);
    for id in ["", " ", "k 1", "ü", "k\n", long.as_str()] {
        assert_eq!(Keyring::new(id, &key(1)).expect_err("a bad id"), KeyringError::Id(id.to_owned()));
    }
    let twice = ring("k1", 1).also_opens("k1", &key(2)).expect_err("the id is taken");
    assert_eq!(twice, KeyringError::Twice("k1".to_owned()));
}

// A change here makes every sealed outcome unreadable.
#[test]
fn the_format_never_changes() {
    let expected = [
        "010007323032362d3131", // format, origin, id
        "f4df5758",
        "09090909090909090909090909090909", // owner
        "0500000000000000",                 // fence
        "e0ed6d738f715004e6136c277e224bfe3f41a4e29fcc6e75",
        "ace479711fd3b8e312b5bbccbe41629024911f53d1cd6ea70d588d47bf0c0990b00594",
    ]
    .concat();
    let made = seal::seal(ring("2026-11", 1).current(), record(2), completed(), &outcome("{}"));
    let hex: String = bytes(&made).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, expected);
    let bytes: Vec<u8> = (0..expected.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&expected[at..at + 2], 16).expect("hex"))
        .collect();
    let opened = open(&ring("2026-11", 1), record(2), &Outcome::new(SEALED, bytes)).expect("it always opens");
    assert_eq!(opened, (Outcome::clone(&outcome("{}")), completed()));
}
