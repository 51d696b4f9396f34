//! Changed bits on disk, and truncated logs: refused or right, never wrong.

use std::fs;
use std::path::Path;

use rusqlite::Connection;

use super::*;
use crate::record::{Fence, Force, Phase};
use crate::secret::Secret;
use crate::store::embedded::{OnCorruption, table};
use crate::store::{ErrorKind, MarkId, MarkStore as _, Scan, Snapshot};

/// All data that a store can return.
#[derive(Debug, PartialEq)]
struct Answers {
    records: Vec<Snapshot>,
    by_id: Vec<Option<Snapshot>>,
    begun: Vec<KeyId>,
    swept: Vec<KeyId>,
    mark: Option<u64>,
    secret: [u8; 32],
    floor: Fence,
}

const KEYS: u64 = 6;

async fn ask(store: &EmbeddedStore) -> Result<Answers, Error> {
    let scan = async |phase| store.scan(Scan { phase, after: None, limit: 100 }).await;
    let mut by_id = Vec::new();
    for number in 0..KEYS + 2 {
        by_id.push(store.get(id(number)).await?);
    }
    let (floor, swept) = store
        .write(|writing| {
            let read = || -> rusqlite::Result<Vec<KeyId>> {
                writing
                    .transaction()
                    .prepare("SELECT id FROM records INDEXED BY records_to_sweep WHERE sweep_at IS NOT NULL")?
                    .query_map([], |row| Ok(KeyId::from_bytes(row.get(0)?)))?
                    .collect()
            };
            let floor = table::read_floor(writing.transaction()).map_err(|error| writing.explain(&error))?;
            Ok((floor, read().map_err(|error| writing.explain(&error.into()))?))
        })
        .await?;
    Ok(Answers {
        records: scan(None).await?.items,
        by_id,
        begun: scan(Some(Phase::Begun)).await?.items.iter().map(|item| item.id).collect(),
        swept,
        mark: store.read_mark(MarkId::of_session(b"s")).await?,
        secret: *store.secret(Secret::from_bytes([9; 32])).await?.expose(),
        floor,
    })
}

/// A record in every state, a mark, a secret, a floor: all rows there can be, on small pages.
async fn fill(store: &EmbeddedStore, clock: &ManualClock) {
    let _ = won(store.apply(id(100), claim()).await.unwrap());
    let _ = store.apply(id(100), Command::Forget(Force::Yes)).await.unwrap();
    clock.advance(DAY);
    assert_eq!(store.sweep(10).await.unwrap().removed, 1);
    store.secret(Secret::from_bytes([7; 32])).await.unwrap();
    store.raise_mark(MarkId::of_session(b"s"), 77).await.unwrap();
    for number in 0..KEYS {
        let grant = won(store.apply(id(number), claim()).await.unwrap());
        let command = match number {
            0 => continue,
            1 => Command::Release(grant),
            2 => Command::Bind(grant),
            // Long enough to need more than one page.
            3 => complete(grant, &"long ".repeat(300)),
            _ => complete(grant, "short"),
        };
        assert!(matches!(store.apply(id(number), command).await.unwrap(), Ruling::Accepted { .. }));
    }
}

fn small(place: &Place) -> EmbeddedStore {
    place.builder().page_size(512).open().unwrap()
}

/// Puts files into a new place and reads the store there.
async fn ask_files(clock: &ManualClock, files: &[(&str, &[u8])]) -> Result<Answers, Error> {
    let place = Place::quick(clock);
    fs::create_dir(place.path()).unwrap();
    for (name, content) in files {
        fs::write(place.path().join(name), content).unwrap();
    }
    ask(&place.try_open()?).await
}

fn read(folder: &Path, name: &str) -> Vec<u8> {
    fs::read(folder.join(name)).unwrap()
}

fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Incompatible)
}

#[tokio::test]
async fn bit_flip() {
    let place = Place::new();
    let store = small(&place);
    fill(&store, &place.clock).await;
    let right = ask(&store).await.unwrap();
    drop(store);
    assert!(!place.path().join("semel.db-wal").exists(), "a clean end leaves no log");
    let image = read(&place.path(), "semel.db");
    let mut refused = 0;
    for at in 0..image.len() {
        let mut flipped = image.clone();
        flipped[at] ^= 1 << (at % 8);
        match ask_files(&place.clock, &[("semel.db", &flipped)]).await {
            Ok(answers) => assert_eq!(answers, right, "byte {at}"),
            Err(error) => {
                assert!(is_refusal(&error), "byte {at}: {error}");
                refused += 1;
            }
        }
    }
    // The rest is free space and numbers that SQLite does not need.
    assert!(refused * 2 > image.len(), "only {refused} of {} flips were noticed", image.len());
}

