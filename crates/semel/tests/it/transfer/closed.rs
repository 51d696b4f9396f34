//! A store that is marked as moved grants no claims: not to a process that was cut off when it was marked, and not for a
//! packet that was on its way.

use std::sync::Arc;
use std::time::Duration;

use semel::record::{Begin, Command, Phase};
use semel::store::transfer::{CLOSING, TransferRun, TransferState, TransferStore};
use semel::store::{ErrorKind, MarkId, PostgresStore, RedisStore};
use semel_testbed::{Direction, FaultProxy, Postgres, Redis};

use super::*;

/// A store over its server, and another process's handle of it through a proxy.
struct Pair {
    operator: Arc<dyn TransferStore>,
    server: Arc<dyn TransferStore>,
    proxy: FaultProxy,
}

/// No call gives up while its packets are held.
const PATIENT: Duration = Duration::from_secs(60);

async fn on_redis(redis: &Redis, prefix: &str) -> Pair {
    let proxy = FaultProxy::before(redis.addr()).expect("it works");
    let url = format!("redis://{}", proxy.addr());
    let builder = |url: &str| RedisStore::builder(url).prefix(prefix).response_timeout(PATIENT);
    let operator = builder(&redis.url()).connect().await.expect("it works");
    let server = builder(&url).connect().await.expect("it works");
    Pair { operator: Arc::new(operator), server: Arc::new(server), proxy }
}

async fn on_postgres(postgres: &Postgres, schema: &str) -> Pair {
    let proxy = FaultProxy::before(postgres.addr()).expect("it works");
    let url = postgres.url_at(proxy.addr(), "postgres");
    let builder = |url: &str| PostgresStore::builder(url).schema(schema).timeout(PATIENT);
    let operator = builder(&postgres.url()).open().await.expect("it works");
    let server = builder(&url).open().await.expect("it works");
    Pair { operator: Arc::new(operator), server: Arc::new(server), proxy }
}

fn moved() -> TransferState {
    TransferState::Moved { run: TransferRun::random(), to: "postgres://db/app".to_owned() }
}

