//! What clients were told, and whether the end agrees with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::{Deployment, dead_letters, id_of, runs, show};
use crate::kit::Http;

/// What a client asked for.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Trigger { key: usize, variant: usize, waits: bool },
    Increment { run: String, number: usize },
    Cancel { run: String },
    Reset { key: usize },
}

/// What a client was told.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Received {
        status: u16,
        body: Value,
    },
    /// The answer was lost with its process, or was "come back later": it happened or not.
    Unknown,
    /// It cannot have happened.
    NotSent,
}

/// One call, with the times between which it happened.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) request: Request,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) reply: Reply,
}

/// All calls so far.
#[derive(Default)]
pub(super) struct History {
    clock: AtomicU64,
    operations: Mutex<Vec<Operation>>,
    /// The runs of each key that clients know.
    known: Mutex<BTreeMap<usize, Vec<String>>>,
}

/// What was seen, for the reader of a test's output.
#[derive(Debug, Default)]
pub(super) struct Summary {
    operations: usize,
    unknown: usize,
    runs: usize,
    cancelled: usize,
    conflicts: usize,
    increments: usize,
    resets: usize,
    buffered: usize,
    direct: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, unknown, runs, cancelled, conflicts, increments, resets, buffered, direct } =
            self;
        write!(
            f,
            "{operations} operations ({unknown} without an answer): {runs} runs ({buffered} buffered, {direct} not), {cancelled} cancelled, {increments} increments, \
             {resets} resets, {conflicts} conflicts"
        )
    }
}

/// A run as the ledger has it.
struct Run {
    variant: usize,
    status: String,
    metadata: BTreeMap<String, Value>,
    /// A worker died while it delivered the run.
    crashed: bool,
}

impl History {
    /// A time after all before.
    pub(super) fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    pub(super) fn add(&self, operation: Operation) {
        if let (Request::Trigger { key, .. }, Reply::Received { status: 200..=299, body }) =
            (&operation.request, &operation.reply)
        {
            let (mut known, id) = (self.known.lock(), id_of(body));
            let of_key = known.entry(*key).or_default();
            if !of_key.contains(&id) {
                of_key.push(id);
            }
        }
        self.operations.lock().push(operation);
    }

    /// A run of this key, if clients know one.
    pub(super) fn a_run_of(&self, key: usize, choice: usize) -> Option<String> {
        let known = self.known.lock();
        let of_key = known.get(&key)?;
        of_key.get(choice % of_key.len()).cloned()
    }

