//! What every list and filter of the API reads, for the tests of both ledgers: a bounded number of rows, whatever is in the
//! tables and whatever the filter finds.

use super::page::{LOOKED_AT, before_all};
use super::{Database, ListStatements, RowKey, Value};
use crate::delivery::DeliveryState;
use crate::id::{EventId, EventKind};
use crate::ledger::{DeliveryFilter, EventFilter, LetterFilter};
use crate::letter::Status;

/// The newest rows have common values; a few of the oldest have rare ones, so that a filter for them finds nothing for long.
pub(crate) const COMMON: &str = "common";
pub(crate) const RARE: &str = "rare";

/// The id of an event, of its delivery and of its dead letter, which has common values. Their ids are numbers from 1 on.
const EXISTING: u128 = 20_006;

/// The job of the tests, with an item for each dead letter.
const JOB: [u8; 16] = [0; 16];

/// How many items the pages of the tests have.
const ITEMS: i64 = 100;

/// No list reads more rows than this, in all its statements.
pub(crate) const BOUND: u64 = 4 * 4_096 + 1_000;

/// How much the tests write: events with a delivery each, and dead letters.
pub(crate) fn sizes() -> (u64, u64) {
    if std::env::var_os("SEMEL_PROVE").is_some_and(|value| value != "0") {
        (1_000_000, 100_000)
    } else {
        (60_000, 30_000)
    }
}

/// A statement with its parameters.
#[derive(Debug)]
pub(crate) struct PlannedStatement {
    /// The list and its filter.
    pub(crate) name: String,
    pub(crate) sql: &'static str,
    pub(crate) with: Vec<Value<'static>>,
}

/// Nothing, a common value, a rare one.
fn values() -> [Option<&'static str>; 3] {
    [None, Some(COMMON), Some(RARE)]
}

fn owned(value: Option<&str>) -> Option<String> {
    value.map(str::to_owned)
}

/// A list with a filter.
pub(crate) struct FilteredList {
    pub(crate) name: String,
    pub(crate) statements: ListStatements,
    start: Value<'static>,
    parts: Vec<Value<'static>>,
}

impl FilteredList {
    /// The statement that finds the end of the first page, if there is one.
    pub(crate) fn end(&self) -> Option<PlannedStatement> {
        let with = [&[self.start.clone(), LOOKED_AT.into()], &self.parts[..]].concat();
        let name = format!("the end of {}", self.name);
        self.statements.end.map(|sql| PlannedStatement { name, sql, with })
    }

    /// The statement that reads the first page, which ends with this row.
    pub(crate) fn rows(&self, end: Option<&RowKey>) -> PlannedStatement {
        let end = end.map_or_else(|| before_all(&self.start), RowKey::value);
        let with = [&[self.start.clone(), (ITEMS + 1).into()], &self.parts[..], &[end]].concat();
        PlannedStatement { name: self.name.clone(), sql: self.statements.rows, with }
    }
}

/// Every list with every combination of its filters, over common and rare values.
pub(crate) fn lists<D: Database>(start_of_deliveries: &Value<'static>) -> Vec<FilteredList> {
    let mut all = Vec::new();
    let mut add = |name: String, statements, start: &Value<'static>, parts| {
        all.push(FilteredList { name, statements, start: start.clone(), parts });
    };
    let newest = Value::Integer(i64::MAX);
    for (one, two, three) in combinations() {
        for kind in [None, Some(EventKind::Event), Some(EventKind::Run)] {
            let filter = EventFilter { kind, tenant: owned(one), event_type: owned(two), tag: owned(three) };
            let parts = vec![kind.map(EventKind::as_str).into(), one.into(), two.into(), three.into()];
            add(format!("events {filter:?}"), (D::SQL.events)(&filter), &newest, parts);
        }
        for status in [None, Some(Status::Discarded), Some(Status::Pending)] {
            let filter =
                LetterFilter { status, tenant: owned(one), target: owned(two), signature: owned(three) };
            let parts = vec![one.into(), two.into(), status.map(Status::as_str).into(), three.into()];
            add(format!("dead letters {filter:?}"), (D::SQL.letters)(&filter), &newest, parts);
        }
    }
    let event = EventId::from_bytes(EventKind::Event, EXISTING.to_be_bytes());
    for (target, tenant, event) in values()
        .into_iter()
        .flat_map(|one| values().into_iter().map(move |two| (one, two)))
        .flat_map(|(one, two)| [None, Some(event)].map(|event| (one, two, event)))
    {
        for states in states() {
            let names = Value::Texts(states.iter().map(|state| state.as_str()).collect());
            let filter = DeliveryFilter { event, target: owned(target), tenant: owned(tenant), states };
            let parts = vec![target.into(), tenant.into(), names, event.map(EventId::to_bytes).into()];
            let list = (D::SQL.deliveries)(&filter);
            add(format!("deliveries {filter:?}"), list, start_of_deliveries, parts);
        }
    }
    all
}