// One file per format that was ever released, opened by every later version.
#[tokio::test]
async fn old_format() {
    let place = Place::new();
    fs::create_dir(place.path()).unwrap();
    fs::write(place.path().join("semel.db"), include_bytes!("fixtures/v1.db")).unwrap();
    // The day that `fill` advances.
    place.clock.advance(DAY);
    let answers = ask(&place.open()).await.unwrap();
    let states: Vec<_> = answers.by_id.iter().map(|found| found.as_ref().map(Snapshot::phase)).collect();
    let done = Some(Phase::Done);
    let expected =
        [Some(Phase::Begun), Some(Phase::Vacant), Some(Phase::Bound), done, done, done, None, None];
    assert_eq!(states, expected);
    let outcome = |number: usize| {
        let snapshot = answers.by_id[number].as_ref().unwrap();
        Outcome::clone(snapshot.record.outcome(snapshot.now).unwrap())
    };
    assert_eq!(outcome(3), Outcome::new("text", "long ".repeat(300)));
    assert_eq!(outcome(4), Outcome::new("text", "short"));
    assert_eq!((answers.mark, answers.secret), (Some(77), [7; 32]));
    assert_eq!(answers.floor, Fence::new(1_000_000_000_000_000));
}

#[tokio::test]
#[ignore = "writes the file that `old_format` reads; to be run once for each new format"]
async fn write_the_file_of_this_format() {
    let place = Place::new();
    let store = small(&place);
    fill(&store, &place.clock).await;
    drop(store);
    let name = format!("src/store/embedded/tests/fixtures/v{}.db", crate::store::embedded::schema::VERSION);
    fs::copy(place.path().join("semel.db"), Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
}

/// A store that was killed: its files as they are while it is open. Every commit changes one record.
async fn killed(place: &Place) -> (Vec<u8>, Vec<u8>, Answers, Answers) {
    let store = small(place);
    fill(&store, &place.clock).await;
    // Starts a new log, so that it contains only the following commits.
    drop(store);
    let store = place.open();
    for number in KEYS..KEYS + 2 {
        let _ = won(store.apply(id(number), claim()).await.unwrap());
    }
    let before_last = ask(&store).await.unwrap();
    let _ = store.apply(id(0), Command::Forget(Force::Yes)).await.unwrap();
    let last = ask(&store).await.unwrap();
    let files = (read(&place.path(), "semel.db"), read(&place.path(), "semel.db-wal"));
    (files.0, files.1, before_last, last)
}

// A flipped bit in a log that was left behind. Only the last commit may be lost: it looks like a torn tail.
#[tokio::test]
async fn bit_flip_in_the_log() {
    let place = Place::new();
    let (database, log, before_last, last) = killed(&place).await;
    assert_ne!(before_last, last);
    let ask = async |database: &[u8], log: &[u8]| {
        ask_files(&place.clock, &[("semel.db", database), ("semel.db-wal", log)]).await
    };
    assert_eq!(ask(&database, &log).await.unwrap(), last);
    let mut refused = 0;
    for at in 0..log.len() {
        let mut flipped = log.clone();
        flipped[at] ^= 1 << (at % 8);
        match ask(&database, &flipped).await {
            Ok(answers) => assert!(answers == last || answers == before_last, "byte {at}: {answers:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
                refused += 1;
            }
        }
    }
    assert!(refused * 2 > log.len(), "only {refused} of {} flips were noticed", log.len());
}

#[tokio::test]
async fn bit_flip_in_the_file_under_a_log() {
    let place = Place::new();
    let (database, log, _, last) = killed(&place).await;
    // The two tests above already cover most of it, so not every byte.
    for at in (0..database.len()).step_by(5) {
        let mut flipped = database.clone();
        flipped[at] ^= 1 << (at % 8);
        match ask_files(&place.clock, &[("semel.db", &flipped), ("semel.db-wal", &log)]).await {
            Ok(answers) => assert_eq!(answers, last, "byte {at}"),
            Err(error) => assert!(is_refusal(&error), "byte {at}: {error}"),
        }
    }
}

/// A log is reused from its start: after its end are commits of an earlier use, which are not lost.
#[tokio::test]
async fn a_log_that_is_used_again_is_sound() {
    let place = Place::new();
    let store = place.builder().page_size(512).log_pages(1, 1).open().unwrap();
    fill(&store, &place.clock).await;
    let mut lengths = Vec::new();
    for number in 0..40 {
        let _ = won(store.apply(id(1000 + number), claim()).await.unwrap());
        let (database, log) = (read(&place.path(), "semel.db"), read(&place.path(), "semel.db-wal"));
        let right = ask(&store).await.unwrap();
        let crashed = ask_files(&place.clock, &[("semel.db", &database), ("semel.db-wal", &log)]).await;
        assert_eq!(crashed.unwrap(), right, "after {number}");
        lengths.push(log.len());
    }
    lengths.dedup();
    assert!(lengths.len() < 20, "the log was never used again: {lengths:?}");
}

#[tokio::test]
async fn torn_write() {
    let place = Place::new();
    let (database, log, before_last, last) = killed(&place).await;
    for cut in log.len().saturating_sub(4096)..=log.len() {
        let answers =
            ask_files(&place.clock, &[("semel.db", &database), ("semel.db-wal", &log[..cut])]).await;
        let answers = answers.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        if cut == log.len() {
            assert_eq!(answers, last);
        } else if answers != last && answers != before_last {
            // The cut reaches into earlier commits: then the earlier state is found, and nothing else.
            assert!(answers.records.len() < before_last.records.len(), "cut at {cut}: {answers:?}");
            for record in &answers.records {
                assert!(before_last.records.contains(record), "cut at {cut}: {record:?}");
            }
        }
    }
}

fn damage_records(place: &Place, sql: &str) {
    let connection = Connection::open(place.path().join("semel.db")).unwrap();
    connection.execute_batch(sql).unwrap();
}

const BREAK_ONE: &str = "UPDATE records SET record = zeroblob(200) WHERE number = 2";

async fn three_records() -> Place {
    let place = Place::new();
    let store = place.open();
    for number in 1..=3 {
        finish(&store, id(number), "kept").await;
    }
    place
}

#[tokio::test]
async fn a_damaged_row_is_refused_with_its_place() {
    let place = three_records().await;
    damage_records(&place, BREAK_ONE);
    let error = place.try_open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let image = read(&place.path(), "semel.db");
    let words = error.to_string();
    let at = words.split_once("at byte ").unwrap().1.split_once(' ').unwrap().0.parse::<usize>().unwrap();
    assert!(at < image.len(), "{words}");
    for part in ["semel.db: row 2 with id ", &id(2).to_string(), "table records", "Quarantine"] {
        assert!(words.contains(part), "{words}");
    }
    assert_eq!(place.try_open().unwrap_err().to_string(), words, "nothing was changed by refusing");
}

#[tokio::test]
async fn a_damaged_row_is_quarantined_where_asked() {
    let place = three_records().await;
    damage_records(&place, BREAK_ONE);
    let store = place.builder().on_corruption(OnCorruption::Quarantine).open().unwrap();
    assert_eq!(store.get(id(2)).await.unwrap(), None);
    for number in [1, 3] {
        let _ = replayed(store.apply(id(number), claim()).await.unwrap());
    }
    assert_eq!(store.verify().await.unwrap().records, 2);
    drop(store);
    let store = place.open();
    let aside: i64 = store
        .write(|writing| {
            let count =
                writing.transaction().query_row("SELECT count(*) FROM quarantine", [], |row| row.get(0));
            count.map_err(|error| writing.explain(&error.into()))
        })
        .await
        .unwrap();
    assert_eq!(aside, 1);
    let _ = won(store.apply(id(2), claim()).await.unwrap());
}

#[tokio::test]
async fn a_damaged_secret_is_never_set_aside() {
    let place = three_records().await;
    place.open().secret(Secret::random()).await.unwrap();
    damage_records(&place, "UPDATE meta SET value = zeroblob(32) WHERE name = 'secret'");
    let error = place.builder().on_corruption(OnCorruption::Quarantine).open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("'secret' of table meta"), "{error}");
}

