//! The examples that need a server run against a real one.

// Each is a program with a `main` of its own.
#![allow(dead_code)]

use semel_testbed::{Postgres, Redis};

#[path = "../../examples/atomic_postgres.rs"]
mod atomic_postgres;
#[path = "../../examples/postgres.rs"]
mod postgres;
#[path = "../../examples/redis.rs"]
mod redis;
#[path = "../../examples/tiered.rs"]
mod tiered;

#[tokio::test]
async fn the_examples_of_the_servers_work() {
    let database = Postgres::start().expect("postgres starts");
    let cache = Redis::start().expect("redis-server starts");
    redis::run(&cache.url()).await.expect("the Redis example works");
    postgres::run(&database.url()).await.expect("the PostgreSQL example works");
    atomic_postgres::run(&database.url()).await.expect("the transaction example works");
    tiered::run(&database.url(), &cache.url()).await.expect("the tiered example works");
}
