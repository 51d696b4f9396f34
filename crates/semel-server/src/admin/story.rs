//! `/v1/story/{id}`: everything that is known of one action, in the order it happened.
//!
//! Any id of it will do: of an event or run, also one that waits in the buffer; of a delivery, a dead letter, a replay job, a
//! key or a trigger's claim; of a request: the gateway's, a publisher's or trigger's, or one that a target saw; or an id of an
//! envelope.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use schemars::JsonSchema;
use semel::key::KeyId;
use semel::outcome::{Outcome, OutcomeBody};
use semel::record::{Mode, Phase, State as RecordState};
use semel::store::{Scan, Snapshot};
use semel::time::{Clock as _, SystemClock, Timestamp};
use semel_http::observe::AnswerOutcome;
use semel_pipeline::delivery::{DeliveryHistory, delivery_of_request};
use semel_pipeline::envelope::EnvelopeId;
use semel_pipeline::event::{Event, Generation};
use semel_pipeline::id::{DeliveryId, EventId, EventKind, JobId, LetterId};
use semel_pipeline::ledger::{Page, TargetPause};
use semel_pipeline::letter::LetterStory;
use semel_triggers::buffer::CurrentRun;
use semel_triggers::trigger::{Burst, RunLocation};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::Admin;
use super::answer::{Answer, PathId, Refusal};
use super::api::{Api, Needs};
use super::audit::{States, read};
use super::deliveries::{AttemptDetails, due_at, round};
use super::events::EventDetails;
use super::records::{KeyDetails, phase_name, time};
use super::runs::run_error;
use super::targets::why_waiting;
use crate::gateway::{AnsweredRequest, EffectRun, KeyRequests};
use crate::pipeline::Pipeline;

/// True if a request with this id claimed the key, or if the stored answer tells clients this id.
fn is_of_request(snapshot: &Snapshot, id: &str) -> bool {
    let record = &snapshot.record;
    let in_answer = |outcome: &Arc<Outcome>| {
        let answer = semel_http::stored::answer(outcome).ok();
        answer.and_then(|answer| answer.headers().get("x-request-id").map(|own| own == id)).unwrap_or(false)
    };
    record.owner.is_of_request(id)
        || matches!(&record.state, RecordState::Done(outcome) if in_answer(outcome))
}

/// No action has more.
const LINES: u32 = 200;
/// How long records, and then buffered runs, are searched for the id of a request. No index holds it: every request would
/// pay for that, and few are ever looked for.
const SEARCH: Duration = Duration::from_secs(5);
/// How many records are read at once: each may hold a large outcome.
const RECORDS: usize = 100;
/// The most requests of a key that are told.
const REQUESTS: usize = 50;
/// How many buffered runs are listed at once.
const RUNS: u32 = 500;

pub(super) fn routes(api: &mut Api) {
    let id = "Any ID of the action: evt_…, run_… (also in the buffer), dlv_…, dlq_…, rpl_…, the ID of a key or of the claim of a \
              trigger, the request ID of the gateway, of a publisher, of a trigger or of an attempt, or the message, correlation, causation \
              or trace ID of an envelope.";
    api.group("events", id, Needs::Store)
        .get(
            "/v1/story/{id}",
            show,
            "Show everything that is known about one action, in the order it happened.",
        )
        .problem(404, "Nothing has this ID.");
}

/// Everything that is known about one action.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Story {
    /// The ID that was asked for.
    pub(crate) id: String,
    pub(crate) found: Vec<StorySubject>,
    /// What happened, the oldest first.
    pub(crate) timeline: Vec<StoryEntry>,
    /// Answers to requests with a key are listed if this server gave them since this time. Null without such a key.
    pub(crate) answers_since: Option<String>,
    /// Number of earlier requests with the key that `timeline` leaves out: it lists the last 50 of a key.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) requests_left_out: usize,
}

