//! The context of a case: a ledger, its capabilities, and shared helpers.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use semel::fingerprint::{Fingerprint, Payload};
use semel::key::{Hint, KeyId};
use semel::secret::Secret;
use semel::time::{Clock, ManualClock, SystemClock};

use crate::delivery::{
    AttemptClass, DeliveryHistory, DeliveryState, Ending, Holding, LeaseResult, Settle, Work,
};
use crate::event::{Accepted, Dedupe, NewEvent, Notes, Origin, Trace};
use crate::id::{DeliveryId, EventId, EventKind, JobId, LetterId};
use crate::ledger::{AuditLine, BoxFuture, Ledger, Page, Take};
use crate::letter::{Cause, Letter};
use crate::replay::{JobRecord, NewJob, ReplayMode, ReplayPace, Selection};

/// Longer than any case takes: a lease that does not end.
pub(super) const LONG: Duration = Duration::from_secs(600);

/// A lease that a case waits for: the longest wait in real time.
pub(super) const SHORT: Duration = Duration::from_millis(150);

/// The target of cases that need one.
pub(super) const TARGET: &str = "crm";

/// A fresh ledger and its capabilities. Created for every case.
pub struct LedgerContext {
    handles: Mutex<Option<LedgerHandles>>,
    clock: Option<ManualClock>,
    reopen: Option<ReopenLedger>,
    /// Values that must live as long as the ledger: its folder, its server.
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

/// Two handles to the same data; the same handle twice if the ledger has only one.
#[derive(Clone)]
struct LedgerHandles {
    ledger: Arc<dyn Ledger>,
    peer: Arc<dyn Ledger>,
}

type ReopenLedger = Box<dyn Fn() -> BoxFuture<'static, Arc<dyn Ledger>> + Send + Sync>;

impl LedgerContext {
    /// A context for an empty ledger. By default its clock cannot be moved.
    pub fn new(ledger: Arc<dyn Ledger>) -> Self {
        let handles = LedgerHandles { peer: Arc::clone(&ledger), ledger };
        Self { handles: Mutex::new(Some(handles)), clock: None, reopen: None, kept: Vec::new() }
    }

    /// The ledger reads its time from this clock, so cases can move it instead of waiting.
    #[must_use]
    pub fn clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// A second handle to the same data, like another process.
    #[must_use]
    pub fn peer(mut self, peer: Arc<dyn Ledger>) -> Self {
        if let Some(handles) = self.handles.get_mut() {
            handles.peer = peer;
        }
        self
    }

    /// How to open the same data again. Called when no case uses the ledger any more.
    #[must_use]
    pub fn reopen<F>(mut self, open: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Arc<dyn Ledger>> + Send + 'static,
    {
        self.reopen = Some(Box::new(move || Box::pin(open())));
        self
    }

    /// Keeps something alive for as long as the context.
    #[must_use]
    pub fn keep(mut self, thing: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(thing));
        self
    }

    /// The ledger under test.
    pub fn ledger(&self) -> Arc<dyn Ledger> {
        self.handle(0)
    }

    /// The ledger under test for even numbers and its peer for odd ones, so that a race spans both.
    pub(super) fn handle(&self, number: usize) -> Arc<dyn Ledger> {
        let handles = self.handles.lock();
        let handles = handles.as_ref().expect("nobody asks while it is opened again");
        Arc::clone(if number.is_multiple_of(2) { &handles.ledger } else { &handles.peer })
    }

    pub(super) fn manual_clock(&self) -> Option<&ManualClock> {
        self.clock.as_ref()
    }

    /// Closes the ledger and opens its data again. Every ledger is durable: one without a way to do so fails.
    pub(super) async fn open_again(&self) {
        let open = self.reopen.as_ref().expect("a ledger is durable: say how it is opened again");
        drop(self.handles.lock().take());
        let ledger = open().await;
        *self.handles.lock() = Some(LedgerHandles { peer: Arc::clone(&ledger), ledger });
    }

    /// Lets the ledger's time pass: exactly if its clock can be moved, a little more if it cannot.
    pub(super) async fn pass(&self, by: Duration) {
        match &self.clock {
            Some(clock) => clock.advance(by),
            None => tokio::time::sleep(by + Duration::from_millis(20)).await,
        }
    }

    pub(super) async fn accept(&self, event: NewEvent) -> EventId {
        let id = event.id;
        let answers = self.ledger().accept(vec![event]).await.expect("it is accepted");
        assert_eq!(answers, [Accepted::First(id)]);
        id
    }

