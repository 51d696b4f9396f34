//! A lane: one connection that sends one batch after the other. Commands that arrive during a batch share the next
//! one. There is no timer, and a single command is not delayed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use semel_postgres::{Execution, PostgresError, Remedy};
use sqlx::Row as _;
use tokio::time::Instant;

use super::columns::{self, ClaimColumns, SwapColumns, WriteColumns};
use super::judge::{Group, Judgement, KeyRuling};
use super::link::OwnConnection;
use super::queue::{CommandQueue, Item, Pace, UncertainWrite};
use super::row::{self, RowAnswer, Stored};
use super::shared::StoreShared;
use crate::backoff::Backoff;
use crate::key::KeyId;
use crate::record::{Command, NewClaim, Ruling};

/// The most commands in one statement: enough for many syncs, and the wait of the first one is bounded.
const BATCH: usize = 512;

/// How long a free but locked record is retried before the claim counts as busy. Longer than a commit: after it, only
/// a caller's transaction can still hold the lock.
const HELD_FOR: Duration = Duration::from_millis(100);

/// The `retry_after` in that case. The end of a transaction cannot be predicted.
const HELD_HINT: Duration = Duration::from_millis(50);

/// The purpose of a lane. Owners' writes have their own connection, so that many claims do not delay them. Operators'
/// commands go with the claims: a forget also removes every earlier claim of this process, including one whose caller
/// was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Claims,
    Writes,
}

#[derive(Debug)]
pub(super) struct LaneTask {
    pub(super) lane: Lane,
    pub(super) shared: Arc<StoreShared>,
    pub(super) queue: Arc<CommandQueue>,
    pub(super) link: OwnConnection,
    /// How many commands the next rounds take one by one, after a batch was refused.
    pub(super) alone: usize,
    /// The result of the last single claim; it selects the form of the next one.
    pub(super) last: LoneClaimResult,
    pub(super) failures: u32,
}

/// The result of a single claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoneClaimResult {
    Nothing,
    Record,
}

impl LaneTask {
    /// Works until the store is closed.
    pub(super) async fn run(mut self) {
        let mut waiting: Vec<Item> = Vec::new();
        let mut pace = Pace::Busy;
        let mut contended = Backoff::new(Duration::from_micros(1500), Duration::from_millis(24));
        let mut failing = Backoff::new(Duration::from_millis(6), Duration::from_millis(96));
        loop {
            if !self.queue.items.take(&mut waiting, BATCH) {
                break;
            }
            if waiting.is_empty() {
                self.queue.note_pace(pace);
                self.queue.items.arrival().await;
                continue;
            }
            let before = waiting.len();
            let mut batch = if self.alone > 0 {
                self.alone -= 1;
                vec![waiting.remove(0)]
            } else {
                std::mem::take(&mut waiting)
            };
            let alone = batch.len() == 1 && matches!(batch[0].command, Command::Claim(_));
            let result = self.round(&mut batch).await;
            let rest = batch.len();
            pace = if alone && rest == 0 && self.last == LoneClaimResult::Nothing {
                Pace::Lone
            } else {
                Pace::Busy
            };
            if let Err(fault) = &result {
                self.failed(fault, &mut batch);
            }
            // The remaining commands came first.
            batch.append(&mut waiting);
            waiting = batch;
            self.give_up(&mut waiting, result.as_ref().err());
            match result {
                Ok(()) if rest == 0 || waiting.len() < before => {
                    self.failures = 0;
                    contended.reset();
                    failing.reset();
                }
                // Other processes were faster repeatedly: pause.
                Ok(()) => {
                    self.failures += 1;
                    tokio::select! {
                        () = contended.wait() => {}
                        // A new command is not affected by it.
                        () = self.queue.items.arrival() => {}
                    }
                }
                Err(fault) if matches!(fault.remedy, Remedy::None | Remedy::Wait) => {}
                Err(_) => {
                    self.failures += 1;
                    failing.wait().await;
                }
            }
        }
        self.link.close().await;
    }

    fn failed(&mut self, fault: &PostgresError, batch: &mut Vec<Item>) {
        if fault.execution == Execution::Unknown {
            for item in batch.iter_mut() {
                item.unheard = true;
            }
        }
        match fault.remedy {
            Remedy::Reconnect | Remedy::Wait => {}
            // One of them may be blocking all.
            Remedy::Retry if self.failures < 2 || batch.len() == 1 => {}
            Remedy::Retry => self.alone = batch.len(),
            Remedy::None if batch.len() > 1 => self.alone = batch.len(),
            Remedy::None => {
                for item in batch.drain(..) {
                    item.fail(fault);
                }
            }
        }
    }

