//! One PostgreSQL server, and its standby.

use semel_testbed::Postgres;

#[test]
fn killed_and_restarted_keeps_port_and_data() {
    let postgres = Postgres::start().unwrap();
    let addr = postgres.addr();
    postgres.sql("CREATE TABLE t (n int); INSERT INTO t VALUES (7)").unwrap();
    postgres.kill();
    assert!(postgres.sql("SELECT 1").is_err());
    postgres.restart().unwrap();
    assert_eq!(postgres.addr(), addr);
    assert_eq!(postgres.sql("SELECT n FROM t").unwrap(), "7");
}

#[test]
fn a_standby_follows_and_is_promoted() {
    let primary = Postgres::start().unwrap();
    let standby = Postgres::standby_of(&primary).unwrap();
    primary.sql("CREATE TABLE t (n int); INSERT INTO t VALUES (7)").unwrap();
    standby.catch_up(&primary).unwrap();
    assert!(standby.sql("INSERT INTO t VALUES (8)").is_err());
    primary.kill();
    standby.promote().unwrap();
    standby.sql("INSERT INTO t VALUES (8)").unwrap();
    assert_eq!(standby.sql("SELECT count(*) FROM t").unwrap(), "2");
}
