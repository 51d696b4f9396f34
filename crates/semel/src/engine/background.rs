//! The engine's own thread: timers and heartbeats that a busy runtime cannot starve.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::event::{Event, Events, Subject};
use crate::block_on::block_on;
use crate::record::{Command, Grant, Ruling};
use crate::store::{self, ErrorKind, Store};
use crate::sync::Mutex;
use crate::time::instant;

/// A thread with a small runtime of its own. It renews claims, runs the engine's timers and writes the results that
/// dropped callers left behind. It ends when this handle is dropped.
pub(super) struct Background {
    handle: Handle,
    beats: Arc<Beats>,
}

/// The state that the heartbeat thread and an owner share about one claim.
pub(super) struct Held {
    started: Instant,
    /// Until when the claim is certainly valid in the store, in µs after `started`. Counted from *before* the
    /// extending call was sent.
    until: AtomicU64,
    lost: AtomicBool,
    finishing: AtomicBool,
    /// When the next heartbeat is due, on the clock of [`Beats`]. Changed only under the lock of the schedule.
    due: AtomicU64,
    /// True if the ticket was dropped. Set under the same lock.
    stopped: AtomicBool,
}

impl Held {
    pub(super) fn new(sent: Instant, lease_left: Duration) -> Self {
        let held = Self {
            started: sent,
            until: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            finishing: AtomicBool::new(false),
            due: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        };
        held.extend(sent, lease_left);
        held
    }

    fn extend(&self, sent: Instant, lease_left: Duration) {
        let until = sent.saturating_duration_since(self.started).saturating_add(lease_left);
        self.until.fetch_max(u64::try_from(until.as_micros()).unwrap_or(u64::MAX), Ordering::AcqRel);
    }

    /// How long the claim is certainly still valid; zero once it is lost.
    pub(super) fn left(&self) -> Duration {
        if self.lost.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        let until = Duration::from_micros(self.until.load(Ordering::Acquire));
        until.saturating_sub(instant().saturating_duration_since(self.started))
    }

    fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Must be called before the claim's last command is sent. From then on a heartbeat may find that the owner
    /// finished the claim; only the answer to the last command says how it ended. Returns true if it was called
    /// before.
    pub(super) fn finish(&self) -> bool {
        self.finishing.swap(true, Ordering::AcqRel)
    }
}

/// The data of a claim that a heartbeat needs.
#[derive(Clone)]
pub(super) struct HeartbeatTarget {
    pub(super) store: Arc<dyn Store>,
    pub(super) subject: Arc<Subject>,
    pub(super) events: Arc<Events>,
    pub(super) grant: Grant,
    pub(super) lease: Duration,
    pub(super) held: Arc<Held>,
}

/// The heartbeat of one claim. Dropping the ticket ends it.
pub(super) struct HeartbeatTicket {
    beats: Arc<Beats>,
    held: Arc<Held>,
    number: u64,
}

impl Drop for HeartbeatTicket {
    fn drop(&mut self) {
        self.beats.stop(self.number, &self.held);
    }
}

pub(super) struct Beats {
    /// The origin of all due times.
    epoch: Instant,
    schedule: Mutex<Schedule>,
    changed: Notify,
    closed: AtomicBool,
}

#[derive(Default)]
struct Schedule {
    next_number: u64,
    /// The beats by due time in µs and by number.
    queue: BTreeMap<(u64, u64), HeartbeatTarget>,
    /// Until when the thread sleeps, in µs. A beat that is due later need not wake it, so a stream of short claims
    /// costs one wake-up per third of a lease instead of one per claim.
    sleeps_until: Option<u64>,
}

impl Background {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refused a thread or a timer.
    pub(super) fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let handle = runtime.handle().clone();
        let beats = Arc::new(Beats {
            epoch: instant(),
            schedule: Mutex::default(),
            changed: Notify::new(),
            closed: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&beats);
        std::thread::Builder::new()
            .name("semel-heartbeat".to_owned())
            .spawn(move || runtime.block_on(of_thread.run()))?;
        Ok(Self { handle, beats })
    }

    /// Runs work to its end that no caller waits for.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    /// Waits on the engine's own timers. It needs no runtime of the caller, and no busy runtime can starve it.
    pub(super) async fn sleep_until(&self, moment: Instant) {
        let sleep = {
            let _context = self.handle.enter();
            tokio::time::sleep_until(moment.into())
        };
        sleep.await;
    }

    /// The answer to `work`, or `None` if it takes until `moment`; the work is then dropped. `moment` is evaluated
    /// only if there is something to wait for.
    pub(super) async fn before<T>(
        &self,
        moment: impl FnOnce() -> Instant,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = pin!(work);
        // Many stores answer without waiting, and a timer or even the clock costs more than their answer.
        if let Poll::Ready(answer) =
            std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await
        {
            return Some(answer);
        }
        tokio::select! {
            biased;
            answer = work => Some(answer),
            () = Box::pin(self.sleep_until(moment())) => None,
        }
    }

