//! Runs replay jobs: a canary first, then more and more items, never faster than the rate, and pauses when too many
//! fail.
//!
//! It only releases items: the delivery workers deliver them, and the ledger counts. It therefore has no state of its
//! own. After a restart it continues the running jobs. Several processes can run the same job: each counts what all
//! of them released, and of those that saw the same count one releases
//! ([`release_after`](crate::ledger::Replays::release_after)).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::id::JobId;
use crate::ledger::{AuditLine, Error, Ledger};
use crate::replay::{Counts, JobOrder, JobRecord, JobState};

/// How often jobs are checked while nothing happens.
const IDLE: Duration = Duration::from_millis(200);

/// How often while items are released.
const BUSY: Duration = Duration::from_millis(10);

/// After this many ended items, this many may be in progress; after the last step, as many as the job allows.
const RAMP: [(u64, u64); 3] = [(1, 1), (10, 5), (50, 20)];

/// This many items must have ended before their failures are judged, after the canary.
const JUDGED: u64 = 10;

/// After this many items the failure count restarts: old results say nothing about the present.
const ACCOUNT: u64 = 100;

/// A delayed job makes up for at most this time.
const MADE_UP: Duration = Duration::from_millis(100);

/// Runs the replay jobs of a ledger.
#[derive(Debug)]
pub struct Replayer {
    ledger: Arc<dyn Ledger>,
    accounts: HashMap<JobId, Account>,
}

/// The counts of a job since it began, was resumed or got other limits.
#[derive(Clone, Debug)]
struct Account {
    /// The results of its items when the account began.
    counts: Counts,
    schedule: ReplaySchedule,
    /// The last note of the job: another note starts a new account.
    note: String,
}

impl Account {
    /// The account of a running job that this process sees for the first time, or changed.
    fn new(job: &JobRecord, now: Instant) -> Self {
        // The job was never paused, so its results in another process count.
        let from_its_beginning = job.note.is_empty() && job.counts.ended() < ACCOUNT;
        Self {
            counts: if from_its_beginning { Counts::default() } else { job.counts },
            schedule: ReplaySchedule::new(job.new.pace.rate, job.counts.started(), now),
            note: job.note.clone(),
        }
    }

    /// Number of items that failed again, and number that ended.
    fn ended(&self, job: &JobRecord) -> (u64, u64) {
        let failed = job.counts.failed_again.saturating_sub(self.counts.failed_again);
        (failed, job.counts.ended().saturating_sub(self.counts.ended()))
    }
}

/// Enforces the rate of a job: every item has an earliest time, one interval after the previous one.
#[derive(Clone, Copy, Debug)]
struct ReplaySchedule {
    rate: f64,
    begun: Instant,
    /// The time of the next item, in ns after `begun`.
    next: u128,
    /// Number of items that were started, by any process.
    started: u64,
}

impl ReplaySchedule {
    /// The first item goes immediately.
    fn new(rate: f64, started: u64, now: Instant) -> Self {
        Self { rate, begun: now, next: 0, started }
    }

    /// The interval between two items, in ns; zero if there is no limit.
    fn step(&self) -> u128 {
        if self.rate > 0.0 { (1e9 / self.rate) as u128 } else { 0 }
    }

    /// Records how many items were started by now.
    fn see(&mut self, started: u64, now: Instant) {
        // The number can fall if a released delivery was cancelled: it may have been sent nevertheless.
        let fresh = started.saturating_sub(self.started);
        let earliest = self.elapsed(now).saturating_sub(MADE_UP.as_nanos());
        self.next = self.next.max(earliest) + u128::from(fresh) * self.step();
        self.started = started;
    }

    fn allows(&self, now: Instant) -> u64 {
        let Some(late) = self.elapsed(now).checked_sub(self.next) else { return 0 };
        let more = late.checked_div(self.step()).and_then(|more| u64::try_from(more).ok());
        more.map_or(u64::MAX, |more| more.saturating_add(1))
    }

    fn elapsed(&self, now: Instant) -> u128 {
        now.saturating_duration_since(self.begun).as_nanos()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    /// Items were released, or some are in progress.
    Busy,
    /// Nothing to do for now.
    Idle,
}

impl Replayer {
    /// Runs the jobs of this ledger.
    pub fn new(ledger: Arc<dyn Ledger>) -> Self {
        Self { ledger, accounts: HashMap::new() }
    }

