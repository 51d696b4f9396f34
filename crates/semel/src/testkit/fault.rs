//! A store that fails on demand: replies get lost, calls hang, wake-ups vanish, and every call is counted.
//!
//! ```
//! # use std::sync::Arc;
//! use semel::store::MemoryStore;
//! use semel::testkit::fault::{StoreCall, InjectedFault, FaultStore, When};
//!
//! let store = FaultStore::new(Arc::new(MemoryStore::new()));
//! // The second complete from here on is executed, but its caller never learns of it.
//! store.script(StoreCall::Complete, When::Nth(2), InjectedFault::LoseReply);
//! assert_eq!(store.calls(StoreCall::Complete), 0);
//! ```

mod gate;
mod script;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

pub use self::gate::FaultGate;
pub use self::script::{Hook, InjectedFault, StoreCall, WakeUpDelivery, When};
use crate::key::KeyId;
use crate::record::{Command, Ruling};
use crate::secret::Secret;
use crate::store::{
    BoxFuture, Durability, Error, ErrorKind, Invalidate, MarkId, MarkStore, Page, Scan, Snapshot, Store,
    Swept, Wakeups, Watch,
};
use crate::sync::Mutex;

/// Forwards every call to the inner store, unless its script contains a fault for it.
pub struct FaultStore<S: ?Sized = dyn Store> {
    inner: Arc<S>,
    state: Mutex<FaultState>,
    /// The registry of watches that never fire.
    silence: Wakeups,
}

#[derive(Default)]
struct FaultState {
    rules: Vec<FaultRule>,
    calls: HashMap<StoreCall, u64>,
    delivery: WakeUpDelivery,
}

struct FaultRule {
    call: StoreCall,
    when: When,
    fault: InjectedFault,
    /// Calls of the kind since the rule was added.
    seen: u64,
}

impl<S: Store + ?Sized> FaultStore<S> {
    /// A wrapper without faults.
    pub fn new(inner: Arc<S>) -> Self {
        Self { inner, state: Mutex::default(), silence: Wakeups::new() }
    }

    /// The inner store, without the faults.
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// Adds a fault. Several faults of the same call occur in the order they were added.
    pub fn script(&self, call: StoreCall, when: When, fault: InjectedFault) {
        self.state.lock().rules.push(FaultRule { call, when, fault, seen: 0 });
    }

    /// Holds every call that can wait until the returned gate is opened, as in a network partition.
    #[must_use = "nobody else can open the gate"]
    pub fn partition(&self) -> FaultGate {
        let gate = FaultGate::closed();
        for call in StoreCall::ALL {
            self.script(call, When::Always, InjectedFault::HoldRequest(gate.clone()));
        }
        gate
    }

