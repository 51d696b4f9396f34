//! A Redis Cluster.

use semel_testbed::{RedisCluster, resp::Reply};

#[test]
fn a_slot_moves_with_its_keys() {
    let cluster = RedisCluster::start().unwrap();
    let slot = cluster.slot_of("k").unwrap();
    let from = cluster.primary_of(slot).unwrap();
    let to = (from + 1) % 3;
    cluster.node(from).tell(&["SET", "k", "v"]).unwrap();

    cluster.begin_move(slot, to).unwrap();
    assert_eq!(cluster.node(from).tell(&["GET", "k"]).unwrap().text(), "v");
    let tagged = cluster.node(from).connect().unwrap().ask(&["GET", "{k}other"]).unwrap();
    assert!(matches!(tagged, Reply::Error(text) if text.starts_with("ASK ")));

    cluster.finish_move(slot, to).unwrap();
    let moved = cluster.node(from).connect().unwrap().ask(&["GET", "k"]).unwrap();
    assert!(matches!(moved, Reply::Error(text) if text.starts_with("MOVED ")));
    assert_eq!(cluster.node(to).tell(&["GET", "k"]).unwrap().text(), "v");
    assert_eq!(cluster.primary_of(slot).unwrap(), to);
}

#[test]
fn a_killed_primary_is_replaced_and_comes_back_as_replica() {
    let cluster = RedisCluster::start().unwrap();
    let slot = cluster.slot_of("k").unwrap();
    let primary = cluster.primary_of(slot).unwrap();
    cluster.kill(primary);
    cluster.wait_ok().unwrap();
    assert_eq!(cluster.primary_of(slot).unwrap(), primary + 3);
    cluster.node(primary).restart().unwrap();
    cluster.wait_ok().unwrap();
    cluster.failover_to(primary).unwrap();
    assert_eq!(cluster.primary_of(slot).unwrap(), primary);
}
