//! Walks over all records, to list them and to sweep expired ones.
//!
//! A cluster has no index over its shards and Redis has no order, so both walk with SCAN, step by step, shard by
//! shard. SCAN guarantees to find a record that exists during the whole walk.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::task::JoinSet;

use super::Shared;
use super::address::Node;
use super::error::CallReach;
use super::script::{Script, ScriptReply, unexpected_reply};
use crate::key::KeyId;
use crate::record::Phase;
use crate::store::{Error, Page, Scan, Snapshot, Swept};
use crate::time::{Timestamp, instant};

/// How many keys the server visits in one step of a walk.
const STEP: usize = 1000;
/// How many ids a listing remembers between pages: 1 MiB of them.
const WINDOW: usize = 65_536;
/// How long it remembers them.
const WINDOW_LIVES: Duration = Duration::from_secs(60);
/// How many records are read concurrently.
const READ_AT_ONCE: usize = 128;
/// How many records one page reads, if few are in the requested phase.
const PAGE_READS: usize = 4096;

/// The ids that the last walk found, so that not every page needs its own walk.
#[derive(Debug, Default)]
pub(super) struct IdListing(tokio::sync::Mutex<Option<IdWindow>>);

/// All ids above `after`, up to the last one here; without a limit if the walk found no more.
#[derive(Debug)]
struct IdWindow {
    after: Option<KeyId>,
    ids: Vec<KeyId>,
    end: End,
    walked: Instant,
    /// Where pages of this walk continue, each once. No other walk hands out the same places: a listing that another
    /// process began after this walk must find what was added in between.
    handed_out: HashSet<KeyId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// There are more ids than fit.
    Cut,
    /// These are all.
    Last,
}

impl IdWindow {
    /// The ids after `after`, if this window contains them.
    fn following(&mut self, after: Option<KeyId>) -> Option<&[KeyId]> {
        let fresh = instant().saturating_duration_since(self.walked) < WINDOW_LIVES;
        // A listing from its beginning always starts a new walk: it must contain the current records.
        let own = after.is_some_and(|after| self.handed_out.remove(&after));
        if !own || after < self.after || !fresh {
            return None;
        }
        let start = self.ids.partition_point(|id| Some(*id) <= after);
        let rest = &self.ids[start..];
        (self.end == End::Last || !rest.is_empty()).then_some(rest)
    }
}

pub(super) async fn page(shared: &Shared, query: Scan) -> Result<Page, Error> {
    let (ids, end) = following(shared, query.after).await?;
    let mut page = Page::default();
    let mut looked_at = 0;
    for batch in ids.chunks(READ_AT_ONCE.min(query.limit.max(1))) {
        if page.items.len() >= query.limit || looked_at >= PAGE_READS {
            break;
        }
        for (id, snapshot) in read(shared, batch, query.phase).await? {
            if page.items.len() >= query.limit {
                break;
            }
            looked_at += 1;
            page.next = Some(id);
            let wanted = |snapshot: &Snapshot| query.phase.is_none_or(|phase| snapshot.phase() == phase);
            page.items.extend(snapshot.filter(wanted));
        }
    }
    match (page.next, ids.get(looked_at)) {
        (Some(last), Some(following)) => {
            let place = place_between(last, *following);
            page.next = Some(place);
            if let Some(window) = &mut *shared.listing.0.lock().await
                && place != last
            {
                window.handed_out.insert(place);
            }
        }
        (Some(_), None) if end == End::Last => page.next = None,
        _ => {}
    }
    Ok(page)
}

/// A random id after `last` and before `following`, if there is one; otherwise `last`. Ids are hashes, far apart.
fn place_between(last: KeyId, following: KeyId) -> KeyId {
    let [from, to] = [last, following].map(|id| u128::from_be_bytes(*id.as_bytes()));
    let gap = to.saturating_sub(from);
    KeyId::from_bytes((from + rand::random::<u128>().checked_rem(gap).unwrap_or(0)).to_be_bytes())
}

async fn following(shared: &Shared, after: Option<KeyId>) -> Result<(Vec<KeyId>, End), Error> {
    let mut window = shared.listing.0.lock().await;
    if let Some(known) = &mut *window {
        let end = known.end;
        if let Some(ids) = known.following(after) {
            return Ok(first_of(ids, end));
        }
    }
    let mut found = BTreeSet::new();
    let mut end = End::Last;
    let mut walk = KeyWalk::default();
    loop {
        let keys = walk.step(shared, STEP).await?;
        found.extend(keys.into_iter().filter(|id| after.is_none_or(|after| *id > after)));
        while found.len() > WINDOW {
            found.pop_last();
            end = End::Cut;
        }
        if walk.is_over() {
            break;
        }
    }
    let ids: Vec<KeyId> = found.into_iter().collect();
    let first = first_of(&ids, end);
    *window = Some(IdWindow { after, ids, end, walked: instant(), handed_out: HashSet::new() });
    Ok(first)
}

