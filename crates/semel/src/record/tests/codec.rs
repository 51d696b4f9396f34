//! A record's bytes: encoding round-trips, decoding never panics, and the layout does not change.

use proptest::prelude::*;

use super::*;
use crate::key::Origin;

fn moment() -> impl Strategy<Value = Timestamp> {
    any::<u64>().prop_map(Timestamp::from_micros)
}

fn length() -> impl Strategy<Value = Duration> {
    any::<u64>().prop_map(Duration::from_micros)
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        (".{0,8}", bytes(), bytes())
            .prop_map(|(kind, metadata, body)| Outcome::new(kind, body).with_metadata(metadata)),
        (".{0,8}", bytes(), ".{0,20}")
            .prop_map(|(kind, metadata, why)| Outcome::tombstone(kind, why).with_metadata(metadata)),
    ]
}

fn states() -> impl Strategy<Value = State> {
    prop_oneof![
        Just(State::Vacant),
        Just(State::Bound),
        Just(State::Claimed),
        Just(State::Begun),
        outcomes().prop_map(|outcome| State::Done(Arc::new(outcome))),
        Just(State::Expired),
    ]
}

fn all_terms() -> impl Strategy<Value = Terms> {
    (prop::sample::select(MODES.to_vec()), prop::array::uniform5(length())).prop_map(
        |(mode, [lease, in_flight_max, retention, grace, memory])| Terms {
            mode,
            lease,
            in_flight_max,
            retention,
            grace,
            memory,
        },
    )
}

fn records() -> impl Strategy<Value = Record> {
    let head = (states(), any::<[u8; 32]>(), any::<[u8; 16]>(), any::<u64>(), any::<u32>(), any::<u32>());
    let origin = prop::option::of(".{0,300}".prop_map(|path| Origin::new("POST", &path, Some("r-1"), None)));
    (head, (".{0,12}", origin), all_terms(), prop::array::uniform5(moment())).prop_map(
        |((state, fingerprint, owner, fence, epoch, attempt), (hint, origin), terms, moments)| {
            let hint = Hint::new(&hint);
            let [claimed_at, changed_at, lease_until, expires_at, forget_at] = moments;
            Record {
                state,
                fingerprint: Fingerprint::from_bytes(fingerprint),
                owner: Owner::from_bytes(owner),
                fence: Fence::new(fence),
                epoch: Epoch::new(epoch),
                attempt,
                hint: match origin {
                    Some(origin) => hint.with_origin(origin),
                    None => hint,
                },
                terms: terms.into(),
                claimed_at,
                changed_at,
                lease_until,
                expires_at,
                forget_at,
            }
        },
    )
}

