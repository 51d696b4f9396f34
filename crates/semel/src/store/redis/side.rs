//! Redis beside another store: values that may be lost at any time, and wake-ups. The other store is authoritative,
//! so the server is not checked: it may evict, and it may store nothing on disk.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::builder::thread_failed;
use super::error::CallReach;
use super::listen::listen;
use super::script::Dialect;
use super::{RedisBuilder, Shared, ThreadCall, begin};
use crate::key::KeyId;
use crate::store::{BoxFuture, Error, ErrorKind, Wakeups};

/// Whether a change wakes the waiters of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Wake {
    /// All waiters of the key.
    Waiters,
    /// Nobody waits for this kind of change.
    Nobody,
}

/// Access to Redis for another store, on its own thread.
pub(in crate::store) struct Side {
    shared: Arc<Shared>,
    timeout: Duration,
    calls: UnboundedSender<ThreadCall>,
    watched: UnboundedSender<KeyId>,
}

/// Ends the thread and all its tasks when it is dropped.
#[derive(Debug)]
pub(in crate::store) struct SideThread {
    _running: oneshot::Sender<()>,
}

impl Side {
    /// Starts the thread; the server need not be available. Names begin with the builder's prefix and `space`.
    /// Changes that other processes announce wake the waiters in `wakeups`.
    pub(in crate::store) fn start(
        builder: RedisBuilder,
        space: &str,
        timeout: Duration,
        wakeups: Wakeups,
    ) -> Result<(Self, SideThread), Error> {
        let shared = builder.beside(space, timeout, wakeups)?;
        let (watched, watches) = unbounded_channel();
        let (calls, called) = unbounded_channel();
        let (running, stopped) = oneshot::channel();
        let background = Arc::clone(&shared);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(thread_failed)?;
        let work = move || {
            runtime.block_on(async move {
                tokio::spawn(begin(called));
                tokio::spawn(listen(background, None, watches));
                // Ends, with an error, when the store is dropped.
                let _ = stopped.await;
            });
        };
        std::thread::Builder::new().name("semel-redis".to_owned()).spawn(work).map_err(thread_failed)?;
        Ok((Self { shared, timeout, calls, watched }, SideThread { _running: running }))
    }

    /// The URL without its password.
    pub(in crate::store) fn name(&self) -> &str {
        &self.shared.name
    }

    /// Runs a task on the thread until it or the store ends.
    pub(in crate::store) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Fails only when the thread has ended.
        let _ = self.calls.send(Box::pin(task));
    }

    pub(in crate::store) fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Vec<u8>>, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move {
            let mut get = redis::cmd("GET");
            get.arg(shared.names.record(id));
            Ok(match shared.link.query(&get, CallReach::Read).await? {
                Value::BulkString(bytes) => Some(bytes),
                _ => None,
            })
        })
    }

    /// Sets the value of a key for a limited time.
    pub(in crate::store) fn put(
        &self,
        id: KeyId,
        value: Vec<u8>,
        life: Duration,
        wake: Wake,
    ) -> BoxFuture<'_, Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move {
            let mut set = redis::cmd("SET");
            let millis = u64::try_from(life.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 50);
            set.arg(shared.names.record(id)).arg(value).arg("PX").arg(millis);
            change(&shared, id, &set, wake).await
        })
    }

    pub(in crate::store) fn remove(&self, id: KeyId, wake: Wake) -> BoxFuture<'_, Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move {
            let mut del = redis::cmd("DEL");
            del.arg(shared.names.record(id));
            change(&shared, id, &del, wake).await
        })
    }

    /// Executes every kind of command once, so that missing permissions show as well as a missing server.
    pub(in crate::store) fn probe(&self) -> BoxFuture<'_, Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move {
            let key = shared.names.probe();
            let (mut set, mut get, mut del) = (redis::cmd("SET"), redis::cmd("GET"), redis::cmd("DEL"));
            let mut publish = shared.publish();
            set.arg(&key).arg("").arg("PX").arg(1000);
            for command in [&set, get.arg(&key), del.arg(&key), publish.arg("")] {
                shared.link.query(command, CallReach::Read).await?;
            }
            Ok(())
        })
    }

    /// Watches a new key.
    pub(in crate::store) fn watch(&self, id: KeyId) {
        // Fails only when the thread has ended.
        let _ = self.watched.send(id);
    }

    /// Runs work on the thread, with a timeout. If the call is dropped, the work still completes.
    fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, Error>> {
        // A stuck connection has its own timeout, and must be closed by it: this one is only an additional limit.
        let timeout = self.timeout * 2 + Duration::from_millis(50);
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            self.spawn(async move {
                let done = tokio::time::timeout(timeout, work).await;
                let late = |_| {
                    let message =
                        format!("the Redis server did not answer within {} ms", timeout.as_millis());
                    Err(Error::new(ErrorKind::Unavailable, message))
                };
                // Nobody waits for the answer of a dropped call.
                let _ = answer.send(done.unwrap_or_else(late));
            });
            answered
                .await
                .unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "the thread for Redis has ended")))
        })
    }
}

/// The change first, then its notification: a woken caller sees the change. Both are sent together.
async fn change(shared: &Shared, id: KeyId, command: &Cmd, wake: Wake) -> Result<(), Error> {
    if wake == Wake::Nobody {
        return shared.link.query(command, CallReach::Write).await.map(drop);
    }
    let mut publish = redis::cmd(match shared.link.address.dialect() {
        Dialect::One => "PUBLISH",
        Dialect::Cluster => "SPUBLISH",
    });
    publish.arg(shared.names.record(id)).arg("");
    let (changed, told) = tokio::join!(
        biased;
        shared.link.query(command, CallReach::Write),
        shared.link.query(&publish, CallReach::Write),
    );
    changed.and(told).map(drop)
}

impl std::fmt::Debug for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Side").field("url", &self.shared.name).finish_non_exhaustive()
    }
}