/// A file too large to be checked at open: the damage is found later, and is still never served.
#[tokio::test]
async fn a_damaged_row_of_a_large_file_is_not_served_and_not_vacant() {
    let place = three_records().await;
    damage_records(&place, BREAK_ONE);
    let store = place.builder().check_up_to(0).open().unwrap();
    for answer in [store.apply(id(2), claim()).await.err(), store.get(id(2)).await.err()] {
        let error = answer.expect("never served, never vacant");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("at byte"), "{error}");
    }
    let grant = Grant::from_parts(Owner::random(), Fence::new(1));
    let error = store.apply(id(2), Command::Release(grant)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "the writer looks too");
    let _ = replayed(store.apply(id(3), claim()).await.unwrap());
    assert_eq!(store.verify().await.unwrap_err().kind(), ErrorKind::Corrupt);
    place.clock.advance(DAY * 3);
    let swept = store.sweep(10).await.unwrap();
    assert_eq!((swept.removed, swept.more), (2, false), "the sweep steps over it");
    assert_eq!(store.get(id(2)).await.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn the_scrub_finds_what_nobody_asked_for() {
    let place = three_records().await;
    damage_records(&place, BREAK_ONE);
    let store = place.builder().check_up_to(0).open().unwrap();
    let found: Vec<_> = store.readers().scrub(2).unwrap().into_iter().map(|bad| bad.number).collect();
    assert_eq!(found, [Some(2)]);
    assert_eq!(store.readers().scrub(2).unwrap().len(), 0, "row 3, and then from the start");
    assert_eq!(store.readers().scrub(2).unwrap().len(), 0, "the end");
    assert_eq!(store.readers().scrub(2).unwrap().len(), 1);
}
