//! Operations on their way through their attempts.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::*;
use semel::Failure;

/// Everything that was decided, as text.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl RetryObserver for Notes {
    fn decided(&self, decision: &RetryDecision<'_>) {
        let line = format!(
            "{} {}/{} {} key={} request={}",
            decision.operation,
            decision.attempt,
            decision.max_attempts,
            decision.outcome(),
            decision.key.map_or("-", |key| key.as_str()),
            decision.story.request_id.as_deref().unwrap_or("-"),
        );
        self.0.lock().push(line);
    }
}

fn keyed() -> Call {
    Call::new("charge").key("a-long-derived-key")
}

fn bare() -> Call {
    Call::new("charge")
}

/// Statuses one after the other; anything but a success is an error.
fn answers(statuses: &[u16]) -> impl Fn(Try) -> std::future::Ready<Result<u16, Signal>> + '_ {
    move |attempt| {
        let status = statuses[attempt.number as usize - 1];
        std::future::ready(if status < 300 { Ok(status) } else { Err(Signal::status(status)) })
    }
}

async fn run(call: &Call, statuses: &[u16]) -> Result<u16, Error<Signal>> {
    let repeat = call.repeat;
    Retry::default().run(call, |signal: &Signal| signal.judge(repeat), answers(statuses)).await
}

// It sees which attempt it is, and of how many.
#[tokio::test(start_paused = true)]
async fn the_operation_sees_its_attempt() {
    let seen = Mutex::new(Vec::new());
    let begun = Instant::now();
    let error = Retry::default()
        .run(
            &keyed(),
            |_: &()| Verdict::Retry { after: None },
            async |attempt| {
                seen.lock().push((attempt.number, attempt.max, attempt.timeout));
                Err::<(), ()>(())
            },
        )
        .await
        .unwrap_err();
    assert_eq!((error.stop, error.attempts, error.is_retryable()), (Stop::Exhausted, 3, true));
    let seen = seen.into_inner();
    assert_eq!(
        seen.iter().map(|(number, max, _)| (*number, *max)).collect::<Vec<_>>(),
        [(1, 3), (2, 3), (3, 3)]
    );
    assert!(begun.elapsed() <= ms(750), "two pauses of at most 250 and 500 ms");
}

// It is cancelled at its timeout, which is to say dropped.
#[tokio::test(start_paused = true)]
async fn the_operation_is_cancelled_at_its_timeout() {
    struct Dropped<'a>(&'a AtomicU32);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (dropped, ended) = (AtomicU32::new(0), AtomicU32::new(0));
    let begun = Instant::now();
    let error = Retry::default()
        .run(
            &keyed(),
            |_: &()| Verdict::Fatal,
            async |_| {
                let _guard = Dropped(&dropped);
                tokio::time::sleep(secs(60)).await;
                ended.fetch_add(1, Ordering::SeqCst);
                Ok::<(), ()>(())
            },
        )
        .await
        .unwrap_err();
    assert_eq!((dropped.into_inner(), ended.into_inner()), (3, 0));
    assert!(begun.elapsed() <= secs(30), "the deadline holds: {:?}", begun.elapsed());
    assert!(matches!(error.stop, Stop::Exhausted | Stop::Deadline));
    assert!(error.last.is_none() && error.fate == TryFate::Unknown);
}

// Without a key, a timeout is the end of it.
#[tokio::test(start_paused = true)]
async fn without_a_key_the_unknown_is_not_retried() {
    let tries = AtomicU32::new(0);
    let error = Retry::default()
        .run(
            &bare(),
            |_: &()| Verdict::Fatal,
            async |_| {
                tries.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<Result<(), ()>>().await
            },
        )
        .await
        .unwrap_err();
    assert_eq!((error.stop, tries.into_inner()), (Stop::Unknown, 1));
    for status in [500, 502, 503, 504, 408] {
        let error = run(&bare(), &[status, 200]).await.unwrap_err();
        assert_eq!((error.stop, error.attempts), (Stop::Unknown, 1), "{status}");
        assert!(matches!(error.into_failure(), Failure::Unknown(_)));
        assert_eq!(run(&keyed(), &[status, 200]).await.unwrap(), 200, "{status}");
    }
    assert_eq!(run(&bare(), &[429, 425, 200]).await.unwrap(), 200, "these were surely not processed");
}

#[tokio::test(start_paused = true)]
async fn the_wrong_connection_is_tried_once_more() {
    assert_eq!(run(&keyed(), &[421, 200]).await.unwrap(), 200);
    assert_eq!(run(&keyed(), &[421, 421, 200]).await.unwrap_err().stop, Stop::Fatal);
}

#[tokio::test(start_paused = true)]
async fn what_fails_for_good_is_not_retried() {
    let error = run(&keyed(), &[422, 200]).await.unwrap_err();
    assert_eq!((error.stop, error.attempts, error.is_retryable()), (Stop::Fatal, 1, false));
    assert!(matches!(error.into_failure(), Failure::Failed(_)), "a 422 did nothing");
    // An earlier try may have: that is not undone by the later refusal.
    let error = run(&keyed(), &[500, 422]).await.unwrap_err();
    assert_eq!((error.stop, error.attempts, error.fate), (Stop::Fatal, 2, TryFate::Unknown));
}

fn busy(after: Duration) -> impl Fn(&Duration) -> Verdict {
    move |_| Verdict::InFlight { after: Some(after) }
}

// An in-flight answer is asked for again after its hint, and not before.
#[tokio::test(start_paused = true)]
async fn an_effect_in_flight_is_asked_for_again() {
    let begun = Instant::now();
    let (retry, call) = (Retry::default(), keyed());
    let answer = retry.run(&call, busy(secs(3)), async |attempt| {
        if attempt.number < 3 { Err(begun.elapsed()) } else { Ok(begun.elapsed()) }
    });
    let took = answer.await.unwrap();
    assert!(took >= secs(6) && took <= ms(6_600 + 10), "{took:?}");
}

