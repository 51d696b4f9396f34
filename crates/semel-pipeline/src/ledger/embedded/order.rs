//! Who may be taken next: order keys, and the lanes that tenants wait in.

use std::sync::atomic::Ordering;

use semel::store::rusqlite::{self, params};
use semel::time::Timestamp;

use super::Shared;
use super::columns::micros;
use super::rows::Row;
use super::work::{Done, Work};
use crate::delivery::DeliveryState;
use crate::ledger::sql::Columns as _;

/// The most lanes that are woken for one target in one call: bounds the call, not what is found in the end.
const WOKEN: i64 = 512;

impl Work<'_> {
    /// After a row was written: finds the front of its order, and notes what can be taken.
    pub(super) fn place(&mut self, row: &Row) -> Done<()> {
        match &row.order_key {
            None if row.state.is_takeable() => {
                self.ready(&row.target, &row.tenant, row.due_at);
                Ok(())
            }
            None => Ok(()),
            Some(key) => self.find_front(&row.target, key),
        }
    }

    /// Finds who is at the front of a target's order key.
    fn find_front(&mut self, target: &str, key: &str) -> Done<()> {
        let front = self.standing(
            "SELECT number, state, tenant, due_at FROM ledger_delivery INDEXED BY ledger_deliveries_front
             WHERE target = ?1 AND order_key = ?2 AND order_key IS NOT NULL AND front = 1",
            target,
            key,
        )?;
        let earliest = self.standing(
            "SELECT number, state, tenant, due_at FROM ledger_delivery INDEXED BY ledger_deliveries_order
             WHERE target = ?1 AND order_key = ?2 AND order_key IS NOT NULL
               AND state NOT IN ('done', 'dlq', 'cancelled')
             ORDER BY number LIMIT 1",
            target,
            key,
        )?;
        match (front, earliest) {
            // A running delivery stays at the front until it has ended, even if an earlier one is replayed.
            (Some(front), _) if front.state == DeliveryState::Running => return Ok(()),
            (Some(front), Some(earliest)) if front.number == earliest.number => self.announce(target, &front),
            (front, earliest) => {
                if let Some(front) = front {
                    self.set_front(front.number, 0)?;
                }
                if let Some(earliest) = earliest {
                    self.set_front(earliest.number, 1)?;
                    self.announce(target, &earliest);
                }
            }
        }
        Ok(())
    }

    fn announce(&mut self, target: &str, standing: &Standing) {
        if standing.state.is_takeable() {
            self.ready(target, &standing.tenant, standing.due_at);
        }
    }

    fn standing(&self, sql: &str, target: &str, key: &str) -> rusqlite::Result<Option<Standing>> {
        self.one(sql, [target, key], |columns| {
            Ok(Standing {
                number: columns.get()?,
                state: columns.name(DeliveryState::from_name)?,
                tenant: columns.get()?,
                due_at: columns.time()?,
            })
        })
    }

    fn set_front(&self, number: i64, front: i64) -> rusqlite::Result<()> {
        self.execute("UPDATE ledger_delivery SET front = ?2 WHERE number = ?1", [number, front]).map(drop)
    }

    /// Wakes the lanes of a target in which something is due by now: each waits for its turn from here.
    pub(super) fn wake_lanes(&self, target: &str, shared: &Shared) -> rusqlite::Result<()> {
        let tenants: Vec<String> = self.all(
            "SELECT tenant FROM ledger_turn INDEXED BY ledger_lanes_asleep
                 WHERE target = ?1 AND turn IS NULL AND due_at <= ?2 ORDER BY due_at LIMIT ?3",
            params![target, micros(self.now), WOKEN],
            |columns| columns.get(),
        )?;
        for tenant in tenants {
            self.give_turn(target, &tenant, shared)?;
        }
        Ok(())
    }

    /// Puts a lane behind all others.
    pub(super) fn give_turn(&self, target: &str, tenant: &str, shared: &Shared) -> rusqlite::Result<()> {
        let turn = shared.turns.fetch_add(1, Ordering::Relaxed) + 1;
        self.execute(
            "UPDATE ledger_turn SET turn = ?3 WHERE target = ?1 AND tenant = ?2",
            params![target, tenant, turn],
        )
        .map(drop)
    }

    /// The lane of a target whose turn it is, with its turn.
    pub(super) fn next_lane(&self, target: &str) -> rusqlite::Result<Option<(i64, String)>> {
        self.one(
            "SELECT turn, tenant FROM ledger_turn INDEXED BY ledger_lanes_awake
                 WHERE target = ?1 AND turn IS NOT NULL ORDER BY turn LIMIT 1",
            [target],
            |columns| Ok((columns.get()?, columns.get()?)),
        )
    }

    /// What is due first in a lane: its number and when.
    pub(super) fn first_in_lane(
        &self,
        target: &str,
        tenant: &str,
    ) -> rusqlite::Result<Option<(i64, Timestamp)>> {
        self.one(
            "SELECT number, due_at FROM ledger_delivery INDEXED BY ledger_deliveries_ready
                 WHERE target = ?1 AND tenant = ?2 AND front = 1
                   AND state IN ('idle', 'queued', 'retry_wait', 'replaying')
                 ORDER BY due_at, number LIMIT 1",
            [target, tenant],
            |columns| Ok((columns.get()?, columns.time()?)),
        )
    }

    /// Lets a lane sleep until something in it is due; takes it away where nothing will be.
    pub(super) fn rest_lane(
        &self,
        target: &str,
        tenant: &str,
        next_due: Option<Timestamp>,
    ) -> rusqlite::Result<()> {
        match next_due {
            Some(due) => self
                .execute(
                    "UPDATE ledger_turn SET turn = NULL, due_at = ?3 WHERE target = ?1 AND tenant = ?2",
                    params![target, tenant, micros(due)],
                )
                .map(drop),
            None => self
                .execute("DELETE FROM ledger_turn WHERE target = ?1 AND tenant = ?2", params![target, tenant])
                .map(drop),
        }
    }
}

/// Where a delivery of an order stands.
struct Standing {
    number: i64,
    state: DeliveryState,
    tenant: String,
    due_at: Timestamp,
}
