//! The engine's own thread: timers and heartbeats that a busy runtime cannot starve.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::block_on::block_on;
use super::event::{Event, Events, Subject};
use crate::record::{Command, Grant, Ruling};
use crate::store::{self, ErrorKind, Store};
use crate::sync::Mutex;
use crate::time::instant;

/// A thread with a small runtime of its own. It renews claims, serves the engine's timers and finishes what a
/// dropped caller left behind. It ends when this handle is dropped.
pub(super) struct Background {
    handle: Handle,
    beats: Arc<Beats>,
}

/// What the heartbeat thread and an owner share about one claim.
pub(super) struct Held {
    started: Instant,
    /// Until when the store surely lets the claim stand, in µs after `started`, counted from *before* the call
    /// that extended it was sent.
    until: AtomicU64,
    lost: AtomicBool,
    finishing: AtomicBool,
    /// When its heartbeat is next due, on the clock of [`Beats`]. Changed under the lock of the schedule only.
    due: AtomicU64,
    /// Whether its ticket was dropped. Set under the same lock.
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

    /// How long the claim surely still stands; zero once it is lost.
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

    /// To be called before the claim's last command is sent. From then on a heartbeat may find the claim gone
    /// because its owner finished it: what became of it is for the last command's answer to say. Returns whether it
    /// was called before.
    pub(super) fn finish(&self) -> bool {
        self.finishing.swap(true, Ordering::AcqRel)
    }
}

/// What a heartbeat needs to know of a claim.
#[derive(Clone)]
pub(super) struct Beat {
    pub(super) store: Arc<dyn Store>,
    pub(super) subject: Arc<Subject>,
    pub(super) events: Arc<Events>,
    pub(super) grant: Grant,
    pub(super) lease: Duration,
    pub(super) held: Arc<Held>,
}

/// The running heartbeat of one claim. Dropping the ticket ends it.
pub(super) struct Ticket {
    beats: Arc<Beats>,
    held: Arc<Held>,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.beats.stop(self.number, &self.held);
    }
}

pub(super) struct Beats {
    /// What dues are counted from.
    epoch: Instant,
    schedule: Mutex<Schedule>,
    changed: Notify,
    closed: AtomicBool,
}

#[derive(Default)]
struct Schedule {
    next_number: u64,
    /// By when each is due, in µs, and its number.
    queue: BTreeMap<(u64, u64), Beat>,
    /// Until when the thread sleeps, in µs. Nobody needs to wake it for a beat that is due later, so a stream of short
    /// claims costs one wake-up every third of a lease, not one each.
    sleeps_until: Option<u64>,
}

impl Background {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread or no timer.
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

    /// Runs something to its end that no caller waits for.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    /// Waits on the engine's own timers: no runtime of the caller's is needed, and none can starve them.
    pub(super) async fn sleep_until(&self, moment: Instant) {
        let sleep = {
            let _context = self.handle.enter();
            tokio::time::sleep_until(moment.into())
        };
        sleep.await;
    }

    /// The answer to `work`, or `None` if it takes until `moment`; the work is then dropped. The moment is asked for
    /// only where there is something to wait for.
    pub(super) async fn before<T>(
        &self,
        moment: impl FnOnce() -> Instant,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = pin!(work);
        // Many stores answer at once, and a timer, or even the clock, costs more than they do.
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

    /// Runs a future to its end on the calling thread, with the engine's timers at hand.
    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _context = self.handle.enter();
        block_on(future)
    }

    /// What the thread works on; alive for as long as it.
    #[cfg(test)]
    pub(super) fn beats(&self) -> &Arc<Beats> {
        &self.beats
    }

    /// Renews a claim until the ticket is dropped or the claim is lost.
    pub(super) fn renew(&self, beat: Beat) -> Ticket {
        let held = Arc::clone(&beat.held);
        Ticket { number: self.beats.start(beat), held, beats: Arc::clone(&self.beats) }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.beats.closed.store(true, Ordering::Release);
        self.beats.changed.notify_one();
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background").finish_non_exhaustive()
    }
}

impl Beats {
    fn start(&self, beat: Beat) -> u64 {
        let due = self.micros(beat.held.started + beat.lease / 3);
        let mut schedule = self.schedule.lock();
        let number = schedule.next_number;
        schedule.next_number += 1;
        self.put(&mut schedule, due, number, beat);
        number
    }

    fn stop(&self, number: u64, held: &Held) {
        // Dropped after the lock is given back.
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

    /// Puts a beat back after it was tried, unless its ticket was dropped meanwhile.
    fn again(&self, number: u64, beat: Beat, after: Duration) {
        let mut schedule = self.schedule.lock();
        if !beat.held.stopped.load(Ordering::Relaxed) {
            self.put(&mut schedule, self.micros(instant() + after), number, beat);
        }
    }

    fn put(&self, schedule: &mut Schedule, due: u64, number: u64, beat: Beat) {
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

    async fn beat(self: Arc<Self>, number: u64, beat: Beat) {
        let sent = instant();
        let usual = beat.lease / 3;
        let renew = beat.store.apply(beat.subject.id, Command::Renew(beat.grant));
        // One reply that never comes must not be the end of the claim, so there is time to ask again.
        let answered = tokio::time::timeout(usual / 2, renew).await.unwrap_or_else(|_| {
            Err(store::Error::new(
                ErrorKind::Ambiguous,
                format!("no answer to a heartbeat in {:?}", usual / 2),
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
                // Sooner than usual: two thirds of the lease are left to get one through.
                self.again(number, beat, usual / 4);
            }
        }
    }
}
