//! Taking events in.

use std::time::Duration;

use semel::fingerprint::Fingerprint;
use semel::key::KeyId;
use semel::store::rusqlite::{self, Connection, OptionalExtension as _, params};
use semel::time::Timestamp;

use super::EmbeddedLedger;
use super::columns::{Columns, length, micros};
use super::rows::Row;
use super::work::{Done, Work};
use crate::delivery::DeliveryState;
use crate::event::{Accepted, Dedupe, Generation, NewEvent};
use crate::id::{DeliveryId, EventId, JobId};
use crate::ledger::sql::{Columns as _, bigint, to_json};
use crate::ledger::{Answer, Drained, DrainedRun, Intake, KeyHolder, KeyState};

impl Intake for EmbeddedLedger {
    fn accept(&self, events: Vec<NewEvent>) -> Answer<'_, Vec<Accepted>> {
        Box::pin(self.write(move |work, _| events.iter().map(|event| work.accept(event)).collect()))
    }

    fn find(&self, dedupe: KeyId) -> Answer<'_, KeyState> {
        Box::pin(async move { self.read(|db| Ok(key_state(db.connection, dedupe, db.now)?)) })
    }

    fn drain(&self, runs: Vec<DrainedRun>) -> Answer<'_, Vec<Drained>> {
        Box::pin(self.write(move |work, _| runs.iter().map(|run| work.drain(run)).collect()))
    }
}

/// The targets of an event, each once.
pub(super) fn targets(event: &NewEvent) -> impl Iterator<Item = &String> {
    let named_before = |place: usize| event.targets[..place].contains(&event.targets[place]);
    event.targets.iter().enumerate().filter(move |(place, _)| !named_before(*place)).map(|(_, target)| target)
}

/// The generation of a key, and the event that holds it.
pub(super) fn key_state(
    connection: &Connection,
    dedupe: KeyId,
    now: Timestamp,
) -> rusqlite::Result<KeyState> {
    let ended = connection
        .prepare_cached("SELECT generation FROM ledger_generation WHERE dedupe = ?1")?
        .query_row([dedupe.as_bytes()], |row| Columns::of(row).count())
        .optional()?
        .map_or(Generation::FIRST, Generation::new);
    let held = connection
        .prepare_cached(
            "SELECT kind, event, fingerprint, dedupe_until, generation FROM ledger_key WHERE dedupe = ?1",
        )?
        .query_row([dedupe.as_bytes()], |row| {
            let mut columns = Columns::of(row);
            let holder = KeyHolder {
                event: columns.event_id()?,
                fingerprint: Fingerprint::from_bytes(columns.get()?),
                expired: columns.time_or_none()?.is_some_and(|until| until <= now),
            };
            Ok((Generation::new(columns.count()?), holder))
        })
        .optional()?;
    Ok(match held {
        Some((generation, holder)) if generation >= ended => KeyState { generation, holder: Some(holder) },
        _ => KeyState { generation: ended, holder: None },
    })
}

