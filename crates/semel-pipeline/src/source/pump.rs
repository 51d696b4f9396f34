//! The pump moves messages from a source into the ledger, and survives failures of both.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel::backoff::Backoff;
use semel::secret::Secret;
use semel::store::Error as StoreError;
use semel::time::{Clock as _, SystemClock};
use tokio::sync::watch;
use tokio::time::Instant;

use super::decode::{decode, raw};
use super::{Message, MessageBatch, Rejected, Source};
use crate::event::{Accepted, NewEvent};
use crate::id::LetterId;
use crate::ledger::{self, Ledger};
use crate::letter::{Cause, NewLetter, SourceMessage};

/// The targets of an event type.
pub type EventRoutes = Arc<dyn Fn(&str) -> Vec<String> + Send + Sync>;

/// The waits after failures.
const RETRIES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(6));

/// How often dead letters are copied to the source.
const MIRROR_EVERY: Duration = Duration::from_secs(1);

/// How many dead letters are copied in one call.
const MIRROR_AT_ONCE: u32 = 100;

/// The counters of a pump.
#[derive(Debug, Default)]
pub struct SourceCounters {
    /// Messages that were read.
    pub read: AtomicU64,
    /// New events.
    pub accepted: AtomicU64,
    /// Messages whose event already existed.
    pub duplicates: AtomicU64,
    /// Messages that became dead letters in their raw form.
    pub rejected: AtomicU64,
    /// Messages that were taken over from a consumer that did not acknowledge them.
    pub reclaimed: AtomicU64,
    /// Messages that were trimmed or deleted before they were acknowledged.
    pub lost: AtomicU64,
    /// How often the source had lost its position.
    pub began_anew: AtomicU64,
    /// Failed calls to the source or the ledger.
    pub failures: AtomicU64,
}

fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(u64::try_from(by).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Moves messages from one source into the ledger.
pub struct Pump {
    source: Box<dyn Source>,
    ledger: Arc<dyn Ledger>,
    secret: Arc<Secret>,
    routes: EventRoutes,
    counters: Arc<SourceCounters>,
    /// How often held messages are renewed while the ledger does not accept them.
    renew_every: Duration,
    /// True if a failure was logged, and its end is to be.
    is_failing: bool,
    retries: Backoff,
    mirror_at: Instant,
}

impl fmt::Debug for Pump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pump").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Pump {
    /// A pump from `source` into `ledger`. Deduplication keys are hashed with `secret`, the deployment's own.
    pub fn new(
        source: impl Source,
        ledger: Arc<dyn Ledger>,
        secret: Arc<Secret>,
        routes: EventRoutes,
        counters: Arc<SourceCounters>,
    ) -> Self {
        Self {
            source: Box::new(source),
            ledger,
            secret,
            routes,
            counters,
            renew_every: Duration::from_secs(5),
            is_failing: false,
            retries: RETRIES,
            mirror_at: Instant::now(),
        }
    }

    /// How often held messages are renewed while the ledger does not accept them (5 s).
    #[must_use]
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.renew_every = interval;
        self
    }

    /// Pumps until `stop` turns true. Messages read by then are finished, or come again.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
            tokio::select! {
                biased;
                () = stopped => return,
                // Dropping it between two steps loses nothing: unacknowledged messages come again.
                () = self.turn() => {}
            }
        }
    }

    /// Reads once and processes the messages.
    async fn turn(&mut self) {
        let batch = match self.source.next().await {
            Ok(batch) => batch,
            Err(error) => return self.failed("reading from the source", &error.into()).await,
        };
        self.note(&batch);
        if !batch.messages.is_empty() && !self.keep(batch.messages).await {
            return;
        }
        if Instant::now() >= self.mirror_at {
            self.mirror_at = Instant::now() + MIRROR_EVERY;
            if let Err(error) = self.mirror().await {
                self.failed("copying dead letters to the source", &error).await;
            }
        }
    }

    fn note(&self, batch: &MessageBatch) {
        let (source, counters) = (self.source.name(), &self.counters);
        count(&counters.read, batch.messages.len());
        count(&counters.reclaimed, batch.reclaimed);
        count(&counters.lost, batch.lost.len());
        if !batch.lost.is_empty() {
            let first = batch.lost.first().map_or("", String::as_str);
            tracing::error!(
                target: "semel", source, count = batch.lost.len(), first,
                "messages were trimmed or deleted from the stream before they were acknowledged: they are lost"
            );
        }
        if batch.began_anew {
            count(&counters.began_anew, 1);
            tracing::error!(
                target: "semel", source,
                "the consumer group was missing and is created again, from the beginning of the stream: was the server flushed? \
                 Messages that were in the stream before that are lost; those that come again are known by their dedupe key"
            );
        }
    }

    /// Writes messages to the ledger, retries until that succeeds, and acknowledges them. False if the
    /// acknowledgement failed.
    async fn keep(&mut self, messages: Vec<Message>) -> bool {
        let (events, mut unreadable) = self.read(messages);
        let unread = unreadable.iter().map(|(message, _)| message);
        let held: Vec<String> = events
            .iter()
            .map(|(message, _)| message)
            .chain(unread)
            .map(|message| message.id.clone())
            .collect();
        let new: Vec<NewEvent> = events.iter().map(|(_, event)| event.clone()).collect();
        let accepted = self.accept(new, &held).await;
        let mut done = Vec::with_capacity(events.len());
        for ((message, _), accepted) in events.into_iter().zip(accepted) {
            match accepted {
                Ok(Accepted::First(_)) => count(&self.counters.accepted, 1),
                Ok(Accepted::Cached(_)) => count(&self.counters.duplicates, 1),
                Ok(Accepted::Conflict | Accepted::Stale) => {
                    let why =
                        "another message of this tenant and type has the same dedupe_key and another payload";
                    unreadable.push((message, (Cause::NonRetryable, why.to_owned())));
                    continue;
                }
                Err(why) => {
                    unreadable.push((message, (Cause::NonRetryable, why)));
                    continue;
                }
            }
            done.push(message.id);
        }
        let rejected = loop {
            match self.set_aside(&unreadable).await {
                Ok(rejected) => break rejected,
                Err(error) => self.hold(&held, "writing dead letters to the ledger", &error).await,
            }
        };
        count(&self.counters.rejected, rejected.len());
        let acknowledged = async {
            if !done.is_empty() {
                self.source.done(done).await?;
            }
            if !rejected.is_empty() {
                self.source.reject(rejected).await?;
            }
            Ok::<(), StoreError>(())
        };
        match acknowledged.await {
            Ok(()) => {
                self.recovered();
                true
            }
            Err(error) => {
                self.failed("acknowledging", &error.into()).await;
                false
            }
        }
    }

    /// Writes events into the ledger, and retries until that succeeds. An event that the ledger will never accept
    /// does not block the others: its answer is the reason.
    async fn accept(&mut self, events: Vec<NewEvent>, held: &[String]) -> Vec<Result<Accepted, String>> {
        let mut answers = Vec::with_capacity(events.len());
        let mut at_once = events.len();
        while answers.len() < events.len() {
            let next = &events[answers.len()..events.len().min(answers.len() + at_once)];
            match self.ledger.accept(next.to_vec()).await {
                Ok(accepted) => answers.extend(accepted.into_iter().map(Ok)),
                Err(ledger::Error::Refused(why)) if at_once == 1 => answers.push(Err(why)),
                Err(ledger::Error::Refused(_)) => at_once = 1,
                Err(error) => self.hold(held, "writing events to the ledger", &error).await,
            }
        }
        answers
    }

    #[expect(
        clippy::type_complexity,
        reason = "two lists, each of pairs; a type for them would be read once"
    )]
    fn read(&self, messages: Vec<Message>) -> (Vec<(Message, NewEvent)>, Vec<(Message, (Cause, String))>) {
        let now = SystemClock.now();
        let (mut events, mut unreadable) = (Vec::with_capacity(messages.len()), Vec::new());
        for message in messages {
            match decode(&message, self.source.name(), &self.secret, now, |kind| (self.routes)(kind)) {
                Ok(event) => events.push((message, event)),
                Err(why) => unreadable.push((message, (Cause::Undecodable, why))),
            }
        }
        (events, unreadable)
    }

    /// Writes messages that cannot become events into the ledger, in their raw form.
    async fn set_aside(
        &self,
        messages: &[(Message, (Cause, String))],
    ) -> Result<Vec<Rejected>, ledger::Error> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let now = SystemClock.now();
        let letters = messages.iter().map(|(message, (cause, error))| NewLetter {
            id: LetterId::new(now),
            tenant: String::new(),
            source: SourceMessage { stream: self.source.name().to_owned(), message: message.id.clone() },
            payload: raw(message),
            content_type: "application/vnd.semel.message+json".to_owned(),
            headers: Vec::new(),
            cause: *cause,
            error: error.clone(),
            attempts: message.given_out,
        });
        let ids = self.ledger.put(letters.collect()).await?;
        let rejected = messages.iter().zip(ids).map(|((message, (_, error)), letter)| Rejected {
            message: message.clone(),
            letter,
            error: error.clone(),
        });
        Ok(rejected.collect())
    }

    /// Copies the dead letters of deliveries to the source.
    async fn mirror(&mut self) -> Result<(), ledger::Error> {
        loop {
            let letters = self.ledger.unmirrored(self.source.name().to_owned(), MIRROR_AT_ONCE).await?;
            let last = letters.len() < usize::try_from(MIRROR_AT_ONCE).unwrap_or(usize::MAX);
            if !letters.is_empty() {
                let ids: Vec<LetterId> = letters.iter().map(|letter| letter.id).collect();
                // Raw messages were moved there when they were rejected.
                let later: Vec<_> = letters.into_iter().filter(|letter| letter.delivery.is_some()).collect();
                if !later.is_empty() {
                    self.source.mirror(later).await?;
                }
                self.ledger.mirrored(ids.clone()).await?;
                self.source.forget(ids).await?;
            }
            if last {
                return Ok(());
            }
        }
    }

    /// Waits before a retry, and renews the held messages meanwhile.
    async fn hold(&mut self, held: &[String], what: &str, error: &ledger::Error) {
        let until = Instant::now() + self.pause(what, error);
        while Instant::now() < until {
            tokio::time::sleep_until(until.min(Instant::now() + self.renew_every)).await;
            if let Err(error) = self.source.renew(held.to_vec()).await {
                tracing::debug!(target: "semel", source = self.source.name(), %error, "held messages were not renewed");
            }
        }
    }

    async fn failed(&mut self, what: &str, error: &ledger::Error) {
        let pause = self.pause(what, error);
        tokio::time::sleep(pause).await;
    }

    /// Logs a failure, once until it works again, and returns how long to wait. An outage is logged by its store.
    fn pause(&mut self, what: &str, error: &ledger::Error) -> Duration {
        count(&self.counters.failures, 1);
        let source = self.source.name();
        if self.is_failing || error.is_logged() {
            tracing::debug!(target: "semel", source, step = what, %error, "the source failed; retrying");
        } else {
            tracing::warn!(target: "semel", source, step = what, %error, "the source failed; retrying");
            self.is_failing = true;
        }
        self.retries.next_wait()
    }

    fn recovered(&mut self) {
        self.retries.reset();
        if self.is_failing {
            tracing::info!(target: "semel", source = self.source.name(), "the source works again");
            self.is_failing = false;
        }
    }
}
