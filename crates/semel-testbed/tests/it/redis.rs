//! One Redis server.

use semel_testbed::{Redis, redis::Persistence};

#[test]
fn killed_and_restarted_keeps_port_and_data() {
    let redis = Redis::options().persistence(Persistence::Always).start().unwrap();
    let addr = redis.addr();
    redis.tell(&["SET", "a", "1"]).unwrap();
    redis.kill();
    assert!(redis.connect().is_err());
    redis.restart().unwrap();
    assert_eq!(redis.addr(), addr);
    assert_eq!(redis.tell(&["GET", "a"]).unwrap().text(), "1");
}