impl Work<'_> {
    /// Accepts one event, unless it is there.
    pub(super) fn accept(&mut self, event: &NewEvent) -> Done<Accepted> {
        if let Some(answer) = self.known(event)? {
            return Ok(answer);
        }
        let number = self.add_event(event)?;
        for target in targets(event) {
            let row = self.first_row(event, number, target);
            self.add_row(row)?;
        }
        Ok(Accepted::First(event.id))
    }

    /// The answer for an event that is there, or whose key is held.
    pub(super) fn known(&self, event: &NewEvent) -> Done<Option<Accepted>> {
        let mut stale = false;
        if let Some(dedupe) = &event.dedupe {
            let key = key_state(self.sql, dedupe.id, self.now)?;
            let read = dedupe.generation;
            stale =
                read.is_some_and(|read| key.generation > read || key.holder.is_some_and(|held| held.expired));
            if let Some(holder) = key.live().filter(|_| !stale) {
                return Ok(Some(match holder.fingerprint == dedupe.fingerprint {
                    true => Accepted::Cached(holder.event),
                    false => Accepted::Conflict,
                }));
            }
        }
        // The same call again, after its key was reset, or without one.
        let there = self
            .sql
            .prepare_cached("SELECT 1 FROM ledger_event WHERE id = ?1")?
            .exists([event.id.to_bytes()])?;
        Ok(match (there, stale) {
            (true, _) => Some(Accepted::Cached(event.id)),
            (false, true) => Some(Accepted::Stale),
            (false, false) => None,
        })
    }

    /// Writes an event without its deliveries; it holds its key from now on. Answers its number.
    pub(super) fn add_event(&self, event: &NewEvent) -> rusqlite::Result<i64> {
        let number = self.add_keyless_event(event, 0)?;
        if let Some(dedupe) = &event.dedupe {
            self.hold_key(dedupe, event.id)?;
        }
        Ok(number)
    }

    /// Writes an event without its deliveries and without giving it its key. `changes` is how many changes of the buffer it holds. Answers
    /// its number.
    pub(super) fn add_keyless_event(&self, event: &NewEvent, changes: u64) -> rusqlite::Result<i64> {
        let dedupe = event.dedupe.as_ref();
        let generation = dedupe.map(|dedupe| self.generation(dedupe)).transpose()?.unwrap_or_default();
        // One delivery for each target keeps it from being swept.
        let unsettled = i64::try_from(targets(event).count()).unwrap_or(i64::MAX);
        self.sql
            .prepare_cached(
                "INSERT INTO ledger_event (id, kind, tenant, event_type, dedupe, dedupe_hint, fingerprint, dedupe_lifetime, content_type,
                        headers, order_key, origin, targets, delay, deliver_within, tags, metadata, request_id,
                        traceparent, accepted_at, version, unsettled, settled_at, generation, changes)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?24, ?21, ?22, ?23, ?24)",
            )?
            .execute(params![
                event.id.to_bytes(),
                event.id.kind().as_str(),
                event.tenant,
                event.event_type,
                dedupe.map(|dedupe| dedupe.id.as_bytes()),
                dedupe.map(|dedupe| dedupe.hint.as_str()),
                dedupe.map(|dedupe| dedupe.fingerprint.as_bytes()),
                dedupe.and_then(|dedupe| dedupe.lifetime).map(length),
                event.content_type,
                to_json(&event.headers),
                event.order_key,
                to_json(&event.origin),
                to_json(&event.targets),
                length(event.delay),
                event.deliver_within.map(length),
                to_json(&event.notes.tags),
                to_json(&event.notes.metadata),
                event.trace.request_id,
                event.trace.traceparent,
                micros(self.now),
                unsettled,
                (unsettled == 0).then(|| micros(self.now)),
                bigint(generation.get()),
                bigint(changes),
            ])?;
        let number = self.sql.last_insert_rowid();
        self.sql
            .prepare_cached("INSERT INTO ledger_payload (event, payload) VALUES (?1, ?2)")?
            .execute(params![number, &event.payload[..]])?;
        for tag in &event.notes.tags {
            self.add_tag(number, tag)?;
        }
        Ok(number)
    }

    /// The generation that an event's key belongs to.
    fn generation(&self, dedupe: &Dedupe) -> rusqlite::Result<Generation> {
        match dedupe.generation {
            Some(generation) => Ok(generation),
            None => Ok(key_state(self.sql, dedupe.id, self.now)?.generation),
        }
    }

    pub(super) fn add_tag(&self, event: i64, tag: &str) -> rusqlite::Result<()> {
        self.sql
            .prepare_cached("INSERT OR IGNORE INTO ledger_tag (tag, event) VALUES (?1, ?2)")?
            .execute(params![tag, event])
            .map(drop)
    }

    /// Gives a dedupe id to an event, in place of the one that held it before.
    pub(super) fn hold_key(&self, dedupe: &Dedupe, event: EventId) -> rusqlite::Result<()> {
        let until = dedupe.expires_at.or_else(|| dedupe.lifetime.map(|lifetime| self.now.after(lifetime)));
        self.sql
            .prepare_cached(
                "INSERT OR REPLACE INTO ledger_key (dedupe, event, kind, fingerprint, dedupe_until, generation)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                dedupe.id.as_bytes(),
                event.to_bytes(),
                event.kind().as_str(),
                dedupe.fingerprint.as_bytes(),
                until.map(micros),
                bigint(self.generation(dedupe)?.get()),
            ])
            .map(drop)
    }

    /// The delivery of an event to a target, as it begins.
    pub(super) fn first_row(&self, event: &NewEvent, number: i64, target: &str) -> Row {
        let state = if event.delay > Duration::ZERO { DeliveryState::Idle } else { DeliveryState::Queued };
        Row {
            number: 0,
            id: DeliveryId::new(self.now),
            event: number,
            target: target.to_owned(),
            tenant: event.tenant.clone(),
            event_type: event.event_type.clone(),
            order_key: event.order_key.clone(),
            state,
            front: false,
            due_at: self.now.after(event.delay),
            deliver_until: event.deliver_within.map(|within| self.now.after(within)),
            attempts: 0,
            crashes: 0,
            total_attempts: 0,
            last_attempt: 0,
            epoch: 0,
            token: None,
            lease_until: None,
            error: None,
            letter: None,
            item: None::<(JobId, i64)>,
            created_at: self.now,
            started_at: None,
            completed_at: None,
        }
    }
}