    /// Compares all that clients were told with how it ended.
    pub(super) fn check(&self, deployment: &Deployment, admin: &Http) -> Summary {
        let operations = self.operations.lock();
        let mut keys: BTreeMap<usize, KeyHistory> = BTreeMap::new();
        let mut changes: BTreeMap<String, RunHistory> = BTreeMap::new();
        let mut summary = Summary { operations: operations.len(), ..Summary::default() };
        for operation in operations.iter() {
            let unknown = matches!(operation.reply, Reply::Unknown);
            summary.unknown += usize::from(unknown);
            match &operation.request {
                Request::Trigger { key, variant, .. } => {
                    let status = match operation.reply {
                        Reply::Received { status, .. } => status,
                        Reply::Unknown | Reply::NotSent => 0,
                    };
                    summary.buffered += usize::from(status == 202);
                    summary.direct += usize::from(status == 201);
                    keys.entry(*key).or_default().add_trigger(operation, *variant);
                }
                Request::Reset { key } => keys.entry(*key).or_default().add_reset(operation),
                Request::Increment { run, number } => {
                    changes.entry(run.clone()).or_default().add_increment(operation, *number);
                }
                Request::Cancel { run } => changes.entry(run.clone()).or_default().add_cancel(operation),
            }
        }
        let mut ledger: BTreeMap<usize, BTreeMap<String, Run>> = BTreeMap::new();
        let mut done = BTreeSet::new();
        let executed: BTreeSet<String> =
            deployment.sink.seen().iter().map(|one| one.header("semel-event-id").to_owned()).collect();
        for listed in runs(admin) {
            let id = id_of(&listed);
            let (key, run) = read_run(&show(admin, &id), &id);
            match (run.status.as_str(), executed.contains(&id)) {
                ("done", true) => drop(done.insert(id.clone())),
                ("cancelled", false) => {}
                // It was taken from a worker that died, before it was cancelled.
                ("cancelled", true) if run.crashed => {}
                (status, executed) => {
                    let of_key = |operation: &&Operation| match &operation.request {
                        Request::Trigger { key: asked, .. } | Request::Reset { key: asked } => *asked == key,
                        Request::Increment { run, .. } | Request::Cancel { run } => *run == id,
                    };
                    let told: Vec<&Operation> = operations.iter().filter(of_key).collect();
                    let letters = dead_letters(admin);
                    panic!(
                        "{id} is {status}, executed: {executed}; dead letters {letters:?}; history {told:#?}"
                    )
                }
            }
            changes.remove(&id).unwrap_or_default().check(&id, &run);
            summary.cancelled += usize::from(run.status == "cancelled");
            summary.increments += run.metadata.len().saturating_sub(1);
            ledger.entry(key).or_default().insert(id, run);
        }
        assert_eq!(
            changes.keys().collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "changed runs that are nowhere"
        );
        assert_eq!(dead_letters(admin), Vec::<Value>::new());
        let unheard: Vec<&String> = executed.iter().filter(|id| !done.contains(*id)).collect();
        assert!(
            unheard.iter().all(|id| ledger.values().any(|runs| runs.contains_key(*id))),
            "the target took runs that are nowhere: {unheard:?}"
        );
        for (key, of_key) in &keys {
            let none = BTreeMap::new();
            of_key.check(*key, ledger.get(key).unwrap_or(&none));
            summary.conflicts += of_key.conflicts.len();
            summary.resets += of_key.resets.len();
        }
        let counted =
            [summary.buffered, summary.direct, summary.cancelled, summary.conflicts, summary.resets];
        assert!(counted.iter().all(|count| *count > 0), "everything happened: {summary}");
        summary.runs = ledger.values().map(BTreeMap::len).sum();
        assert!(ledger.keys().all(|key| keys.contains_key(key)), "runs of keys that nobody triggered");
        summary
    }
}

fn read_run(shown: &Value, id: &str) -> (usize, Run) {
    assert_eq!(shown["id"], json!(id), "no id leads to another run");
    let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let deliveries = shown["deliveries"].as_array().unwrap();
    assert_eq!(deliveries.len(), 1, "{shown}");
    let run = Run {
        variant: number(&shown["payload"]["variant"]),
        status: shown["status"].as_str().unwrap().to_owned(),
        metadata: shown["metadata"].as_object().unwrap().clone().into_iter().collect(),
        crashed: deliveries[0]["crashes"] != json!(0),
    };
    (number(&shown["payload"]["key"]), run)
}

/// What clients asked of one run.
#[derive(Default)]
struct RunHistory {
    acknowledged: BTreeSet<String>,
    perhaps: BTreeSet<String>,
    cancels: Vec<(u64, Cancel)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cancel {
    Acknowledged,
    Refused,
    Unknown,
}

impl RunHistory {
    fn add_increment(&mut self, operation: &Operation, number: usize) {
        let name = format!("op{number}");
        match &operation.reply {
            Reply::Received { status, body } => {
                assert_eq!(*status, 200, "{operation:?}");
                assert_eq!(body["metadata"][&name], 1, "{operation:?}");
                self.acknowledged.insert(name);
            }
            Reply::Unknown => drop(self.perhaps.insert(name)),
            Reply::NotSent => {}
        }
    }

