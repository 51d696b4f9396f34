//! Standbys: never asked while they are standbys, and what a promoted one knows.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel::key::KeyId;
use semel::record::{Command, Ruling};
use semel::store::{ErrorKind, PostgresStore, Store as _};
use semel_testbed::{Direction, FaultProxy, Postgres};
use tracing::field::{Field, Visit};
use tracing::span;

use super::{claim, complete, eventually, key, server, win};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_lag() {
    let primary = server();
    let proxy = FaultProxy::before(primary.addr()).expect("a healthy server");
    let url = primary.url_at(proxy.addr(), "postgres");
    let store =
        PostgresStore::builder(&url).timeout(Duration::from_secs(2)).open().await.expect("a healthy server");
    let standby = Postgres::standby_of(&primary).expect("a healthy server");
    let refused = PostgresStore::open(standby.url()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Setup);
    assert!(refused.to_string().contains("is a standby"), "{refused}");
    // Also a store that was opened on the primary never asks a standby.
    let id = key();
    let grant = win(&store, id).await;
    proxy.retarget(standby.addr());
    proxy.cut();
    let error = store.apply(id, Command::Claim(claim())).await.unwrap_err();
    assert!(error.to_string().contains("standby"), "{error}");
    assert!(store.get(id).await.is_err(), "a read from a standby shows the past");
    proxy.retarget(primary.addr());
    proxy.cut();
    eventually("back on the primary", async || {
        matches!(store.apply(id, complete(grant, "done")).await, Ok(Ruling::Accepted { .. }))
    })
    .await;
}

/// A primary and a standby that streams through one proxy, and a store that reaches the primary through another.
struct Pair {
    primary: Postgres,
    standby: Postgres,
    stream: FaultProxy,
    way: FaultProxy,
    store: PostgresStore,
}

impl Pair {
    async fn new(synchronous: &str) -> Self {
        let primary = Postgres::options()
            .config("synchronous_standby_names", synchronous)
            .start()
            .expect("a PostgreSQL server can be started");
        let stream = FaultProxy::before(primary.addr()).expect("a healthy server");
        let standby = Postgres::standby_via(&primary, stream.addr()).expect("a healthy server");
        let way = FaultProxy::before(primary.addr()).expect("a healthy server");
        let store = PostgresStore::builder(primary.url_at(way.addr(), "postgres"))
            .timeout(Duration::from_millis(700))
            .open()
            .await
            .expect("a healthy server");
        Self { primary, standby, stream, way, store }
    }

    async fn done(&self) -> KeyId {
        let id = key();
        let grant = win(&self.store, id).await;
        assert!(matches!(self.store.apply(id, complete(grant, "done")).await, Ok(Ruling::Accepted { .. })));
        id
    }

    /// The primary dies with what it had not sent yet; the standby takes its place.
    async fn fail_over(&self) {
        self.primary.kill();
        self.stream.refuse();
        self.standby.promote().expect("a healthy server");
        self.standby.set("synchronous_standby_names", "").expect("a healthy server");
        self.way.retarget(self.standby.addr());
        self.way.cut();
        eventually("the store is back", async || {
            matches!(self.store.apply(key(), Command::Claim(claim())).await, Ok(Ruling::Won(_)))
        })
        .await;
    }
}

/// How often a failover was reported.
static REPORTED: AtomicUsize = AtomicUsize::new(0);

struct Reports;

impl tracing::Subscriber for Reports {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Failover;
        impl Visit for Failover {
            fn record_bool(&mut self, field: &Field, value: bool) {
                if field.name() == "store_failover" && value {
                    REPORTED.fetch_add(1, Ordering::SeqCst);
                }
            }

            fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
        }
        event.record(&mut Failover);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

// An asynchronous standby: what was acknowledged while the stream was held is gone, as the documentation says, and the
// store says that a failover happened. What had reached it is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_async_standby() {
    tracing::subscriber::set_global_default(Reports).expect("nobody else collects events in this process");
    let pair = Pair::new("").await;
    let before = pair.done().await;
    pair.standby.catch_up(&pair.primary).expect("a healthy server");
    pair.stream.hold(Direction::ToClient);
    let lost = pair.done().await;
    assert_eq!(REPORTED.load(Ordering::SeqCst), 0);
    pair.fail_over().await;
    let replayed = pair.store.apply(before, Command::Claim(claim())).await;
    assert!(matches!(replayed, Ok(Ruling::Replay { .. })), "{replayed:?}");
    let again = pair.store.apply(lost, Command::Claim(claim())).await;
    assert!(matches!(again, Ok(Ruling::Won(_))), "the loss that is documented: {again:?}");
    assert!(REPORTED.load(Ordering::SeqCst) > 0, "a failover is reported");
}

// A synchronous standby: while it does not answer, nothing is acknowledged, so nothing acknowledged is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_sync_standby() {
    let pair = Pair::new("*").await;
    let mut acknowledged = Vec::new();
    for _ in 0..20 {
        acknowledged.push(pair.done().await);
    }
    pair.stream.hold(Direction::ToClient);
    let unheard = key();
    let refused = pair.store.apply(unheard, Command::Claim(claim())).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Ambiguous, "{refused}");
    pair.fail_over().await;
    for id in acknowledged {
        let replayed = pair.store.apply(id, Command::Claim(claim())).await;
        assert!(matches!(replayed, Ok(Ruling::Replay { .. })), "{replayed:?}");
    }
    assert!(matches!(pair.store.apply(unheard, Command::Claim(claim())).await, Ok(Ruling::Won(_))));
}
