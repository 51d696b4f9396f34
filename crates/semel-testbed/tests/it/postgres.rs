//! One PostgreSQL server, and its standby.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use semel_testbed::{Direction, Error, FaultProxy, Postgres, Storage, wait};

const LONG: Duration = Duration::from_secs(10);

fn quick() -> Postgres {
    Postgres::options().storage(Storage::Memory).start().unwrap()
}

/// A client that runs SQL over TCP and stays a process of its own.
fn psql(url: &str, sql: &str) -> Child {
    let mut psql = Command::new("psql");
    psql.args(["-XAtqw", "-c", sql, url]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    psql.spawn().unwrap()
}

#[test]
fn killed_and_restarted_keeps_port_and_data() {
    let postgres = quick();
    let addr = postgres.addr();
    postgres.sql("CREATE TABLE t (n int); INSERT INTO t VALUES (7)").unwrap();
    // A busy backend outlives its parent, unless the harness kills it too.
    let mut busy = psql(&postgres.url(), "SELECT count(*) FROM generate_series(1, 1000000000)");
    let active =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%1000000000%' AND pid <> pg_backend_pid()";
    wait::until("the backend is busy", LONG, || postgres.sql(active).unwrap() == "1").unwrap();
    postgres.kill();
    assert!(!busy.wait().unwrap().success());
    assert!(postgres.sql("SELECT 1").is_err());
    assert!(matches!(postgres.cpu_time(), Err(Error::NotRunning { .. })));
    postgres.restart().unwrap();
    assert_eq!(postgres.addr(), addr);
    assert_eq!(postgres.sql("SELECT n FROM t").unwrap(), "7");
    assert_eq!(postgres.sql("SHOW fsync").unwrap(), "on");
    postgres.stop();
    postgres.restart().unwrap();
    assert_eq!(postgres.sql("SELECT n FROM t").unwrap(), "7");
}

#[test]
fn paused_it_does_not_answer() {
    let postgres = quick();
    postgres.pause().unwrap();
    let mut waiting = psql(&postgres.url(), "SELECT 6 * 7");
    assert!(
        wait::until("it answers", Duration::from_millis(300), || waiting.try_wait().unwrap().is_some())
            .is_err()
    );
    postgres.resume().unwrap();
    assert_eq!(waiting.wait_with_output().unwrap().stdout, b"42\n");
}

#[test]
fn one_backend_is_ended_and_the_server_lives() {
    let postgres = quick();
    let name = postgres.fresh_database().unwrap();
    let sleeper = psql(&postgres.url_at(postgres.addr(), &name), "SELECT pg_sleep(60)");
    let only = format!("datname = '{name}' AND query LIKE '%pg_sleep%'");
    wait::until("the sleeper is ended", LONG, || postgres.terminate_backends(&only).unwrap() == 1).unwrap();
    assert!(!sleeper.wait_with_output().unwrap().status.success());
    assert_eq!(postgres.sql("SELECT 1").unwrap(), "1");
}

#[test]
fn settings_are_changed_and_options_win() {
    let options = Postgres::options().storage(Storage::Memory).config("max_connections", "17");
    let postgres = options.start().unwrap();
    assert_eq!(postgres.sql("SHOW max_connections").unwrap(), "17");
    postgres.set("synchronous_commit", "off").unwrap();
    wait::until("it has reloaded", LONG, || postgres.sql("SHOW synchronous_commit").unwrap() == "off")
        .unwrap();
    assert!(matches!(postgres.sql("SELECT nothing"), Err(Error::Command { .. })));
}

#[test]
fn a_wrong_password_is_refused() {
    let postgres = Postgres::options().storage(Storage::Memory).password("secret").start().unwrap();
    let right = psql(&postgres.url(), "SELECT 1").wait_with_output().unwrap();
    assert!(right.status.success(), "{right:?}");
    let wrong = psql(&postgres.url().replace("secret", "wrong"), "SELECT 1").wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("password authentication failed"), "{wrong:?}");
}

#[test]
fn a_standby_follows_lags_behind_a_held_proxy_and_is_promoted() {
    let primary = quick();
    let proxy = FaultProxy::before(primary.addr()).unwrap();
    let standby = Postgres::standby_via(&primary, proxy.addr()).unwrap();
    primary.sql("CREATE TABLE t (n int); INSERT INTO t VALUES (1)").unwrap();
    standby.catch_up(&primary).unwrap();
    assert!(standby.sql("INSERT INTO t VALUES (8)").is_err());

    proxy.hold(Direction::Both);
    primary.sql("INSERT INTO t VALUES (2)").unwrap();
    assert_eq!(standby.sql("SELECT count(*) FROM t").unwrap(), "1");
    primary.kill();
    standby.promote().unwrap();
    standby.sql("INSERT INTO t VALUES (3)").unwrap();
    assert_eq!(standby.sql("SELECT string_agg(n::text, ' ' ORDER BY n) FROM t").unwrap(), "1 3");
}

#[test]
fn processor_time_is_that_of_all_backends() {
    let postgres = quick();
    let before = postgres.cpu_time().unwrap();
    // The backend ends with the query: its time must not be lost with it.
    postgres.sql("SELECT count(*) FROM generate_series(1, 2000000)").unwrap();
    let spent = postgres.cpu_time().unwrap() - before;
    assert!(spent > Duration::from_millis(50) && spent < LONG, "{spent:?}");
}

#[test]
fn a_restart_waits_for_its_port() {
    let postgres = quick();
    postgres.kill();
    let thief = TcpListener::bind(postgres.addr()).unwrap();
    thread::scope(|scope| {
        let restart = scope.spawn(|| postgres.restart());
        wait::until("it has tried", LONG, || postgres.log().contains("Address already in use")).unwrap();
        assert!(!restart.is_finished());
        drop(thief);
        restart.join().unwrap().unwrap();
    });
    assert_eq!(postgres.sql("SELECT 1").unwrap(), "1");
}
