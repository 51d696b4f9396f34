//! Broken stores: each breaks one promise, and a case of the suite must say so. A case that lets its mutant
//! through proves nothing about the real stores.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use semel::key::KeyId;
use semel::outcome::{Outcome, OutcomeBody};
use semel::record::{Command, Force, Grant, Mode, NewClaim, Owner, Phase, Record, Ruling, Terms};
use semel::secret::Secret;
use semel::store::{
    BoxFuture, Durability, Error, Invalidate, MemoryStore, Page, Scan, Snapshot, Store, Swept, Trust,
    Wakeups, Watch,
};
use semel::testkit::contract::{Context, run_case};
use semel::time::ManualClock;

macro_rules! caught {
    ($($mutant:ident by $case:ident;)*) => {
        /// What a broken store does wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(non_camel_case_types, reason = "the names of the tests below")]
        enum Wrong { $($mutant,)* }

        $(
            // Paused: waiting for a wake-up that never comes takes no time.
            #[tokio::test(start_paused = true)]
            async fn $mutant() {
                let clock = ManualClock::default();
                let inner = MemoryStore::with_clock(clock.clone());
                let store = Broken { inner, wrong: Wrong::$mutant, silence: Wakeups::new(), held: AtomicBool::new(false) };
                let context = Context::new(Arc::new(store)).clock(clock);
                let case = stringify!($case);
                let ended = tokio::spawn(async move { run_case(case, &context).await }).await;
                let panicked = ended.err().is_some_and(|error| error.is_panic());
                assert!(panicked, "{case} holds although the store is broken");
            }
        )*
    };
}

caught! {
    replays_to_any_payload by claims_follow_the_table;
    claims_in_two_steps by racing_claims_have_one_winner;
    takes_its_repeat_for_another by repeated_claim_knows_itself;
    ends_leases_early by claim_is_never_stolen_early;
    releases_unfenced by writes_of_others_change_nothing;
    completes_unfenced by late_owner_is_refused_after_a_takeover;
    leases_for_the_retention by lease_is_not_retention;
    counts_from_the_claim by retention_counts_from_complete;
    cuts_large_outcomes by outcome_is_replayed_byte_for_byte;
    drops_metadata by outcome_is_replayed_byte_for_byte;
    keeps_tombstones_as_bodies by tombstone_is_replayed;
    renews_for_ever by renew_ends_at_in_flight_max;
    takes_doubt_over by begun_and_lost_is_in_doubt;
    binds_by_releasing by bound_key_is_free_for_its_payload;
    abandons_nothing by abandoned_claim_ends_now;
    lets_late_claims_in by late_claim_of_a_released_owner_is_refused;
    overwrites_outcomes by outcome_never_changes;
    overwrites_outcomes_at_random by random_commands_agree_with_the_rules;
    wakes_nobody by complete_wakes; // notify_lost
    tells_no_cache by forget_cleans_caches_before_it_answers;
    lists_what_was_written by scan_applies_time;
    skips_between_pages by scan_pages_in_order;
    sweeps_without_limit by sweep_is_bounded;
    sweeps_for_ever by sweep_comes_to_rest;
    sweeps_doubt by sweep_never_takes_doubt;
    lets_the_last_secret_win by secret_is_kept_by_the_first_writer;
    boasts_of_durability by acknowledged_writes_survive;
    claims_in_two_steps_in_some_order by concurrent_commands_have_an_order;
    hangs_after_a_dropped_call by dropped_calls_leave_no_lock_behind;
}

/// A memory store that does one thing wrong.
#[derive(Debug)]
struct Broken {
    inner: MemoryStore,
    wrong: Wrong,
    silence: Wakeups,
    /// A lock that is not given back when a call is dropped.
    held: AtomicBool,
}