    /// Answers the commands whose time is over; in an outage all of them.
    fn give_up(&self, waiting: &mut Vec<Item>, fault: Option<&PostgresError>) {
        let now = Instant::now();
        let busy;
        let fault = match fault {
            Some(fault) => fault,
            None => {
                busy = PostgresError::unavailable(format!(
                    "{}: other processes change the same record repeatedly; try again",
                    self.shared.settings.target
                ));
                &busy
            }
        };
        let is_outage = fault.remedy == Remedy::Wait;
        for item in waiting.extract_if(.., |item| is_outage || item.deadline <= now) {
            item.fail(fault);
        }
    }

    /// One try for all of `batch`; undecided commands stay in it.
    async fn round(&mut self, batch: &mut Vec<Item>) -> Result<(), PostgresError> {
        batch.sort_by_key(|item| item.id);
        let mut known = match self.lane {
            Lane::Claims => {
                let mut known = self.claim(batch).await?;
                known.extend(self.read(batch, |item| !matches!(item.command, Command::Claim(_))).await?);
                known
            }
            Lane::Writes => {
                self.write(batch).await?;
                self.read(batch, |_| true).await?
            }
        };
        let mut swaps: Vec<Group> = Vec::new();
        let mut unanswered = Vec::new();
        for group in Group::split(std::mem::take(batch)) {
            match known.remove(&group.id) {
                // Another process is inserting it, or the database has another secret.
                None => unanswered.extend(group.items),
                Some(judged) => match group.judge(judged, &self.shared) {
                    Judgement::Answered(fresh) => batch.extend(fresh),
                    Judgement::Swap(group) => swaps.push(*group),
                },
            }
        }
        let swapped = if swaps.is_empty() { Ok(()) } else { self.swap(swaps, batch).await };
        let refusal = if unanswered.is_empty() { None } else { self.shared.secret_differs().await };
        match refusal {
            Some(refusal) => {
                for item in unanswered {
                    item.fail(&refusal);
                }
            }
            None => batch.append(&mut unanswered),
        }
        swapped
    }

    /// A single claim of a new key: the plain insert. If most keys are already known it would be useless; this claim
    /// and the next are then sent as a batch of one, which also reads in the same round trip.
    async fn claim_alone(
        &mut self,
        id: KeyId,
        claim: &NewClaim,
    ) -> Result<Option<HashMap<KeyId, KeyRuling>>, PostgresError> {
        let shared = Arc::clone(&self.shared);
        let version = rand::random();
        let query = shared.settings.query(&shared.settings.statements.claim_one);
        let query = columns::bind_alone(query, &id, claim, version, shared.given.digest());
        let rows = self.link.fetch(query).await?;
        let Some(row) = rows.first() else {
            self.last = LoneClaimResult::Record;
            return Ok(None);
        };
        let answer = row::inserted(row).map_err(|error| shared.settings.explain_row(&error))?;
        Ok(Some(HashMap::from([(id, answer.judged(version))])))
    }

    /// Inserts new records and reads the others. Inserted claims get their answer.
    async fn claim(&mut self, batch: &[Item]) -> Result<HashMap<KeyId, KeyRuling>, PostgresError> {
        match batch {
            // Another command used the same key, so the next claims may be concurrent too.
            [Item { refused: true, .. }] => self.last = LoneClaimResult::Record,
            [Item { id, command: Command::Claim(claim), .. }] if self.last == LoneClaimResult::Nothing => {
                if let Some(known) = self.claim_alone(*id, claim).await? {
                    return Ok(known);
                }
            }
            _ => {}
        }
        let shared = Arc::clone(&self.shared);
        let explain = |error: &row::PgRowError| shared.settings.explain_row(error);
        let mut versions = HashMap::new();
        let rows = {
            let mut columns = ClaimColumns::default();
            for item in batch.chunk_by(|a, b| a.id == b.id).map(|group| &group[0]) {
                if let Command::Claim(claim) = &item.command {
                    let version = rand::random();
                    versions.insert(item.id, version);
                    columns.push(&item.id, claim, version);
                }
            }
            if columns.ids.is_empty() {
                return Ok(HashMap::new());
            }
            let query = shared.settings.query(&shared.settings.statements.claim);
            self.link.fetch(columns.bind(query, shared.given.digest())).await?
        };
        let mut known = HashMap::with_capacity(rows.len());
        for row in &rows {
            let id = row::id(row).map_err(|error| explain(&error))?;
            let answer = row::answer(row).map_err(|error| explain(&error))?;
            if let RowAnswer::Inserted { .. } = answer {
                self.last = LoneClaimResult::Nothing;
                shared.availability.wrote();
            }
            known.insert(id, answer.judged(versions.get(&id).copied().unwrap_or_default()));
        }
        Ok(known)
    }

