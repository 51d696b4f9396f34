//! How long a waiter in another process waits after an outcome is published: pushed, and polled.

use std::time::{Duration, Instant};

use semel::key::KeyId;
use semel::record::{Command, Owner, Ruling};
use semel::store::{RedisStore, Store as _};

use super::{PAYLOAD, claim, outcome};

const POLL: Duration = Duration::from_millis(20);
const TURNS: u32 = 60;

/// The medians of some turns each way, in microseconds from the call of complete to the answer in the waiter's hands.
pub(super) async fn pushed_and_polled(owner: &RedisStore, waiter: &RedisStore) -> (f64, f64) {
    let (mut pushed, mut polled) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        // Anywhere between two polls.
        let before = POLL + POLL * (turn % 20) / 20;
        pushed.push(turn_of(owner, waiter, How::Pushed, before).await);
        polled.push(turn_of(owner, waiter, How::Polled, before).await);
    }
    (median(&mut pushed), median(&mut polled))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Pushed,
    Polled,
}

async fn turn_of(owner: &RedisStore, waiter: &RedisStore, how: How, before: Duration) -> f64 {
    let id = KeyId::from_bytes(*Owner::random().as_bytes());
    let asked = claim(Owner::random().as_bytes());
    let Ok(Ruling::Won(win)) = owner.apply(id, Command::Claim(asked)).await else {
        panic!("a fresh key is won")
    };
    let mut watch = (how == How::Pushed).then(|| waiter.watch(id));
    let answer = async {
        loop {
            let asked = claim(Owner::random().as_bytes());
            if let Ok(Ruling::Replay { .. }) = waiter.apply(id, Command::Claim(asked)).await {
                return Instant::now();
            }
            match &mut watch {
                Some(watch) => watch.changed().await,
                None => tokio::time::sleep(POLL).await,
            }
        }
    };
    let publish = async {
        tokio::time::sleep(before).await;
        let complete =
            Command::Complete { grant: win.grant, fingerprint: PAYLOAD, outcome: outcome(), retention: None };
        let began = Instant::now();
        let done = owner.apply(id, complete).await;
        assert!(matches!(done, Ok(Ruling::Accepted { .. })), "{done:?}");
        began
    };
    let (answered, began) = tokio::join!(answer, publish);
    answered.saturating_duration_since(began).as_secs_f64() * 1e6
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