    /// Runs jobs until `stop` turns true. Items released by then are still delivered.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut failing = false;
        while !*stop.borrow() {
            let pause = match self.round().await {
                Ok(looked) => {
                    failing = false;
                    if looked == Looked::Busy { BUSY } else { IDLE }
                }
                Err(error) => {
                    if failing || error.is_logged() {
                        tracing::debug!(target: "semel", %error, "the ledger fails: replay jobs wait and continue by themselves");
                    } else {
                        tracing::warn!(target: "semel", %error, "the ledger fails: replay jobs wait and continue by themselves");
                        failing = true;
                    }
                    Duration::from_secs(1)
                }
            };
            let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
            tokio::select! { () = stopped => {}, () = tokio::time::sleep(pause) => {} }
        }
    }

    async fn round(&mut self) -> Result<Looked, Error> {
        let running = self.ledger.running().await?;
        // A job that is resumed later begins a new account.
        self.accounts.retain(|job, _| running.contains(job));
        let mut looked = Looked::Idle;
        for id in running {
            if self.inspect_job(id).await? == Looked::Busy {
                looked = Looked::Busy;
            }
        }
        Ok(looked)
    }

    async fn inspect_job(&mut self, id: JobId) -> Result<Looked, Error> {
        let Some(job) = self.ledger.job(id).await? else { return Ok(Looked::Idle) };
        if job.state != JobState::Running {
            return Ok(Looked::Idle);
        }
        let now = Instant::now();
        let account = self.accounts.entry(id).or_insert_with(|| {
            tracing::info!(target: "semel", job = %id, mode = job.new.mode.as_str(), items = job.counts.total, "a replay job started");
            Account::new(&job, now)
        });
        // Resumed, or with other limits: earlier results do not count any more.
        if (account.schedule.rate - job.new.pace.rate).abs() > f64::EPSILON || account.note != job.note {
            *account = Account::new(&job, now);
        }
        account.schedule.see(job.counts.started(), now);
        if let Some(why) = too_many_fail(&job, account) {
            tracing::warn!(target: "semel", job = %id, why, "a replay job pauses itself");
            let line = AuditLine {
                who: "semel".to_owned(),
                action: "pause".to_owned(),
                subject: id.to_string(),
                reason: why.clone(),
            };
            self.ledger.order(id, JobOrder::Pause, why, line).await?;
            return Ok(Looked::Idle);
        }
        if account.ended(&job).1 >= ACCOUNT {
            account.counts = job.counts;
        }
        let may = allowed(&job, account, now);
        // A completely released job ends with the next request.
        if may > 0 || job.counts.pending == 0 {
            let limit = u32::try_from(may).unwrap_or(u32::MAX);
            let released = self.ledger.release_after(id, job.counts.started(), limit).await?;
            // The released items are counted before the next check, however late that is.
            account.schedule.see(released.counts.started(), now);
            if released.state == JobState::Done {
                let Counts { replayed, failed_again, skipped_completed, skipped_inflight, .. } =
                    released.counts;
                tracing::info!(target: "semel", job = %id, replayed, failed_again, skipped_completed, skipped_inflight, "a replay job is done");
            }
        }
        Ok(Looked::Busy)
    }
}

/// Why a job should pause; `None` while it may continue.
fn too_many_fail(job: &JobRecord, account: &Account) -> Option<String> {
    let (failed, ended) = account.ended(job);
    let canary = u64::from(job.new.pace.canary);
    // The canary is judged once all of it has ended; later, a few more items are needed.
    let enough = ended >= JUDGED || (ended > 0 && job.counts.ended() == canary);
    if !enough || failed as f64 / ended as f64 <= job.new.pace.pause_above {
        return None;
    }
    let rest = job.counts.pending;
    Some(format!(
        "{failed} of the last {ended} failed again; {rest} wait: resume it once the cause is gone, or cancel it"
    ))
}

