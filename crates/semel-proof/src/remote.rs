//! A store in another process: every call goes there, one line each way.
//!
//! With two of them the contract suite spans two real processes. The pipe preserves the order: a watch is registered
//! before the request that follows it. There is no order between two pipes: a cache confirms that it has dropped a
//! record, and the other process continues only then.

mod serve;
mod wire;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command as Process, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use semel::key::KeyId;
use semel::record::{Command, Ruling};
use semel::secret::Secret;
use semel::store::{
    BoxFuture, Durability, Error, ErrorKind, Invalidate, Page, Scan, Snapshot, Store, Swept, Trust, Wakeups,
    Watch,
};
use tokio::sync::oneshot;

pub use self::serve::serve;
use self::wire::{WireAnswer, WireLine, WireQuestion};
use crate::place::StorePlace;
use crate::victim::VictimJob;

/// Forwards calls to another process. Secrets go through a handle of this one: they have no answer that could
/// depend on who asks.
pub struct RemoteStore {
    here: Arc<dyn Store>,
    child: Mutex<Child>,
    input: Arc<Mutex<ChildStdin>>,
    next: AtomicU64,
    shared: Arc<RemoteShared>,
}

#[derive(Default)]
struct RemoteShared {
    waiting: Mutex<HashMap<u64, oneshot::Sender<WireAnswer>>>,
    wakeups: Wakeups,
    caches: Mutex<RemoteCaches>,
}

#[derive(Default)]
struct RemoteCaches {
    all: Vec<Weak<dyn Invalidate>>,
    trust: Option<Trust>,
}

/// A panic elsewhere does not matter: nothing is left half done under these locks.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RemoteStore {
    /// Starts `program` (`semel-victim`), which opens the place.
    ///
    /// # Errors
    /// The store's error in this process.
    ///
    /// # Panics
    /// The program cannot be started.
    pub async fn start(program: impl AsRef<OsStr>, place: &StorePlace) -> Result<Self, Error> {
        let here = place.open().await?;
        let job = serde_json::to_string(&VictimJob::Serve(place.clone())).expect("a job is plain data");
        let mut child = Process::new(program)
            .arg(job)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let input = child.stdin.take().expect("its input is piped");
        let output = child.stdout.take().expect("its output is piped");
        let (shared, input) = (Arc::new(RemoteShared::default()), Arc::new(Mutex::new(input)));
        let (listening, back) = (Arc::clone(&shared), Arc::clone(&input));
        std::thread::spawn(move || listening.listen(output, &back));
        Ok(Self { here, child: Mutex::new(child), input, next: AtomicU64::new(0), shared })
    }

    /// The id of the other process.
    pub fn process(&self) -> u32 {
        lock(&self.child).id()
    }

    fn send(&self, number: u64, ask: &WireQuestion) -> Result<(), Error> {
        write(&self.input, number, ask)
            .map_err(|error| Error::new(ErrorKind::Closed, "the other process is gone").with_source(error))
    }

    async fn ask(&self, ask: WireQuestion) -> Result<WireAnswer, Error> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        lock(&self.shared.waiting).insert(number, sender);
        self.send(number, &ask)?;
        match answer.await {
            Ok(WireAnswer::Failed { kind, message }) => Err(wire::error(&kind, message)),
            Ok(answer) => Ok(answer),
            Err(_) => Err(Error::new(ErrorKind::Ambiguous, "the other process ended before it answered")),
        }
    }
}

fn write(input: &Mutex<ChildStdin>, number: u64, ask: &WireQuestion) -> std::io::Result<()> {
    let mut line = serde_json::to_string(&(number, ask)).expect("questions are plain data");
    line.push('\n');
    lock(input).write_all(line.as_bytes())
}

impl RemoteShared {
    fn listen(&self, output: ChildStdout, back: &Mutex<ChildStdin>) {
        // If the write fails the process has ended, which the next read reports.
        let heard = |number| drop(write(back, number, &WireQuestion::Heard));
        for line in BufReader::new(output).lines() {
            let Ok(Ok(told)) = line.map(|line| serde_json::from_str(&line)) else { break };
            match told {
                WireLine::Answer(number, answer) => {
                    if let Some(waits) = lock(&self.waiting).remove(&number) {
                        // The caller may have been dropped.
                        let _ = waits.send(answer);
                    }
                }
                WireLine::Woken(id) => self.wakeups.wake(KeyId::from_bytes(id)),
                WireLine::Invalid(number, id) => {
                    self.each_cache(|cache| cache.invalidate(KeyId::from_bytes(id)));
                    heard(number);
                }
                WireLine::Trust(number, confirmed) => {
                    let trust = if confirmed { Trust::Confirmed } else { Trust::Unconfirmed };
                    lock(&self.caches).trust = Some(trust);
                    self.each_cache(|cache| cache.trust(trust));
                    heard(number);
                }
            }
        }
        lock(&self.waiting).clear();
        self.wakeups.wake_all();
    }

