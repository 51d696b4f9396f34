//! Who decides: Redis only repeats what PostgreSQL said, and only where nothing is in doubt.

use semel::record::{Force, Mode, Phase, Settlement};

use super::*;

// Busy is believed; the second claim does not reach PostgreSQL.
#[tokio::test(flavor = "multi_thread")]
async fn redis_busy_means_wait() {
    let servers = Servers::start();
    let patient = servers.builder().busy_for(Duration::from_secs(60));
    let (owner, other) = (open(patient).await, servers.ready().await);
    uses_copies(&owner).await;
    let id = key();
    win(&*owner, id).await;
    let before = other.stats();
    busy(ask(&*other, id, &claim()).await);
    let after = other.stats();
    assert_eq!(after.believed_busy, before.believed_busy + 1);
    assert_eq!(after.asked_postgres, before.asked_postgres);
}

// … but for a second only: then PostgreSQL is asked, which knows what Redis does not.
#[tokio::test(flavor = "multi_thread")]
async fn redis_busy_is_asked_of_postgres_again_at_the_backstop() {
    let servers = Servers::start();
    let (owner, other) = (servers.ready().await, servers.ready().await);
    let id = key();
    let grant = win(&*owner, id).await;
    busy(ask(&*other, id, &claim()).await);
    // Completed past Redis: by a process that knows nothing of it.
    let plain = PostgresStore::open(servers.postgres.url()).await.expect("a healthy server");
    accepted(plain.apply(id, complete(grant, "once")).await);
    let outcome = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            match ask(&*other, id, &claim()).await {
                Ok(Ruling::Busy { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
                ruling => return replayed(ruling),
            }
        }
    });
    assert_eq!(outcome.await.expect("long before the lease ends"), text("once"));
}

// … and never as long as the lease: the next owner does not wait for Redis.
#[tokio::test(flavor = "multi_thread")]
async fn redis_busy_ends_before_the_lease() {
    let servers = Servers::start();
    let store = open(servers.builder().busy_for(Duration::from_secs(3600))).await;
    uses_copies(&store).await;
    let (id, lease) = (key(), Duration::from_secs(2));
    let terms = Terms { mode: Mode::Rerun, lease, in_flight_max: lease, ..Terms::default() };
    let short = || NewClaim { terms: Arc::new(terms), ..claim() };
    won(ask(&*store, id, &short()).await);
    busy(ask(&*store, id, &short()).await);
    tokio::time::sleep(lease + Duration::from_millis(50)).await;
    won(ask(&*store, id, &short()).await);
}

// A copy is replayed, byte for byte, without PostgreSQL.
#[tokio::test(flavor = "multi_thread")]
async fn redis_done_is_replayed() {
    let servers = Servers::start();
    let (owner, other) = (servers.ready().await, servers.ready().await);
    let id = key();
    let grant = win(&*owner, id).await;
    let outcome = Arc::new(Outcome::new("http", vec![0, 255, 10]).with_metadata("200"));
    let done = Command::Complete { grant, fingerprint: PAYLOAD, outcome: outcome.clone(), retention: None };
    accepted(owner.apply(id, done).await);
    let before = other.stats();
    let Ok(Ruling::Replay { outcome: copy, expires_in }) = ask(&*other, id, &claim()).await else {
        panic!("it is done")
    };
    assert_eq!(copy, outcome);
    let terms = Terms::default();
    assert!(expires_in <= terms.retention + terms.grace, "{expires_in:?}");
    assert!(expires_in + Duration::from_secs(60) > terms.retention + terms.grace, "{expires_in:?}");
    let after = other.stats();
    assert_eq!(after.replayed_copies, before.replayed_copies + 1);
    assert_eq!(after.asked_postgres, before.asked_postgres);
}

// Another payload is a conflict, and that is PostgreSQL's word, busy or done.
#[tokio::test(flavor = "multi_thread")]
async fn conflicts_are_asked_of_postgres() {
    let servers = Servers::start();
    let store = servers.ready().await;
    let id = key();
    let other = || NewClaim { fingerprint: Fingerprint::from_bytes([8; 32]), ..claim() };
    let grant = win(&*store, id).await;
    for done in [false, true] {
        if done {
            accepted(store.apply(id, complete(grant, "once")).await);
        }
        let before = store.stats().asked_postgres;
        assert!(matches!(ask(&*store, id, &other()).await, Ok(Ruling::Conflict)));
        assert_eq!(store.stats().asked_postgres, before + 1);
    }
}