fn combinations() -> impl Iterator<Item = (Option<&'static str>, Option<&'static str>, Option<&'static str>)>
{
    let pairs = values().into_iter().flat_map(|one| values().into_iter().map(move |two| (one, two)));
    pairs.flat_map(|(one, two)| values().into_iter().map(move |three| (one, two, three)))
}

/// None, each, and some together.
fn states() -> Vec<Vec<DeliveryState>> {
    let several = [
        vec![],
        vec![DeliveryState::Dlq, DeliveryState::Blocked],
        vec![DeliveryState::Idle, DeliveryState::RetryWait, DeliveryState::Running],
        vec![DeliveryState::Queued, DeliveryState::Running],
        vec![DeliveryState::Done, DeliveryState::Dlq],
    ];
    several.into_iter().chain(DeliveryState::ALL.map(|state| vec![state])).collect()
}

/// The lists without a filter of their own, and what else the API asks for.
pub(crate) fn others<D: Database>() -> Vec<PlannedStatement> {
    let newest = || Value::Integer(i64::MAX);
    let ids = || Value::Ids((EXISTING..EXISTING + 100).map(u128::to_be_bytes).collect());
    let id = || Value::from(EXISTING.to_be_bytes());
    let page = |more: Vec<Value<'static>>| [vec![newest(), (ITEMS + 1).into()], more].concat();
    let statement = |name: &str, sql, with| PlannedStatement { name: name.to_owned(), sql, with };
    vec![
        statement("audit", super::AUDIT_LOG, page(vec![])),
        statement("audit of a subject", super::AUDIT_LOG_OF, page(vec![COMMON.into()])),
        statement("replay jobs", D::SQL.jobs, page(vec![])),
        statement("a replay job", D::SQL.job, vec![JOB.into()]),
        statement("items of a job", super::ITEMS, vec![Value::Integer(-1), (ITEMS + 1).into(), JOB.into()]),
        statement("targets of a job", D::SQL.unfinished_targets, vec![JOB.into()]),
        statement("states of events", D::SQL.states_of, vec![ids()]),
        statement("deliveries of an event", D::SQL.deliveries_of, vec![id()]),
        statement("a delivery", D::SQL.delivery, vec![id()]),
        statement("attempts", D::SQL.attempts, vec![id()]),
        statement("a dead letter", D::SQL.letter, vec![id()]),
        statement(
            "events by other ids",
            D::SQL.find_events,
            vec![COMMON.into(), id(), id(), Value::Texts(vec![COMMON, RARE])],
        ),
        statement("the oldest due", D::SQL.oldest_due, vec![]),
    ]
}

/// The counts of `semel status` and of the metrics. They read an index, never the rows themselves.
pub(crate) fn totals<D: Database>() -> [PlannedStatement; 2] {
    let statement = |name: &str, sql| PlannedStatement { name: name.to_owned(), sql, with: vec![] };
    [
        statement("totals of deliveries", D::SQL.delivery_totals),
        statement("totals of dead letters", D::SQL.letter_totals),
    ]
}

/// The deliveries that `semel replay --status failed` finds, oldest first, with every combination of its filters.
pub(crate) fn failed<D: Database>() -> Vec<PlannedStatement> {
    let found = combinations().map(|(tenant, target, signature)| PlannedStatement {
        name: format!("failed {tenant:?} {target:?} {signature:?}"),
        sql: D::SQL.failed,
        with: vec![ITEMS.into(), tenant.into(), Value::Texts(target.into_iter().collect()), signature.into()],
    });
    found.collect()
}

/// The groups of dead letters. They look at no more than 100,000.
pub(crate) fn groups() -> Vec<PlannedStatement> {
    let mut all = Vec::new();
    for (tenant, target, signature) in combinations() {
        for status in [None, Some(Status::Discarded), Some(Status::Pending)] {
            let name = format!("groups {status:?} {tenant:?} {target:?} {signature:?}");
            let status = status.map(Status::as_str);
            let (sql, more, few) = match status {
                None => (super::GROUPS, super::MORE_LETTERS, vec![]),
                Some(_) => (super::GROUPS_IN_STATUS, super::MORE_LETTERS_IN_STATUS, vec![status.into()]),
            };
            let with = vec![status.into(), tenant.into(), target.into(), signature.into()];
            all.push(PlannedStatement { name: name.clone(), sql, with });
            all.push(PlannedStatement { name: format!("more than {name}"), sql: more, with: few });
        }
    }
    all
}
