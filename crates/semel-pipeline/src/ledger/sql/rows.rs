//! Rows as events, deliveries, attempts, letters, jobs and items. Every statement selects their columns in the order in
//! which they are read here.

use std::collections::BTreeMap;

use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};

use super::{Columns, FromRow};
use crate::delivery::{self, AttemptClass, Delivery, DeliveryAttempt, DeliveryState, Ending, Holding, Work};
use crate::event::{Dedupe, Event, Generation, NewEvent, Notes, Trace};
use crate::id::{DeliveryId, EventId, JobId, LetterId};
use crate::ledger::{AuditLine, Audited, KeyHolder, KeyState};
use crate::letter::{Cause, Letter, Signature, SourceMessage, Status};
use crate::replay::{Counts, ItemState, JobItem, JobRecord, JobState, NewJob, ReplayMode, ReplayPace};

impl FromRow for Event {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        let id = columns.event_id()?;
        let (tenant, event_type) = (columns.text()?, columns.text()?);
        let dedupe = columns.id_or_none()?;
        let hint = Hint::new(&String::from_utf8_lossy(columns.bytes_or_none()?.unwrap_or_default()));
        let (fingerprint, lifetime) = (columns.id_or_none()?, columns.duration_or_none()?);
        let dedupe = dedupe.zip(fingerprint).map(|(id, fingerprint)| Dedupe {
            id: KeyId::from_bytes(id),
            hint,
            fingerprint: Fingerprint::from_bytes(fingerprint),
            lifetime,
            expires_at: None,
            generation: None,
        });
        let mut new = NewEvent {
            id,
            tenant,
            event_type,
            dedupe,
            payload: columns.bytes()?,
            content_type: columns.text()?,
            headers: columns.json()?,
            order_key: columns.text_or_none()?,
            origin: columns.origin()?,
            targets: columns.json()?,
            delay: columns.duration()?,
            deliver_within: columns.duration_or_none()?,
            notes: Notes { tags: columns.json()?, metadata: columns.json()? },
            trace: Trace { request_id: columns.text_or_none()?, traceparent: columns.text_or_none()? },
        };
        let (accepted_at, version) = (columns.time()?, columns.count()?);
        let changes = columns.count::<u64>()?.max(new.notes.take_changes());
        Ok(Event { new, accepted_at, version, changes })
    }
}

impl FromRow for KeyState {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        let generation = Generation::new(columns.count()?);
        let event = columns.event_id_or_none()?;
        let fingerprint = columns.id_or_none()?.map(Fingerprint::from_bytes);
        let expired = columns.flag()?;
        let holder =
            event.zip(fingerprint).map(|(event, fingerprint)| KeyHolder { event, fingerprint, expired });
        Ok(Self { generation, holder })
    }
}

/// A delivery that was taken, or nothing.
impl FromRow for Option<Work> {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        let Some(delivery) = columns.id_or_none()?.map(DeliveryId::from_bytes) else { return Ok(None) };
        let event = columns.event_id()?;
        let (target, tenant, event_type) = (columns.text()?, columns.text()?, columns.text()?);
        let (payload, content_type, headers) = (columns.bytes()?, columns.text()?, columns.json()?);
        let (attempt, crashes, epoch) = (columns.count()?, columns.count()?, columns.count()?);
        let request_id = delivery::request_id(delivery, columns.count()?);
        Ok(Some(Work {
            holding: Holding { delivery, token: u128::from_be_bytes(columns.id()?) },
            event,
            target,
            tenant,
            event_type,
            payload,
            content_type,
            headers,
            attempt,
            crashes,
            epoch,
            request_id,
            job: columns.id_or_none()?.map(JobId::from_bytes),
            trace: Trace { request_id: columns.text_or_none()?, traceparent: columns.text_or_none()? },
            accepted_at: columns.time()?,
            expired: columns.flag()?,
        }))
    }
}

impl FromRow for Delivery {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        Ok(Self {
            id: DeliveryId::from_bytes(columns.id()?),
            event: columns.event_id()?,
            target: columns.text()?,
            tenant: columns.text()?,
            event_type: columns.text()?,
            state: columns.name(DeliveryState::from_name)?,
            attempts: columns.count()?,
            crashes: columns.count()?,
            epoch: columns.count()?,
            due_at: columns.time()?,
            error: columns.text_or_none()?,
            letter: columns.id_or_none()?.map(LetterId::from_bytes),
            created_at: columns.time()?,
            started_at: columns.time_or_none()?,
            completed_at: columns.time_or_none()?,
        })
    }
}

