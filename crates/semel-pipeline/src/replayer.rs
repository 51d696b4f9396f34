//! Runs replay jobs: a canary first, then more and more, never faster than asked, and not on when too many fail (P10).
//!
//! It only releases: the delivery workers do the rest, and the ledger counts. So it holds no state that matters. After a
//! restart it goes on with whatever jobs are running; several processes can run the same job, since the ledger keeps
//! the number of released items below the job's concurrency, and what was started so far is counted there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::id::JobId;
use crate::ledger::{AuditLine, Error, Ledger};
use crate::replay::{Counts, Job, JobState, Order};

/// How often jobs are looked at while nothing happens.
const IDLE: Duration = Duration::from_millis(200);

/// How often while items are released.
const BUSY: Duration = Duration::from_millis(10);

/// After so many ended items, so many may be under way at once; beyond them, as many as the job allows.
const RAMP: [(u64, u64); 3] = [(1, 1), (10, 5), (50, 20)];

/// So many items must have ended before their failures are judged, after the canary.
const JUDGED: u64 = 10;

/// Runs the replay jobs of a ledger.
#[derive(Debug)]
pub struct Replayer {
    ledger: Arc<dyn Ledger>,
    /// What jobs were when this process first saw them running, or running again.
    seen: HashMap<JobId, Seen>,
}

#[derive(Clone, Debug)]
struct Seen {
    counts: Counts,
    since: Instant,
    rate: f64,
    /// What was last said about the job: another word is a new account.
    note: String,
}

/// What a look at a job came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    /// Items were released, or there are some under way.
    Busy,
    /// Nothing to do for now.
    Idle,
}

impl Counts {
    /// Items of which something came.
    fn ended(&self) -> u64 {
        self.replayed + self.failed_again
    }

    /// Items that were released at some time.
    fn started(&self) -> u64 {
        self.ended() + self.released
    }
}

impl Replayer {
    /// Runs the jobs of this ledger.
    pub fn new(ledger: Arc<dyn Ledger>) -> Self {
        Self { ledger, seen: HashMap::new() }
    }

    /// Runs jobs until `stop` turns true. What was released by then is delivered all the same.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut failing = false;
        while !*stop.borrow() {
            let pause = match self.round().await {
                Ok(looked) => {
                    failing = false;
                    if looked == Looked::Busy { BUSY } else { IDLE }
                }
                Err(error) => {
                    if !failing {
                        tracing::warn!(target: "semel", %error, "replay jobs stand still: the ledger fails; they go on by themselves");
                    }
                    failing = true;
                    Duration::from_secs(1)
                }
            };
            let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
            tokio::select! { () = stopped => {}, () = tokio::time::sleep(pause) => {} }
        }
    }

    /// Looks at every running job once.
    async fn round(&mut self) -> Result<Looked, Error> {
        let running = self.ledger.running().await?;
        // A job that is resumed later begins a new account.
        self.seen.retain(|job, _| running.contains(job));
        let mut looked = Looked::Idle;
        for id in running {
            if self.look(id).await? == Looked::Busy {
                looked = Looked::Busy;
            }
        }
        Ok(looked)
    }

    async fn look(&mut self, id: JobId) -> Result<Looked, Error> {
        let Some(job) = self.ledger.job(id).await? else { return Ok(Looked::Idle) };
        if job.state != JobState::Running {
            return Ok(Looked::Idle);
        }
        let now = Instant::now();
        let seen = self.seen.entry(id).or_insert_with(|| {
            tracing::info!(target: "semel", job = %id, mode = job.new.mode.as_str(), items = job.counts.total, "a replay job runs");
            Seen { counts: job.counts, since: now, rate: job.new.pace.rate, note: job.note.clone() }
        });
        // Resumed, or told another pace: what was before does not count any more.
        if (seen.rate - job.new.pace.rate).abs() > f64::EPSILON || seen.note != job.note {
            *seen = Seen { counts: job.counts, since: now, rate: job.new.pace.rate, note: job.note.clone() };
        }
        let seen = seen.clone();
        if let Some(why) = too_many_fail(&job, &seen) {
            tracing::warn!(target: "semel", job = %id, why, "a replay job pauses itself");
            let line = AuditLine {
                who: "semel".to_owned(),
                action: "pause".to_owned(),
                subject: id.to_string(),
                reason: why.clone(),
            };
            self.ledger.order(id, Order::Pause, why, line).await?;
            return Ok(Looked::Idle);
        }
        let may = allowed(&job, &seen, now);
        if may == 0 {
            // A job of which all is released ends when somebody asks.
            if job.counts.pending == 0 {
                self.released(id, 0).await?;
            }
            return Ok(Looked::Busy);
        }
        self.released(id, u32::try_from(may).unwrap_or(u32::MAX)).await?;
        Ok(Looked::Busy)
    }

    async fn released(&self, id: JobId, limit: u32) -> Result<(), Error> {
        let job = self.ledger.release(id, limit).await?;
        if job.state == JobState::Done {
            let Counts { replayed, failed_again, skipped_completed, skipped_inflight, .. } = job.counts;
            tracing::info!(target: "semel", job = %id, replayed, failed_again, skipped_completed, skipped_inflight, "a replay job is done");
        }
        Ok(())
    }
}