/// A claim and a begin mark leave before the store is closed and arrive long after it.
async fn packets_on_their_way(pair: Pair) {
    let Pair { operator, server, proxy } = pair;
    // The path of a single claim is warm.
    for id in 20..24 {
        run(&*server, number(id), Terms::default()).await;
    }
    let long = Terms { lease: PATIENT, in_flight_max: PATIENT, ..Terms::default() };
    let held = won(ask(&*server, number(2), claim_for(long, Begin::Later)).await);
    proxy.hold(Direction::ToServer);
    let (of_claim, of_begin) = (Arc::clone(&server), Arc::clone(&server));
    let claiming = tokio::spawn(async move { ask(&*of_claim, number(1), claim()).await });
    let beginning = tokio::spawn(async move { of_begin.apply(number(2), Command::Begin(held)).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(operator.change_state(&TransferState::Open, &moved()).await.expect("it works"));
    tokio::time::sleep(CLOSING).await;
    assert!(operator.get(number(1)).await.expect("it works").is_none(), "the last pass does not see it");
    proxy.release();
    for late in [claiming.await.expect("it works"), beginning.await.expect("it works")] {
        let refused = late.expect_err("the last pass is over");
        assert_eq!(refused.kind(), ErrorKind::Moved, "{refused}");
    }
    phase_is(&*operator, number(1), Phase::Vacant).await;
    // Owners may end what they hold.
    accepted(server.apply(number(2), Command::Release(held)).await);
}

/// Every process learns it with its heartbeat, and learns of a reopening too.
async fn a_running_process(pair: Pair) {
    let Pair { operator, server, .. } = pair;
    run(&*server, number(1), Terms::default()).await;
    let held = won(ask(&*server, number(2), claim_for(Terms::default(), Begin::Later)).await);
    let state = moved();
    assert!(operator.change_state(&TransferState::Open, &state).await.expect("it works"));
    assert!(
        !operator.change_state(&TransferState::Open, &state).await.expect("it works"),
        "it is closed already"
    );
    let refused = async {
        loop {
            let id = number(rand_byte());
            if let Err(refused) = ask(&*server, id, claim()).await {
                return refused;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let refused = tokio::time::timeout(CLOSING, refused).await.expect("within the time of a closing");
    assert_eq!(refused.kind(), ErrorKind::Moved, "{refused}");
    assert!(refused.to_string().contains("postgres://db/app"), "{refused}");
    assert_eq!(replayed(ask(&*server, number(1), claim()).await).kind(), "text", "stored answers are given");
    for command in [Command::Begin(held), Command::Forget(Force::Yes), Command::Reexecute] {
        let refused = server.apply(number(2), command).await.expect_err("it is refused");
        assert_eq!(refused.kind(), ErrorKind::Moved, "{refused}");
    }
    let mark = server.raise_mark(MarkId::of_session(b"one"), 1).await.expect_err("it is refused");
    assert_eq!(mark.kind(), ErrorKind::Moved, "{mark}");
    accepted(server.apply(number(2), Command::Renew(held)).await);
    accepted(server.apply(number(2), complete(held, "late")).await);

    assert!(operator.change_state(&state, &TransferState::Open).await.expect("it works"));
    let granted = async {
        while ask(&*server, number(3), claim()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, granted).await.expect("it is open again");
}

fn rand_byte() -> u8 {
    100 + semel::record::Owner::random().as_bytes()[0] % 100
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_packets_win_nothing_on_redis() {
    packets_on_their_way(on_redis(&Redis::start().expect("it works"), "late").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_packets_win_nothing_on_postgresql() {
    packets_on_their_way(on_postgres(&Postgres::start().expect("it works"), "late").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_process_learns_of_it_on_redis() {
    a_running_process(on_redis(&Redis::start().expect("it works"), "running").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_process_learns_of_it_on_postgresql() {
    a_running_process(on_postgres(&Postgres::start().expect("it works"), "running").await).await;
}

/// Cause: a copy did not ask whether the old store lost data. Consequence: a move ended the protection of
/// `on_store_loss = "refuse"`, and lost keys ran again on the new store. Fix: such a store is not copied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_lost_data_is_not_copied_while_it_refuses_claims() {
    use semel::store::OnStoreLoss;
    use semel::store::transfer::Transfer;

    let redis = Redis::start().expect("it works");
    let open =
        async |loss| RedisStore::builder(&redis.url()).on_store_loss(loss).connect().await.expect("it works");
    let server = open(OnStoreLoss::Refuse(PATIENT)).await;
    run(&server, number(1), Terms::default()).await;
    redis.tell(&["FLUSHALL"]).expect("it works");
    let noticed = async {
        while !server.has_lost_data() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, noticed).await.expect("the loss is noticed");

    let to = || Arc::new(semel::store::MemoryStore::new()) as Arc<dyn TransferStore>;
    let begin = async |from: &RedisStore| {
        let secret = Some(Secret::from_bytes([1; 32]));
        Transfer::begin(from, to(), [secret.clone(), secret]).await
    };
    let alarmed = open(OnStoreLoss::Alarm).await;
    run(&alarmed, number(2), Terms::default()).await;
    let refused = begin(&open(OnStoreLoss::Refuse(PATIENT)).await).await.expect_err("it is refused");
    assert_eq!(refused.kind(), ErrorKind::Setup, "{refused}");
    assert!(refused.to_string().contains("lost data and grants no claims"), "{refused}");

    // Its servers accept the risk. A loss during the copy still ends it.
    let mut transfer = begin(&alarmed).await.expect("it works");
    transfer.pass(&alarmed).await.expect("it works");
    redis.tell(&["FLUSHALL"]).expect("it works");
    let refused = transfer.finish(&alarmed).await.expect_err("it is refused");
    assert!(refused.to_string().contains("lost records during the copy"), "{refused}");
}
