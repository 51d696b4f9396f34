//! Removes what has expired.

use std::time::Duration;

use semel::store::rusqlite::{self, params};
use semel::time::Timestamp;

use super::columns::micros;
use super::work::{Done, Work};
use crate::delivery::DeliveryState;
use crate::ledger::sql::Columns as _;
use crate::letter::Status;

/// How long a generation is remembered at least: nothing of an earlier one is buffered or claimed any more by then.
const GENERATIONS: Duration = Duration::from_secs(7 * 86_400);

impl Work<'_> {
    /// Removes up to `limit` of each kind that ended before `keep` ago. Answers how many.
    pub(super) fn sweep(&mut self, keep: Duration, limit: u32) -> Done<u64> {
        let before = Timestamp::default().after(self.now.left(Timestamp::default().after(keep)));
        let mut swept = 0;
        for event in self.numbers(
            "SELECT number FROM ledger_event INDEXED BY ledger_events_settled
             WHERE settled_at IS NOT NULL AND settled_at <= ?1 ORDER BY settled_at LIMIT ?2",
            before,
            limit,
        )? {
            self.remove_event(event)?;
            swept += 1;
        }
        for letter in self.numbers(
            "SELECT number FROM ledger_dead_letter INDEXED BY ledger_letters_over
             WHERE event IS NULL AND status IN ('replayed', 'discarded') AND updated_at <= ?1
             ORDER BY updated_at LIMIT ?2",
            before,
            limit,
        )? {
            self.remove_letters("number = ?1", letter)?;
            swept += 1;
        }
        swept += self.remove_jobs(before, limit)?;
        // An expired key stays as long as its event: the next trigger under it must learn that a generation has ended.
        swept += self.execute(
            "DELETE FROM ledger_key WHERE dedupe IN (
                 SELECT dedupe FROM ledger_key INDEXED BY ledger_dedupe_orphaned
                 WHERE orphaned = 1 AND dedupe_until <= ?1 ORDER BY dedupe_until LIMIT ?2)",
            params![micros(self.now), limit],
        )? as u64;
        let earlier =
            Timestamp::default().after(self.now.left(Timestamp::default().after(keep.max(GENERATIONS))));
        swept += self.execute(
            "DELETE FROM ledger_generation WHERE dedupe IN (
                 SELECT g.dedupe FROM ledger_generation AS g INDEXED BY ledger_generations_changed
                 WHERE g.changed_at <= ?1 AND NOT EXISTS (SELECT 1 FROM ledger_key AS k WHERE k.dedupe = g.dedupe)
                 ORDER BY g.changed_at LIMIT ?2)",
            params![micros(earlier), limit],
        )? as u64;
        Ok(swept)
    }

    fn numbers(&self, sql: &str, before: Timestamp, limit: u32) -> rusqlite::Result<Vec<i64>> {
        self.all(sql, params![micros(before), limit], |columns| columns.get())
    }

    /// Removes an event that is settled, with everything that belongs to it.
    fn remove_event(&mut self, event: i64) -> Done<()> {
        let sql = "SELECT number, target, state FROM ledger_delivery WHERE event = ?1";
        let deliveries: Vec<(i64, String, DeliveryState)> = self.all(sql, [event], |columns| {
            Ok((columns.get()?, columns.get()?, columns.name(DeliveryState::from_name)?))
        })?;
        for (number, target, state) in deliveries {
            self.count_delivery(&target, state, -1);
            self.execute("DELETE FROM ledger_attempt WHERE delivery = ?1", [number])?;
            self.execute("DELETE FROM ledger_delivery WHERE number = ?1", [number])?;
        }
        self.remove_letters("event = ?1", event)?;
        let sql = "SELECT tags FROM ledger_event WHERE number = ?1";
        let tags: Vec<String> = self.one(sql, [event], |columns| columns.json())?.unwrap_or_default();
        for tag in tags {
            self.execute("DELETE FROM ledger_tag WHERE tag = ?1 AND event = ?2", params![tag, event])?;
        }
        // A key without a lifetime of its own lives as long as its event, and one that has expired no longer.
        let own = "(dedupe, event) IN (SELECT dedupe, id FROM ledger_event WHERE number = ?1)";
        self.execute(
            &format!("DELETE FROM ledger_key WHERE (dedupe_until IS NULL OR dedupe_until <= ?2) AND {own}"),
            params![event, micros(self.now)],
        )?;
        self.execute(&format!("UPDATE ledger_key SET orphaned = 1 WHERE {own}"), [event])?;
        self.execute(
            "DELETE FROM ledger_alias WHERE winner = (SELECT id FROM ledger_event WHERE number = ?1)",
            [event],
        )?;
        self.execute("DELETE FROM ledger_payload WHERE event = ?1", [event])?;
        self.execute("DELETE FROM ledger_event WHERE number = ?1", [event])?;
        Ok(())
    }

    fn remove_letters(&mut self, which: &str, number: i64) -> Done<()> {
        let sql = format!("DELETE FROM ledger_dead_letter WHERE {which} RETURNING status");
        for status in self.all(&sql, [number], |columns| columns.name(Status::from_name))? {
            self.count_letter(status, -1);
        }
        Ok(())
    }

    /// Removes jobs that are over and whose released items have ended.
    fn remove_jobs(&self, before: Timestamp, limit: u32) -> Done<u64> {
        let mut swept = 0;
        for state in ["done", "cancelled"] {
            let jobs: Vec<[u8; 16]> = self.all(
                "SELECT id FROM ledger_job WHERE state = ?3 AND updated_at <= ?1 AND released = 0
                 ORDER BY updated_at LIMIT ?2",
                params![micros(before), limit, state],
                |columns| columns.id(),
            )?;
            for id in jobs {
                self.execute("DELETE FROM ledger_item WHERE job = ?1", [id])?;
                self.execute("DELETE FROM ledger_job WHERE id = ?1", [id])?;
                swept += 1;
            }
        }
        Ok(swept)
    }
}