    fn each_cache(&self, tell: impl Fn(&dyn Invalidate)) {
        let caches: Vec<_> = lock(&self.caches).all.iter().filter_map(Weak::upgrade).collect();
        caches.iter().for_each(|cache| tell(&**cache));
    }
}

#[deny(clippy::missing_trait_methods)]
impl Store for RemoteStore {
    fn apply(&self, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>> {
        Box::pin(async move {
            match self.ask(WireQuestion::Apply(*id.as_bytes(), (&command).into())).await? {
                WireAnswer::Ruled(ruling) => Ok(ruling.into()),
                other => Err(wire::unexpected(&other)),
            }
        })
    }

    fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        Box::pin(async move {
            match self.ask(WireQuestion::Get(*id.as_bytes())).await? {
                WireAnswer::Found(found) => Ok(found.map(Into::into)),
                other => Err(wire::unexpected(&other)),
            }
        })
    }

    fn scan(&self, query: Scan) -> BoxFuture<'_, Result<Page, Error>> {
        Box::pin(async move {
            let ask = WireQuestion::Scan {
                phase: query.phase.map(wire::phase_number),
                after: query.after.map(|id| *id.as_bytes()),
                limit: query.limit,
            };
            match self.ask(ask).await? {
                WireAnswer::Listed { items, next } => Ok(Page {
                    items: items.into_iter().map(Into::into).collect(),
                    next: next.map(KeyId::from_bytes),
                }),
                other => Err(wire::unexpected(&other)),
            }
        })
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, Error>> {
        Box::pin(async move {
            match self.ask(WireQuestion::Sweep(limit)).await? {
                WireAnswer::Swept { shrunk, removed, more } => Ok(Swept { shrunk, removed, more }),
                other => Err(wire::unexpected(&other)),
            }
        })
    }

    fn watch(&self, id: KeyId) -> Watch {
        let watch = self.shared.wakeups.watch(id);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // If this fails, the next request reports it.
        let _ = self.send(number, &WireQuestion::Watch(*id.as_bytes()));
        watch
    }

    fn attach(&self, cache: Weak<dyn Invalidate>) {
        let mut caches = lock(&self.shared.caches);
        if let (Some(trust), Some(cache)) = (caches.trust, cache.upgrade()) {
            cache.trust(trust);
        }
        caches.all.push(cache);
    }

    fn secret(&self, candidate: Secret) -> BoxFuture<'_, Result<Secret, Error>> {
        self.here.secret(candidate)
    }

    fn used_bytes(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        // This store has no limit.
        Box::pin(async { Ok(None) })
    }

    fn durability(&self) -> Durability {
        self.here.durability()
    }
}

impl Drop for RemoteStore {
    fn drop(&mut self) {
        let mut child = lock(&self.child);
        // Both fail only if it has already ended.
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteStore").field("here", &self.here).finish_non_exhaustive()
    }
}

impl fmt::Display for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in process {}", self.here, self.process())
    }
}

/// Sends every command, and every page of a listing, to the next of its stores in turn.
#[derive(Debug)]
pub struct InTurn {
    stores: Vec<Arc<dyn Store>>,
    next: AtomicUsize,
}

impl InTurn {
    /// A store over these stores, which have the same data.
    pub fn new(stores: Vec<Arc<dyn Store>>) -> Self {
        Self { stores, next: AtomicUsize::new(0) }
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.stores[self.next.fetch_add(1, Ordering::Relaxed) % self.stores.len()]
    }
}

#[deny(clippy::missing_trait_methods)]
impl Store for InTurn {
    fn apply(&self, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>> {
        self.store().apply(id, command)
    }

    fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        self.store().get(id)
    }

    fn scan(&self, query: Scan) -> BoxFuture<'_, Result<Page, Error>> {
        self.store().scan(query)
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, Error>> {
        self.store().sweep(limit)
    }

    fn watch(&self, id: KeyId) -> Watch {
        self.stores[0].watch(id)
    }

    fn attach(&self, cache: Weak<dyn Invalidate>) {
        self.stores[0].attach(cache);
    }

    fn secret(&self, candidate: Secret) -> BoxFuture<'_, Result<Secret, Error>> {
        self.store().secret(candidate)
    }

    fn used_bytes(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        self.stores[0].used_bytes()
    }

    fn durability(&self) -> Durability {
        self.stores[0].durability()
    }
}

impl fmt::Display for InTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in turn with {} more", self.stores[0], self.stores.len() - 1)
    }
}
