//! How attempts end, and what else that ends: dead letters, items of replay jobs, the wait of the next in a lane.
//!
//! Most attempts concern nothing but their delivery: one statement for all of them. The token tells which ones do not
//! (see [`take::IN_A_LANE`]); these, and what becomes a dead letter, go in a transaction.

use super::database::{Db, Prepared};
use super::fault::Fault;
use super::ids::Ids;
use super::link::{Shape, Shared};
use super::take;
use super::values::{micros, plain};
use crate::delivery::{AttemptClass, DeliveryState, Ending, Holding, LeaseResult, Settle};
use crate::ledger::Error;
use crate::ledger::sql::jobs;
use crate::letter::{Cause, PARKED_AFTER, Signature};
use crate::replay::ItemState;

/// Writes the ends of attempts, and names what was written. A deferred one does not count.
const SETTLE: &str = r"
WITH settled AS (
  UPDATE ledger_delivery AS d SET state = s.state, waits = s.state = 'retry_wait', lease_until = NULL,
    attempts = d.attempts - (s.class = 'deferred')::integer,
    due_at = CASE WHEN s.state = 'retry_wait'
      THEN least(statement_timestamp() + s.delay * interval '1 microsecond', d.deliver_until) ELSE d.due_at END,
    completed_at = CASE WHEN s.state = 'retry_wait' THEN NULL ELSE statement_timestamp() END,
    error = CASE WHEN s.class = 'deferred' AND s.state = 'retry_wait' THEN d.error WHEN s.class = 'success' THEN NULL
      ELSE s.error END,
    letter = CASE WHEN s.state = 'dlq' THEN coalesce(d.letter, s.letter) ELSE d.letter END
  FROM unnest($1::bytea[], $2::bytea[], $3::text[], $4::text[], $5::integer[], $6::text[], $7::text[], $8::bigint[],
    $9::bigint[], $10::bytea[]) WITH ORDINALITY
    AS s(id, token, state, class, status, error, excerpt, retry_after, delay, letter, n)
  WHERE d.id = s.id AND d.token = s.token AND d.state = 'running'
  RETURNING s.n, d.id, d.last_attempt, s.class, s.status, s.error, s.excerpt, s.retry_after
), ended AS (
  UPDATE ledger_attempt AS a SET ended_at = statement_timestamp(), class = s.class, status = s.status, error = s.error,
    excerpt = s.excerpt, retry_after = s.retry_after
  FROM settled AS s WHERE a.delivery = s.id AND a.number = s.last_attempt
)
SELECT n FROM settled";

/// Which of those that were not written had been written before, by an earlier try of the same call.
const SAID_BEFORE: &str = r"
SELECT s.n FROM unnest($1::bytea[], $2::bytea[], $3::text[]) WITH ORDINALITY AS s(id, token, state, n)
  JOIN ledger_delivery AS d ON d.id = s.id AND d.token = s.token AND d.state = s.state";

/// Before anything in them changes. Sorted, so that two settles cannot wait for each other.
const LOCK_LANES_OF: &str = r"
SELECT pg_advisory_xact_lock(l.lane) FROM (
  SELECT DISTINCT lane FROM ledger_delivery WHERE id = ANY($1) AND lane IS NOT NULL ORDER BY lane OFFSET 0) AS l";

/// The next of each lane waits to be taken, where the one before it has ended.
pub(super) const NEXT_IN_LANES_OF: &str = r"
UPDATE ledger_delivery AS d SET waits = true
FROM (SELECT DISTINCT lane FROM ledger_delivery WHERE id = ANY($1) AND lane IS NOT NULL) AS l, LATERAL (
  SELECT f.id FROM ledger_delivery AS f WHERE f.lane = l.lane AND f.state NOT IN ('done', 'dlq', 'cancelled')
  ORDER BY f.number LIMIT 1) AS n
WHERE d.id = n.id AND NOT d.waits AND d.state IN ('idle', 'queued', 'retry_wait', 'replaying')";

