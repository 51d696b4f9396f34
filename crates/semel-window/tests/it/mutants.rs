//! Stores that do one thing wrong: the suite catches each.

use std::sync::Arc;

use semel::store::{BoxFuture, Error, MemoryStore};
use semel_window::{MarkId, MarkStore, testkit};

/// A memory store that takes every value for the mark.
#[derive(Debug)]
struct Lowering(MemoryStore);

impl MarkStore for Lowering {
    fn read_mark(&self, mark: MarkId) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        self.0.read_mark(mark)
    }

    fn raise_mark(&self, _: MarkId, value: u64) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(async move { Ok(value) })
    }
}

impl std::fmt::Display for Lowering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("lowers marks")
    }
}

#[tokio::test]
#[should_panic(expected = "left: 5")]
async fn lowers_marks() {
    testkit::marks_never_go_down(&[Arc::new(Lowering(MemoryStore::new()))]).await;
}

#[tokio::test]
#[should_panic(expected = "after opening again")]
async fn forgets_marks() {
    testkit::acknowledged_marks_survive(async || Arc::new(MemoryStore::new()) as Arc<dyn MarkStore>).await;
}