// A record has the payload of its claim, whatever its owner says when it completes; and so has the copy. It once had the
// owner's word, and another payload was given the outcome.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_has_the_payload_of_the_claim() {
    let servers = Servers::start();
    let store = servers.ready().await;
    let id = key();
    let grant = win(&*store, id).await;
    let fingerprint = Fingerprint::from_bytes([8; 32]);
    let done = Command::Complete { grant, fingerprint, outcome: text("once"), retention: None };
    accepted(store.apply(id, done).await);
    assert!(matches!(ask(&*store, id, &NewClaim { fingerprint, ..claim() }).await, Ok(Ruling::Conflict)));
    assert_eq!(replayed(ask(&*store, id, &claim()).await), text("once"));
}

// A claim that is repeated is won under the terms of the first; a copy that went by the second stood for longer than the
// record (found by the random commands of two processes).
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_stands_as_long_as_the_first_claim_says() {
    let servers = Servers::start();
    let (one, other) = (servers.ready().await, servers.ready().await);
    let id = key();
    let brief = Terms { grace: Duration::ZERO, ..*claim().terms };
    let first = NewClaim { terms: brief.into(), ..claim() };
    let long = Terms { grace: Duration::from_secs(3600), ..brief };
    assert!(matches!(ask(&*one, id, &first).await, Ok(Ruling::Won(_))));
    let again = ask(&*other, id, &NewClaim { terms: long.into(), ..first.clone() }).await;
    let Ok(Ruling::Won(win)) = again else { panic!("it is its own: {again:?}") };
    let fingerprint = first.fingerprint;
    let retention = Some(Duration::ZERO);
    let done = Command::Complete { grant: win.grant, fingerprint, outcome: text("once"), retention };
    accepted(other.apply(id, done).await);
    let later = ask(&*other, id, &claim()).await;
    assert!(!matches!(later, Ok(Ruling::Replay { .. })), "its time is over: {later:?}");
}

// A claim asked twice knows itself, though Redis says busy.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_claim_knows_itself() {
    let servers = Servers::start();
    let store = servers.ready().await;
    let (id, mine) = (key(), claim());
    let first = won(ask(&*store, id, &mine).await);
    assert_eq!(won(ask(&*store, id, &mine).await), first);
}

// Redis vacant: PostgreSQL is asked, and its answer is copied for the next.
#[tokio::test(flavor = "multi_thread")]
async fn redis_vacant_means_ask_postgres() {
    let servers = Servers::start();
    let store = servers.ready().await;
    let id = key();
    let grant = win(&*store, id).await;
    accepted(store.apply(id, complete(grant, "once")).await);
    servers.redis.tell(&["FLUSHALL"]).expect("a healthy server");
    let before = store.stats();
    assert_eq!(replayed(ask(&*store, id, &claim()).await), text("once"));
    assert_eq!(store.stats().asked_postgres, before.asked_postgres + 1);
    assert_eq!(replayed(ask(&*store, id, &claim()).await), text("once"));
    assert_eq!(store.stats().asked_postgres, before.asked_postgres + 1, "the second one finds the copy");
}

// Rubbish under a key's name, of whatever type, is nothing, and does not open the breaker.
#[tokio::test(flavor = "multi_thread")]
async fn rubbish_in_redis_is_nothing() {
    let servers = Servers::start();
    let store = servers.ready().await;
    let id = key();
    let grant = win(&*store, id).await;
    accepted(store.apply(id, complete(grant, "once")).await);
    let name = servers.entries().into_iter().find(|name| name.contains(&id.to_string()));
    let name = name.expect("there is a copy");
    for put in [["SET", &name, "rubbish"], ["SADD", &name, "member"]] {
        servers.redis.tell(&["DEL", &name]).expect("a healthy server");
        servers.redis.tell(&put).expect("a healthy server");
        let before = store.stats();
        assert_eq!(replayed(ask(&*store, id, &claim()).await), text("once"));
        assert_eq!(store.stats().asked_postgres, before.asked_postgres + 1);
        assert_eq!(store.stats().coordination, Coordination::Working);
    }
}