/// As many ids as one page reads, and the one after them.
fn first_of(ids: &[KeyId], end: End) -> (Vec<KeyId>, End) {
    match ids.split_at_checked(PAGE_READS + READ_AT_ONCE) {
        Some((first, rest)) if !rest.is_empty() => (first.to_vec(), End::Cut),
        _ => (ids.to_vec(), end),
    }
}

/// Reads the records that can be in `phase`, and preserves their order. Other ids are without a record.
async fn read(
    shared: &Shared,
    ids: &[KeyId],
    phase: Option<Phase>,
) -> Result<Vec<(KeyId, Option<Snapshot>)>, Error> {
    let possible = match phase {
        Some(phase) if phase.is_in_progress() => in_progress(shared, ids).await?,
        _ => ids.to_vec(),
    };
    let answers = each(shared, &possible, &shared.rules.usual, "read", CallReach::Read).await?;
    let mut found = HashMap::with_capacity(possible.len());
    for (id, answer) in possible.into_iter().zip(answers) {
        let mut answer = ScriptReply::new(answer)?;
        let now = Timestamp::from_micros(answer.number()?);
        if !answer.is_over() {
            found.insert(id, Snapshot { id, record: answer.record()?, now });
        }
    }
    Ok(ids.iter().map(|id| (*id, found.remove(id))).collect())
}

/// The records that are stored as claimed or begun. Reads two bytes of each record: nearly all of them are done, and
/// their outcomes can be large.
async fn in_progress(shared: &Shared, ids: &[KeyId]) -> Result<Vec<KeyId>, Error> {
    let heads = ids.iter().map(|id| {
        let mut head = Cmd::new();
        head.arg("GETRANGE").arg(shared.names.record(*id)).arg(0).arg(1);
        head
    });
    let heads = shared.query_all(heads).await?;
    let is_in_progress =
        |head: &Value| matches!(head, Value::BulkString(head) if matches!(head[..], [_, 2 | 3]));
    Ok(ids.iter().zip(heads).filter(|(_, head)| is_in_progress(head)).map(|(id, _)| *id).collect())
}

