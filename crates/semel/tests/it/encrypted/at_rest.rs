//! What is on disk.

use std::path::Path;

use semel::outcome::Outcome;
use semel::record::{Command, Settlement};
use semel::store::EmbeddedStore;
use semel::{Engine, FailureExt as _, Key};

use super::*;

const IN_KEY: &str = "order-42-canary-of-the-key";
const IN_PAYLOAD: &str = "canary-of-the-payload";
const IN_BODY: &str = "canary-of-the-body";
const IN_METADATA: &str = "canary-of-the-metadata";
const IN_KIND: &str = "canary-of-the-kind";
const IN_REASON: &str = "canary-of-the-reason";
const CANARIES: [&str; 6] = [IN_KEY, IN_PAYLOAD, IN_BODY, IN_METADATA, IN_KIND, IN_REASON];

/// Leaves every canary somewhere: a run, an outcome of a surface's own, a settlement.
async fn use_it(store: Arc<dyn Store>) {
    let engine = Engine::builder(Arc::clone(&store)).build().expect("a healthy store");
    for value in [IN_KEY, "second", IN_KEY] {
        let once = engine.once(Key::new("pay").scope(IN_KEY).value(value)).fingerprint(IN_PAYLOAD);
        let answer = once.run(async || Ok::<_, std::io::Error>(IN_BODY.to_owned()).unknown()).await;
        assert_eq!(answer.expect("a healthy store").value, IN_BODY);
    }
    let doubtful = Key::new("pay").value("doubtful");
    let lost = engine.once(doubtful.clone());
    let lost = lost.run(async || Err::<String, _>(std::io::Error::other("cut")).unknown()).await;
    lost.expect_err("nobody knows");
    let id = engine.get(&doubtful).await.expect("a healthy store").expect("it is in doubt").id;
    let settled = Outcome::tombstone(IN_KIND, IN_REASON).with_metadata(IN_METADATA);
    let _ =
        store.apply(id, Command::Settle(Settlement::Done(Arc::new(settled)))).await.expect("a healthy store");
}

/// Every canary that is in a file of the folder.
fn found(folder: &Path) -> Vec<&'static str> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        all.extend(std::fs::read(entry.expect("a file").path()).expect("a file can be read"));
    }
    let holds = |canary: &str| all.windows(canary.len()).any(|window| window == canary.as_bytes());
    CANARIES.into_iter().filter(|canary| holds(canary)).collect()
}

// pii_at_rest: canary strings are found nowhere in the files, while they are written to and afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pii_at_rest() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let below = Arc::new(EmbeddedStore::open(folder.path()).expect("the folder can be opened"));
    let store = sealed(&below, &["a"]);
    use_it(Arc::clone(&store) as _).await;
    assert_eq!(found(folder.path()), [""; 0], "while it is open");
    assert_eq!(store.sealings().await.expect("a healthy store").by_key["a"], 3, "two runs and a settlement");
    drop((store, below));
    assert_eq!(found(folder.path()), [""; 0], "after it was closed");
}

// The search above can find something: without sealing, outcomes are there to read. Keys and payloads never are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_sealing_outcomes_can_be_read() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    use_it(Arc::new(EmbeddedStore::open(folder.path()).expect("the folder can be opened"))).await;
    assert_eq!(found(folder.path()), [IN_BODY, IN_METADATA, IN_KIND, IN_REASON]);
}