/// How many more items may be released now.
fn allowed(job: &JobRecord, account: &Account, now: Instant) -> u64 {
    let (pace, counts) = (&job.new.pace, &job.counts);
    let canary = u64::from(pace.canary);
    let at_once = if counts.ended() < canary {
        canary.saturating_sub(counts.started())
    } else {
        let ended = counts.ended() - canary;
        let ramp = RAMP.iter().find(|(until, _)| ended < *until).map_or(u64::MAX, |(_, at_once)| *at_once);
        // Without a canary the operator is sure of the replay.
        let ramp = if canary == 0 { u64::MAX } else { ramp };
        ramp.min(u64::from(pace.concurrency)).saturating_sub(counts.released)
    };
    at_once.min(account.schedule.allows(now))
}

#[cfg(test)]
mod tests {
    use semel::time::Timestamp;

    use super::*;
    use crate::replay::{NewJob, ReplayMode, ReplayPace, Selection};

    fn job(pace: ReplayPace, counts: Counts) -> JobRecord {
        let selection = Selection::Letters(Vec::new());
        let id = JobId::new(Timestamp::from_micros(1));
        JobRecord {
            new: NewJob { id, selection, mode: ReplayMode::Resume, reason: None, by: "-".to_owned(), pace },
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

    fn account(rate: f64) -> Account {
        let schedule = ReplaySchedule::new(rate, 0, Instant::now());
        Account { counts: Counts::default(), schedule, note: String::new() }
    }

    #[tokio::test]
    async fn a_canary_goes_first_and_the_rest_waits_for_it() {
        let pace = ReplayPace { canary: 3, concurrency: 100, ..ReplayPace::default() };
        let may = |counts| allowed(&job(pace, counts), &account(0.0), Instant::now());
        assert_eq!(may(counts(1000, 0, 0, 0)), 3);
        assert_eq!(may(counts(997, 3, 0, 0)), 0, "it is in progress");
        assert_eq!(may(counts(997, 1, 2, 0)), 0, "not all of it has ended");
        assert_eq!(may(counts(997, 0, 3, 0)), 1, "then it ramps");
        assert_eq!(may(counts(990, 0, 4, 0)), 5);
        assert_eq!(may(counts(900, 2, 20, 0)), 18);
        assert_eq!(may(counts(900, 10, 90, 0)), 90, "up to its concurrency");
        let narrow = ReplayPace { concurrency: 2, ..pace };
        let narrow = allowed(&job(narrow, counts(900, 0, 20, 0)), &account(0.0), Instant::now());
        assert_eq!(narrow, 2);
        let sure = ReplayPace { canary: 0, ..pace };
        let sure = allowed(&job(sure, counts(1000, 0, 0, 0)), &account(0.0), Instant::now());
        assert_eq!(sure, 100, "without a ramp");
    }

    /// Runs a job of 100,000 items for a given time, checked as often as the replayer does, and returns the
    /// millisecond at which each item was started.
    async fn run_for(
        length: Duration,
        account: &mut Account,
        pace: ReplayPace,
        stands_still: impl Fn(u128) -> bool,
    ) -> Vec<u128> {
        let (begun, mut started) = (Instant::now(), Vec::new());
        while begun.elapsed() < length {
            let now = begun.elapsed().as_millis();
            if !stands_still(now) {
                let done = started.len() as u64;
                account.schedule.see(done, Instant::now());
                let may = allowed(&job(pace, counts(100_000 - done, 0, done, 0)), account, Instant::now());
                started.extend(std::iter::repeat_n(now, usize::try_from(may).expect("a few")));
                account.schedule.see(started.len() as u64, Instant::now());
            }
            tokio::time::advance(BUSY).await;
        }
        started
    }

    /// The most items that were started within any second.
    fn most_in_a_second(started: &[u128]) -> usize {
        let within = |at: usize| started[at..].iter().take_while(|one| **one < started[at] + 1_000).count();
        (0..started.len()).map(within).max().unwrap_or_default()
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_as_fast_as_asked_and_never_faster() {
        for rate in [0.5, 1.0, 7.0, 10.0, 33.0, 100.0, 1000.0] {
            let pace = ReplayPace { rate, canary: 0, concurrency: 10_000, ..ReplayPace::default() };
            let started = run_for(Duration::from_secs(20), &mut account(rate), pace, |_| false).await;
            // The n-th item goes with the first check at or after n intervals.
            let step = (1e9 / rate) as u128;
            let look = BUSY.as_nanos();
            let due: Vec<u128> = (0..)
                .map(|n: u128| (n * step).div_ceil(look) * BUSY.as_millis())
                .take_while(|at| *at < 20_000)
                .collect();
            assert_eq!(started, due, "{rate} a second");
            let most = most_in_a_second(&started);
            assert!(most <= rate.ceil() as usize + 1, "{rate} a second: {most}");
        }
    }

    // A job that was delayed for ten seconds continues at its rate, and makes up for a tenth of a second.
    #[tokio::test(start_paused = true)]
    async fn it_does_not_catch_up() {
        let pace = ReplayPace { rate: 100.0, canary: 0, concurrency: 10_000, ..ReplayPace::default() };
        let still = |now: u128| (1_000..11_000).contains(&now);
        let started = run_for(Duration::from_secs(12), &mut account(100.0), pace, still).await;
        let before = started.iter().filter(|at| **at < 1_000).count();
        assert_eq!((before, started.len()), (100, 100 + 10 + 100));
        assert_eq!(
            started.iter().filter(|at| **at == 11_000).count(),
            11,
            "a tenth of a second is made up for"
        );
    }

    // The rate also limits the canary.
    #[tokio::test(start_paused = true)]
    async fn a_canary_keeps_the_rate() {
        let pace = ReplayPace { rate: 2.0, canary: 50, concurrency: 100, ..ReplayPace::default() };
        let mut account = account(2.0);
        let mut may = |started| {
            account.schedule.see(started, Instant::now());
            allowed(&job(pace, counts(1000 - started, started, 0, 0)), &account, Instant::now())
        };
        assert_eq!(may(0), 1);
        assert_eq!(may(1), 0);
        tokio::time::advance(Duration::from_millis(499)).await;
        assert_eq!(may(1), 0);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(may(1), 1);
        assert_eq!(may(2), 0);
        // Another process has released three meanwhile: this one waits for them.
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(may(5), 0);
        tokio::time::advance(Duration::from_millis(1_499)).await;
        assert_eq!(may(5), 0);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(may(5), 1);
    }

    #[tokio::test]
    async fn it_pauses_itself_when_too_many_fail() {
        let pace = ReplayPace { canary: 2, pause_above: 0.5, ..ReplayPace::default() };
        let pauses = |counts, account: &Account| too_many_fail(&job(pace, counts), account).is_some();
        assert!(!pauses(counts(9, 1, 0, 1), &account(0.0)), "the canary has not ended");
        assert!(pauses(counts(8, 0, 0, 2), &account(0.0)), "the canary failed");
        assert!(!pauses(counts(8, 0, 1, 1), &account(0.0)), "half is not more than half");
        assert!(!pauses(counts(8, 0, 2, 3), &account(0.0)), "too few to judge");
        assert!(!pauses(counts(8, 0, 0, 9), &account(0.0)), "still too few");
        assert!(!pauses(counts(8, 0, 5, 5), &account(0.0)), "half is not more than half");
        assert!(pauses(counts(8, 0, 4, 6), &account(0.0)));
        // After a resume only later results count.
        let resumed = Account { counts: counts(8, 0, 0, 20), ..account(0.0) };
        assert!(!pauses(counts(8, 0, 9, 21), &resumed));
        let after_canary = Account { counts: counts(8, 0, 0, 2), ..account(0.0) };
        assert!(!pauses(counts(8, 0, 0, 2), &after_canary), "it was resumed although its canary failed");
        assert!(!pauses(counts(6, 0, 0, 4), &after_canary), "the canary has spoken");
    }

    // Results of another process count, unless the job was resumed since.
    #[tokio::test]
    async fn an_account_begins_with_the_job_or_with_its_resumption() {
        let now = Instant::now();
        let mut job = job(ReplayPace { canary: 2, ..ReplayPace::default() }, counts(8, 0, 0, 2));
        assert!(too_many_fail(&job, &Account::new(&job, now)).is_some(), "its canary failed elsewhere");
        job.note = "resume by alice".to_owned();
        assert!(too_many_fail(&job, &Account::new(&job, now)).is_none());
        let long = JobRecord { note: String::new(), counts: counts(8, 0, 1, 500), ..job };
        assert_eq!(Account::new(&long, now).ended(&long), (0, 0), "what was long ago says nothing about now");
    }
}