impl Broken {
    async fn apply_wrongly(&self, id: KeyId, mut command: Command) -> Result<Ruling, Error> {
        if self.wrong == Wrong::hangs_after_a_dropped_call {
            if self.held.swap(true, Ordering::SeqCst) {
                return std::future::pending().await;
            }
            tokio::task::yield_now().await;
            self.held.store(false, Ordering::SeqCst);
        }
        let found = self.inner.get(id).await?;
        let phase = found.as_ref().map_or(Phase::Vacant, Snapshot::phase);
        if let Command::Claim(claim) = &mut command {
            self.spoil_terms(claim);
        }
        match (self.wrong, &mut command, found) {
            (Wrong::claims_in_two_steps | Wrong::claims_in_two_steps_in_some_order, Command::Claim(_), _)
                if phase == Phase::Vacant =>
            {
                tokio::task::yield_now().await;
                let _ = self.inner.apply(id, Command::Forget(Force::Yes)).await?;
            }
            (_, command, Some(found)) => {
                if let Some(ruling) = self.spoil_command(command, phase, &found) {
                    return Ok(ruling);
                }
                if phase == Phase::Done
                    && matches!(self.wrong, Wrong::overwrites_outcomes | Wrong::overwrites_outcomes_at_random)
                {
                    self.reopen_for(id, command, &found.record).await?;
                }
            }
            (_, _, None) => {}
        }
        self.inner.apply(id, command).await
    }

    fn spoil_terms(&self, claim: &mut NewClaim) {
        let usual = *claim.terms;
        let terms = match self.wrong {
            Wrong::ends_leases_early => Terms { lease: usual.lease / 2, ..usual },
            Wrong::leases_for_the_retention => {
                Terms { lease: usual.retention, in_flight_max: usual.retention, ..usual }
            }
            Wrong::renews_for_ever => Terms { in_flight_max: Duration::from_secs(1 << 30), ..usual },
            Wrong::takes_doubt_over => Terms { mode: Mode::Rerun, ..usual },
            _ => usual,
        };
        claim.terms = Arc::new(terms);
    }

    /// Makes the command another one, or answers it wrongly.
    fn spoil_command(&self, command: &mut Command, phase: Phase, found: &Snapshot) -> Option<Ruling> {
        let record = &found.record;
        let holder = Grant::from_parts(record.owner, record.fence);
        match (self.wrong, command) {
            (Wrong::replays_to_any_payload, Command::Claim(claim)) if phase == Phase::Done => {
                claim.fingerprint = record.fingerprint;
            }
            (Wrong::takes_its_repeat_for_another, Command::Claim(_))
                if matches!(phase, Phase::Claimed | Phase::Begun) =>
            {
                return Some(Ruling::Busy { lease_left: record.lease_until.left(found.now) });
            }
            (Wrong::lets_late_claims_in, Command::Claim(claim)) if phase == Phase::Vacant => {
                claim.owner = Owner::random();
            }
            (Wrong::releases_unfenced, Command::Release(grant))
            | (Wrong::completes_unfenced, Command::Complete { grant, .. }) => *grant = holder,
            (Wrong::counts_from_the_claim, Command::Complete { retention, .. }) => {
                let age = found.now.left(record.claimed_at);
                *retention = Some(record.terms.retention.saturating_sub(age));
            }
            (
                Wrong::cuts_large_outcomes | Wrong::drops_metadata | Wrong::keeps_tombstones_as_bodies,
                Command::Complete { outcome, .. },
            ) => *outcome = Arc::new(self.spoil_outcome(outcome)),
            (Wrong::binds_by_releasing, command @ Command::Bind(_)) => *command = Command::Release(holder),
            (Wrong::abandons_nothing, Command::Abandon(_)) => {
                return Some(Ruling::Accepted { lease_left: Duration::ZERO });
            }
            _ => {}
        }
        None
    }

    fn spoil_outcome(&self, outcome: &Outcome) -> Outcome {
        let bytes = match outcome.body() {
            OutcomeBody::Kept(bytes) => bytes.clone(),
            OutcomeBody::Tombstone(reason) if self.wrong == Wrong::keeps_tombstones_as_bodies => {
                reason.clone().into()
            }
            OutcomeBody::Tombstone(_) => return outcome.clone(),
        };
        match self.wrong {
            Wrong::cuts_large_outcomes => {
                let cut = bytes[..bytes.len().min(1 << 20)].to_vec();
                Outcome::new(outcome.kind(), cut).with_metadata(outcome.metadata())
            }
            Wrong::drops_metadata => Outcome::new(outcome.kind(), bytes),
            _ => Outcome::new(outcome.kind(), bytes).with_metadata(outcome.metadata()),
        }
    }