/// A thing that belongs to the action.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct StorySubject {
    #[schemars(extend("enum" = ["key", "trigger claim", "request", "event", "run", "delivery", "dead letter", "replay"]))]
    pub(crate) kind: &'static str,
    pub(crate) id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    /// When the next attempt of a delivery may start.
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<String>,
    /// Round of that attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    round: Option<u32>,
    /// Number of rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    rounds: Option<u32>,
    /// Why a delivery is not sent now, although it may be due: its target is paused, or the circuit breaker is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<String>,
}

/// Something that happened. Further members depend on `what`.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct StoryEntry {
    pub(crate) at: String,
    #[schemars(extend("enum" = [
        "gateway", "claim", "trigger", "buffer", "event", "delivery", "downstream", "dead letter", "replay", "audit"
    ]))]
    pub(crate) place: &'static str,
    pub(crate) what: String,
    pub(crate) id: String,
    #[serde(flatten)]
    pub(crate) details: Map<String, Value>,
}

/// A story while it is gathered.
struct StoryBuilder<'a> {
    admin: &'a Admin,
    timeline: Vec<(Timestamp, StoryEntry)>,
    found: Vec<StorySubject>,
    /// What is told already.
    events: BTreeSet<EventId>,
    /// True if it has a key, with the requests that this process remembers.
    has_key: bool,
    requests_left_out: usize,
    /// Where the search for a request ended before it was through.
    cut_short: Option<String>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

async fn show(State(admin): State<Arc<Admin>>, PathId(id): PathId) -> Result<Answer<Story>, Refusal> {
    Answer::ok(Story::tell(&admin, id).await?)
}

impl Story {
    /// From when on answers are listed, if the action began before.
    pub(crate) fn answers_begin_at(&self) -> Option<&str> {
        let first = self.timeline.first()?;
        self.answers_since.as_deref().filter(|since| first.at.as_str() < *since)
    }

    /// Tells everything that an id of any kind names.
    ///
    /// # Errors
    /// 404 if nothing has the id.
    pub(crate) async fn tell(admin: &Admin, id: String) -> Result<Self, Refusal> {
        let mut story = StoryBuilder {
            admin,
            timeline: Vec::new(),
            found: Vec::new(),
            events: BTreeSet::new(),
            has_key: false,
            requests_left_out: 0,
            cut_short: None,
        };
        let unavailable = story.gather(&id).await?;
        if story.found.is_empty() {
            // It may be where nobody could look.
            if let Some(refusal) = unavailable {
                return Err(refusal);
            }
            let mut detail = format!(
                "nothing is known of {id:?}: no event, run, delivery, dead letter, replay, key, request or envelope has this id; \
                 a server forgets the ids of answered duplicates when it restarts; `semel keys list --hint` finds a key by its first characters"
            );
            if let Some(cut_short) = story.cut_short {
                detail.push_str(&format!("; {cut_short}"));
            }
            return Err(Refusal::not_found(detail));
        }
        story.timeline.sort_by_key(|(at, _)| *at);
        let timeline = story.timeline.into_iter().map(|(_, entry)| entry).collect();
        let answers_since = story.has_key.then(|| time(admin.requests.since()));
        let requests_left_out = story.requests_left_out;
        Ok(Self { id, found: story.found, timeline, answers_since, requests_left_out })
    }
}

