//! Taking events in.

use semel::key::KeyId;
use semel::store::rusqlite::{self, params};

use super::EmbeddedLedger;
use super::columns::{length, micros};
use super::database::now;
use super::rows::Row;
use super::work::{Done, Work};
use crate::delivery::DeliveryState;
use crate::event::{Accepted, Dedupe, Generation, NewEvent};
use crate::id::{DeliveryId, EventId};
use crate::ledger::rules::Obstacle;
use crate::ledger::sql::{FromRow as _, bigint, drain, to_json};
use crate::ledger::{Answer, Drained, DrainedRun, Intake, KeyState};

impl Intake for EmbeddedLedger {
    fn accept(&self, events: Vec<NewEvent>) -> Answer<'_, Vec<Accepted>> {
        Box::pin(self.write(move |work, _| events.iter().map(|event| work.accept(event)).collect()))
    }

    fn find(&self, dedupe: KeyId) -> Answer<'_, KeyState> {
        Box::pin(async move { self.read(|work| Ok(work.find_key(dedupe)?)) })
    }

    fn drain(&self, runs: Vec<DrainedRun>) -> Answer<'_, Vec<Drained>> {
        Box::pin(self.write(move |work, _| runs.iter().map(|run| now(drain::drain(work, run))).collect()))
    }
}

/// The targets of an event, each once.
pub(super) fn targets(event: &NewEvent) -> impl Iterator<Item = &String> {
    let named_before = |place: usize| event.targets[..place].contains(&event.targets[place]);
    event.targets.iter().enumerate().filter(move |(place, _)| !named_before(*place)).map(|(_, target)| target)
}

impl Work<'_> {
    /// The generation of a key, and the event that holds it.
    pub(super) fn find_key(&self, dedupe: KeyId) -> rusqlite::Result<KeyState> {
        let found = self.one(
            "SELECT max(coalesce(g.generation, 0), coalesce(k.generation, 0)), k.kind, k.event, k.fingerprint,
                    coalesce(k.dedupe_until <= ?2, 0)
             FROM (SELECT 1) LEFT JOIN ledger_generation AS g ON g.dedupe = ?1
                 LEFT JOIN ledger_key AS k ON k.dedupe = ?1 AND k.generation >= coalesce(g.generation, 0)",
            params![dedupe.as_bytes(), micros(self.now)],
            |columns| KeyState::read(columns),
        )?;
        Ok(found.unwrap_or_default())
    }

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
        let key = event.dedupe.as_ref().map(|dedupe| self.find_key(dedupe.id)).transpose()?;
        let own = self.one("SELECT 1 FROM ledger_event WHERE id = ?1", [event.id.to_bytes()], |_| Ok(()))?;
        Ok(Obstacle { key: key.unwrap_or_default(), own: own.is_some() }.answer(event))
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
        self.execute(
            "INSERT INTO ledger_event (id, kind, tenant, event_type, dedupe, dedupe_hint, fingerprint, dedupe_lifetime,
                    content_type, headers, order_key, origin, targets, delay, deliver_within, tags, metadata,
                    request_id, traceparent, accepted_at, version, unsettled, settled_at, generation, changes)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?24, ?21, ?22, ?23, ?24)",
            params![
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
            ],
        )?;
        let number = self.sql.last_insert_rowid();
        let payload = "INSERT INTO ledger_payload (event, payload) VALUES (?1, ?2)";
        self.execute(payload, params![number, &event.payload[..]])?;
        for tag in &event.notes.tags {
            let sql = "INSERT OR IGNORE INTO ledger_tag (tag, event) VALUES (?1, ?2)";
            self.execute(sql, params![tag, number])?;
        }
        Ok(number)
    }

    /// The generation that an event's key belongs to.
    fn generation(&self, dedupe: &Dedupe) -> rusqlite::Result<Generation> {
        match dedupe.generation {
            Some(generation) => Ok(generation),
            None => Ok(self.find_key(dedupe.id)?.generation),
        }
    }

    /// Gives a dedupe id to an event, in place of the one that held it before.
    pub(super) fn hold_key(&self, dedupe: &Dedupe, event: EventId) -> rusqlite::Result<()> {
        let until = dedupe.expires_at.or_else(|| dedupe.lifetime.map(|lifetime| self.now.after(lifetime)));
        let sql =
            "INSERT OR REPLACE INTO ledger_key (dedupe, event, kind, fingerprint, dedupe_until, generation)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let (key, id, kind) = (dedupe.id.as_bytes(), event.to_bytes(), event.kind().as_str());
        let (fingerprint, generation) =
            (dedupe.fingerprint.as_bytes(), bigint(self.generation(dedupe)?.get()));
        self.execute(sql, params![key, id, kind, fingerprint, until.map(micros), generation]).map(drop)
    }

    /// The delivery of an event to a target, as it begins.
    pub(super) fn first_row(&self, event: &NewEvent, number: i64, target: &str) -> Row {
        let state = if event.delay.is_zero() { DeliveryState::Queued } else { DeliveryState::Idle };
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
            item: None,
            created_at: self.now,
            started_at: None,
            completed_at: None,
        }
    }
}