    /// Removes all faults, and delivers wake-ups again. Held calls stay held by their gate.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.rules.clear();
        state.delivery = WakeUpDelivery::Delivered;
    }

    /// Sets whether new watches fire.
    pub fn deliver(&self, delivery: WakeUpDelivery) {
        self.state.lock().delivery = delivery;
    }

    /// Number of calls of this kind, executed or not.
    pub fn calls(&self, call: StoreCall) -> u64 {
        self.state.lock().calls.get(&call).copied().unwrap_or(0)
    }

    /// Number of calls of any kind.
    pub fn all_calls(&self) -> u64 {
        self.state.lock().calls.values().sum()
    }

    /// Restarts the counts. Scripted faults have their own counts.
    pub fn reset_calls(&self) {
        self.state.lock().calls.clear();
    }

    /// Counts a call and finds its faults.
    fn enter(&self, call: StoreCall) -> Vec<InjectedFault> {
        let mut state = self.state.lock();
        *state.calls.entry(call).or_default() += 1;
        let mut faults = Vec::new();
        state.rules.retain_mut(|rule| {
            if rule.call != call {
                return true;
            }
            rule.seen += 1;
            if rule.when.hits(rule.seen) {
                faults.push(rule.fault.clone());
            }
            !rule.when.is_spent(rule.seen)
        });
        faults
    }

    async fn forward<T>(
        &self,
        call: StoreCall,
        execute: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let faults = self.enter(call);
        for fault in &faults {
            match fault {
                InjectedFault::Refuse(kind) => {
                    return Err(Error::new(*kind, format!("{call:?} was refused by script")));
                }
                InjectedFault::HoldRequest(gate) => gate.pass().await,
                InjectedFault::Delay(by) => tokio::time::sleep(*by).await,
                InjectedFault::Before(hook) => hook(),
                InjectedFault::LoseReply | InjectedFault::HoldReply(_) | InjectedFault::After(_) => {}
            }
        }
        let mut reply = execute.await;
        for fault in &faults {
            match fault {
                InjectedFault::HoldReply(gate) => gate.pass().await,
                InjectedFault::After(hook) => hook(),
                InjectedFault::LoseReply => {
                    reply = Err(Error::new(
                        ErrorKind::Ambiguous,
                        format!("the reply to {call:?} was lost by script"),
                    ));
                }
                InjectedFault::Refuse(_)
                | InjectedFault::HoldRequest(_)
                | InjectedFault::Delay(_)
                | InjectedFault::Before(_) => {}
            }
        }
        reply
    }

    /// The hooks of a call that cannot wait.
    fn forward_now<T>(&self, call: StoreCall, execute: impl FnOnce() -> T) -> T {
        let faults = self.enter(call);
        for fault in &faults {
            if let InjectedFault::Before(hook) = fault {
                hook();
            }
        }
        let value = execute();
        for fault in &faults {
            if let InjectedFault::After(hook) = fault {
                hook();
            }
        }
        value
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: Store + ?Sized> Store for FaultStore<S> {
    fn apply(&self, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>> {
        let call = StoreCall::of(&command);
        Box::pin(self.forward(call, async move { self.inner.apply(id, command).await }))
    }

    fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        Box::pin(self.forward(StoreCall::Get, async move { self.inner.get(id).await }))
    }

    fn scan(&self, query: Scan) -> BoxFuture<'_, Result<Page, Error>> {
        Box::pin(self.forward(StoreCall::Scan, async move { self.inner.scan(query).await }))
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, Error>> {
        Box::pin(self.forward(StoreCall::Sweep, async move { self.inner.sweep(limit).await }))
    }

    fn watch(&self, id: KeyId) -> Watch {
        let delivery = self.state.lock().delivery;
        self.forward_now(StoreCall::Watch, || match delivery {
            WakeUpDelivery::Delivered => self.inner.watch(id),
            WakeUpDelivery::Lost => self.silence.watch(id),
        })
    }

    fn attach(&self, cache: Weak<dyn Invalidate>) {
        self.forward_now(StoreCall::Attach, || self.inner.attach(cache));
    }

    fn secret(&self, candidate: Secret) -> BoxFuture<'_, Result<Secret, Error>> {
        Box::pin(self.forward(StoreCall::Secret, async move { self.inner.secret(candidate).await }))
    }

    fn used_bytes(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        self.inner.used_bytes()
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }
}

impl<S: Store + MarkStore + ?Sized> MarkStore for FaultStore<S> {
    fn read_mark(&self, mark: MarkId) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(self.forward(StoreCall::ReadMark, async move { self.inner.read_mark(mark).await }))
    }

    fn raise_mark(&self, mark: MarkId, value: u64) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(self.forward(StoreCall::RaiseMark, async move { self.inner.raise_mark(mark, value).await }))
    }
}

impl<S: Store + ?Sized> fmt::Debug for FaultStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        let faults: Vec<_> = state.rules.iter().map(|rule| (rule.call, rule.when, &rule.fault)).collect();
        f.debug_struct("FaultStore")
            .field("inner", &&*self.inner)
            .field("faults", &faults)
            .field("delivery", &state.delivery)
            .field("calls", &state.calls)
            .finish_non_exhaustive()
    }
}

impl<S: Store + ?Sized> fmt::Display for FaultStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty {}", self.inner)
    }
}