    /// Lets the last complete win instead of the first.
    async fn reopen_for(&self, id: KeyId, command: &mut Command, record: &Record) -> Result<(), Error> {
        if let Command::Complete { grant, fingerprint, .. } = command
            && *grant == Grant::from_parts(record.owner, record.fence)
            && *fingerprint == record.fingerprint
        {
            let _ = self.inner.apply(id, Command::Forget(Force::Yes)).await?;
            let claim = NewClaim {
                owner: Owner::random(),
                fingerprint: record.fingerprint,
                terms: Arc::clone(&record.terms),
                begin: semel::record::Begin::WithClaim,
                hint: record.hint.clone(),
            };
            if let Ruling::Won(win) = self.inner.apply(id, Command::Claim(claim)).await? {
                *grant = win.grant;
            }
        }
        Ok(())
    }

    async fn scan_wrongly(&self, query: Scan) -> Result<Page, Error> {
        match self.wrong {
            Wrong::lists_what_was_written => {
                let mut page = self.inner.scan(Scan { phase: None, limit: usize::MAX, ..query }).await?;
                for item in &mut page.items {
                    item.now = item.record.changed_at;
                }
                page.items.retain(|item| query.phase.is_none_or(|phase| item.phase() == phase));
                page.items.truncate(query.limit);
                Ok(page)
            }
            Wrong::skips_between_pages if query.after.is_some() => {
                let mut page = self.inner.scan(query).await?;
                page.items = page.items.into_iter().skip(1).collect();
                Ok(page)
            }
            _ => self.inner.scan(query).await,
        }
    }

    async fn sweep_wrongly(&self, limit: usize) -> Result<Swept, Error> {
        if self.wrong == Wrong::sweeps_doubt {
            let doubt = Scan { phase: Some(Phase::InDoubt), after: None, limit: usize::MAX };
            for item in self.inner.scan(doubt).await?.items {
                let _ = self.inner.apply(item.id, Command::Forget(Force::Yes)).await?;
            }
        }
        let limit = if self.wrong == Wrong::sweeps_without_limit { usize::MAX } else { limit };
        let swept = self.inner.sweep(limit).await?;
        Ok(Swept { more: swept.more || self.wrong == Wrong::sweeps_for_ever, ..swept })
    }
}

impl Store for Broken {
    fn apply(&self, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>> {
        Box::pin(self.apply_wrongly(id, command))
    }

    fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        self.inner.get(id)
    }

    fn scan(&self, query: Scan) -> BoxFuture<'_, Result<Page, Error>> {
        Box::pin(self.scan_wrongly(query))
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, Error>> {
        Box::pin(self.sweep_wrongly(limit))
    }

    fn watch(&self, id: KeyId) -> Watch {
        if self.wrong == Wrong::wakes_nobody { self.silence.watch(id) } else { self.inner.watch(id) }
    }

    fn attach(&self, cache: Weak<dyn Invalidate>) {
        if self.wrong != Wrong::tells_no_cache {
            self.inner.attach(cache);
        } else if let Some(cache) = cache.upgrade() {
            cache.trust(Trust::Confirmed);
        }
    }

    fn secret(&self, candidate: Secret) -> BoxFuture<'_, Result<Secret, Error>> {
        if self.wrong == Wrong::lets_the_last_secret_win {
            return Box::pin(async move { Ok(candidate) });
        }
        self.inner.secret(candidate)
    }

    fn durability(&self) -> Durability {
        if self.wrong == Wrong::boasts_of_durability { Durability::Disk } else { self.inner.durability() }
    }
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "broken: {:?}", self.wrong)
    }
}