    fn add_cancel(&mut self, operation: &Operation) {
        let cancel = match &operation.reply {
            Reply::Received { status: 200, body } => {
                assert_eq!(body["status"], "cancelled", "{operation:?}");
                Cancel::Acknowledged
            }
            Reply::Received { status: 409, .. } => Cancel::Refused,
            Reply::Received { .. } => panic!("{operation:?}"),
            Reply::Unknown => Cancel::Unknown,
            Reply::NotSent => return,
        };
        self.cancels.push((operation.end, cancel));
    }

    fn check(&self, id: &str, run: &Run) {
        let mut present: BTreeSet<String> = run.metadata.keys().cloned().collect();
        present.remove("n");
        let missing: Vec<&String> = self.acknowledged.difference(&present).collect();
        assert!(missing.is_empty(), "{id} lacks {missing:?}");
        let surplus: Vec<&String> = present
            .iter()
            .filter(|name| !self.acknowledged.contains(*name) && !self.perhaps.contains(*name))
            .collect();
        assert!(surplus.is_empty(), "{id} has {surplus:?}");
        for name in &present {
            assert_eq!(run.metadata[name], 1, "{id}: {name} is made once");
        }
        let sum = run.metadata.get("n").map_or(0, |n| n.as_u64().unwrap());
        assert_eq!(sum, present.len() as u64, "{id}: the sum of its increments");
        let count = |wanted| self.cancels.iter().filter(|(_, cancel)| *cancel == wanted).count();
        let (acknowledged, unknown) = (count(Cancel::Acknowledged), count(Cancel::Unknown));
        match run.status.as_str() {
            "cancelled" => {
                assert!(
                    acknowledged <= 1 && acknowledged + unknown >= 1,
                    "{id} was cancelled {acknowledged} times"
                );
            }
            _ => assert_eq!(acknowledged, 0, "{id} is {}, though it was cancelled", run.status),
        }
    }
}

/// What clients asked of one key.
#[derive(Default)]
struct KeyHistory {
    told: BTreeMap<String, RunAnswers>,
    /// Triggers that may have made a run: their payload, and when they began.
    perhaps: Vec<(usize, u64)>,
    /// Triggers that were told of another payload: their own, and when they began and ended.
    conflicts: Vec<(usize, u64, u64)>,
    resets: Vec<Reset>,
}

/// What clients were told of one run.
struct RunAnswers {
    variant: usize,
    first: usize,
    /// The end of the first call, and the start of the last call, that were answered with it: it held its key from one to the
    /// other.
    earliest_end: u64,
    latest_start: u64,
    earliest_start: u64,
}

#[derive(Clone, Copy)]
struct Reset {
    start: u64,
    end: u64,
    acknowledged: bool,
}

impl KeyHistory {
    fn add_trigger(&mut self, operation: &Operation, variant: usize) {
        let Operation { start, end, .. } = *operation;
        match &operation.reply {
            Reply::Received { status: status @ 200..=202, body } => {
                assert_eq!(*status == 200, body["cached"] == true, "{operation:?}");
                let told = self.told.entry(id_of(body)).or_insert(RunAnswers {
                    variant,
                    first: 0,
                    earliest_end: u64::MAX,
                    latest_start: 0,
                    earliest_start: u64::MAX,
                });
                assert_eq!(told.variant, variant, "one id, two payloads: {operation:?}");
                told.first += usize::from(*status != 200);
                told.earliest_end = told.earliest_end.min(end);
                told.latest_start = told.latest_start.max(start);
                told.earliest_start = told.earliest_start.min(start);
            }
            Reply::Received { status: 422, .. } => self.conflicts.push((variant, start, end)),
            Reply::Received { .. } => panic!("{operation:?}"),
            Reply::Unknown => self.perhaps.push((variant, start)),
            Reply::NotSent => {}
        }
    }

    fn add_reset(&mut self, operation: &Operation) {
        let Operation { start, end, .. } = *operation;
        match &operation.reply {
            Reply::Received { status: 200, .. } => self.resets.push(Reset { start, end, acknowledged: true }),
            Reply::Received { .. } => panic!("{operation:?}"),
            Reply::Unknown => self.resets.push(Reset { start, end: u64::MAX, acknowledged: false }),
            Reply::NotSent => {}
        }
    }