// A hint beyond the deadline fails fast and is passed on.
#[tokio::test(start_paused = true)]
async fn a_hint_beyond_the_deadline_fails_fast() {
    let begun = Instant::now();
    let error =
        Retry::default().run(&keyed(), busy(secs(31)), async |_| Err::<(), _>(ms(0))).await.unwrap_err();
    assert_eq!((error.stop, error.attempts, error.retry_after), (Stop::Later, 1, Some(secs(31))));
    assert!(error.is_retryable() && begun.elapsed() < ms(10));
    // One that just fits is waited for, without what jitter would add to it.
    let (retry, call) = (Retry::default(), keyed());
    let answer = retry.run(
        &call,
        busy(ms(29_900)),
        async |attempt| {
            if attempt.number == 1 { Err(ms(0)) } else { Ok(()) }
        },
    );
    answer.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_total_deadline_ends_everything() {
    let retry = Retry::default().attempts(1_000).base(secs(5));
    let begun = Instant::now();
    let error = retry
        .run(
            &keyed(),
            |_: &()| Verdict::Retry { after: None },
            async |_| {
                tokio::time::sleep(secs(4)).await;
                Err::<(), ()>(())
            },
        )
        .await
        .unwrap_err();
    assert!(matches!(error.stop, Stop::Deadline), "{error}");
    assert!(begun.elapsed() <= secs(30) && error.attempts >= 3, "{:?}", begun.elapsed());
}

// Settings without an end are none to reckon with.
#[tokio::test(start_paused = true)]
async fn endless_settings_do_not_overflow() {
    let most = Duration::MAX;
    let retry =
        Retry::default().base(ms(1)).cap(most).hint_cap(most).timeout(most).deadline(most).attempts(u32::MAX);
    let call = keyed();
    let judge = |signal: &Signal| signal.judge(Repeat::Safe);
    assert_eq!(retry.run(&call, judge, answers(&[503, 200])).await.unwrap(), 200);
    assert!(retry.delay(u32::MAX, Some(most)).wait <= Duration::from_secs(40 * 365 * 24 * 60 * 60));
}

// Held back by its breaker, a call is not made at all, and says when to come back.
#[tokio::test(start_paused = true)]
async fn an_open_breaker_lets_nothing_through() {
    let (clock, destinations) = clocked(Limits::default());
    let destination = destinations.get("acquirer");
    let call = keyed().to(&destination);
    let tries = AtomicU32::new(0);
    let attempt = async || {
        Retry::default()
            .run(
                &call,
                |signal: &Signal| signal.judge(Repeat::Safe),
                async |_| {
                    tries.fetch_add(1, Ordering::SeqCst);
                    Err::<(), _>(Signal::status(503))
                },
            )
            .await
            .unwrap_err()
    };
    while !matches!(destination.state().circuit, Circuit::Open { .. }) {
        let _ = attempt().await;
    }
    let before = tries.load(Ordering::SeqCst);
    let error = attempt().await;
    assert_eq!((error.stop, error.attempts, error.fate), (Stop::Open, 0, TryFate::Undone));
    assert!(error.retry_after.is_some_and(|after| after <= secs(5) && after > Duration::ZERO));
    assert_eq!(tries.load(Ordering::SeqCst), before);
    clock.advance(secs(5));
    assert_ne!(attempt().await.stop, Stop::Exhausted, "the one probe failed and opened it again");
    assert_eq!(tries.load(Ordering::SeqCst), before + 1);
}

// A spent budget drops the retry at once, with the last error.
#[tokio::test(start_paused = true)]
async fn a_spent_budget_drops_retries() {
    let limits = Limits { failure_calls: u32::MAX, retries_per_second: 0, ..Limits::default() };
    let (_clock, destinations) = clocked(limits);
    let call = keyed().to(&destinations.get("acquirer"));
    let mut sent = 0;
    for _ in 0..1_000 {
        let error = run(&call, &[503, 503, 503]).await.unwrap_err();
        sent += error.attempts;
        if error.stop == Stop::Budget {
            assert!(error.last.is_some());
        }
    }
    assert!((1_150..=1_200).contains(&sent), "{sent}");
}

// Every decision is told, with the key's first eight characters and the ids of its action.
#[tokio::test(start_paused = true)]
async fn every_decision_is_told() {
    let notes = Arc::new(Notes::default());
    let story = StoryIds { request_id: Some("req-1".into()), ..StoryIds::default() };
    let call = keyed().story(story);
    let retry = Retry::default().observe(Arc::clone(&notes) as _);
    retry.run(&call, |signal: &Signal| signal.judge(Repeat::Safe), answers(&[503, 200])).await.unwrap();
    retry.run(&call, |signal: &Signal| signal.judge(Repeat::Safe), answers(&[404])).await.unwrap_err();
    assert_eq!(
        *notes.0.lock(),
        [
            "charge 1/3 retry key=a-long-d request=req-1",
            "charge 2/3 success key=a-long-d request=req-1",
            "charge 1/3 fatal key=a-long-d request=req-1",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_costs_nothing() {
    struct Panics;
    impl RetryObserver for Panics {
        fn decided(&self, _: &RetryDecision<'_>) {
            panic!("on purpose")
        }
    }
    let retry = Retry::default().observe(Arc::new(Panics));
    let call = keyed();
    let answer = retry.run(&call, |signal: &Signal| signal.judge(Repeat::Safe), answers(&[503, 200]));
    assert_eq!(answer.await.unwrap(), 200);
}