/// Ends the items that released these deliveries. Where the delivery is of the new event of an item, the letter that it
/// was made of ends with it: the new event carries the story on.
pub(super) const END_ITEMS: &str = r"
WITH ended AS (
  UPDATE ledger_item AS i SET state = s.state, error = s.error
  FROM unnest($1::bytea[], $2::text[], $3::text[]) AS s(id, state, error) JOIN ledger_delivery AS d ON d.id = s.id
  WHERE i.job = d.job AND i.position = d.item AND i.state = 'released'
  RETURNING i.job, i.letter, i.new_event IS NOT NULL AS as_new, s.id, s.state
), original AS (
  UPDATE ledger_dead_letter AS l SET status = CASE e.state WHEN 'replayed' THEN 'replayed' ELSE 'discarded' END,
    updated_at = statement_timestamp()
  FROM ended AS e WHERE e.as_new AND l.id = e.letter AND l.status = 'replaying'
)
SELECT DISTINCT job FROM ended";

const LETTERS_REPLAYED: &str = r"
UPDATE ledger_dead_letter AS l SET status = 'replayed', updated_at = statement_timestamp()
FROM ledger_delivery AS d WHERE d.id = ANY($1) AND l.id = d.letter AND l.status = 'replaying'";

/// Writes the dead letters of deliveries; one that has a letter already is pending again, or parked. The signature comes
/// without its target, which only the table knows. $5: after how many failed replays it is parked.
const BURY: &str = r"
INSERT INTO ledger_dead_letter AS l (id, tenant, event, delivery, target, event_type, stream, message, content_type, headers, cause,
  error, signature, status, attempts, last_attempt_at, copy_of, created_at, updated_at)
SELECT d.letter, d.tenant, d.event, d.id, d.target, e.event_type,
  CASE WHEN e.origin = 'stream' THEN e.origin_name END, CASE WHEN e.origin = 'stream' THEN e.origin_message END,
  e.content_type, e.headers, coalesce(s.cause, (SELECT k.cause FROM ledger_dead_letter AS k WHERE k.id = d.letter)), s.error,
  d.target || ' ' || coalesce(s.cause, (SELECT k.cause FROM ledger_dead_letter AS k WHERE k.id = d.letter)) || s.signature,
  'pending', (SELECT count(*) FROM ledger_attempt AS a WHERE a.delivery = d.id AND a.class IS DISTINCT FROM 'deferred'),
  CASE WHEN d.last_attempt > 0 THEN statement_timestamp() END,
  (SELECT i.letter FROM ledger_item AS i WHERE i.job = d.job AND i.position = d.item AND i.new_event IS NOT NULL),
  statement_timestamp(), statement_timestamp()
FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[]) AS s(id, cause, error, signature)
  JOIN ledger_delivery AS d ON d.id = s.id JOIN ledger_event AS e ON e.id = d.event
WHERE d.letter IS NOT NULL
ON CONFLICT (id) DO UPDATE SET cause = excluded.cause, error = excluded.error, signature = excluded.signature,
  attempts = excluded.attempts, last_attempt_at = excluded.last_attempt_at, failed_replays = l.failed_replays + 1,
  status = CASE WHEN l.failed_replays + 1 >= $5 THEN 'parked' ELSE 'pending' END, updated_at = excluded.updated_at";

pub(super) async fn settle(
    shared: &Shared,
    settled: &[(Holding, Settle)],
) -> Result<Vec<LeaseResult>, Error> {
    if settled.is_empty() {
        return Ok(Vec::new());
    }
    let words = Words::new(&shared.ids, settled);
    let shape = if words.concerns_more() { Shape::Transaction } else { Shape::Statement };
    let kept = shared.call(shape, &words, |db, words| Box::pin(write(db, words))).await?;
    let mut answers = vec![LeaseResult::Lost; settled.len()];
    keep(&mut answers, &kept);
    if kept.len() < settled.len() {
        let before = shared.call(Shape::Read, &words, |db, words| Box::pin(said_before(db, words))).await?;
        keep(&mut answers, &before);
    }
    if words.gives_back() {
        shared.news.tell();
    }
    Ok(answers)
}

