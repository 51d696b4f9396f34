//! Giving work out, and taking back what its worker lost.

use std::time::Duration;

use semel::store::BoxFuture;
use semel::store::rusqlite::{self, params};
use semel::time::Timestamp;

use super::columns::micros;
use super::rows::Row;
use super::work::{Done, Work};
use super::{EmbeddedLedger, Shared, broken};
use crate::delivery::{
    self, AttemptClass, DeliveryState, DeliveryStep, Ending, Holding, LeaseResult, Settle,
};
use crate::id::DeliveryId;
use crate::ledger::sql::{Columns as _, FromRow as _};
use crate::ledger::{Answer, Take, Working};

/// The most lost deliveries of one target that are given back in one call: bounds the call.
const GIVEN_BACK: i64 = 256;

impl Working for EmbeddedLedger {
    fn take(&self, take: Take) -> Answer<'_, Vec<delivery::Work>> {
        Box::pin(async move {
            // Most calls of an idle worker find nothing: that is seen without the writer.
            let targets =
                take.targets.iter().filter(|(_, most)| *most > 0).map(|(target, _)| target.as_str());
            let due = self.until_due(targets)?;
            if take.limit == 0 || due.is_none_or(|wait| wait > Duration::ZERO) {
                return Ok(Vec::new());
            }
            self.write(move |work, shared| work.take(&take, shared)).await
        })
    }

    fn retake(
        &self,
        delivery: DeliveryId,
        worker: String,
        lease: Duration,
    ) -> Answer<'_, Option<delivery::Work>> {
        Box::pin(self.write(move |work, _| work.retake(delivery, &worker, lease)))
    }

    fn renew(&self, held: Vec<Holding>, lease: Duration) -> Answer<'_, Vec<LeaseResult>> {
        Box::pin(self.write(move |work, _| held.iter().map(|held| Ok(work.renew(*held, lease)?)).collect()))
    }

    fn settle(&self, settled: Vec<(Holding, Settle)>) -> Answer<'_, Vec<LeaseResult>> {
        Box::pin(self.write(move |work, _| {
            settled.into_iter().map(|(held, settle)| work.settle(held, settle)).collect()
        }))
    }

    fn next_due(&self, targets: Vec<String>) -> Answer<'_, Option<Duration>> {
        Box::pin(async move { self.until_due(targets.iter().map(String::as_str)) })
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        // Made here and not when it is first polled: it counts from now.
        Box::pin(self.shared.news.notified())
    }
}

impl EmbeddedLedger {
    fn until_due<'t>(
        &self,
        targets: impl Iterator<Item = &'t str>,
    ) -> Result<Option<Duration>, crate::ledger::Error> {
        self.read(|work| {
            let mut soonest: Option<Duration> = None;
            for target in targets {
                let in_lanes = if work.is_paused(target)? { None } else { work.next_in_lanes(target)? };
                for due in [in_lanes, work.next_lease(target)?] {
                    let left = due.map(|due| due.left(work.now));
                    soonest = [soonest, left].into_iter().flatten().min();
                }
            }
            Ok(soonest)
        })
    }
}

/// A target that is asked for: how many more, and whose turn it is.
struct TargetTurn<'t> {
    target: &'t str,
    left: u32,
    next: Option<(i64, String)>,
}