/// Calls the script for each of some records concurrently, and preserves their order.
async fn each(
    shared: &Shared,
    ids: &[KeyId],
    script: &Arc<Script>,
    command: &'static str,
    sent: CallReach,
) -> Result<Vec<Value>, Error> {
    let numbered = shared.link.connection().await?;
    let mut calls = JoinSet::new();
    for (place, id) in ids.iter().enumerate() {
        let (mut numbered, link) = (numbered.clone(), Arc::clone(&shared.link));
        let (key, script) = (shared.names.record(*id), Arc::clone(script));
        calls.spawn(async move {
            let answer = link.call(&mut numbered, &script, &key, &[command.as_bytes().to_vec()], sent).await;
            answer.map(|answer| (place, answer))
        });
    }
    let mut answers = Vec::with_capacity(ids.len());
    while let Some(done) = calls.join_next().await {
        answers.push(done.map_err(|_| unexpected_reply("was not waited for"))??);
    }
    answers.sort_unstable_by_key(|(place, _)| *place);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

impl Shared {
    /// Sends these commands concurrently, and preserves their order.
    pub(super) async fn query_all(
        &self,
        commands: impl Iterator<Item = Cmd> + Send,
    ) -> Result<Vec<Value>, Error> {
        let numbered = self.link.connection().await?;
        let mut calls = JoinSet::new();
        for (place, command) in commands.enumerate() {
            let (mut numbered, link) = (numbered.clone(), Arc::clone(&self.link));
            calls.spawn(async move {
                link.query_on(&mut numbered, &command, CallReach::Read).await.map(|value| (place, value))
            });
        }
        let mut answers = Vec::with_capacity(calls.len());
        while let Some(done) = calls.join_next().await {
            answers.push(done.map_err(|_| unexpected_reply("was not waited for"))??);
        }
        answers.sort_unstable_by_key(|(place, _)| *place);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }
}

/// A walk over all keys of all shards.
#[derive(Debug, Default)]
pub(super) struct KeyWalk {
    /// The keys to find; those of records by default.
    pattern: Option<String>,
    /// The shard and the position in it; `None` before the first step.
    at: Option<(usize, Vec<u8>)>,
    nodes: Vec<Node>,
}

impl KeyWalk {
    /// A walk over other keys than those of records.
    pub(super) fn over(pattern: String) -> Self {
        Self { pattern: Some(pattern), ..Self::default() }
    }

    pub(super) fn is_over(&self) -> bool {
        self.at.as_ref().is_some_and(|(node, _)| *node >= self.nodes.len())
    }

    pub(super) async fn step(&mut self, shared: &Shared, count: usize) -> Result<Vec<KeyId>, Error> {
        let keys = self.step_keys(shared, count).await?;
        Ok(keys.iter().filter_map(|key| shared.names.id(key)).collect())
    }

    pub(super) async fn step_keys(&mut self, shared: &Shared, count: usize) -> Result<Vec<Vec<u8>>, Error> {
        let mut numbered = shared.link.connection().await?;
        if self.at.is_none() {
            self.nodes = match numbered.wire.primaries().await {
                Ok(nodes) => nodes,
                Err(error) => return Err(shared.link.failed(error, numbered.number, CallReach::Read)),
            };
        }
        let (node, cursor) = self.at.clone().unwrap_or((0, b"0".to_vec()));
        let Some(at) = self.nodes.get(node) else { return Ok(Vec::new()) };
        let mut scan = redis::cmd("SCAN");
        let pattern = self.pattern.clone().unwrap_or_else(|| shared.names.records());
        scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(count);
        let answer = match numbered.wire.query_node(scan, at).await {
            Ok(answer) => answer,
            Err(error) => return Err(shared.link.failed(error, numbered.number, CallReach::Read)),
        };
        let Value::Array(parts) = answer else { return Err(unexpected_reply("is not a SCAN result")) };
        let mut parts = parts.into_iter();
        let (Some(Value::BulkString(next)), Some(Value::Array(keys))) = (parts.next(), parts.next()) else {
            return Err(unexpected_reply("is not a SCAN result"));
        };
        self.at = Some(if next == b"0" { (node + 1, next) } else { (node, next) });
        let keys = keys.into_iter().filter_map(|key| match key {
            Value::BulkString(key) => Some(key),
            _ => None,
        });
        Ok(keys.collect())
    }
}

/// The position of this process's sweep in its round.
#[derive(Debug, Default)]
pub(super) struct Sweeper(tokio::sync::Mutex<Round>);

#[derive(Debug, Default)]
struct Round {
    walk: KeyWalk,
    /// Found by the last step, and not read yet.
    waiting: VecDeque<KeyId>,
}

/// Continues the sweep from the end of the last call. Redis expires most records by itself. This handles expired
/// outcomes whose key is still known, and lapsed claims that were never claimed again.
pub(super) async fn sweep(shared: &Shared, limit: usize) -> Result<Swept, Error> {
    let mut round = shared.sweeper.0.lock().await;
    let mut swept = Swept { more: true, ..Swept::default() };
    let mut looked_at = 0;
    while looked_at < limit {
        if round.waiting.is_empty() {
            if round.walk.is_over() {
                *round = Round::default();
                swept.more = false;
                break;
            }
            let found = round.walk.step(shared, limit.clamp(1, STEP)).await?;
            round.waiting.extend(found);
        }
        let batch: Vec<KeyId> = {
            let count = round.waiting.len().min(limit - looked_at).min(READ_AT_ONCE);
            round.waiting.drain(..count).collect()
        };
        looked_at += batch.len();
        for answer in each(shared, &batch, shared.rules.when_full(), "sweep", CallReach::Write).await? {
            match ScriptReply::new(answer)?.text()?.as_str() {
                "removed" => swept.removed += 1,
                "shrunk" => swept.shrunk += 1,
                _ => {}
            }
        }
    }
    Ok(swept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_between_two_ids_is_the_start_of_the_second() {
        let id = |number: u128| KeyId::from_bytes(number.to_be_bytes());
        for (last, following) in [(0, u128::MAX), (7, 9), (u128::MAX - 2, u128::MAX)] {
            for _ in 0..100 {
                let place = place_between(id(last), id(following));
                assert!(id(last) <= place && place < id(following), "{place:?}");
            }
        }
        assert_eq!(place_between(id(7), id(8)), id(7), "there is none");
        let of_two_walks = [(); 2].map(|()| place_between(id(0), id(u128::MAX)));
        assert_ne!(of_two_walks[0], of_two_walks[1]);
    }
}
