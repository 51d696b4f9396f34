//! Reading: one record or page by page, with time applied, swept or not.

use std::collections::{BTreeMap, BTreeSet};

use super::context::Context;
use super::expecting::{PHASES, accepted, ask, ask_and_begin, counted, outcome};
use crate::key::KeyId;
use crate::record::{Command, Mode, Phase};
use crate::store::{Page, Scan, Snapshot};

/// Without a write or a sweep, the phase follows the store's time.
pub async fn get_applies_time(context: &Context) {
    let terms = context.ending(Mode::Marked);
    let (lapses, doubts) = (context.key(), context.key());
    context.win(lapses, &ask(terms)).await;
    context.win(doubts, &ask_and_begin(terms)).await;
    let expires = context.done(&ask_and_begin(terms), &outcome("kept")).await.id;
    let phases =
        async || [context.phase(lapses).await, context.phase(doubts).await, context.phase(expires).await];
    assert_eq!(phases().await, [Phase::Claimed, Phase::Begun, Phase::Done]);
    context.pass(terms.lease).await;
    assert_eq!(phases().await, [Phase::Lapsed, Phase::InDoubt, Phase::Done]);
    context.pass(terms.retention + terms.grace - terms.lease).await;
    assert_eq!(phases().await, [Phase::Expired, Phase::InDoubt, Phase::Expired]);
    context.pass(terms.memory).await;
    assert_eq!(phases().await, [Phase::Vacant, Phase::InDoubt, Phase::Vacant]);
}

/// Pages are no longer than the limit, in the order of ids, and together contain every record once.
pub async fn scan_pages_in_order(context: &Context) {
    let mut ours = BTreeMap::new();
    for number in 0..57 {
        let placed = context.place(PHASES[number % PHASES.len()]).await;
        ours.insert(placed.id, context.record(placed.id).await);
    }
    for limit in [1, 10, 57, 1000] {
        let listed = scan_all(context, None, limit).await;
        let found: Vec<KeyId> =
            listed.iter().map(|item| item.id).filter(|id| ours.contains_key(id)).collect();
        assert_eq!(found, ours.keys().copied().collect::<Vec<_>>(), "our keys, with pages of {limit}");
        for item in listed {
            if let Some(record) = ours.get(&item.id) {
                assert_eq!(&counted(item), record, "a listed record is the record");
            }
        }
    }
    let from_here = *ours.keys().nth(20).expect("there are 57");
    let page = scan(context, Scan { phase: None, after: Some(from_here), limit: 5 }).await;
    assert!(page.items.iter().all(|item| item.id > from_here), "only what comes after");
}

/// A listing of one phase contains the records of that phase and no other.
pub async fn scan_filters_by_phase(context: &Context) {
    let mut ours = Vec::new();
    for _ in 0..3 {
        for phase in PHASES {
            ours.push((phase, context.place(phase).await.id));
        }
    }
    for phase in PHASES {
        let expected: BTreeSet<KeyId> =
            ours.iter().filter(|(of, _)| *of == phase).map(|(_, id)| *id).collect();
        let listed = ids(&ours, scan_all(context, Some(phase), 2).await);
        assert_eq!(listed, expected, "the records that are {phase:?}");
    }
}

/// The phase of a filter is the current phase, not the stored state.
pub async fn scan_applies_time(context: &Context) {
    let terms = context.ending(Mode::Marked);
    let (lapses, doubts) = (context.key(), context.key());
    context.win(lapses, &ask(terms)).await;
    context.win(doubts, &ask_and_begin(terms)).await;
    let ours = [(Phase::Lapsed, lapses), (Phase::InDoubt, doubts)];
    assert_eq!(ids(&ours, scan_all(context, Some(Phase::Claimed), 10).await), BTreeSet::from([lapses]));
    assert_eq!(ids(&ours, scan_all(context, Some(Phase::InDoubt), 10).await), BTreeSet::new());
    context.pass(terms.lease).await;
    for (phase, id) in ours {
        assert_eq!(ids(&ours, scan_all(context, Some(phase), 10).await), BTreeSet::from([id]), "{phase:?}");
    }
    assert_eq!(ids(&ours, scan_all(context, Some(Phase::Claimed), 10).await), BTreeSet::new());
    assert_eq!(ids(&ours, scan_all(context, Some(Phase::Begun), 10).await), BTreeSet::new());
}

/// A record that exists all the time is listed once, while others are written and removed.
pub async fn scan_misses_nothing_while_others_write(context: &Context) {
    let terms = context.lasting(Mode::Marked);
    let mut ours = Vec::new();
    for _ in 0..40 {
        ours.push((Phase::Done, context.place(Phase::Done).await.id));
    }
    let expected: BTreeSet<KeyId> = ours.iter().map(|(_, id)| *id).collect();
    let mut seen = Vec::new();
    let mut query = Scan { phase: None, after: None, limit: 7 };
    loop {
        let page = scan(context, query).await;
        seen.extend(page.items.iter().map(|item| item.id).filter(|id| expected.contains(id)));
        for _ in 0..5 {
            let id = context.key();
            let grant = context.win(id, &ask(terms)).await.grant;
            accepted(context.apply(id, Command::Release(grant)).await);
        }
        let Some(next) = page.next else { break };
        query.after = Some(next);
    }
    assert_eq!(seen, expected.into_iter().collect::<Vec<_>>(), "each once and in order");
}

async fn scan(context: &Context, query: Scan) -> Page {
    context.store().scan(query).await.unwrap_or_else(|error| panic!("scan failed: {error}"))
}

/// All pages, one after the other; checks their length and order.
pub(super) async fn scan_all(context: &Context, phase: Option<Phase>, limit: usize) -> Vec<Snapshot> {
    let mut all: Vec<Snapshot> = Vec::new();
    let mut query = Scan { phase, after: None, limit };
    loop {
        let page = scan(context, query).await;
        assert!(page.items.len() <= limit, "a page of {}, asked for {limit}", page.items.len());
        for item in page.items {
            assert!(all.last().is_none_or(|last| last.id < item.id), "items are in the order of their ids");
            assert!(phase.is_none_or(|phase| item.phase() == phase), "{:?} among {phase:?}", item.phase());
            all.push(item);
        }
        let Some(next) = page.next else { return all };
        assert!(query.after.is_none_or(|after| after < next), "the next page starts after this one");
        assert!(all.last().is_none_or(|last| last.id <= next), "the next page starts after the last item");
        query.after = Some(next);
    }
}

fn ids(ours: &[(Phase, KeyId)], listed: Vec<Snapshot>) -> BTreeSet<KeyId> {
    listed.into_iter().map(|item| item.id).filter(|id| ours.iter().any(|(_, our)| our == id)).collect()
}
