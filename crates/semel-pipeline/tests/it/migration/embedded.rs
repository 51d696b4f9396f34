//! The embedded ledger.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use semel::secret::Secret;
use semel::store::EmbeddedStore;
use semel::store::rusqlite::Connection;
use semel_pipeline::ledger::{EmbeddedLedger, Error, ErrorKind};
use semel_pipeline::outbox::Relayed;
use semel_pipeline::outbox::embedded::{EmbeddedRelay, publish_in};
use semel_pipeline::publish::Publication;

use super::{check, data, place, process};

const FILE: &[u8] = include_bytes!("../../fixtures/format-2/embedded.db");
const WRITTEN: &str = include_str!("../../fixtures/format-2/embedded.txt");
const STEP: &str = include_str!("../../../src/ledger/embedded/schema_3.sql");

/// A ledger of format 2.
fn fixture() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("semel.db"), FILE).expect("the file is written");
    folder
}

async fn open(folder: &Path) -> Arc<EmbeddedLedger> {
    let store = Arc::new(EmbeddedStore::open(folder).expect("the store can be opened"));
    Arc::new(EmbeddedLedger::open(store).await.expect("the ledger can be opened"))
}

#[tokio::test]
async fn a_ledger_of_format_2_works() {
    let folder = fixture();
    let ledger = open(folder.path()).await;
    check(&*ledger, WRITTEN).await;
    let relay =
        EmbeddedRelay::new(ledger, Secret::from_bytes([7; 32]), |_: &Publication| vec!["crm".to_owned()]);
    let relayed = relay.run_once(10).await.expect("it is relayed");
    assert_eq!(relayed, Relayed { accepted: 1, ..Relayed::default() });
}

#[tokio::test]
async fn a_ledger_of_format_3_works() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = include_bytes!("../../fixtures/format-3/embedded.db");
    std::fs::write(folder.path().join("semel.db"), file).expect("the file is written");
    let ledger = open(folder.path()).await;
    check(&*ledger, include_str!("../../fixtures/format-3/embedded.txt")).await;
}

/// The format of this version, as its first release wrote it.
#[tokio::test]
async fn a_ledger_of_format_4_works() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = include_bytes!("../../fixtures/format-4/embedded.db");
    std::fs::write(folder.path().join("semel.db"), file).expect("the file is written");
    let ledger = open(folder.path()).await;
    check(&*ledger, include_str!("../../fixtures/format-4/embedded.txt")).await;
}

#[tokio::test]
async fn every_index_is_kept() {
    let folder = fixture();
    let indexes = || {
        let file = Connection::open(folder.path().join("semel.db")).expect("the file can be opened");
        let sql =
            "SELECT name FROM sqlite_schema WHERE type = 'index' AND name NOT LIKE 'sqlite_%' ORDER BY 1";
        let mut statement = file.prepare(sql).expect("a statement");
        let names = statement.query_map([], |row| row.get::<_, String>(0)).expect("rows");
        names.collect::<Result<Vec<_>, _>>().expect("names")
    };
    let before = indexes();
    drop(open(folder.path()).await);
    let after = indexes();
    let lost: Vec<&String> = before.iter().filter(|name| !after.contains(name)).collect();
    // `ledger_dead_letter_status` is in its place.
    assert_eq!(lost, ["ledger_letters_status"]);
}

#[tokio::test]
async fn a_migration_that_is_killed_half_way_starts_again() {
    let folder = fixture();
    let mut child = process("migration::embedded::stop_half_way", &folder.path().display().to_string());
    let output = BufReader::new(child.stdout.take().expect("its output"));
    assert!(output.lines().map_while(Result::ok).any(|line| line.contains("half way")), "it gets half way");
    child.kill().expect("it is killed");
    child.wait().expect("it has ended");
    check(&*open(folder.path()).await, WRITTEN).await;
}

/// Makes half of the changes of the migration, and waits for its end.
#[tokio::test]
#[ignore = "a process for the test above"]
async fn stop_half_way() {
    let store = EmbeddedStore::open(place()).expect("the store can be opened");
    let statements: Vec<&str> = STEP.split_inclusive(';').collect();
    let stopped = store.transact(move |transaction| {
        // Changed pages go to the file before the transaction ends.
        transaction.execute_batch("PRAGMA cache_size = 1")?;
        transaction.execute_batch(&statements[..statements.len() / 2].concat())?;
        println!("half way");
        loop {
            std::thread::park();
        }
    });
    let () = stopped.await.expect("it is killed before");
}

#[tokio::test]
async fn a_migration_that_is_killed_at_any_moment_starts_again() {
    for milliseconds in [0, 1, 2, 4, 8, 16, 32, 64] {
        let folder = fixture();
        let mut child = process("migration::embedded::open_ledger", &folder.path().display().to_string());
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        child.kill().expect("it is killed");
        child.wait().expect("it has ended");
        assert_eq!(
            data::describe(&*open(folder.path()).await).await,
            WRITTEN.lines().collect::<Vec<_>>(),
            "after {milliseconds} ms"
        );
    }
}

#[tokio::test]
async fn of_two_processes_one_migrates_and_the_other_is_told() {
    let folder = fixture();
    let place = folder.path().display().to_string();
    let started = [(), ()].map(|()| process("migration::embedded::open_ledger", &place));
    let ended = started.map(|child| child.wait_with_output().expect("it has ended"));
    assert!(ended.iter().any(|output| output.status.success()), "{ended:?}");
    for output in ended.iter().filter(|output| !output.status.success()) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("is open already"), "{said}");
    }
    check(&*open(folder.path()).await, WRITTEN).await;
}

#[tokio::test]
#[ignore = "a process for the tests above"]
async fn open_ledger() {
    drop(open(Path::new(&place())).await);
}

#[tokio::test]
async fn a_newer_version_is_refused_and_unchanged() {
    let folder = fixture();
    let file = Connection::open(folder.path().join("semel.db")).expect("the file can be opened");
    file.execute("UPDATE ledger_meta SET value = '9'", []).expect("a newer version");
    drop(file);
    let store = Arc::new(EmbeddedStore::open(folder.path()).expect("the store can be opened"));
    match EmbeddedLedger::open(store).await {
        Err(Error::Store(error)) => {
            assert_eq!(error.kind(), ErrorKind::Incompatible);
            assert!(error.to_string().contains("start that version; nothing was changed"), "{error}");
        }
        other => panic!("it is refused: {other:?}"),
    }
}

#[tokio::test]
#[ignore = "writes the fixture of the present version into the folder SEMEL_PLACE"]
async fn write_fixture() {
    let (place, folder) = (place(), tempfile::tempdir().expect("a folder"));
    let ledger = open(folder.path()).await;
    data::fill(&*ledger).await;
    ledger.store().transact(|tx| publish_in(tx, &data::published())).await.expect("it is published");
    let text = data::describe(&*ledger).await.join("\n");
    std::fs::write(format!("{place}/embedded.txt"), text).expect("it is written");
    drop(ledger);
    let file = Connection::open(folder.path().join("semel.db")).expect("the file can be opened");
    file.execute_batch(&format!("VACUUM INTO '{place}/embedded.db'")).expect("it is copied");
}
