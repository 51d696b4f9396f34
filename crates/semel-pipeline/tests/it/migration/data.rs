//! One of everything that a ledger holds: how it is written, listed and worked on.

use std::time::Duration;

use bytes::Bytes;
use semel::fingerprint::Payload;
use semel::key::{Hint, KeyId};
use semel::secret::Secret;
use semel_pipeline::delivery::{
    AttemptClass, DeliveryAttempt, DeliveryState, Ending, LeaseResult, Settle, Work,
};
use semel_pipeline::event::{Accepted, Dedupe, Generation, NewEvent, Notes, Origin, Trace};
use semel_pipeline::id::{EventId, EventKind, JobId, LetterId};
use semel_pipeline::ledger::{
    Arrival, AuditLine, Change, DeliveryFilter, DrainedRun, EventFilter, Ledger, LetterFilter, Page, Patch,
    Take,
};
use semel_pipeline::letter::{Cause, NewLetter, SourceMessage, Status};
use semel_pipeline::publish::Publication;
use semel_pipeline::replay::{ItemState, JobOrder, JobState, NewJob, ReplayMode, ReplayPace, Selection};

const YEARS: Duration = Duration::from_secs(50 * 365 * 86_400);

/// Every target that deliveries of the fixture are for.
const TARGETS: [&str; 11] = [
    "crm",
    "mail",
    "retried",
    "buried",
    "discarded",
    "blocked",
    "replayed",
    "as_new",
    "lost",
    "later",
    "run",
];