impl StoryBuilder<'_> {
    /// Gathers what an id of any kind names. Answers why the buffer could not be looked into, where that is so.
    async fn gather(&mut self, id: &str) -> Result<Option<Refusal>, Refusal> {
        let key = id.parse::<KeyId>().ok();
        if let Some(key) = key {
            self.key(key).await?;
        }
        let mut unavailable = None;
        if let Ok(pipeline) = self.admin.pipeline() {
            if let Ok(event) = id.parse::<EventId>() {
                self.event_or_run(pipeline, event).await?;
                return Ok(None);
            }
            if let Ok(job) = id.parse::<JobId>() {
                self.job(pipeline, job).await?;
                return Ok(None);
            }
            if let Ok(letter) = id.parse::<LetterId>() {
                self.letter(pipeline, letter).await?;
                return Ok(None);
            }
            if let Some(delivery) = id.parse::<DeliveryId>().ok().or_else(|| delivery_of_request(id)) {
                if let Some(told) = pipeline.ledger.delivery(delivery).await? {
                    self.event(pipeline, told.delivery.event).await?;
                }
                return Ok(None);
            }
            if let Some(key) = key {
                unavailable = self.trigger_claim(pipeline, key).await?;
            }
            let envelope =
                [EnvelopeId::Message, EnvelopeId::Correlation, EnvelopeId::Causation, EnvelopeId::Trace];
            let tags = envelope.into_iter().map(|kind| kind.tag(id)).collect();
            for event in pipeline.ledger.find_events(Some(id.to_owned()), key, tags).await? {
                self.event(pipeline, event).await?;
            }
        }
        // A key's id names that key and no request.
        if key.is_none() || self.found.is_empty() {
            self.gateway_request(id).await?;
            if let Some(refusal) = self.buffered_request(id).await? {
                unavailable = Some(refusal);
            }
        }
        Ok(unavailable)
    }

    /// Adds an entry with the members of `details` that are not null.
    fn add_entry(&mut self, at: Timestamp, place: &'static str, what: &str, id: &str, details: Value) {
        let details = match details {
            Value::Object(details) => details.into_iter().filter(|(_, value)| !value.is_null()).collect(),
            _ => Map::new(),
        };
        let entry = StoryEntry { at: time(at), place, what: what.to_owned(), id: id.to_owned(), details };
        self.timeline.push((at, entry));
    }

    /// A key: what the gateway or a worker did under it.
    async fn key(&mut self, key: KeyId) -> Result<(), Refusal> {
        if let Some(snapshot) = self.admin.engine.store().get(key).await? {
            self.has_key = true;
            self.record(&snapshot, "key", "claim");
            self.requests(&snapshot);
            if let Ok(pipeline) = self.admin.pipeline() {
                self.audit(pipeline, &key.to_string()).await?;
            }
        }
        Ok(())
    }

    /// The requests that came with a key, as far as this process remembers them, and what they did with it.
    fn requests(&mut self, snapshot: &Snapshot) {
        let (record, id) = (&snapshot.record, snapshot.id.to_string());
        let mut knows_doubt = false;
        let mut last_end = None;
        let KeyRequests { newest, left_out } = self.admin.requests.of_key(snapshot.id, REQUESTS);
        self.requests_left_out += left_out;
        for request in newest {
            let AnsweredRequest { arrived, at, request_id, outcome, status, run } = request;
            if let Some(EffectRun { doubt }) = run {
                // The record has the last claim only.
                if at < record.claimed_at {
                    // A request that waited for another one claimed the key when that one had ended.
                    let claimed_at = last_end.map_or(arrived, |end| arrived.max(end));
                    self.add_entry(claimed_at, "claim", "claimed", &id, json!({ "request_id": request_id }));
                }
                if let Some(error) = doubt {
                    let is_held = record.terms.mode == Mode::Marked;
                    let what = if is_held { phase_name(Phase::InDoubt) } else { "result unknown" };
                    self.add_entry(
                        at,
                        "claim",
                        what,
                        &id,
                        json!({ "request_id": request_id, "error": error }),
                    );
                    knows_doubt |= at >= record.claimed_at;
                }
                last_end = Some(at);
            }
            let what = match outcome {
                AnswerOutcome::Replayed => "answered from the record",
                AnswerOutcome::Refused(_) | AnswerOutcome::VerifyRefused => "refused",
                AnswerOutcome::Released => "answered, key free again",
                AnswerOutcome::Doubtful | AnswerOutcome::NotStored | AnswerOutcome::Tombstone => {
                    "answered, answer not stored"
                }
                _ => "answered",
            };
            let why = (what == "refused").then(|| outcome.name());
            let took_ms = at.as_micros().saturating_sub(arrived.as_micros()) / 1_000;
            let more = json!({
                "request_id": request_id, "http_status": status, "why": why,
                "took_ms": took_ms,
            });
            self.add_entry(at, "gateway", what, &id, more);
        }
        // Of a lost process, or of one that was started again since.
        if snapshot.phase() == Phase::InDoubt && !knows_doubt {
            self.add_entry(record.lease_until, "claim", phase_name(Phase::InDoubt), &id, json!({}));
        }
    }

    fn record(&mut self, snapshot: &Snapshot, kind: &'static str, place: &'static str) {
        let id = snapshot.id.to_string();
        let (record, shown) = (&snapshot.record, KeyDetails::new(snapshot));
        // A settlement changes the fence, so the present one is that of the claim only while the claim stands.
        let is_claim = matches!(record.state, RecordState::Claimed | RecordState::Begun);
        let fence = is_claim.then(|| record.fence.get());
        let mut more = json!({ "key": shown.key, "attempt": record.attempt, "fence": fence });
        if let Some(origin) = record.hint.origin() {
            more["method"] = origin.method().into();
            more["path"] = origin.path().into();
            more["request_id"] = origin.request_id().into();
            more["caller"] = origin.caller().into();
        }
        self.add_entry(record.claimed_at, place, "claimed", &id, more);
        // The phase now can be another one than that of the change: an outcome expires.
        let changed_to = match record.state {
            RecordState::Done(_) | RecordState::Expired => Phase::Done,
            RecordState::Vacant => Phase::Vacant,
            RecordState::Bound => Phase::Bound,
            RecordState::Claimed => Phase::Claimed,
            RecordState::Begun => Phase::Begun,
        };
        if record.changed_at > record.claimed_at {
            let more = json!({ "outcome": shown.outcome });
            self.add_entry(record.changed_at, place, phase_name(changed_to), &id, more);
        }
        if snapshot.phase() == Phase::Expired {
            self.add_entry(record.expires_at, place, phase_name(Phase::Expired), &id, json!({}));
        }
        self.found.push(StorySubject { kind, id, state: Some(shown.phase), ..StorySubject::default() });
    }

    /// A request of the gateway's: those it remembers, and those whose claim a record still shows.
    async fn gateway_request(&mut self, id: &str) -> Result<(), Refusal> {
        if let Some(key) = self.admin.requests.key(id) {
            self.found.push(StorySubject::request(id, key));
            return self.key(key).await;
        }
        let store = self.admin.engine.store();
        let until = Instant::now() + SEARCH;
        let (mut after, mut searched) = (None, 0);
        loop {
            let page = store.scan(Scan { phase: None, after, limit: RECORDS }).await?;
            searched += page.items.len();
            for snapshot in page.items.iter().filter(|one| is_of_request(one, id)) {
                self.found.push(StorySubject::request(id, snapshot.id));
                self.key(snapshot.id).await?;
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
            if Instant::now() >= until {
                let cut_short = format!(
                    "{searched} keys were searched for a request with it, and there are more: ask for the key, by `semel keys list`"
                );
                self.cut_short = Some(cut_short);
                return Ok(());
            }
        }
    }

    /// A trigger whose run waits in the buffer. Answers why the buffer could not be looked into, where that is so.
    async fn buffered_request(&mut self, id: &str) -> Result<Option<Refusal>, Refusal> {
        let Ok(pipeline) = self.admin.pipeline() else { return Ok(None) };
        let burst = match pipeline.intake.triggers.connected_burst() {
            Ok(Some(burst)) => burst,
            Ok(None) => return Ok(None),
            Err(error) => return Ok(Some(error.into())),
        };
        match tokio::time::timeout(SEARCH, requested(burst, id)).await {
            Ok(Ok(runs)) => {
                for run in runs {
                    self.event_or_run(pipeline, run).await?;
                }
                Ok(None)
            }
            Ok(Err(error)) => Ok(Some(error.into())),
            Err(_) => {
                let cut_short =
                    "not all buffered runs were searched for a trigger with it: ask for the run by its id";
                self.cut_short.get_or_insert_with(|| cut_short.to_owned());
                Ok(None)
            }
        }
    }

    /// The claim of a keyed trigger, and the run that it names. Answers why the claims could not be looked at, where that is
    /// so.
    async fn trigger_claim(&mut self, pipeline: &Pipeline, key: KeyId) -> Result<Option<Refusal>, Refusal> {
        let burst = match pipeline.intake.triggers.connected_burst() {
            Ok(Some(burst)) => burst,
            Ok(None) => return Ok(None),
            Err(error) => return Ok(Some(error.into())),
        };
        match burst.claims.store().get(key).await {
            Ok(Some(snapshot)) => {
                self.record(&snapshot, "trigger claim", "trigger");
                if let Some(run) = run_of(&snapshot) {
                    self.event_or_run(pipeline, run).await?;
                }
            }
            Ok(None) => {}
            Err(error) => return Ok(Some(error.into())),
        }
        // In a burst the entry of the key in the buffer is the claim. After a reset it is of another run than the record.
        let generation = pipeline.ledger.find(key).await?.generation;
        match tokio::time::timeout(SEARCH, holder_of(burst, (key, generation))).await {
            Ok(Ok(Some(run))) => self.event_or_run(pipeline, run).await.map(|()| None),
            Ok(Ok(None)) => Ok(None),
            Ok(Err(error)) => Ok(Some(error.into())),
            Err(_) => {
                let cut_short = "the buffers of some tenants were not searched for its run: ask again";
                self.cut_short.get_or_insert_with(|| cut_short.to_owned());
                Ok(None)
            }
        }
    }

    /// An event, or a run wherever it is.
    async fn event_or_run(&mut self, pipeline: &Pipeline, id: EventId) -> Result<(), Refusal> {
        if id.kind() == EventKind::Event {
            return self.event(pipeline, id).await;
        }
        match pipeline.intake.triggers.locate(id).await.map_err(run_error)? {
            RunLocation::Ledger(event) => self.accepted(pipeline, &event).await,
            RunLocation::Buffer { buffered, .. } => self.buffered(pipeline, &buffered).await,
            RunLocation::Missing => Ok(()),
        }
    }

    async fn event(&mut self, pipeline: &Pipeline, id: EventId) -> Result<(), Refusal> {
        match pipeline.ledger.event(id).await? {
            Some(event) => self.accepted(pipeline, &event).await,
            None => Ok(()),
        }
    }

    /// A run that waits in the buffer. Nobody wrote down since when; it is told as it stands now.
    async fn buffered(&mut self, pipeline: &Pipeline, buffered: &CurrentRun) -> Result<(), Refusal> {
        let run = &buffered.run;
        if !self.events.insert(run.id) {
            return Ok(());
        }
        let id = run.id.to_string();
        let state = if buffered.cancelled { "cancelled" } else { "buffered" };
        let target = Some(run.event_type.clone());
        let found = StorySubject {
            kind: "run",
            id: id.clone(),
            target,
            state: Some(state),
            ..StorySubject::default()
        };
        self.found.push(found);
        let more = json!({
            "target": run.event_type, "tenant": run.tenant, "request_id": run.trace.request_id,
            "key": run.dedupe.as_ref().map(|dedupe| dedupe.hint.to_string()), "trace_id": run.trace.trace_id(),
        });
        let what = if buffered.cancelled { "cancelled" } else { "waiting" };
        self.add_entry(SystemClock.now(), "buffer", what, &id, more);
        self.audit(pipeline, &id).await?;
        self.claim_of(pipeline, run.id, run.dedupe.as_ref().map(|dedupe| dedupe.id)).await
    }

    /// The claim under which a buffered run was triggered, where it is not what was asked for.
    async fn claim_of(
        &mut self,
        pipeline: &Pipeline,
        run: EventId,
        key: Option<KeyId>,
    ) -> Result<(), Refusal> {
        let (Some(burst), Some(key)) = (pipeline.intake.triggers.connected_burst()?, key) else {
            return Ok(());
        };
        let told = self.found.iter().any(|found| found.id == key.to_string());
        if let Some(snapshot) = burst.claims.store().get(key).await?
            && !told
            && run_of(&snapshot) == Some(run)
        {
            self.record(&snapshot, "trigger claim", "trigger");
        }
        Ok(())
    }

    /// An event of the ledger, with its deliveries and dead letters.
    async fn accepted(&mut self, pipeline: &Pipeline, event: &Event) -> Result<(), Refusal> {
        let id = event.new.id;
        if !self.events.insert(id) {
            return Ok(());
        }
        let shown = EventDetails::new(event);
        let more = json!({
            "type": shown.r#type, "tenant": shown.tenant, "key": shown.dedupe_key, "origin": shown.origin,
            "request_id": shown.request_id, "trace_id": event.new.trace.trace_id(),
            "message_id": shown.envelope.message_id, "correlation_id": shown.envelope.correlation_id,
            "causation_id": shown.envelope.causation_id, "user": shown.envelope.user,
        });
        self.add_entry(event.accepted_at, "event", "accepted", &id.to_string(), more);
        let r#type = Some(shown.r#type);
        self.found.push(StorySubject {
            kind: "event",
            id: id.to_string(),
            r#type,
            ..StorySubject::default()
        });
        self.audit(pipeline, &id.to_string()).await?;
        let pauses = pipeline.ledger.paused_targets().await?;
        for told in pipeline.ledger.deliveries_of(id).await? {
            self.delivery(pipeline, &told, &pauses);
            if let Some(letter) = told.delivery.letter
                && let Some(story) = pipeline.ledger.letter(letter).await?
            {
                self.dead_letter(pipeline, &story).await?;
            }
        }
        Ok(())
    }

    fn delivery(&mut self, pipeline: &Pipeline, told: &DeliveryHistory, pauses: &[TargetPause]) {
        let delivery = &told.delivery;
        let id = delivery.id.to_string();
        let (target, state) = (Some(delivery.target.clone()), Some(delivery.state.as_str()));
        let due_at = due_at(delivery);
        let targets = pipeline.registry.current();
        let (round, rounds) = due_at.as_ref().and_then(|_| round(told, &targets)).unzip();
        let waiting = due_at.as_ref().and_then(|_| why_waiting(pipeline, pauses, &delivery.target));
        self.found.push(StorySubject {
            kind: "delivery",
            id: id.clone(),
            target,
            state,
            due_at,
            round,
            rounds,
            waiting,
            ..StorySubject::default()
        });
        for attempt in &told.attempts {
            let shown = AttemptDetails::new(attempt);
            let more = json!({
                "target": delivery.target, "attempt": attempt.number, "request_id": attempt.request_id,
                "worker": attempt.worker, "replay_id": attempt.job,
            });
            self.add_entry(attempt.started_at, "delivery", "attempt started", &id, more);
            if let Some(ended) = attempt.ended_at {
                let more = json!({
                    "target": delivery.target, "attempt": attempt.number, "request_id": attempt.request_id,
                    "outcome": shown.outcome, "http_status": shown.http_status,
                    "latency_ms": shown.latency_ms, "error": shown.error, "excerpt": shown.excerpt,
                });
                self.add_entry(ended, "downstream", "attempt ended", &id, more);
            }
        }
        if let Some(at) = delivery.completed_at {
            let more = json!({ "target": delivery.target, "error": delivery.error });
            self.add_entry(at, "delivery", delivery.state.as_str(), &id, more);
        } else if delivery.state.is_takeable() {
            let more = json!({
                "target": delivery.target, "error": delivery.error, "round": round, "rounds": rounds,
            });
            self.add_entry(delivery.due_at, "delivery", "due", &id, more);
        }
    }

    async fn letter(&mut self, pipeline: &Pipeline, id: LetterId) -> Result<(), Refusal> {
        let Some(story) = pipeline.ledger.letter(id).await? else { return Ok(()) };
        if let Some(event) = story.letter.event {
            self.event(pipeline, event).await?;
        }
        // Of a message that became no event, or of an event that is gone.
        if self.found.is_empty() {
            self.dead_letter(pipeline, &story).await?;
        }
        Ok(())
    }

    async fn dead_letter(&mut self, pipeline: &Pipeline, story: &LetterStory) -> Result<(), Refusal> {
        let letter = &story.letter;
        let id = letter.id.to_string();
        let (state, cause) = (Some(letter.status.as_str()), Some(letter.cause.as_str()));
        self.found.push(StorySubject {
            kind: "dead letter",
            id: id.clone(),
            state,
            cause,
            ..StorySubject::default()
        });
        let more = json!({ "target": letter.target, "cause": letter.cause, "error": letter.error });
        self.add_entry(letter.created_at, "dead letter", "written", &id, more);
        if letter.updated_at > letter.created_at {
            self.add_entry(letter.updated_at, "dead letter", letter.status.as_str(), &id, json!({}));
        }
        self.audit(pipeline, &id).await
    }

    /// A replay job: when it was made, what people did with it, and how it stands. Its items are listed elsewhere.
    async fn job(&mut self, pipeline: &Pipeline, id: JobId) -> Result<(), Refusal> {
        let Some(job) = pipeline.ledger.job(id).await? else { return Ok(()) };
        let id = id.to_string();
        let state = Some(job.state.as_str());
        self.found.push(StorySubject { kind: "replay", id: id.clone(), state, ..StorySubject::default() });
        let more = json!({
            "who": job.new.by, "mode": job.new.mode, "items": job.counts.total, "reason": job.new.reason,
        });
        self.add_entry(job.created_at, "replay", "made", &id, more);
        if job.updated_at > job.created_at {
            let more = json!({
                "replayed": job.counts.replayed, "failed_again": job.counts.failed_again,
                "pending": job.counts.pending, "note": job.note,
            });
            self.add_entry(job.updated_at, "replay", job.state.as_str(), &id, more);
        }
        self.audit(pipeline, &id).await
    }

    /// What people did.
    async fn audit(&mut self, pipeline: &Pipeline, subject: &str) -> Result<(), Refusal> {
        let page = Page { after: None, limit: LINES };
        let lines = pipeline.ledger.audit_log(Some(subject.to_owned()), page).await?;
        for audited in &lines.items {
            let line = &audited.line;
            let (reason, states) = read(line);
            let mut more = json!({ "who": line.who, "reason": reason });
            if let Some(States { before, after, attempt }) = states {
                more["before"] = before.into();
                more["after"] = after.into();
                more["attempt"] = Some(attempt).filter(|attempt| !attempt.is_empty()).into();
            }
            self.add_entry(audited.at, "audit", &line.action, subject, more);
        }
        Ok(())
    }
}