    fn check(&self, key: usize, ledger: &BTreeMap<String, Run>) {
        for (id, told) in &self.told {
            let run = ledger.get(id).unwrap_or_else(|| panic!("k{key}: {id} is nowhere"));
            assert_eq!(run.variant, told.variant, "k{key}: {id} has another payload");
            assert!(told.first <= 1, "k{key}: {} callers were first to trigger {id}", told.first);
        }
        // A run that nobody was told of, or that nobody was first to trigger, is that of a trigger whose answer was lost.
        for variant in [0, 1] {
            let untold =
                ledger.iter().filter(|(id, run)| run.variant == variant && !self.told.contains_key(*id));
            let without_first = self.told.values().filter(|told| told.variant == variant && told.first == 0);
            let perhaps = self.perhaps.iter().filter(|(asked, _)| *asked == variant).count();
            let unexplained = untold.count() + without_first.count();
            assert!(
                unexplained <= perhaps,
                "k{key}: {unexplained} runs without a first caller, {perhaps} lost answers"
            );
        }
        assert!(
            ledger.len() <= 1 + self.resets.len(),
            "k{key}: {} runs in {} generations",
            ledger.len(),
            1 + self.resets.len()
        );
        self.check_generations(key);
        self.check_conflicts(key);
    }

    /// There must be one order of runs and resets that explains all answers.
    fn check_generations(&self, key: usize) {
        for reset in self.resets.iter().filter(|reset| reset.acknowledged) {
            for (id, told) in &self.told {
                assert!(
                    !(told.earliest_end < reset.start && reset.end < told.latest_start),
                    "k{key}: {id} holds its key before and after a reset"
                );
            }
        }
        let all: Vec<&RunAnswers> = self.told.values().collect();
        let mut used = vec![false; self.resets.len()];
        let mut left: Vec<bool> = vec![true; all.len()];
        let ids: Vec<&String> = self.told.keys().collect();
        assert!(self.order(&all, &mut left, &mut used, None), "k{key}: no order of resets explains {ids:?}");
    }

    /// Whether the runs that are left can follow the last one and the reset before it.
    fn order(
        &self,
        all: &[&RunAnswers],
        left: &mut [bool],
        used: &mut [bool],
        last: Option<(usize, u64)>,
    ) -> bool {
        if left.iter().all(|left| !left) {
            return true;
        }
        for next in 0..all.len() {
            if !left[next] {
                continue;
            }
            let Some((last, after)) = last else {
                left[next] = false;
                if self.order(all, left, used, Some((next, 0))) {
                    return true;
                }
                left[next] = true;
                continue;
            };
            // A reset ends the last run after all its callers have begun, and before the first caller of the next one is answered.
            let (from, to) = (all[last].latest_start.max(after), all[next].earliest_end);
            for reset in 0..self.resets.len() {
                let Reset { start, end, .. } = self.resets[reset];
                let when = start.max(from);
                if used[reset] || when > end || when > to {
                    continue;
                }
                (used[reset], left[next]) = (true, false);
                if self.order(all, left, used, Some((next, when))) {
                    return true;
                }
                (used[reset], left[next]) = (false, true);
            }
        }
        false
    }

    /// A trigger is told of another payload while a run with another payload holds the key, or after a trigger with another
    /// payload lost its answer.
    fn check_conflicts(&self, key: usize) {
        for (variant, start, end) in &self.conflicts {
            let known = self.told.values().any(|told| {
                let ended =
                    self.resets.iter().filter(|reset| reset.acknowledged && reset.start >= told.earliest_end);
                let latest = ended.map(|reset| reset.end).min().unwrap_or(u64::MAX);
                told.variant != *variant && told.earliest_start <= *end && *start <= latest
            });
            let lost = self.perhaps.iter().any(|(asked, began)| asked != variant && began <= end);
            assert!(known || lost, "k{key}: a conflict without another payload");
        }
    }
}
