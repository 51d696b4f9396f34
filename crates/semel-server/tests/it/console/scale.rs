//! First pages of large lists. `SEMEL_PROVE=1` uses a million keys and 100,000 dead letters, and prints how long each page takes.

use std::sync::Arc;
use std::time::Duration;

use semel::store::EmbeddedStore;
use semel::time::{Clock as _, SystemClock};
use semel::{Engine, FailureExt as _, Key};
use semel_pipeline::id::LetterId;
use semel_pipeline::ledger::{EmbeddedLedger, Letters as _};
use semel_pipeline::letter::{Cause, NewLetter, SourceMessage};

use tokio::time::Instant;

use crate::kit::Semel;

const ERRORS: [&str; 4] = ["no member total", "not JSON at all", "the type is missing", "too deeply nested"];

pub(super) async fn fill(folder: &std::path::Path, keys: usize, letters: usize) {
    let store = Arc::new(EmbeddedStore::open(folder).unwrap());
    let engine = Engine::builder(Arc::clone(&store) as Arc<dyn semel::store::Store>).build().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..64 {
        let engine = engine.clone();
        tasks.spawn(async move {
            for number in (task..keys).step_by(64) {
                let key = Key::new("scale").scope("shop").value(format!("{number:08}"));
                let run = engine.once(key).run(async || Ok::<_, std::io::Error>("done".to_owned()).failed());
                run.await.unwrap();
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let ledger = EmbeddedLedger::open(store).await.unwrap();
    for start in (0..letters).step_by(500) {
        let batch = (start..(start + 500).min(letters)).map(|number| NewLetter {
            id: LetterId::new(SystemClock.now()),
            tenant: format!("tenant-{}", number % 50),
            source: SourceMessage { stream: "orders".to_owned(), message: format!("{number}-0") },
            payload: "{}".into(),
            content_type: "application/json".to_owned(),
            headers: Vec::new(),
            cause: Cause::Undecodable,
            error: ERRORS[number % ERRORS.len()].to_owned(),
            attempts: 1,
        });
        ledger.put(batch.collect()).await.unwrap();
    }
    engine.drain().await;
}

#[test]
fn first_pages_of_large_lists_are_quick() {
    let is_proof = std::env::var_os("SEMEL_PROVE").is_some();
    let (keys, letters) = if is_proof { (1_000_000, 100_000) } else { (1_000, 1_000) };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(fill(&data, keys, letters));
    runtime.shutdown_timeout(Duration::from_secs(10));
    let semel = Semel::start(&["--store", &format!("embedded:{}", data.display())]);
    let admin = semel.admin();
    for path in [
        "/",
        "/keys",
        "/keys?phase=done",
        "/keys?phase=in_doubt",
        "/keys?hint=00000042",
        "/search?q=00000042",
        "/dead-letters",
        "/dead-letters?status=pending",
        "/dead-letters/list?status=pending",
        "/dead-letters/list?tenant=tenant-7",
        "/events",
        "/runs",
        "/replays",
        "/audit",
    ] {
        // The first one fills the caches of the system.
        admin.get(path);
        let since = Instant::now();
        let page = admin.get(path);
        let took = since.elapsed();
        assert!(matches!(page.status, 200 | 303), "{path}: {}", page.text());
        println!("{:>6} ms  {path}  of {keys} keys, {letters} dead letters", took.as_millis());
    }
    // A page shows a page's worth, however long the list is.
    for path in ["/keys", "/keys?phase=done", "/dead-letters/list?status=pending"] {
        let rows = |path: &str| admin.get(path).text().matches("<tr").count();
        assert_eq!(rows(path), 51, "{path}: fifty rows and their head");
    }
    let found = admin.get("/keys?hint=00000042").text();
    assert!(found.contains("00000042") && !found.contains("00000043"), "the key of this hint alone: {found}");
    let groups = admin.get("/dead-letters").text();
    for error in ERRORS {
        assert!(groups.contains(error), "{error}");
    }
}
