//! Not shipped: real servers and a fault proxy for the tests of Semel.
//!
//! A test starts the servers it needs, each on a free port and with a folder of its own, and does to them what the world
//! does to servers: kills, pauses, restarts and promotes them, and holds, cuts or delays what is on the wire. When the
//! value is dropped, everything is gone: also when the test panics, and also when the test process itself is killed.
//!
//! ```no_run
//! use std::time::Duration;
//! use semel_testbed::{Direction, FaultProxy, Postgres, Redis};
//!
//! # fn main() -> semel_testbed::Result<()> {
//! let redis = Redis::start()?;
//! let proxy = FaultProxy::before(redis.addr())?;
//! // … a client connects to proxy.addr() …
//! proxy.hold(Direction::ToClient); // it sends, and hears nothing
//! redis.kill();
//! redis.restart()?; // same port, same data
//! proxy.heal();
//!
//! let primary = Postgres::options().config("synchronous_standby_names", "*").start()?;
//! let standby = Postgres::standby_of(&primary)?;
//! primary.kill();
//! standby.promote()?;
//! # Ok(()) }
//! ```
//!
//! Calls block the thread for a moment. In an asynchronous test that is fine on a runtime of several threads; what must
//! go on meanwhile (the proxy) has its own thread.
//!
//! # Layout
//!
//! - [`redis`]: one server; [`cluster`]: three primaries and three replicas; [`sentinel`]: who promotes by itself.
//! - [`postgres`]: one server, and standbys of it.
//! - [`proxy`]: the fault proxy.
//! - [`resp`]: the least client for Redis, for the harness and for short questions in tests.
//! - [`fuzz`]: a fuzzer for stable Rust.
//! - [`wait`]: waiting for a condition with a deadline.
//! - `daemon`, `process`, `folder`, `ports`, `programs`: what all servers share: start and restart, the process tree,
//!   the folder and its watcher, ports, and where the programs are.
//!
//! # What it needs
//!
//! Linux, `redis-server` 7.0 or newer and PostgreSQL 14 or newer; `./scripts/test` installs them. A missing one fails the
//! test: nothing is skipped.

pub mod cluster;
mod daemon;
mod error;
mod folder;
pub mod fuzz;
mod ports;
pub mod postgres;
mod process;
mod programs;
pub mod proxy;
pub mod redis;
pub mod resp;
pub mod sentinel;
pub mod wait;

pub use self::{
    cluster::RedisCluster,
    error::{Error, Result},
    folder::Storage,
    postgres::Postgres,
    proxy::{Direction, FaultProxy},
    redis::Redis,
    sentinel::Sentinel,
};