    /// Runs a future to its end on the calling thread, with the engine's timers.
    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _context = self.handle.enter();
        block_on(future)
    }

    /// The schedule of the thread; it lives as long as the thread.
    #[cfg(test)]
    pub(super) fn beats(&self) -> &Arc<Beats> {
        &self.beats
    }

    /// Renews a claim until the ticket is dropped or the claim is lost.
    pub(super) fn renew(&self, beat: HeartbeatTarget) -> HeartbeatTicket {
        let held = Arc::clone(&beat.held);
        HeartbeatTicket { number: self.beats.start(beat), held, beats: Arc::clone(&self.beats) }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.beats.closed.store(true, Ordering::Release);
        self.beats.changed.notify_one();
    }
}

impl Beats {
    fn start(&self, beat: HeartbeatTarget) -> u64 {
        let due = self.micros(beat.held.started + beat.lease / 3);
        let mut schedule = self.schedule.lock();
        let number = schedule.next_number;
        schedule.next_number += 1;
        self.put(&mut schedule, due, number, beat);
        number
    }

    fn stop(&self, number: u64, held: &Held) {
        // Dropped after the lock is released.
        let _beat = {
            let mut schedule = self.schedule.lock();
            held.stopped.store(true, Ordering::Relaxed);
            schedule.queue.remove(&(held.due.load(Ordering::Relaxed), number))
        };
    }

    fn micros(&self, moment: Instant) -> u64 {
        let since = moment.saturating_duration_since(self.epoch);
        since.as_secs().saturating_mul(1_000_000).saturating_add(u64::from(since.subsec_micros()))
    }

    /// Puts a beat back after a try, unless its ticket was dropped meanwhile.
    fn again(&self, number: u64, beat: HeartbeatTarget, after: Duration) {
        let mut schedule = self.schedule.lock();
        if !beat.held.stopped.load(Ordering::Relaxed) {
            self.put(&mut schedule, self.micros(instant() + after), number, beat);
        }
    }

    fn put(&self, schedule: &mut Schedule, due: u64, number: u64, beat: HeartbeatTarget) {
        beat.held.due.store(due, Ordering::Relaxed);
        schedule.queue.insert((due, number), beat);
        if schedule.sleeps_until.is_none_or(|until| due < until) {
            self.changed.notify_one();
        }
    }

    async fn run(self: Arc<Self>) {
        while !self.closed.load(Ordering::Acquire) {
            let sleeps_until = {
                let mut schedule = self.schedule.lock();
                let now = self.micros(instant());
                while let Some(entry) = schedule.queue.first_entry() {
                    if entry.key().0 > now {
                        break;
                    }
                    let ((_, number), beat) = entry.remove_entry();
                    tokio::spawn(Arc::clone(&self).beat(number, beat));
                }
                schedule.sleeps_until = schedule.queue.first_key_value().map(|((due, _), _)| *due);
                schedule.sleeps_until
            };
            match sleeps_until {
                Some(until) => {
                    let until = self.epoch + Duration::from_micros(until);
                    let _ = tokio::time::timeout_at(until.into(), self.changed.notified()).await;
                }
                None => self.changed.notified().await,
            }
        }
    }

    async fn beat(self: Arc<Self>, number: u64, beat: HeartbeatTarget) {
        let sent = instant();
        let usual = beat.lease / 3;
        let renew = beat.store.apply(beat.subject.id, Command::Renew(beat.grant));
        // One lost reply must not end the claim, so there is time to ask again.
        let answered = tokio::time::timeout(usual / 2, renew).await.unwrap_or_else(|_| {
            Err(store::Error::new(
                ErrorKind::Ambiguous,
                format!("no answer to a heartbeat in {} ms", (usual / 2).as_millis()),
            ))
        });
        match answered {
            Ok(Ruling::Accepted { lease_left }) => {
                beat.held.extend(sent, lease_left);
                self.again(number, beat, usual);
            }
            Ok(_) => {
                let finishing = beat.held.finishing.load(Ordering::Acquire);
                let stopped = {
                    let _schedule = self.schedule.lock();
                    beat.held.stopped.load(Ordering::Relaxed)
                };
                if !finishing && !stopped {
                    beat.held.lose();
                    beat.events.emit(&beat.subject, &Event::Lost);
                }
            }
            Err(error) => {
                beat.events.emit(&beat.subject, &Event::RenewFailed { error: &error });
                // Sooner than usual: two thirds of the lease are left for a successful heartbeat.
                self.again(number, beat, usual / 4);
            }
        }
    }
}
