//! One Redis server, replicas of it, and a Sentinel.

use std::{
    net::TcpListener,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use semel_testbed::{
    Direction, Error, FaultProxy, Redis, Sentinel, Storage,
    redis::{Persistence, RedisOptions},
    resp::{Conn, Reply},
    wait,
};

const LONG: Duration = Duration::from_secs(10);

fn quick() -> RedisOptions {
    Redis::options().storage(Storage::Memory)
}

#[test]
fn killed_and_restarted_keeps_port_and_data() {
    let redis = Redis::options().persistence(Persistence::Always).start().unwrap();
    let (addr, pid) = (redis.addr(), redis.pid().unwrap());
    redis.tell(&["SET", "a", "1"]).unwrap();
    redis.kill();
    assert!(redis.connect().is_err());
    assert!(matches!(redis.pause(), Err(Error::NotRunning { .. })));
    redis.restart().unwrap();
    assert_eq!(redis.addr(), addr);
    assert_ne!(redis.pid().unwrap(), pid);
    assert_eq!(redis.tell(&["GET", "a"]).unwrap().text(), "1");
    redis.stop();
    redis.restart().unwrap();
    assert_eq!(redis.tell(&["GET", "a"]).unwrap().text(), "1");
}

#[test]
fn without_persistence_a_restart_comes_back_empty() {
    let redis = quick().persistence(Persistence::None).start().unwrap();
    redis.tell(&["SET", "a", "1"]).unwrap();
    redis.restart().unwrap();
    assert_eq!(redis.tell(&["GET", "a"]).unwrap(), Reply::Nil);
}

#[test]
fn a_compacted_log_is_shorter_and_has_the_same_data() {
    let redis = quick().persistence(Persistence::Always).start().unwrap();
    let mut conn = redis.connect().unwrap();
    for number in 0..1_000 {
        conn.tell(&["SET", "a", &number.to_string()]).unwrap();
    }
    let size = || redis.info("aof_current_size").unwrap().parse::<u64>().unwrap();
    let before = size();
    redis.compact().unwrap();
    assert!(size() < before / 10, "{} bytes after {before}", size());
    redis.restart().unwrap();
    assert_eq!(redis.tell(&["GET", "a"]).unwrap().text(), "999");
}

#[test]
fn paused_it_accepts_and_does_not_answer() {
    let redis = quick().start().unwrap();
    redis.pause().unwrap();
    let mut conn = Conn::connect_within(redis.addr(), Duration::from_millis(100)).unwrap();
    assert!(conn.ask(&["PING"]).is_err());
    redis.resume().unwrap();
    assert_eq!(redis.tell(&["PING"]).unwrap().text(), "PONG");
    redis.pause().unwrap();
    // Dropped while it is paused: the test of leftovers counts it.
}

#[test]
fn a_replica_follows_lags_behind_a_held_proxy_and_is_promoted() {
    let (primary, replica) = (quick().start().unwrap(), quick().start().unwrap());
    let proxy = FaultProxy::before(primary.addr()).unwrap();
    replica.replicate_from(proxy.addr()).unwrap();
    primary.tell(&["SET", "a", "1"]).unwrap();
    assert_eq!(primary.tell(&["WAIT", "1", "5000"]).unwrap(), Reply::Int(1));

    proxy.hold(Direction::Both);
    primary.tell(&["SET", "a", "2"]).unwrap();
    assert_eq!(primary.tell(&["WAIT", "1", "100"]).unwrap(), Reply::Int(0));
    assert_eq!(replica.tell(&["GET", "a"]).unwrap().text(), "1");

    replica.promote().unwrap();
    replica.tell(&["SET", "a", "3"]).unwrap();
    replica.restart().unwrap();
    assert_eq!(replica.info("role").unwrap(), "master");
    assert_eq!(replica.tell(&["GET", "a"]).unwrap().text(), "3");
}

#[test]
fn a_sentinel_promotes_the_replica_of_a_killed_primary() {
    let (primary, replica) = (quick().start().unwrap(), quick().start().unwrap());
    replica.replica_of(&primary).unwrap();
    let sentinel = Sentinel::watch(&primary).unwrap();
    assert_eq!(sentinel.primary().unwrap(), primary.addr());
    primary.kill();
    assert_eq!(sentinel.wait_for_other_than(primary.addr()).unwrap(), replica.addr());
    wait::until("it is a primary", LONG, || replica.info("role").unwrap() == "master").unwrap();
}

#[test]
fn users_and_passwords_are_asked_for() {
    let redis = quick().password("secret").user("app", "on >word ~semel:* +@all -config").start().unwrap();
    let mut conn = Conn::connect(redis.addr()).unwrap();
    assert!(matches!(conn.ask(&["PING"]).unwrap(), Reply::Error(text) if text.starts_with("NOAUTH")));
    conn.tell(&["AUTH", "secret"]).unwrap();
    conn.tell(&["SET", "any", "1"]).unwrap();
    conn.tell(&["AUTH", "app", "word"]).unwrap();
    conn.tell(&["SET", "semel:a", "1"]).unwrap();
    assert!(
        matches!(conn.ask(&["SET", "any", "1"]).unwrap(), Reply::Error(text) if text.starts_with("NOPERM"))
    );
    assert!(
        matches!(conn.ask(&["CONFIG", "GET", "*"]).unwrap(), Reply::Error(text) if text.starts_with("NOPERM"))
    );
}

#[test]
fn settings_are_changed_and_options_win() {
    let redis = quick().config("maxmemory-policy", "allkeys-lru").start().unwrap();
    assert_eq!(redis.info("maxmemory_policy").unwrap(), "allkeys-lru");
    redis.config_set("maxmemory-policy", "noeviction").unwrap();
    assert_eq!(redis.info("maxmemory_policy").unwrap(), "noeviction");
    assert!(matches!(redis.config_set("no-such", "1"), Err(Error::Reply { .. })));
}

#[test]
fn a_setting_that_is_none_fails_the_start_with_the_servers_words() {
    let error = quick().config("no-such-setting", "1").start().unwrap_err().to_string();
    assert!(error.contains("no-such-setting"), "{error}");
}

#[test]
fn tls_is_spoken_with_a_certificate_that_its_authority_vouches_for() {
    let redis = quick().tls().start().unwrap();
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-verify_return_error", "-verify_hostname", "localhost", "-quiet", "-connect"]);
    openssl.arg(redis.tls_addr().unwrap().to_string()).arg("-CAfile").arg(redis.ca_cert().unwrap());
    let mut client =
        openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut client.stdin.take().unwrap(), b"PING\r\nQUIT\r\n").unwrap();
    let output = client.wait_with_output().unwrap();
    let (heard, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(heard.starts_with("+PONG"), "{heard} {said}");
}

#[test]
fn processor_time_grows_with_work() {
    let redis = quick().start().unwrap();
    let before = redis.cpu_time().unwrap();
    redis.tell(&["EVAL", "local n = 0 for i = 1, 20000000 do n = n + i end return n", "0"]).unwrap();
    let spent = redis.cpu_time().unwrap() - before;
    assert!(spent > Duration::from_millis(20) && spent < LONG, "{spent:?}");
}

#[test]
fn many_start_at_once_without_a_clash() {
    let start = || quick().persistence(Persistence::None).start().unwrap();
    let all: Vec<Redis> = thread::scope(|scope| {
        let threads: Vec<_> = (0..12).map(|_| scope.spawn(start)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (index, redis) in all.iter().enumerate() {
        redis.tell(&["SET", "me", &index.to_string()]).unwrap();
    }
    for (index, redis) in all.iter().enumerate() {
        assert_eq!(redis.tell(&["GET", "me"]).unwrap().text(), index.to_string());
    }
}

#[test]
fn a_restart_waits_for_its_port() {
    let redis = quick().start().unwrap();
    redis.kill();
    let thief = TcpListener::bind(redis.addr()).unwrap();
    thread::scope(|scope| {
        let restart = scope.spawn(|| redis.restart());
        wait::until("it has tried", LONG, || redis.log().contains("Address already in use")).unwrap();
        assert!(!restart.is_finished());
        drop(thief);
        restart.join().unwrap().unwrap();
    });
    assert_eq!(redis.tell(&["PING"]).unwrap().text(), "PONG");
}