/// Why a job should not go on by itself; `None` while it may.
fn too_many_fail(job: &Job, seen: &Seen) -> Option<String> {
    let failed = job.counts.failed_again.saturating_sub(seen.counts.failed_again);
    let ended = job.counts.ended().saturating_sub(seen.counts.ended());
    let canary = u64::from(job.new.pace.canary);
    // The canary speaks once all of it has ended; later, a few more are needed to judge.
    let enough = (canary > 0 && ended == canary) || ended >= JUDGED;
    if !enough || ended == 0 || failed as f64 / ended as f64 <= job.new.pace.pause_above {
        return None;
    }
    let rest = job.counts.pending;
    Some(format!(
        "{failed} of the last {ended} failed again; {rest} wait: resume it once the cause is gone, or cancel it"
    ))
}

/// How many more items may be released now.
fn allowed(job: &Job, seen: &Seen, now: Instant) -> u64 {
    let (pace, counts) = (&job.new.pace, &job.counts);
    let canary = u64::from(pace.canary);
    if canary > 0 && counts.ended() < canary {
        return canary.saturating_sub(counts.started());
    }
    let ended = counts.ended().saturating_sub(canary);
    let ramp = RAMP.iter().find(|(until, _)| ended < *until).map_or(u64::MAX, |(_, at_once)| *at_once);
    // Without a canary somebody is sure of it.
    let ramp = if canary == 0 { u64::MAX } else { ramp };
    let at_once = ramp.min(u64::from(pace.concurrency)).saturating_sub(counts.released);
    if pace.rate <= 0.0 {
        return at_once;
    }
    let due = now.saturating_duration_since(seen.since).as_secs_f64() * pace.rate + 1.0;
    let started = counts.started().saturating_sub(seen.counts.started()) as f64;
    at_once.min((due - started).max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use semel::time::Timestamp;

    use super::*;
    use crate::replay::{Mode, NewJob, Pace, Selection};

    fn job(pace: Pace, counts: Counts) -> Job {
        let selection = Selection::Letters(Vec::new());
        let id = JobId::new(Timestamp::from_micros(1));
        Job {
            new: NewJob { id, selection, mode: Mode::Resume, reason: None, by: "-".to_owned(), pace },
            state: JobState::Running,
            note: String::new(),
            counts,
            created_at: Timestamp::from_micros(1),
            updated_at: Timestamp::from_micros(1),
        }
    }

    fn counts(pending: u64, released: u64, replayed: u64, failed_again: u64) -> Counts {
        let total = pending + released + replayed + failed_again;
        Counts { total, pending, released, replayed, failed_again, ..Counts::default() }
    }

    fn fresh(rate: f64) -> Seen {
        Seen { counts: Counts::default(), since: Instant::now(), rate, note: String::new() }
    }

    // P10
    #[tokio::test]
    async fn a_canary_goes_first_and_the_rest_waits_for_it() {
        let pace = Pace { canary: 3, concurrency: 100, ..Pace::default() };
        let may = |counts| allowed(&job(pace, counts), &fresh(0.0), Instant::now());
        assert_eq!(may(counts(1000, 0, 0, 0)), 3);
        assert_eq!(may(counts(997, 3, 0, 0)), 0, "it is under way");
        assert_eq!(may(counts(997, 1, 2, 0)), 0, "not all of it has ended");
        assert_eq!(may(counts(997, 0, 3, 0)), 1, "then it ramps");
        assert_eq!(may(counts(990, 0, 4, 0)), 5);
        assert_eq!(may(counts(900, 2, 20, 0)), 18);
        assert_eq!(may(counts(900, 10, 90, 0)), 90, "up to its concurrency");
    }

    // P10
    #[tokio::test(start_paused = true)]
    async fn it_is_never_faster_than_asked() {
        let pace = Pace { rate: 10.0, canary: 0, concurrency: 1000, ..Pace::default() };
        let seen = fresh(10.0);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(allowed(&job(pace, counts(1000, 0, 0, 0)), &seen, Instant::now()), 21);
        assert_eq!(allowed(&job(pace, counts(985, 15, 0, 0)), &seen, Instant::now()), 6);
        assert_eq!(allowed(&job(pace, counts(970, 30, 0, 0)), &seen, Instant::now()), 0);
    }

    // P10
    #[tokio::test]
    async fn it_pauses_itself_when_too_many_fail() {
        let pace = Pace { canary: 2, pause_above: 0.5, ..Pace::default() };
        let pauses = |counts, seen: &Seen| too_many_fail(&job(pace, counts), seen).is_some();
        assert!(!pauses(counts(9, 1, 0, 1), &fresh(0.0)), "the canary has not ended");
        assert!(pauses(counts(8, 0, 0, 2), &fresh(0.0)), "the canary failed");
        assert!(!pauses(counts(8, 0, 1, 1), &fresh(0.0)), "half is not more than half");
        assert!(!pauses(counts(8, 0, 2, 3), &fresh(0.0)), "too few to judge");
        assert!(pauses(counts(8, 0, 4, 6), &fresh(0.0)));
        // After it was resumed only what came since counts.
        let resumed = Seen { counts: counts(8, 0, 0, 20), ..fresh(0.0) };
        assert!(!pauses(counts(8, 0, 9, 21), &resumed));
    }
}