    /// Accepts an event for [`TARGET`], without a tenant.
    pub(super) async fn publish(&self) -> EventId {
        self.accept(event(TARGET)).await
    }

    /// Takes the due deliveries for these targets, with a lease that does not end.
    pub(super) async fn take_for(&self, targets: &[&str], limit: u32) -> Vec<Work> {
        self.ledger().take(take(targets, limit, LONG)).await.expect("work can be taken")
    }

    /// Takes the due deliveries for [`TARGET`].
    pub(super) async fn take(&self, limit: u32) -> Vec<Work> {
        self.take_for(&[TARGET], limit).await
    }

    /// Takes the one due delivery for [`TARGET`].
    pub(super) async fn take_one(&self) -> Work {
        let mut taken = self.take(10).await;
        assert_eq!(taken.len(), 1, "one delivery is due: {taken:?}");
        taken.remove(0)
    }

    pub(super) async fn settle(&self, holding: Holding, settle: Settle) {
        assert_eq!(self.say(holding, settle).await, LeaseResult::Kept);
    }

    /// Reports a result of a delivery, held or not.
    pub(super) async fn say(&self, holding: Holding, settle: Settle) -> LeaseResult {
        let said = self.ledger().settle(vec![(holding, settle)]).await.expect("it can be settled");
        assert_eq!(said.len(), 1);
        said[0]
    }

    /// A delivery with everything about it.
    pub(super) async fn told(&self, id: DeliveryId) -> DeliveryHistory {
        self.ledger().delivery(id).await.expect("it can be read").expect("the delivery is there")
    }

    pub(super) async fn state(&self, id: DeliveryId) -> DeliveryState {
        self.told(id).await.delivery.state
    }

    /// The one delivery of an event.
    pub(super) async fn only(&self, event: EventId) -> DeliveryHistory {
        let mut told = self.ledger().deliveries_of(event).await.expect("they can be read");
        assert_eq!(told.len(), 1, "the event has one delivery");
        told.remove(0)
    }

    pub(super) async fn letter(&self, id: LetterId) -> Letter {
        self.ledger().letter(id).await.expect("it can be read").expect("the letter is there").letter
    }

    /// A delivery for [`TARGET`] that became a dead letter after one attempt.
    pub(super) async fn dead(&self) -> (DeliveryId, LetterId) {
        self.publish().await;
        let work = self.take_one().await;
        self.bury(work.holding).await
    }

    pub(super) async fn bury(&self, holding: Holding) -> (DeliveryId, LetterId) {
        self.settle(holding, Settle::Bury(failed("it is down"), Cause::Exhausted)).await;
        let told = self.told(holding.delivery).await;
        (holding.delivery, told.delivery.letter.expect("a buried delivery has a letter"))
    }

    /// Creates a job of these dead letters, without a limit.
    pub(super) async fn job_of(&self, letters: &[LetterId], mode: ReplayMode) -> JobRecord {
        self.job(Selection::Letters(letters.to_vec()), mode).await
    }

    pub(super) async fn job(&self, selection: Selection, mode: ReplayMode) -> JobRecord {
        let job = new_job(selection, mode);
        self.ledger().create(job, vec![TARGET.to_owned()]).await.expect("a job can be made")
    }

    /// Releases as many items as allowed.
    pub(super) async fn release(&self, job: JobId) -> JobRecord {
        self.ledger().release(job, 1_000).await.expect("a job can be released")
    }

    pub(super) async fn counts(&self, job: JobId) -> crate::replay::Counts {
        self.ledger().job(job).await.expect("it can be read").expect("the job is there").counts
    }