fn keep(answers: &mut [LeaseResult], kept: &[usize]) {
    for n in kept {
        if let Some(answer) = answers.get_mut(*n) {
            *answer = LeaseResult::Kept;
        }
    }
}

async fn said_before(db: &mut Db<'_>, words: &Words<'_>) -> Result<Vec<usize>, Fault> {
    let query = db.query(SAID_BEFORE).bind(words.ids()).bind(words.tokens()).bind(words.states());
    Ok(indexes(&db.fetch(query).await?))
}

/// Indexes of what PostgreSQL counts from 1.
fn indexes(ordinals: &[i64]) -> Vec<usize> {
    ordinals.iter().map(|n| usize::try_from(*n).unwrap_or(0).wrapping_sub(1)).collect()
}

async fn write(db: &mut Db<'_>, words: &Words<'_>) -> Result<Vec<usize>, Fault> {
    let in_lanes: Vec<[u8; 16]> = words.all.iter().filter(|word| word.in_a_lane()).map(Word::id).collect();
    if !in_lanes.is_empty() {
        db.execute(db.query(LOCK_LANES_OF).bind(in_lanes.as_slice())).await?;
    }
    let kept = indexes(&db.fetch(words.bind(db.query(SETTLE))).await?);
    if words.concerns_more() {
        let written: Vec<&Word<'_>> = kept.iter().filter_map(|n| words.all.get(*n)).collect();
        follow_up(db, &written).await?;
        if !in_lanes.is_empty() {
            db.execute(db.query(NEXT_IN_LANES_OF).bind(in_lanes)).await?;
        }
    }
    Ok(kept)
}

/// Writes what else has ended with these attempts.
async fn follow_up(db: &mut Db<'_>, written: &[&Word<'_>]) -> Result<(), Fault> {
    let buried: Vec<&&Word<'_>> = written
        .iter()
        .filter(|word| {
            word.state == DeliveryState::Dlq || (word.state == DeliveryState::Blocked && word.replayed())
        })
        .collect();
    if !buried.is_empty() {
        let query = db
            .query(BURY)
            .bind(buried.iter().map(|word| word.id()).collect::<Vec<_>>())
            .bind(buried.iter().map(|word| word.cause.map(Cause::as_str)).collect::<Vec<_>>())
            .bind(buried.iter().map(|word| word.error.as_str()).collect::<Vec<_>>())
            .bind(buried.iter().map(|word| word.signature()).collect::<Vec<_>>())
            .bind(i32::try_from(PARKED_AFTER).unwrap_or(i32::MAX));
        db.execute(query).await?;
    }
    let replayed: Vec<&&Word<'_>> =
        written.iter().filter(|word| word.replayed() && word.state != DeliveryState::RetryWait).collect();
    if replayed.is_empty() {
        return Ok(());
    }
    let done: Vec<[u8; 16]> =
        replayed.iter().filter(|word| word.state == DeliveryState::Done).map(|word| word.id()).collect();
    if !done.is_empty() {
        db.execute(db.query(LETTERS_REPLAYED).bind(done)).await?;
    }
    let query = db
        .query(END_ITEMS)
        .bind(replayed.iter().map(|word| word.id()).collect::<Vec<_>>())
        .bind(replayed.iter().map(|word| word.item_end().0).collect::<Vec<_>>())
        .bind(replayed.iter().map(|word| word.item_end().1).collect::<Vec<_>>());
    let jobs: Vec<[u8; 16]> = db.fetch(query).await?;
    if jobs.is_empty() { Ok(()) } else { jobs::end(db, jobs).await }
}

/// What a worker says, ready for its columns.
struct Word<'a> {
    holding: Holding,
    state: DeliveryState,
    class: AttemptClass,
    ending: Option<&'a Ending>,
    error: String,
    excerpt: String,
    delay: i64,
    cause: Option<Cause>,
    /// The letter it becomes, unless it has one.
    letter: Option<[u8; 16]>,
}