/// Every command there is, from the record's own owner.
fn commands(record: &Record) -> Vec<Command> {
    let grant = Grant { owner: record.owner, fence: record.fence };
    vec![
        claim(record.owner, record.fingerprint, *record.terms, Begin::WithClaim),
        claim(B, record.fingerprint, *record.terms, Begin::Later),
        Command::Begin(grant),
        Command::Renew(grant),
        Command::Complete {
            grant,
            fingerprint: record.fingerprint,
            outcome: outcome("x"),
            retention: Some(Duration::MAX),
        },
        Command::Release(grant),
        Command::Bind(grant),
        Command::Abandon(grant),
        Command::Settle(Settlement::Done(outcome("x"))),
        Command::Settle(Settlement::Run),
        Command::Forget(Force::Yes),
        Command::Reexecute,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(record in records()) {
        prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Record::decode(&bytes);
        if let Some(version) = bytes.first_mut() {
            *version = 1;
        }
        let _ = Record::decode(&bytes);
    }

    // Damaged records test deeper than noise: cut, one byte changed, trailing bytes.
    #[test]
    fn damaged_bytes_never_panic(record in records(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let good = record.encode();
        let at = at.index(good.len());
        prop_assert!(Record::decode(&good[..at]).is_err() || matches!(record.state, State::Done(_)));
        let mut changed = good.clone();
        changed[at] = byte;
        if let Ok(read) = Record::decode(&changed) {
            prop_assert_eq!(Record::decode(&read.encode()), Ok(read));
        }
        if !matches!(record.state, State::Done(_)) {
            let longer = [good.as_slice(), &[byte]].concat();
            prop_assert_eq!(Record::decode(&longer), Err(DecodeError::Damaged("end")));
        }
    }

    // For any stored record, no command panics and the fence does not go back.
    #[test]
    fn the_rules_bear_any_record(record in records(), now in moment(), floor in any::<u64>()) {
        for command in commands(&record) {
            let mut slot = Some(record.clone());
            let ruling = apply(&mut slot, &command, now, Fence::new(floor));
            let after = slot.expect("no command takes a record out of its slot");
            prop_assert!(after.fence >= record.fence, "{:?}", ruling);
            prop_assert_eq!(Record::decode(&after.encode()), Ok(after.clone()));
            let _ = (after.phase(now), after.sweep(now), after.sweep_at());
        }
    }
}

fn sample(state: State) -> Record {
    Record {
        state,
        fingerprint: Fingerprint::from_bytes([0x11; 32]),
        owner: Owner::from_bytes([0x22; 16]),
        fence: Fence::new(0x0807_0605_0403_0201),
        epoch: Epoch::new(3),
        attempt: 4,
        hint: Hint::new("é-7"),
        terms: Arc::new(Terms {
            mode: Mode::Marked,
            lease: Duration::from_micros(6),
            in_flight_max: Duration::from_micros(7),
            retention: Duration::from_micros(8),
            grace: Duration::from_micros(9),
            memory: Duration::from_micros(10),
        }),
        claimed_at: Timestamp::from_micros(0xa1),
        changed_at: Timestamp::from_micros(0xa2),
        lease_until: Timestamp::from_micros(0xa3),
        expires_at: Timestamp::from_micros(0xa4),
        forget_at: Timestamp::from_micros(0x0100_0000_0000_00a5),
    }
}

/// The bytes of [`sample`] before the outcome, spelt out: this is the format on disks.
fn sample_bytes(state: u8) -> Vec<u8> {
    let mut bytes = vec![1, state, 2, 4];
    bytes.extend([0x11; 32]);
    bytes.extend([0x22; 16]);
    bytes.extend([1, 2, 3, 4, 5, 6, 7, 8]);
    bytes.extend([3, 0, 0, 0]);
    bytes.extend([4, 0, 0, 0]);
    for low in [0xa1, 0xa2, 0xa3, 0xa4] {
        bytes.extend([low, 0, 0, 0, 0, 0, 0, 0]);
    }
    bytes.extend([0xa5, 0, 0, 0, 0, 0, 0, 1]);
    for length in [6, 7, 8, 9, 10] {
        bytes.extend([length, 0, 0, 0, 0, 0, 0, 0]);
    }
    bytes.extend([0xc3, 0xa9, b'-', b'7']);
    bytes
}

#[test]
fn the_layout_does_not_drift() {
    let kept = Outcome::new("http", *b"body").with_metadata(*b"meta!");
    let tombstone = Outcome::tombstone("json", "large");
    let cases = [
        (State::Vacant, 0, &b""[..]),
        (State::Bound, 1, b""),
        (State::Claimed, 2, b""),
        (State::Begun, 3, b""),
        (State::Done(Arc::new(kept)), 4, b"\x04\0\0\0http\x05\0\0\0meta!\0body"),
        (State::Done(Arc::new(tombstone)), 4, b"\x04\0\0\0json\0\0\0\0\x01large"),
        (State::Expired, 5, b""),
    ];
    for (state, number, tail) in cases {
        let record = sample(state);
        let bytes = [sample_bytes(number).as_slice(), tail].concat();
        assert_eq!(record.encode(), bytes, "{:?}", record.state);
        assert_eq!(Record::decode(&bytes), Ok(record));
    }
    // An origin follows eight characters of the key, where versions that know none ignore it.
    let mut record = sample(State::Claimed);
    record.hint = Hint::new("é-7").with_origin(Origin::new("POST", "/pay", Some("r-1"), Some("3f2a")));
    let mut bytes = sample_bytes(2);
    bytes[3] = 9 + 19;
    bytes.extend(b"      POST /pay r-1 3f2a");
    assert_eq!(record.encode(), bytes);
    assert_eq!(Record::decode(&bytes), Ok(record));
    for (mode, number) in [(Mode::Atomic, 0), (Mode::Keyed, 1), (Mode::Marked, 2), (Mode::Rerun, 3)] {
        let mut record = sample(State::Claimed);
        Arc::make_mut(&mut record.terms).mode = mode;
        assert_eq!(record.encode()[2], number);
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let good = sample_bytes(2);
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Record::decode(&bytes).unwrap_err()
    };
    assert_eq!(Record::decode(b""), Err(DecodeError::Damaged("version")));
    assert_eq!(changed(0, 2), DecodeError::Version(2));
    assert_eq!(changed(1, 6), DecodeError::Damaged("state"));
    assert_eq!(changed(1, 4), DecodeError::Damaged("kind"));
    assert_eq!(changed(2, 4), DecodeError::Damaged("mode"));
    assert_eq!(changed(3, 5), DecodeError::Damaged("hint"));
    assert_eq!(changed(148, 0xff), DecodeError::Damaged("hint"));
    assert_eq!(Record::decode(&good[..40]), Err(DecodeError::Damaged("owner")));
    assert_eq!(
        changed(0, 9).to_string().split(':').next(),
        Some("the record has format 9, this version of Semel reads format 1")
    );
}