    /// The owner's fast path: complete, begin and renew under a valid lease.
    async fn write(&mut self, batch: &mut Vec<Item>) -> Result<(), PostgresError> {
        let shared = Arc::clone(&self.shared);
        let rows = {
            let mut columns = WriteColumns::default();
            for item in batch.chunk_by(|a, b| a.id == b.id).map(|group| &group[0]) {
                if !item.refused {
                    columns.push(item);
                }
            }
            if columns.ids.is_empty() {
                return Ok(());
            }
            let query = columns.bind(shared.settings.query(&shared.settings.statements.write));
            self.link.fetch(query.bind(shared.channel())).await?
        };
        let mut taken: HashMap<KeyId, Duration> = HashMap::with_capacity(rows.len());
        for row in &rows {
            let id = row::id(row).map_err(|error| shared.settings.explain_row(&error))?;
            let left: i64 = row.try_get(1).map_err(|error| shared.settings.explain(&error))?;
            taken.insert(id, Duration::from_micros(u64::try_from(left).unwrap_or(0)));
        }
        let mut rest = Vec::new();
        for mut item in batch.drain(..) {
            // Only the first of its key: the others come in the next round.
            match taken.remove(&item.id) {
                Some(lease_left) => {
                    let lease_left = match item.command {
                        Command::Complete { .. } => Duration::ZERO,
                        _ => lease_left,
                    };
                    let ruling = Ruling::Accepted { lease_left };
                    shared.announce(item.id, &item.command, &ruling);
                    item.answer(Ok(ruling));
                }
                None => {
                    item.refused = true;
                    rest.push(item);
                }
            }
        }
        *batch = rest;
        Ok(())
    }

    /// Reads the keys whose first command is `wanted`.
    async fn read(
        &mut self,
        batch: &[Item],
        wanted: impl Fn(&Item) -> bool,
    ) -> Result<HashMap<KeyId, KeyRuling>, PostgresError> {
        let firsts = batch.chunk_by(|a, b| a.id == b.id).map(|group| &group[0]).filter(|item| wanted(item));
        let ids: Vec<&[u8]> = firsts.map(|item| item.id.as_bytes().as_slice()).collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let shared = Arc::clone(&self.shared);
        let rows =
            self.link.fetch(shared.settings.query(&shared.settings.statements.read).bind(&ids)).await?;
        let mut known: HashMap<KeyId, KeyRuling> = batch
            .chunk_by(|a, b| a.id == b.id)
            .filter(|group| wanted(&group[0]))
            .map(|group| (group[0].id, KeyRuling::Nothing))
            .collect();
        for row in &rows {
            let read =
                |row| -> Result<(KeyId, Stored), row::PgRowError> { Ok((row::id(row)?, row::stored(row)?)) };
            let (id, stored) = read(row).map_err(|error| shared.settings.explain_row(&error))?;
            known.insert(id, KeyRuling::Stored(stored));
        }
        Ok(known)
    }

    /// Writes the records that the rules changed, if no other process was faster.
    async fn swap(&mut self, groups: Vec<Group>, batch: &mut Vec<Item>) -> Result<(), PostgresError> {
        let shared = Arc::clone(&self.shared);
        let mut columns = SwapColumns::default();
        for group in &groups {
            let swap = group.swap.as_ref().expect("only groups with a change are swapped");
            columns.push(swap);
            if swap.invalidate {
                shared.acks.expect(swap.version);
            }
        }
        let invalidates = groups.iter().any(|group| group.swap.as_ref().is_some_and(|swap| swap.invalidate));
        let statements = &shared.settings.statements;
        let statement = if invalidates { &statements.swap_and_invalidate } else { &statements.swap };
        let query = columns.bind(shared.settings.query(statement));
        let result = self.link.fetch(query.bind(shared.channel()).bind(shared.name())).await;
        let mut written: HashMap<KeyId, ()> = HashMap::new();
        let mut failed = None;
        match result {
            Ok(rows) => {
                for row in &rows {
                    match row::id(row) {
                        Ok(id) => drop(written.insert(id, ())),
                        Err(error) => failed = Some(shared.settings.explain_row(&error)),
                    }
                }
            }
            Err(fault) => failed = Some(fault),
        }
        let held_for = HELD_FOR.min(shared.settings.timeout / 2);
        let unknown = failed.as_ref().is_some_and(|fault| fault.execution == Execution::Unknown);
        for group in groups {
            if written.contains_key(&group.id) {
                shared.answer_written(group);
                continue;
            }
            let swap = group.swap.expect("only groups with a change are swapped");
            if swap.invalidate {
                shared.acks.forget(swap.version);
            }
            for (mut item, ruling) in group.items.into_iter().zip(group.rulings) {
                if unknown {
                    item.attempt = Some(UncertainWrite { seen: swap.seen, version: swap.version, ruling });
                } else if failed.is_none()
                    && item.note_held(swap.seen) >= held_for
                    // Its own write with an unknown result may be what locks the record.
                    && !item.unheard
                    && matches!(item.command, Command::Claim(_))
                {
                    item.answer(Ok(Ruling::Busy { lease_left: HELD_HINT }));
                    continue;
                }
                batch.push(item);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
