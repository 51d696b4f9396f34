//! The tracker with a probe whose result the test decides.

use std::sync::atomic::AtomicUsize;

use super::*;

/// A server that a test switches on and off.
#[derive(Default)]
struct FakeServer {
    failure: Mutex<Option<ProbeFailure>>,
    hangs: Mutex<bool>,
    probes: AtomicUsize,
}

impl FakeServer {
    fn fail(&self, reach: Reach) {
        *self.failure.lock() = Some(ProbeFailure { reach, message: "out of order".to_owned() });
    }

    fn repair(&self) {
        *self.failure.lock() = None;
        *self.hangs.lock() = false;
    }

    fn availability(self: &Arc<Self>, name: &str, grace: Duration) -> Arc<Availability> {
        let fake = Arc::clone(self);
        let timing = Timing { slow: Duration::from_millis(5), probe: Duration::from_millis(30), grace };
        Availability::new(Server::of(name, "test"), timing, None, move || {
            let fake = Arc::clone(&fake);
            Box::pin(async move {
                fake.probes.fetch_add(1, Ordering::SeqCst);
                if *fake.hangs.lock() {
                    std::future::pending::<()>().await;
                }
                fake.failure.lock().clone().map_or(Ok(()), Err)
            })
        })
    }
}

fn status(name: &str) -> ServerStatus {
    servers().into_iter().find(|server| server.name == name).expect("it is in use")
}

fn failed() -> Result<(), Error> {
    Err(Error::new(ErrorKind::Ambiguous, "no answer"))
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}");
}

#[tokio::test]
async fn an_outage_is_known_until_a_probe_succeeds() {
    let (fake, name) = (Arc::new(FakeServer::default()), "fake://known");
    let availability = fake.availability(name, Duration::ZERO);
    fake.fail(Reach::Unreachable);
    let error = availability.guard(async { failed() }).await.expect_err("it failed");
    assert_eq!((error.kind(), error.is_logged()), (ErrorKind::Ambiguous, true), "its own error, logged");
    for _ in 0..100 {
        let sent = async { panic!("nothing is sent") };
        let error = availability.guard::<()>(sent).await.expect_err("it is refused");
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Unavailable, "out of order"));
        assert!(error.is_logged());
    }
    assert!(!status(name).is_available);
    fake.repair();
    until("the end of the outage", || availability.refusal().is_none()).await;
    availability.guard(async { Ok(()) }).await.expect("it is sent");
    let status = status(name);
    assert_eq!((status.is_available, status.outages, status.used_for.as_str()), (true, 1, "test"));
    assert!(status.length > Duration::ZERO);
    assert_eq!(availability.ended_outages(), 1);
}

#[tokio::test]
async fn a_failure_that_the_probe_does_not_confirm_is_no_outage() {
    let fake = Arc::new(FakeServer::default());
    let availability = fake.availability("fake://contradicted", Duration::ZERO);
    for round in 1..=3 {
        let error = availability.guard(async { failed() }).await.expect_err("it failed");
        assert!(!error.is_logged(), "the caller logs it");
        assert_eq!(fake.probes.load(Ordering::SeqCst), round);
    }
    let error: Result<(), Error> = Err(Error::new(ErrorKind::Corrupt, "damaged"));
    availability.guard(async { error }).await.expect_err("it failed");
    assert_eq!(fake.probes.load(Ordering::SeqCst), 3, "damage is no outage");
    assert_eq!(status("fake://contradicted").outages, 0);
}

// A server at its limit of connections refuses the probe, and serves the calls on open connections.
#[tokio::test]
async fn answered_calls_contradict_a_failed_probe() {
    let fake = Arc::new(FakeServer::default());
    let availability = fake.availability("fake://limit", Duration::from_millis(50));
    fake.fail(Reach::Unreachable);
    let verdict = tokio::join!(availability.judge(), async {
        tokio::task::yield_now().await;
        availability.answered();
    });
    assert_eq!(verdict.0, Verdict::Available);
    assert_eq!(status("fake://limit").outages, 0);
}

#[tokio::test]
async fn a_short_failure_is_waited_for() {
    let fake = Arc::new(FakeServer::default());
    let availability = fake.availability("fake://short", Duration::from_secs(60));
    fake.fail(Reach::Unreachable);
    let repaired = async {
        until("some probes", || fake.probes.load(Ordering::SeqCst) > 1).await;
        fake.repair();
    };
    assert_eq!(tokio::join!(availability.judge(), repaired).0, Verdict::Available);
    assert_eq!(status("fake://short").outages, 0);
}

