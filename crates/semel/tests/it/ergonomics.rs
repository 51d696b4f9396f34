//! The shortest forms of a call compile without type annotations, and do what the long ones do.

use std::sync::Arc;
use std::time::Duration;

use semel::store::{MemoryStore, Store};
use semel::{Engine, Failure, FailureExt, Key, RunError};

fn engine() -> Engine {
    Engine::builder(MemoryStore::new()).build().expect("good settings")
}

async fn fails() -> Result<u32, std::io::Error> {
    Err(std::io::Error::other("no route"))
}

#[tokio::test]
async fn no_effect_needs_a_type_annotation() -> Result<(), Box<dyn std::error::Error>> {
    let engine = engine();
    assert_eq!(engine.once("a").run(async || Ok(5)).await?.value, 5);
    assert!(engine.once("a".to_owned()).run(async || Ok(6)).await?.replayed);
    assert_eq!(engine.once("b").run_infallible(async || 7).await?.value, 7);
    assert_eq!(engine.once("c").run_with(async |attempt| Ok(attempt.number())).await?.value, 1);
    assert_eq!(engine.once("d").run_inline(async |attempt| Ok(attempt.number())).await?.value, 1);
    let blocking = engine.clone();
    let answer =
        std::thread::spawn(move || blocking.once("e").run_blocking(|_| Ok(8)).map(|answer| answer.value));
    assert_eq!(answer.join().expect("no panic")?, 8);

    // Inside a spawned task, where the compiler also has to prove that the call may move between threads.
    let in_task = engine.clone();
    let task = tokio::spawn(async move {
        let once = in_task.once(Key::new("charge").scope("acct_1").value("f"));
        once.run(async || {
            let parsed: u32 = "42".parse().failed()?;
            Ok(fails().await.unwrap_or(parsed))
        })
        .await
    });
    assert_eq!(task.await??.value, 42);
    Ok(())
}

#[tokio::test]
async fn errors_keep_their_text_or_their_type() {
    let engine = engine();
    let failed = engine.once("a").run(async || fails().await.failed()).await.expect_err("it fails");
    assert_eq!(failed.to_string(), "the effect failed, and nothing happened: no route");
    let RunError::Failed(error) = failed else { panic!("{failed}") };
    assert!(error.downcast_ref::<std::io::Error>().is_some());

    let typed = engine.once("a").error::<std::io::Error>().run(async || fails().await.unknown()).await;
    assert!(matches!(typed, Err(RunError::Unknown(error)) if error.kind() == std::io::ErrorKind::Other));

    let text = engine.once("b").run(async || Err::<u32, _>(Failure::Failed("declined".into()))).await;
    assert!(matches!(text, Err(RunError::Failed(error)) if error.to_string() == "declined"));
}

#[tokio::test]
async fn an_inline_effect_borrows_and_a_dropped_one_is_in_doubt() {
    let engine = engine();
    let (text, mut calls) = (String::from("borrowed"), 0);
    let answer = engine.once("a").run_inline(async |_| {
        calls += 1;
        Ok(text.len())
    });
    assert_eq!(answer.await.expect("it runs").value, 8);
    assert_eq!(calls, 1);

    let never = engine.once("b").run_inline(async |_| std::future::pending::<Result<u32, Failure>>().await);
    assert!(tokio::time::timeout(Duration::from_millis(50), never).await.is_err());
    engine.drain().await;
    let next = engine.once("b").run_inline(async |_| Ok(1)).await;
    assert!(matches!(next, Err(RunError::InDoubt)), "{next:?}");
}

#[tokio::test]
async fn engines_share_a_store() -> Result<(), Box<dyn std::error::Error>> {
    let store = Arc::new(MemoryStore::new());
    let one = Engine::builder(store.clone()).build()?;
    let two = Engine::builder(store as Arc<dyn Store>).build()?;
    assert!(!one.once("a").run(async || Ok(1)).await?.replayed);
    assert!(two.once("a").run(async || Ok(2)).await?.replayed);
    Ok(())
}
