//! A receiver on a transaction of the embedded store.

use std::sync::Arc;

use semel::store::{EmbeddedStore, rusqlite};
use semel_window::{Gaps, Joined, MarkStore as _, Received, Receiver};

async fn rows(store: &EmbeddedStore) -> i64 {
    let count = |transaction: &rusqlite::Transaction<'_>| {
        transaction.query_row("SELECT count(*) FROM paid", [], |row| row.get(0))
    };
    store.transact(count).await.expect("the store works")
}

// The mark commits with the apply where it can join it.
#[tokio::test]
async fn a_mark_commits_with_the_row_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let store = &Arc::new(EmbeddedStore::open(folder.path()).unwrap());
    let create = |transaction: &rusqlite::Transaction<'_>| {
        transaction.execute_batch("CREATE TABLE paid (order_id TEXT)")
    };
    store.transact(create).await.unwrap();
    let receiver = Receiver::over(store.clone(), Gaps::Strict).build().unwrap();
    let apply = async |sequence: u64, fails: bool| {
        let of_apply = Arc::clone(store);
        let joined = async move |mark| {
            of_apply
                .transact(move |transaction| {
                    transaction.execute("INSERT INTO paid VALUES (?1)", [sequence.cast_signed()])?;
                    EmbeddedStore::raise_mark_in(transaction, mark, sequence)?;
                    if fails { Err(rusqlite::Error::QueryReturnedNoRows) } else { Ok(Joined::Marked(())) }
                })
                .await
        };
        receiver.receive_joined(b"leader", sequence, b"op", joined).await
    };
    assert!(matches!(apply(1, false).await, Ok(Received::Applied(()))));
    assert!(apply(2, true).await.is_err());
    assert_eq!(rows(store).await, 1);
    assert_eq!(store.read_mark(receiver.mark_id(b"leader")).await.unwrap(), Some(1));
    assert!(matches!(apply(2, false).await, Ok(Received::Applied(()))));
    assert!(matches!(apply(2, false).await, Ok(Received::Duplicate(_))));
    assert_eq!(rows(store).await, 2);
}