impl StorySubject {
    fn request(id: &str, key: KeyId) -> Self {
        Self { kind: "request", id: id.to_owned(), key_id: Some(key.to_string()), ..Self::default() }
    }
}

/// The run that the claim of a trigger names.
fn run_of(snapshot: &Snapshot) -> Option<EventId> {
    let RecordState::Done(outcome) = &snapshot.record.state else { return None };
    let OutcomeBody::Kept(bytes) = outcome.body() else { return None };
    let resolved: Value = serde_json::from_slice(bytes).ok()?;
    resolved["id"].as_str()?.parse().ok()
}

/// The buffered run that has a key.
async fn holder_of(burst: &Burst, key: (KeyId, Generation)) -> Result<Option<EventId>, semel::store::Error> {
    for tenant in burst.buffer.tenants().await? {
        if let Some(holder) = burst.buffer.find(&tenant, key).await? {
            return Ok(Some(holder.run));
        }
    }
    Ok(None)
}

/// The buffered runs that were triggered by a request with this id.
async fn requested(burst: &Burst, request_id: &str) -> Result<Vec<EventId>, semel::store::Error> {
    let mut runs = Vec::new();
    for tenant in burst.buffer.tenants().await? {
        let mut after = None;
        loop {
            let (page, next) = burst.buffer.list(&tenant, after, RUNS).await?;
            for id in page {
                if let Some((Ok(buffered), _)) = burst.buffer.get(&tenant, id).await?
                    && buffered.run.trace.request_id.as_deref() == Some(request_id)
                {
                    runs.push(id);
                }
            }
            after = next;
            if after.is_none() {
                break;
            }
        }
    }
    Ok(runs)
}
