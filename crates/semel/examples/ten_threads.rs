//! Ten threads, one payload: one run, nine replays.
//!
//! `cargo run -p semel --example ten_threads`

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use semel::store::MemoryStore;
use semel::{Engine, Key, RunError};

static RUNS: AtomicU32 = AtomicU32::new(0);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::builder(MemoryStore::new()).build()?;
    let start = Barrier::new(10);
    let call = |thread: u32| -> Result<(u32, bool), RunError> {
        start.wait();
        let answer =
            engine.once(Key::new("price").value("risk-7")).fingerprint(&("term", 12)).run_blocking(|_| {
                RUNS.fetch_add(1, Ordering::SeqCst);
                Ok(thread)
            })?;
        Ok((answer.value, answer.replayed))
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..10).map(|thread| scope.spawn(move || call(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });

    let mut replays = 0;
    for (thread, answer) in answers.into_iter().enumerate() {
        let (by, replayed) = answer?;
        replays += u32::from(replayed);
        println!("thread {thread}: run by thread {by}{}", if replayed { ", replayed" } else { "" });
    }
    println!("{} run, {replays} replays.", RUNS.load(Ordering::SeqCst));
    assert_eq!((RUNS.load(Ordering::SeqCst), replays), (1, 9));
    Ok(())
}