pub(super) fn published() -> Publication {
    Publication::new("order.paid", "order-99", r#"{"order":99}"#).tenant("acme").order_key("o-99")
}

fn event_id(number: u8) -> EventId {
    EventId::from_bytes(EventKind::Event, [number; 16])
}

fn run_id(number: u8) -> EventId {
    EventId::from_bytes(EventKind::Run, [number; 16])
}

fn job_id(number: u8) -> JobId {
    JobId::from_bytes([number; 16])
}

fn key(number: u8) -> KeyId {
    KeyId::from_bytes([number; 16])
}

fn dedupe(number: u8) -> Dedupe {
    Dedupe {
        id: key(number),
        hint: Hint::new("order-17"),
        fingerprint: Payload::exact(&[&[number]]).fingerprint(&Secret::from_bytes([7; 32])),
        lifetime: None,
        expires_at: None,
        generation: None,
    }
}

fn event(id: EventId, target: &str) -> NewEvent {
    NewEvent {
        id,
        tenant: "acme".to_owned(),
        event_type: "order.paid".to_owned(),
        dedupe: None,
        payload: Bytes::from(format!("{{\"for\":\"{target}\"}}")),
        content_type: "application/json".to_owned(),
        headers: vec![("x-shop".to_owned(), "berlin".to_owned())],
        order_key: None,
        origin: Origin::Api { principal: "billing".to_owned() },
        targets: vec![target.to_owned()],
        delay: Duration::ZERO,
        deliver_within: None,
        notes: Notes::default(),
        trace: Trace::default(),
    }
}

fn line(action: &str) -> AuditLine {
    AuditLine {
        who: "ann".to_owned(),
        action: action.to_owned(),
        subject: "the fixture".to_owned(),
        reason: "to migrate it".to_owned(),
    }
}

fn ending(class: AttemptClass) -> Ending {
    let (status, error) = match class {
        AttemptClass::Success => (200, ""),
        _ => (503, "it is down"),
    };
    Ending {
        class,
        status: Some(status),
        error: error.to_owned(),
        excerpt: "an excerpt".to_owned(),
        retry_after: Some(Duration::from_secs(2)),
    }
}

fn page() -> Page {
    Page { after: None, limit: 1_000 }
}

fn job(number: u8, selection: Selection, mode: ReplayMode) -> NewJob {
    let reason = Some("they asked for it".to_owned());
    NewJob { id: job_id(number), selection, mode, reason, by: "ann".to_owned(), pace: ReplayPace::default() }
}

fn targets() -> Vec<String> {
    TARGETS.iter().map(|target| (*target).to_owned()).collect()
}

async fn take(ledger: &dyn Ledger, target: &str, lease: Duration) -> Vec<Work> {
    let (worker, targets) = ("worker-1".to_owned(), vec![(target.to_owned(), 10)]);
    ledger.take(Take { worker, targets, limit: 10, lease }).await.expect("work is taken")
}

async fn settle(ledger: &dyn Ledger, work: &Work, settle: Settle) {
    let said = ledger.settle(vec![(work.holding, settle)]).await.expect("an answer");
    assert_eq!(said, [LeaseResult::Kept], "{}", work.target);
}

/// Takes the one delivery of a target that is due, and ends it.
async fn end(ledger: &dyn Ledger, target: &str, how: Settle) -> Work {
    let mut taken = take(ledger, target, YEARS).await;
    assert_eq!(taken.len(), 1, "one delivery of {target} is due");
    settle(ledger, &taken[0], how).await;
    taken.remove(0)
}

async fn bury(ledger: &dyn Ledger, target: &str) -> LetterId {
    let how = Settle::Bury(ending(AttemptClass::Transient), Cause::Exhausted);
    let work = end(ledger, target, how).await;
    let story = ledger.delivery(work.holding.delivery).await.expect("an answer").expect("a delivery");
    story.delivery.letter.expect("a dead letter")
}

/// Writes one of everything. Only the outbox is not written: each ledger has its own way.
pub(super) async fn fill(ledger: &dyn Ledger) {
    let keyed = NewEvent {
        dedupe: Some(dedupe(1)),
        order_key: Some("o-1".to_owned()),
        targets: vec!["crm".to_owned(), "mail".to_owned()],
        deliver_within: Some(YEARS),
        trace: Trace {
            request_id: Some("req-1".to_owned()),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        },
        ..event(event_id(1), "crm")
    };
    let ordered = |number| NewEvent { order_key: Some("o-1".to_owned()), ..event(event_id(number), "crm") };
    let stream = Origin::Stream { stream: "orders".to_owned(), message: "17-0".to_owned() };
    let expiring = Dedupe { lifetime: Some(Duration::from_millis(1)), ..dedupe(22) };
    let notes = Notes {
        tags: vec!["vip".to_owned()],
        metadata: [("n".to_owned(), "9007199254740993".to_owned())].into(),
    };
    let run = |number, dedupe, notes| NewEvent { dedupe, notes, ..event(run_id(number), "run") };
    let all = vec![
        keyed,
        ordered(2),
        ordered(3),
        event(event_id(4), "retried"),
        NewEvent { origin: stream, ..event(event_id(5), "buried") },
        event(event_id(6), "discarded"),
        event(event_id(7), "blocked"),
        event(event_id(8), "replayed"),
        event(event_id(9), "as_new"),
        event(event_id(10), "lost"),
        NewEvent { delay: YEARS, ..event(event_id(11), "later") },
        event(event_id(12), "later"),
        run(20, Some(dedupe(20)), notes.clone()),
        run(21, Some(dedupe(21)), Notes::default()),
        run(22, Some(expiring), Notes::default()),
    ];
    for event in all {
        let id = event.id;
        assert_eq!(ledger.accept(vec![event]).await.expect("an answer"), [Accepted::First(id)]);
    }
    end(ledger, "crm", Settle::Done(ending(AttemptClass::Success))).await;
    end(ledger, "retried", Settle::Defer(Duration::ZERO)).await;
    end(ledger, "retried", Settle::Retry(ending(AttemptClass::Transient), Duration::ZERO)).await;
    let buried = bury(ledger, "buried").await;
    let discarded = bury(ledger, "discarded").await;
    ledger.discard(discarded, line("discard")).await.expect("it is discarded");
    end(ledger, "blocked", Settle::Block(ending(AttemptClass::Permanent))).await;
    let replayed = bury(ledger, "replayed").await;
    let as_new = bury(ledger, "as_new").await;
    assert_eq!(take(ledger, "lost", Duration::from_millis(1)).await.len(), 1);
    ledger.cancel(event_id(12), line("cancel")).await.expect("it is cancelled");

    let change = Change { increment: vec![("n".to_owned(), "1".to_owned())], ..Change::default() };
    ledger.change(run_id(20), change.clone(), None).await.expect("it is changed");
    ledger.reset(key(21), line("reset")).await.expect("a key is reset");
    let again = run(23, Some(dedupe(21)), Notes::default());
    assert_eq!(ledger.accept(vec![again]).await.expect("an answer"), [Accepted::First(run_id(23))]);
    let drained = DrainedRun {
        run: run(24, Some(dedupe(24)), notes.clone()),
        changes: vec![Patch::Change(change)],
        then: None,
    };
    let keyless = DrainedRun {
        run: NewEvent {
            dedupe: Some(Dedupe { generation: Some(Generation::FIRST), ..dedupe(20) }),
            payload: Bytes::from_static(b"another"),
            ..run(25, None, Notes::default())
        },
        changes: Vec::new(),
        then: None,
    };
    let arrived = ledger.drain(vec![drained, keyless]).await.expect("they arrive");
    assert_eq!(
        arrived.iter().map(|run| run.arrival).collect::<Vec<_>>(),
        [Arrival::New, Arrival::LostKey(run_id(20))]
    );

    let raw = |number: u8| NewLetter {
        id: LetterId::from_bytes([number; 16]),
        tenant: "acme".to_owned(),
        source: SourceMessage { stream: "orders".to_owned(), message: format!("{number}-0") },
        payload: Bytes::from_static(b"\xffnot json"),
        content_type: "text/plain".to_owned(),
        headers: vec![("field".to_owned(), "value".to_owned())],
        cause: Cause::Undecodable,
        error: "it is not JSON".to_owned(),
        attempts: 2,
    };
    let put = ledger.put(vec![raw(40), raw(41)]).await.expect("they are put");
    ledger.mirrored(vec![put[0]]).await.expect("it is mirrored");
    let copy = NewEvent { payload: Bytes::from_static(b"edited"), ..event(event_id(13), "buried") };
    ledger.edit(buried, copy, line("edit")).await.expect("it is copied");
    for (number, letter, mode) in [
        (50, replayed, ReplayMode::Resume),
        (51, as_new, ReplayMode::AsNew),
        (52, buried, ReplayMode::ReExecute),
    ] {
        let new = job(number, Selection::Letters(vec![letter]), mode);
        ledger.create(new, targets()).await.expect("a job is made");
    }
    let failed = Selection::Failed { limit: 100, tenant: None, targets: Vec::new(), signature: None };
    ledger.create(job(53, failed, ReplayMode::Resume), targets()).await.expect("a job is made");
    for number in [50, 51] {
        ledger.release(job_id(number), 1).await.expect("it is released");
    }
    for (number, order) in [(52, JobOrder::Pause), (53, JobOrder::Cancel)] {
        ledger.order(job_id(number), order, "for now".to_owned(), line("order")).await.expect("an order");
    }
    ledger.audit(line("look")).await.expect("a line");
}

fn attempts(attempts: &[DeliveryAttempt]) -> String {
    let ends = |end: &Ending| {
        let Ending { class, status, error, excerpt, retry_after } = end;
        format!("{:?}", (class.as_str(), status, error, excerpt, retry_after))
    };
    let one = |one: &DeliveryAttempt| {
        let times = (one.started_at.as_micros(), one.ended_at.map(|at| at.as_micros()));
        let ending = one.ending.as_ref().map(ends);
        format!("{:?}", (one.number, &one.worker, one.epoch, times, ending, one.job, &one.request_id))
    };
    attempts.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Everything that can be read, a line for each. No line names a type of the code, which may change.
pub(super) async fn describe(ledger: &dyn Ledger) -> Vec<String> {
    let mut lines = Vec::new();
    for event in ledger.events(EventFilter::default(), page()).await.expect("events").items {
        let new = &event.new;
        let key = new
            .dedupe
            .as_ref()
            .map(|key| (key.id.as_bytes(), key.hint.as_str(), key.fingerprint.as_bytes(), key.lifetime));
        let what = (new.id, &new.tenant, &new.event_type, key, &new.payload, &new.content_type, &new.headers);
        let origin = serde_json::to_string(&new.origin).expect("JSON");
        let how = (
            &new.order_key,
            origin,
            &new.targets,
            new.delay,
            new.deliver_within,
            &new.notes.tags,
            &new.notes.metadata,
        );
        let rest = (
            &new.trace.request_id,
            &new.trace.traceparent,
            event.accepted_at.as_micros(),
            event.version,
            event.changes,
        );
        lines.push(format!("event {what:?} {how:?} {rest:?}"));
    }
    for found in ledger.deliveries(DeliveryFilter::default(), page()).await.expect("deliveries").items {
        let story = ledger.delivery(found.id).await.expect("an answer").expect("a delivery");
        let d = &story.delivery;
        let what = (d.id, d.event, &d.target, &d.tenant, &d.event_type, d.state.as_str());
        let counts = (d.attempts, d.crashes, d.epoch, &d.error, d.letter);
        let times = [Some(d.due_at), Some(d.created_at), d.started_at, d.completed_at];
        let times = times.map(|at| at.map(|at| at.as_micros()));
        lines.push(format!("delivery {what:?} {counts:?} {times:?} {}", attempts(&story.attempts)));
    }
    for found in ledger.letters(LetterFilter::default(), page()).await.expect("dead letters").items {
        let story = ledger.letter(found.id).await.expect("an answer").expect("a dead letter");
        let l = &story.letter;
        let source = l.source.as_ref().map(|source| (&source.stream, &source.message));
        let what = (l.id, &l.tenant, l.event, l.delivery, &l.target, &l.event_type, source);
        let content = (&l.payload, &l.content_type, &l.headers, l.cause.as_str(), &l.error);
        let state =
            (l.signature.as_str(), l.status.as_str(), l.attempts, l.failed_replays, l.copy_of, &story.copies);
        let times = [l.last_attempt_at, Some(l.created_at), Some(l.updated_at)];
        let times = times.map(|at| at.map(|at| at.as_micros()));
        lines.push(format!(
            "dead letter {what:?} {content:?} {state:?} {times:?} {}",
            attempts(&story.attempts)
        ));
    }
    for job in ledger.jobs(page()).await.expect("jobs").items {
        let new = &job.new;
        let selection = serde_json::to_string(&new.selection).expect("JSON");
        let ReplayPace { rate, concurrency, canary, pause_above } = new.pace;
        let what = (
            new.id,
            selection,
            new.mode.as_str(),
            &new.reason,
            &new.by,
            rate,
            concurrency,
            canary,
            pause_above,
        );
        let counts = serde_json::to_string(&job.counts).expect("JSON");
        let times = (job.created_at.as_micros(), job.updated_at.as_micros());
        lines.push(format!("job {what:?} {} {:?} {counts} {times:?}", job.state.as_str(), job.note));
        for item in ledger.items(new.id, page()).await.expect("items").items {
            let what = (item.delivery, item.letter, item.event, &item.target, item.state.as_str());
            lines.push(format!("item {what:?} {:?} {:?}", item.new_event, item.error));
        }
        let plan = ledger.plan(new.selection.clone(), new.mode, targets()).await.expect("a plan");
        lines.push(format!("plan {}", serde_json::to_string(&plan).expect("JSON")));
    }
    for line in ledger.audit_log(None, page()).await.expect("the audit log").items {
        let AuditLine { who, action, subject, reason } = &line.line;
        lines.push(format!("audit {:?}", (line.at.as_micros(), who, action, subject, reason)));
    }
    for number in [1, 20, 21, 22, 24, 60] {
        let state = ledger.find(key(number)).await.expect("the state of a key");
        let holder =
            state.holder.map(|held| (held.event, held.fingerprint.as_bytes().to_owned(), held.expired));
        lines.push(format!("key {number} {} {holder:?}", state.generation.get()));
    }
    let keyless =
        ledger.find_keyless(key(20), Generation::FIRST, dedupe(20).fingerprint).await.expect("an answer");
    let found =
        ledger.find_events(Some("req-1".to_owned()), Some(key(20)), Vec::new()).await.expect("an answer");
    let unmirrored = ledger.unmirrored("orders".to_owned(), 10).await.expect("an answer");
    let unmirrored: Vec<LetterId> = unmirrored.iter().map(|letter| letter.id).collect();
    let running = ledger.running().await.expect("an answer");
    lines.push(format!("found {keyless:?} {found:?} {unmirrored:?} {running:?}"));
    let totals = ledger.totals().await.expect("totals");
    for (target, state, number) in totals.deliveries {
        if state != DeliveryState::Done {
            lines.push(format!("total {target} {} {number}", state.as_str()));
        }
    }
    for (status, number) in totals.letters {
        lines.push(format!("total {} {number}", status.as_str()));
    }
    lines
}

/// Works on the data to its end: everything that is due is delivered, jobs end, keys name what they named.
pub(super) async fn work(ledger: &dyn Ledger) {
    let tagged = EventFilter { tag: Some("vip".to_owned()), ..EventFilter::default() };
    let tagged = ledger.events(tagged, page()).await.expect("events").items;
    assert_eq!(tagged.iter().map(|event| event.new.id).collect::<Vec<_>>(), [run_id(24), run_id(20)]);

    let mut delivered = Vec::new();
    loop {
        let (worker, all) = ("worker-2".to_owned(), TARGETS.map(|target| (target.to_owned(), 10)).to_vec());
        let ask = Take { worker, targets: all, limit: 100, lease: YEARS };
        let taken = ledger.take(ask).await.expect("work is taken");
        if taken.is_empty() {
            break;
        }
        for work in taken {
            settle(ledger, &work, Settle::Done(ending(AttemptClass::Success))).await;
            delivered.push((work.target, work.attempt, work.crashes, work.job));
        }
    }
    delivered.sort();
    let mut expected = vec![
        ("as_new", 1, 0, Some(job_id(51))),
        // In order: the second and the third of their order key.
        ("crm", 1, 0, None),
        ("crm", 1, 0, None),
        ("lost", 2, 1, None),
        ("mail", 1, 0, None),
        ("replayed", 1, 0, Some(job_id(50))),
        ("retried", 2, 0, None),
    ];
    expected.extend([("run", 1, 0, None); 5]);
    let delivered: Vec<_> =
        delivered.iter().map(|(target, a, c, job)| (target.as_str(), *a, *c, *job)).collect();
    assert_eq!(delivered, expected);

    let job =
        ledger.order(job_id(52), JobOrder::Resume, String::new(), line("order")).await.expect("an order");
    assert_eq!((job.state, job.counts.pending), (JobState::Running, 1));
    ledger.release(job_id(52), 10).await.expect("it is released");
    end(ledger, "buried", Settle::Done(ending(AttemptClass::Success))).await;
    for (number, state) in
        [(50, JobState::Done), (51, JobState::Done), (52, JobState::Done), (53, JobState::Cancelled)]
    {
        let job = ledger.job(job_id(number)).await.expect("an answer").expect("a job");
        assert_eq!(job.state, state, "{number}");
    }
    let items = ledger.items(job_id(52), page()).await.expect("items").items;
    assert_eq!(items.iter().map(|item| item.state).collect::<Vec<_>>(), [ItemState::Replayed]);

    let again = |number, key| NewEvent { dedupe: Some(key), ..event(event_id(number), "mail") };
    let other = Dedupe { fingerprint: dedupe(60).fingerprint, ..dedupe(1) };
    let ended = Dedupe { generation: Some(Generation::FIRST), ..dedupe(21) };
    let answers = ledger
        .accept(vec![
            again(70, dedupe(1)),
            again(71, other),
            again(72, dedupe(21)),
            again(73, ended),
            again(74, dedupe(22)),
        ])
        .await
        .expect("answers");
    assert_eq!(
        answers,
        [
            Accepted::Cached(event_id(1)),
            Accepted::Conflict,
            Accepted::Cached(run_id(23)),
            Accepted::Stale,
            Accepted::First(event_id(74))
        ]
    );
    let reset = ledger.reset(key(20), line("reset")).await.expect("a key is reset");
    assert_eq!((reset.ended, reset.holder), (Generation::FIRST, Some(run_id(20))));

    let discarded = LetterFilter { status: Some(Status::Discarded), ..LetterFilter::default() };
    let discarded = ledger.letters(discarded, page()).await.expect("dead letters").items;
    assert_eq!(discarded.len(), 1);
    ledger.restore(discarded[0].id, line("restore")).await.expect("it is restored");
    let failed = Selection::Failed { limit: 100, tenant: None, targets: Vec::new(), signature: None };
    let plan = ledger.plan(failed, ReplayMode::Resume, targets()).await.expect("a plan");
    assert!(plan.iter().any(|planned| planned.letter == Some(discarded[0].id)), "{plan:?}");

    // The totals are kept with every change in one of the ledgers, and counted in the other.
    let totals = ledger.totals().await.expect("totals");
    for (status, number) in totals.letters {
        let filter = LetterFilter { status: Some(status), ..LetterFilter::default() };
        let found = ledger.letters(filter, page()).await.expect("dead letters").items.len();
        assert_eq!(found as u64, number, "{}", status.as_str());
    }
    assert!(ledger.sweep(Duration::ZERO, 1_000).await.expect("a sweep") > 0);
    assert!(ledger.event(event_id(2)).await.expect("an answer").is_none(), "it is swept");
    assert!(ledger.event(event_id(11)).await.expect("an answer").is_some(), "it still waits");
}