impl Work<'_> {
    /// When something of a target can be taken; the beginning of time where a lane is awake.
    fn next_in_lanes(&self, target: &str) -> rusqlite::Result<Option<Timestamp>> {
        let awake = "SELECT 1 FROM ledger_turn INDEXED BY ledger_lanes_awake WHERE target = ?1 AND turn IS NOT NULL LIMIT 1";
        if self.one(awake, [target], |_| Ok(()))?.is_some() {
            return Ok(Some(Timestamp::default()));
        }
        self.one(
            "SELECT due_at FROM ledger_turn INDEXED BY ledger_lanes_asleep
             WHERE target = ?1 AND turn IS NULL ORDER BY due_at LIMIT 1",
            [target],
            |columns| columns.time(),
        )
    }

    fn is_paused(&self, target: &str) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM ledger_pause WHERE target = ?1";
        Ok(self.one(sql, [target], |_| Ok(()))?.is_some())
    }

    /// When the next lease of a target ends.
    fn next_lease(&self, target: &str) -> rusqlite::Result<Option<Timestamp>> {
        self.one(
            "SELECT lease_until FROM ledger_delivery INDEXED BY ledger_deliveries_leases
             WHERE target = ?1 AND state = 'running' ORDER BY lease_until LIMIT 1",
            [target],
            |columns| columns.time(),
        )
    }

    fn take(&mut self, take: &Take, shared: &Shared) -> Done<Vec<delivery::Work>> {
        for (target, _) in &take.targets {
            self.give_back_lost(target)?;
        }
        self.write_lanes()?;
        let mut asked = Vec::with_capacity(take.targets.len());
        for (target, left) in &take.targets {
            if self.is_paused(target)? {
                continue;
            }
            self.wake_lanes(target, shared)?;
            asked.push(TargetTurn { target, left: *left, next: self.next_lane(target)? });
        }
        let mut taken = Vec::new();
        while taken.len() < take.limit as usize {
            let turns = asked.iter_mut().filter(|asked| asked.left > 0 && asked.next.is_some());
            let Some(asked) = turns.min_by_key(|asked| asked.next.as_ref().map(|(turn, _)| *turn)) else {
                break;
            };
            let Some((_, tenant)) = asked.next.take() else { break };
            match self.first_in_lane(asked.target, &tenant)? {
                Some((number, due)) if due <= self.now => {
                    let row = self.row(number)?;
                    taken.push(self.start(row, &take.worker, take.lease)?);
                    asked.left -= 1;
                    self.give_turn(asked.target, &tenant, shared)?;
                }
                later => self.rest_lane(asked.target, &tenant, later.map(|(_, due)| due))?,
            }
            asked.next = self.next_lane(asked.target)?;
        }
        Ok(taken)
    }

    fn retake(&mut self, id: DeliveryId, worker: &str, lease: Duration) -> Done<Option<delivery::Work>> {
        match self.find_row(id)? {
            Some(row)
                if row.state == DeliveryState::RetryWait && row.front && !self.is_paused(&row.target)? =>
            {
                self.start(row, worker, lease).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Gives back what its worker has lost: the attempt crashed.
    fn give_back_lost(&mut self, target: &str) -> Done<()> {
        let lost: Vec<i64> = self.all(
            "SELECT number FROM ledger_delivery INDEXED BY ledger_deliveries_leases
             WHERE target = ?1 AND state = 'running' AND lease_until <= ?2 ORDER BY lease_until LIMIT ?3",
            params![target, micros(self.now), GIVEN_BACK],
            |columns| columns.get(),
        )?;
        for number in lost {
            let mut row = self.row(number)?;
            self.step(&mut row, DeliveryStep::Retry)?;
            let error = "its worker was gone before the attempt ended";
            let ending = Ending { class: AttemptClass::Crashed, ..Ending::deferred(error.to_owned()) };
            self.end_attempt(&row, &ending)?;
            row.crashes += 1;
            row.error = Some(error.to_owned());
            row.due_at = self.now;
            row.token = None;
            row.lease_until = None;
            self.save(&mut row)?;
        }
        Ok(())
    }

    /// Starts an attempt: it is written down before anybody acts on it.
    fn start(&mut self, mut row: Row, worker: &str, lease: Duration) -> Done<delivery::Work> {
        if row.state == DeliveryState::Idle {
            self.step(&mut row, DeliveryStep::Enqueue)?;
        }
        self.step(&mut row, DeliveryStep::Take)?;
        row.attempts += 1;
        row.total_attempts += 1;
        row.last_attempt += 1;
        row.token = Some(rand::random());
        row.lease_until = Some(self.now.after(lease));
        row.started_at = row.started_at.or(Some(self.now));
        self.save(&mut row)?;
        let job = row.item.map(|(job, _)| job.to_bytes());
        self.execute(
            "INSERT INTO ledger_attempt (delivery, number, worker, epoch, started_at, job)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![row.number, row.last_attempt, worker, row.epoch, micros(self.now), job],
        )?;
        let work = self.one(
            "SELECT d.id, e.kind, e.id, d.target, d.tenant, d.event_type, p.payload, e.content_type, e.headers,
                    d.attempts, d.crashes, d.epoch, d.last_attempt, d.token, d.job, e.request_id, e.traceparent,
                    e.accepted_at, coalesce(d.deliver_until <= ?2, 0)
             FROM ledger_delivery AS d JOIN ledger_event AS e ON e.number = d.event
                 JOIN ledger_payload AS p ON p.event = d.event
             WHERE d.number = ?1",
            [row.number, micros(self.now)],
            |columns| Option::<delivery::Work>::read(columns),
        )?;
        work.flatten().ok_or_else(|| broken(&format!("{} has no event", row.id)))
    }

    fn renew(&self, held: Holding, lease: Duration) -> rusqlite::Result<LeaseResult> {
        let changed = self.execute(
            "UPDATE ledger_delivery SET lease_until = ?3 WHERE id = ?1 AND token = ?2 AND state = 'running'",
            params![held.delivery.to_bytes(), held.token.to_be_bytes(), micros(self.now.after(lease))],
        )?;
        Ok(if changed == 1 { LeaseResult::Kept } else { LeaseResult::Lost })
    }
}
