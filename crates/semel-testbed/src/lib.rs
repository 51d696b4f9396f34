//! Real servers for the tests of Semel and for `semel drill`. The feature `harness` (on by default) adds what only tests need: clusters,
//! a fault proxy and a fuzzer.
//!
//! A test starts the servers it needs, each on a free port and with its own folder. It can kill, pause, restart and promote them, and
//! hold, cut or delay their traffic. Dropping the value removes everything, also when the test panics or the test process is killed.
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
//! Calls block the thread for a moment. In an asynchronous test use a multi-threaded runtime; the proxy has a thread of its own.
//!
//! # Layout
//!
//! - [`redis`]: one server; [`cluster`]: three primaries and three replicas; [`sentinel`]: automatic failover.
//! - [`postgres`]: one server, and standbys of it.
//! - [`proxy`]: the fault proxy.
//! - [`resp`]: a minimal client for Redis, for the harness and for short queries in tests.
//! - [`fuzz`]: a fuzzer for stable Rust.
//! - [`timing`]: whether the time of an operation tells two kinds of inputs apart.
//! - [`wait`]: waiting for a condition with a deadline.
//! - `daemon`, `process`, `folder`, `ports`, `programs`: shared by all servers: start and restart, the process tree, the folder and its
//!   watcher, ports, and the paths of the programs.
//!
//! # Requirements
//!
//! Linux, `redis-server` 7.0 or newer and PostgreSQL 14 or newer; `./scripts/test` installs them. If one is missing, the test fails; it
//! is never skipped.

#[cfg(feature = "harness")]
pub mod cluster;
mod daemon;
mod error;
mod folder;
#[cfg(feature = "harness")]
pub mod fuzz;
mod ports;
pub mod postgres;
mod process;
mod programs;
#[cfg(feature = "harness")]
pub mod proxy;
pub mod redis;
pub mod resp;
#[cfg(feature = "harness")]
pub mod sentinel;
#[cfg(feature = "harness")]
pub mod timing;
pub mod wait;

#[cfg(feature = "harness")]
pub use self::{
    cluster::RedisCluster,
    proxy::{Direction, FaultProxy},
    sentinel::Sentinel,
};
pub use self::{
    error::{Error, Result},
    folder::Storage,
    postgres::Postgres,
    redis::Redis,
};