#[tokio::test]
async fn a_hanging_call_ends_when_the_outage_is_known() {
    let fake = Arc::new(FakeServer::default());
    let availability = fake.availability("fake://hangs", Duration::ZERO);
    *fake.hangs.lock() = true;
    let long = Duration::from_secs(600);
    let ended = availability.watch(long, std::future::pending::<()>()).await;
    assert!(matches!(ended, Err(NoAnswer::Outage(_))), "{ended:?}");
    let ended = availability.watch(long, async { panic!("nothing is sent") }).await;
    assert!(matches!(ended, Err::<(), _>(NoAnswer::NotSent(_))), "{ended:?}");
    fake.repair();
    until("the end of the outage", || availability.refusal().is_none()).await;
    let ended = availability.watch(Duration::from_millis(20), std::future::pending::<()>()).await;
    assert!(matches!(ended, Err(NoAnswer::TimedOut)), "the probe answers: {ended:?}");
}

#[tokio::test]
async fn a_server_that_answers_gets_calls() {
    let fake = Arc::new(FakeServer::default());
    let availability = fake.availability("fake://refuses", Duration::ZERO);
    fake.fail(Reach::Refusing);
    let error = availability.guard(async { failed() }).await.expect_err("it failed");
    assert!(error.is_logged());
    availability.guard(async { Ok(()) }).await.expect("a read is sent and succeeds");
    assert!(!status("fake://refuses").is_available);
}

#[tokio::test]
async fn users_of_one_server_have_one_outage() {
    let (fake, name) = (Arc::new(FakeServer::default()), "fake://shared");
    let users: Vec<_> = (0..5).map(|_| fake.availability(name, Duration::ZERO)).collect();
    fake.fail(Reach::Unreachable);
    for user in &users {
        assert_eq!(user.judge().await, Verdict::Outage);
    }
    fake.repair();
    until("the end for all", || status(name).is_available).await;
    assert_eq!(status(name).outages, 1);
    assert!(users.iter().all(|user| user.refusal().is_none()));
}

// The runtime of a store ends with the store, and a client may use several.
#[test]
fn an_outage_is_forgotten_with_the_runtime_that_probes() {
    let fake = Arc::new(FakeServer::default());
    let availability = fake.availability("fake://runtime", Duration::ZERO);
    fake.fail(Reach::Unreachable);
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    };
    let first = runtime();
    assert_eq!(first.block_on(availability.judge()), Verdict::Outage);
    drop(first);
    assert!(availability.refusal().is_none(), "nobody probes");
    assert_eq!(runtime().block_on(availability.judge()), Verdict::Outage);
    // Without a runtime there is no probe, and no wait for one.
    let verdict = crate::block_on::block_on(availability.judge());
    assert_eq!(verdict, Verdict::Available);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the quiet time is real time")]
fn refused_writes_are_one_outage_until_none_is_refused() {
    let name = "fake://full";
    let refused = RefusedWrites::new(Server::of(name, "test"));
    refused.wrote();
    assert!(status(name).is_available);
    for _ in 0..10 {
        refused.refused("no space");
        // A write that found a gap.
        refused.wrote();
    }
    assert_eq!((status(name).is_available, status(name).outages), (false, 1));
    std::thread::sleep(refused::QUIET);
    refused.wrote();
    assert_eq!((status(name).is_available, status(name).outages), (true, 1));
}

/// Cause: any read ended the outage of a full disk. Consequence: the log had a pair of lines for every health check.
/// Fix: only a write that needs space ends it, or a time without any refused write.
#[test]
#[expect(clippy::disallowed_methods, reason = "the quiet time is real time")]
fn reads_do_not_end_an_outage_of_writes() {
    let name = "fake://full-with-reads";
    let refused = RefusedWrites::new(Server::of(name, "test"));
    for _ in 0..3 {
        refused.refused("no space");
        std::thread::sleep(refused::QUIET);
        refused.answered();
        assert_eq!((status(name).is_available, status(name).outages), (false, 1));
    }
    std::thread::sleep(refused::LONG_QUIET);
    refused.answered();
    assert_eq!((status(name).is_available, status(name).outages), (true, 1), "the write is not repeated");
}
