//! An embedded store is read while it is written, and refuses claims after it was moved.

use std::sync::Arc;

use semel::Engine;
use semel::store::transfer::{Transfer, TransferRun, TransferSource as _, TransferState, TransferStore};
use semel::store::{EmbeddedReader, EmbeddedStore, ErrorKind, MemoryStore};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_store_is_copied_while_it_is_written() {
    let folder = tempfile::tempdir().expect("it works");
    let store = Arc::new(EmbeddedStore::open(folder.path()).expect("it works"));
    let secret = store.secret(Secret::random()).await.expect("it works");
    run(&*store, number(1), Terms::default()).await;
    let reader = EmbeddedReader::open(folder.path()).expect("it works");
    assert_eq!(reader.address(), store.address());
    let to: Arc<dyn TransferStore> = Arc::new(MemoryStore::new());
    let mut transfer = Transfer::begin(&reader, Arc::clone(&to), [None, None]).await.expect("it works");
    assert_eq!(transfer.pass(&reader).await.expect("it works").changed, 1);

    let writer = Arc::clone(&store);
    let writing = tokio::spawn(async move {
        for byte in 2..=200 {
            run(&*writer, number(byte), Terms::default()).await;
        }
    });
    while !writing.is_finished() {
        transfer.pass(&reader).await.expect("it works");
    }
    writing.await.expect("it works");
    drop(reader);
    let store = Arc::into_inner(store).expect("the writer has ended");
    transfer.pass(&store).await.expect("it works");
    let moved = TransferState::Moved { run: transfer.run(), to: to.address() };
    assert!(store.change_state(&TransferState::Open, &moved).await.expect("it works"));
    assert_eq!(transfer.finish(&store).await.expect("it works").records, 200);
    assert_eq!(to.stored_secret().await.expect("it works").expect("it works").expose(), secret.expose());
    for byte in 1..=200 {
        assert_eq!(found(&*to, number(byte)).await.phase(), Phase::Done);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_embedded_store_stays_closed_and_keeps_its_other_tables() {
    let folder = tempfile::tempdir().expect("it works");
    let store = EmbeddedStore::open(folder.path()).expect("it works");
    run(&store, number(1), Terms::default()).await;
    let moved = TransferState::Moved { run: TransferRun::random(), to: "postgres://db/app".to_owned() };
    assert!(store.change_state(&TransferState::Open, &moved).await.expect("it works"));
    drop(store);

    let store = Arc::new(EmbeddedStore::open(folder.path()).expect("it works"));
    let refused = ask(&*store, number(2), claim()).await.expect_err("it is refused");
    assert_eq!(refused.kind(), ErrorKind::Moved, "{refused}");
    replayed(ask(&*store, number(1), claim()).await);
    let engine = Engine::builder(Arc::clone(&store)).build().expect("it works");
    let failed = engine.verify(1).await.expect_err("it is refused");
    assert!(failed.to_string().contains("postgres://db/app"), "a server says where to go: {failed}");
    let ran = engine.once("order-1").run_in(&store, |_, _| Ok(1)).await;
    assert!(
        ran.expect_err("it is refused").to_string().contains("postgres://db/app"),
        "nor in a transaction"
    );
    // The ledger may stay.
    let rows = store.transact(|transaction| transaction.execute("CREATE TABLE mine (a)", [])).await;
    rows.expect("it works");

    assert!(store.change_state(&moved, &TransferState::Open).await.expect("it works"));
    won(ask(&*store, number(2), claim()).await);
}

#[tokio::test]
async fn a_reader_names_what_it_cannot_read() {
    let folder = tempfile::tempdir().expect("it works");
    let missing = EmbeddedReader::open(folder.path().join("typo")).expect_err("it is refused");
    assert_eq!(missing.kind(), ErrorKind::Setup);
    assert!(!folder.path().join("typo").exists(), "nothing was created");
    std::fs::write(folder.path().join("semel.db"), "not a database").expect("it works");
    let foreign = EmbeddedReader::open(folder.path()).expect_err("it is refused");
    assert_eq!(foreign.kind(), ErrorKind::Corrupt, "{foreign}");
}

/// Closing the reader of a store that no process has open must leave it as it was.
#[tokio::test]
async fn a_reader_leaves_a_closed_store_clean() {
    let folder = tempfile::tempdir().expect("it works");
    let store = EmbeddedStore::open(folder.path()).expect("it works");
    run(&store, number(1), Terms::default()).await;
    drop(store);
    for _ in 0..2 {
        let reader = EmbeddedReader::open(folder.path()).expect("it works");
        assert_eq!(semel::store::transfer::survey(&reader).await.expect("it works").records, 1);
        drop(reader);
        let store = EmbeddedStore::open(folder.path()).expect("it works");
        assert_eq!(store.verify().await.expect("it works").records, 1);
    }
}