/// Without its request id, which is made of its delivery.
impl FromRow for DeliveryAttempt {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        let (number, worker) = (columns.count()?, columns.text()?);
        let epoch = columns.count()?;
        let (started_at, ended_at) = (columns.time()?, columns.time_or_none()?);
        let class = columns.name_or_none(AttemptClass::from_name)?;
        let status = columns.integer_or_none()?.and_then(|status| u16::try_from(status).ok());
        let (error, excerpt) = (columns.text_or_none()?, columns.text_or_none()?);
        let retry_after = columns.duration_or_none()?;
        let ending = class.map(|class| Ending {
            class,
            status,
            error: error.unwrap_or_default(),
            excerpt: excerpt.unwrap_or_default(),
            retry_after,
        });
        let job = columns.id_or_none()?.map(JobId::from_bytes);
        let request_id = String::new();
        Ok(Self { number, worker, epoch, started_at, ended_at, ending, job, request_id })
    }
}

impl FromRow for Letter {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        let (id, tenant) = (LetterId::from_bytes(columns.id()?), columns.text()?);
        let event = columns.event_id_or_none()?;
        let delivery = columns.id_or_none()?.map(DeliveryId::from_bytes);
        let (target, event_type) = (columns.text_or_none()?, columns.text_or_none()?);
        let stream = columns.text_or_none()?;
        let source =
            stream.zip(columns.text_or_none()?).map(|(stream, message)| SourceMessage { stream, message });
        Ok(Self {
            id,
            tenant,
            event,
            delivery,
            target,
            event_type,
            source,
            payload: columns.bytes()?,
            content_type: columns.text()?,
            headers: columns.json()?,
            cause: columns.name(Cause::from_name)?,
            error: columns.text()?,
            signature: Signature::from_kept(columns.text()?),
            status: columns.name(Status::from_name)?,
            attempts: columns.count()?,
            last_attempt_at: columns.time_or_none()?,
            failed_replays: columns.count()?,
            copy_of: columns.id_or_none()?.map(LetterId::from_bytes),
            created_at: columns.time()?,
            updated_at: columns.time()?,
        })
    }
}

impl FromRow for JobRecord {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        let new = NewJob {
            id: JobId::from_bytes(columns.id()?),
            selection: columns.json()?,
            mode: columns.name(ReplayMode::from_name)?,
            reason: columns.text_or_none()?,
            by: columns.text()?,
            pace: ReplayPace {
                rate: columns.real()?,
                concurrency: columns.count()?,
                canary: columns.count()?,
                pause_above: columns.real()?,
            },
        };
        let (state, note) = (columns.name(JobState::from_name)?, columns.text()?);
        let (created_at, updated_at) = (columns.time()?, columns.time()?);
        let mut counts = Counts::default();
        for (name, number) in columns.json::<BTreeMap<String, u64>>()? {
            let item =
                ItemState::from_name(&name).ok_or_else(|| columns.corrupt("an item of another version"))?;
            *counts.of(super::jobs::seen_in(state, item)) += number;
            counts.total += number;
        }
        Ok(Self { new, state, note, counts, created_at, updated_at })
    }
}

impl FromRow for JobItem {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        let delivery = DeliveryId::from_bytes(columns.id()?);
        let letter = columns.id_or_none()?.map(LetterId::from_bytes);
        let event = columns.event_id()?;
        Ok(Self {
            delivery,
            letter,
            event,
            target: columns.text()?,
            state: columns.name(ItemState::from_name)?,
            // A new event is of the kind of the one that it repeats.
            new_event: columns.id_or_none()?.map(|id| EventId::from_bytes(event.kind(), id)),
            error: columns.text_or_none()?,
        })
    }
}

impl FromRow for Audited {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        Ok(Self {
            at: columns.time()?,
            line: AuditLine {
                who: columns.text()?,
                action: columns.text()?,
                subject: columns.text()?,
                reason: columns.text()?,
            },
        })
    }
}