impl<'a> Word<'a> {
    fn new(ids: &Ids, holding: Holding, settle: &'a Settle) -> Self {
        let (ending, delay, cause) = match settle {
            Settle::Done(ending) | Settle::Block(ending) => (Some(ending), None, None),
            Settle::Retry(ending, delay) => (Some(ending), Some(*delay), None),
            Settle::Defer(delay) => (None, Some(*delay), None),
            Settle::Bury(ending, cause) => (Some(ending), None, Some(*cause)),
        };
        Self {
            holding,
            state: settle.step().to(),
            class: ending.map_or(AttemptClass::Deferred, |ending| ending.class),
            ending,
            error: ending.map(|ending| plain(&ending.error)).unwrap_or_default(),
            excerpt: ending.map(|ending| plain(&ending.excerpt)).unwrap_or_default(),
            delay: delay.map_or(0, micros),
            cause,
            letter: cause.map(|_| ids.letter().to_bytes()),
        }
    }

    fn id(&self) -> [u8; 16] {
        self.holding.delivery.to_bytes()
    }

    fn in_a_lane(&self) -> bool {
        self.holding.token & take::IN_A_LANE != 0
    }

    fn replayed(&self) -> bool {
        self.holding.token & take::REPLAYED != 0
    }

    /// What becomes of the item that released it, and why.
    fn item_end(&self) -> (&'static str, Option<&str>) {
        match self.state {
            DeliveryState::Done => (ItemState::Replayed.as_str(), None),
            _ => (ItemState::FailedAgain.as_str(), Some(self.error.as_str())),
        }
    }

    fn status(&self) -> Option<u16> {
        self.ending.and_then(|ending| ending.status)
    }

    /// The signature from behind its cause: the part that does not need the delivery's row.
    fn signature(&self) -> String {
        let cause = self.cause.unwrap_or(Cause::Manual);
        let whole = Signature::of(None, cause, self.status(), &self.error);
        let before = format!("- {}", cause.as_str());
        whole.as_str().strip_prefix(&before).unwrap_or_default().to_owned()
    }
}

/// All that is said in one call.
struct Words<'a> {
    all: Vec<Word<'a>>,
}

impl<'a> Words<'a> {
    fn new(ids: &Ids, settled: &'a [(Holding, Settle)]) -> Self {
        Self { all: settled.iter().map(|(holding, settle)| Word::new(ids, *holding, settle)).collect() }
    }

    /// Whether more than deliveries and their attempts is concerned.
    fn concerns_more(&self) -> bool {
        self.all.iter().any(|word| {
            let ends = word.state != DeliveryState::RetryWait;
            word.state == DeliveryState::Dlq || (ends && (word.in_a_lane() || word.replayed()))
        })
    }

    /// Whether somebody who waits for work may find some now.
    fn gives_back(&self) -> bool {
        self.all
            .iter()
            .any(|word| (word.state == DeliveryState::RetryWait && word.delay == 0) || word.in_a_lane())
    }

    fn ids(&self) -> Vec<[u8; 16]> {
        self.all.iter().map(Word::id).collect()
    }

    fn tokens(&self) -> Vec<[u8; 16]> {
        self.all.iter().map(|word| word.holding.token.to_be_bytes()).collect()
    }

    fn states(&self) -> Vec<&'static str> {
        self.all.iter().map(|word| word.state.as_str()).collect()
    }

    fn bind(&self, query: Prepared) -> Prepared {
        let retry_after = |word: &Word<'_>| word.ending.and_then(|ending| ending.retry_after).map(micros);
        query
            .bind(self.ids())
            .bind(self.tokens())
            .bind(self.states())
            .bind(self.all.iter().map(|word| word.class.as_str()).collect::<Vec<_>>())
            .bind(self.all.iter().map(|word| word.status().map(i32::from)).collect::<Vec<_>>())
            .bind(self.all.iter().map(|word| word.error.as_str()).collect::<Vec<_>>())
            .bind(self.all.iter().map(|word| word.excerpt.as_str()).collect::<Vec<_>>())
            .bind(self.all.iter().map(retry_after).collect::<Vec<_>>())
            .bind(self.all.iter().map(|word| word.delay).collect::<Vec<_>>())
            .bind(self.all.iter().map(|word| word.letter).collect::<Vec<_>>())
    }
}