    /// A delivery for [`TARGET`] in this state, and the lease of its last worker.
    pub(super) async fn bring_to(&self, state: DeliveryState) -> (EventId, DeliveryId, Option<Holding>) {
        if state == DeliveryState::Idle {
            let id = self.accept(NewEvent { delay: LONG, ..event(TARGET) }).await;
            return (id, self.only(id).await.delivery.id, None);
        }
        let id = self.publish().await;
        let delivery = self.only(id).await.delivery.id;
        if state == DeliveryState::Queued {
            return (id, delivery, None);
        }
        if state == DeliveryState::Cancelled {
            self.ledger().cancel(id, line("cancel", &id)).await.expect("it can be cancelled");
            return (id, delivery, None);
        }
        let held = self.take_one().await.holding;
        match state {
            DeliveryState::Running
            | DeliveryState::Idle
            | DeliveryState::Queued
            | DeliveryState::Cancelled => {}
            DeliveryState::Done => self.settle(held, Settle::Done(fine())).await,
            DeliveryState::RetryWait => self.settle(held, Settle::Retry(failed("it is down"), LONG)).await,
            DeliveryState::Blocked => self.settle(held, Settle::Block(failed("it is down"))).await,
            DeliveryState::Dlq => drop(self.bury(held).await),
            DeliveryState::Replaying => {
                let (_, letter) = self.bury(held).await;
                let job = self.job_of(&[letter], ReplayMode::Resume).await;
                self.release(job.new.id).await;
            }
        }
        assert_eq!(self.state(delivery).await, state);
        (id, delivery, Some(held))
    }
}

impl fmt::Debug for LedgerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("ledger", &self.ledger())
            .field("clock", &self.clock)
            .field("reopen", &self.reopen.is_some())
            .finish_non_exhaustive()
    }
}

/// An event for one target, without a key.
pub(super) fn event(target: &str) -> NewEvent {
    NewEvent {
        id: EventId::new(EventKind::Event, SystemClock.now()),
        tenant: String::new(),
        event_type: "order.paid".to_owned(),
        dedupe: None,
        payload: Bytes::from_static(br#"{"order":17}"#),
        content_type: "application/json".to_owned(),
        headers: Vec::new(),
        order_key: None,
        origin: Origin::Api { principal: "billing".to_owned() },
        targets: vec![target.to_owned()],
        delay: Duration::ZERO,
        deliver_within: None,
        notes: Notes::default(),
        trace: Trace::default(),
    }
}

/// As `event`, with a tenant.
pub(super) fn event_of(tenant: &str, target: &str) -> NewEvent {
    NewEvent { tenant: tenant.to_owned(), ..event(target) }
}

/// As `event`, with an order key.
pub(super) fn ordered(key: &str, target: &str) -> NewEvent {
    NewEvent { order_key: Some(key.to_owned()), ..event(target) }
}

pub(super) fn run() -> NewEvent {
    NewEvent { id: EventId::new(EventKind::Run, SystemClock.now()), ..event(TARGET) }
}

/// A key that no other case uses, with a payload.
pub(super) fn dedupe(asked: &str) -> Dedupe {
    let fingerprint: Fingerprint =
        Payload::exact(&[asked.as_bytes()]).fingerprint(&Secret::from_bytes([7; 32]));
    Dedupe {
        id: KeyId::from_bytes(rand::random()),
        hint: Hint::new("order-17"),
        fingerprint,
        lifetime: None,
        expires_at: None,
        generation: None,
    }
}

pub(super) fn take(targets: &[&str], limit: u32, lease: Duration) -> Take {
    let targets = targets.iter().map(|target| ((*target).to_owned(), 1_000)).collect();
    Take { worker: "worker-1".to_owned(), targets, limit, lease }
}

pub(super) fn page(after: Option<String>, limit: u32) -> Page {
    Page { after, limit }
}

pub(super) fn new_job(selection: Selection, mode: ReplayMode) -> NewJob {
    let reason = (mode == ReplayMode::ReExecute).then(|| "they asked for it".to_owned());
    let pace = ReplayPace { concurrency: 1_000, ..ReplayPace::default() };
    NewJob { id: JobId::new(SystemClock.now()), selection, mode, reason, by: "ann".to_owned(), pace }
}

pub(super) fn all_failed() -> Selection {
    Selection::Failed { limit: 1_000, tenant: None, targets: Vec::new(), signature: None }
}

pub(super) fn line(action: &str, subject: &impl fmt::Display) -> AuditLine {
    AuditLine {
        who: "ann".to_owned(),
        action: action.to_owned(),
        subject: subject.to_string(),
        reason: "because".to_owned(),
    }
}

/// The target accepted it.
pub(super) fn fine() -> Ending {
    let (error, excerpt) = (String::new(), "ok".to_owned());
    Ending { class: AttemptClass::Success, status: Some(200), error, excerpt, retry_after: None }
}

/// The target did not accept it.
pub(super) fn failed(error: &str) -> Ending {
    Ending {
        class: AttemptClass::Transient,
        status: Some(503),
        error: error.to_owned(),
        excerpt: "try later".to_owned(),
        retry_after: Some(Duration::from_secs(2)),
    }
}