// Never past the retention, whatever Redis' clock says of the copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_ends_with_its_retention() {
    let servers = Servers::start();
    let (store, other) = (servers.ready().await, servers.ready().await);
    let id = key();
    let terms = Terms {
        retention: Duration::from_secs(3),
        grace: Duration::ZERO,
        memory: Duration::from_secs(3600),
        ..Terms::default()
    };
    let short = || NewClaim { terms: Arc::new(terms), ..claim() };
    let grant = won(ask(&*store, id, &short()).await);
    accepted(store.apply(id, complete(grant, "once")).await);
    let name = servers.entries().into_iter().find(|name| name.contains(&id.to_string()));
    let name = name.expect("there is a copy");
    let before = other.stats().replayed_copies;
    replayed(ask(&*other, id, &short()).await);
    assert_eq!(other.stats().replayed_copies, before + 1);
    // A Redis whose clock stands still.
    servers.redis.tell(&["PERSIST", &name]).expect("a healthy server");
    eventually("the end of the retention", async || {
        let ruling = ask(&*other, id, &short()).await;
        matches!(ruling, Ok(Ruling::Expired)).then_some(())
    })
    .await;
    servers.redis.tell(&["PERSIST", &name]).expect("a healthy server");
    assert!(matches!(ask(&*other, id, &short()).await, Ok(Ruling::Expired)));
}

// Two databases on one Redis do not see each other's entries, though the keys are the same.
#[tokio::test(flavor = "multi_thread")]
async fn another_database_is_another_store() {
    let servers = Servers::start();
    let database = servers.postgres.fresh_database().expect("a healthy server");
    let url = servers.postgres.url_at(servers.postgres.addr(), &database);
    let there = || {
        let redis = RedisStore::builder(&servers.redis.url());
        TieredStore::builder(PostgresStore::builder(&url), redis).redis_timeout(Duration::from_secs(5))
    };
    drop((servers.open().await, open(there()).await));
    // Their generations are moments, so they differ anyhow. Not here.
    let number = "UPDATE semel.meta SET number = 7 WHERE name = 'copies'";
    servers.postgres.sql(number).expect("a healthy server");
    servers.postgres.sql_in(&database, number).expect("a healthy server");
    let (here, elsewhere) = (servers.ready().await, open(there()).await);
    uses_copies(&elsewhere).await;
    let id = key();
    let grant = win(&*here, id).await;
    let there = win(&*elsewhere, id).await;
    accepted(here.apply(id, complete(grant, "here")).await);
    busy(ask(&*elsewhere, id, &claim()).await);
    accepted(elsewhere.apply(id, complete(there, "there")).await);
    assert_eq!(replayed(ask(&*here, id, &claim()).await), text("here"));
    assert_eq!(replayed(ask(&*elsewhere, id, &claim()).await), text("there"));
}

// Large outcomes stay in PostgreSQL.
#[tokio::test(flavor = "multi_thread")]
async fn large_outcomes_are_not_copied() {
    let servers = Servers::start();
    let store = open(servers.builder().copy_limit(100)).await;
    uses_copies(&store).await;
    let id = key();
    let grant = win(&*store, id).await;
    let body = "x".repeat(200);
    accepted(store.apply(id, complete(grant, &body)).await);
    for _ in 0..2 {
        let before = store.stats();
        assert_eq!(replayed(ask(&*store, id, &claim()).await), text(&body));
        assert_eq!(store.stats().asked_postgres, before.asked_postgres + 1);
    }
}

// Everything else is PostgreSQL's alone: doubt and its settlement, expiry, operators.
#[tokio::test(flavor = "multi_thread")]
async fn doubt_is_settled_in_postgres_and_seen_by_all() {
    let servers = Servers::start();
    let (store, other) = (servers.ready().await, servers.ready().await);
    let id = key();
    let grant = win(&*store, id).await;
    accepted(store.apply(id, Command::Abandon(grant)).await);
    assert!(matches!(ask(&*other, id, &claim()).await, Ok(Ruling::InDoubt)), "not busy any more");
    let settled = Command::Settle(Settlement::Done(text("settled")));
    accepted(other.apply(id, settled).await);
    assert_eq!(replayed(ask(&*store, id, &claim()).await), text("settled"));
    accepted(store.apply(id, Command::Forget(Force::No)).await);
    win(&*other, id).await;
    assert_eq!(other.get(id).await.expect("healthy").expect("known").phase(), Phase::Begun);
}
