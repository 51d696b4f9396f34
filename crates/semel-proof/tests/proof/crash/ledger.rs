//! A process that accepts, takes and settles on the embedded ledger, killed with `kill -9` again and again: nothing
//! acknowledged is lost, nothing is half there, and what it had in hand is finished by others, once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use semel::store::EmbeddedStore;
use semel_pipeline::delivery::{AttemptClass, DeliveryHistory, DeliveryState};
use semel_pipeline::ledger::{
    DeliveryFilter, EmbeddedLedger, Intake as _, Letters as _, Page, Reading as _, Take, Working as _,
};
use semel_pipeline::letter::Status;
use semel_proof::victim::ledger::{LEASE, Post, TARGET, ending, key, number_of, word};
use semel_proof::victim::{VictimJob, VictimReport};

use super::kill_nine::intact;
use super::supervisor::{Silence, Victim};
use super::{Form, block_on, folder};

/// Room for the numbers of one victim's events.
const RANGE: u64 = 1_000_000;

#[test]
fn nothing_acknowledged_is_lost_from_the_ledger() {
    let kills = Form::asked().pick(6, 50);
    let folder = folder();
    let mut run = Run { store: folder.path().join("store"), heard: HashMap::new(), words: 0 };
    for life in 1..=kills {
        run.live_and_die(life);
        run.verify();
    }
    let finished = run.finish();
    println!(
        "{kills} kills, {} acknowledged calls, {finished} events finished: none lost, none twice",
        run.words
    );
    assert!(run.words > kills * 20, "the victims did something");
}

/// What was heard of an event.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    accepted: bool,
    retried: bool,
    /// `DONE` or `BURIED`.
    ended: Option<u32>,
}

struct Run {
    store: PathBuf,
    heard: HashMap<u64, Heard>,
    words: u64,
}

impl Run {
    fn live_and_die(&mut self, life: u64) {
        let post = Post { store: self.store.clone(), first: life * RANGE, writers: 6, workers: 3 };
        let mut victim = Victim::start(&VictimJob::Ledger(post));
        let first = victim.hear();
        assert_eq!(first, Some(VictimReport::Ready));
        // Not before it has done something, and then at any moment.
        let mut heard: Vec<VictimReport> = (0..150).map_while(|_| victim.hear()).collect();
        let moment = Duration::from_micros(rand::random_range(0..150_000));
        let end = tokio::time::Instant::now() + moment;
        loop {
            match victim.hear_within(end.saturating_duration_since(tokio::time::Instant::now())) {
                Ok(Some(report)) => heard.push(report),
                Ok(None) => panic!("the victim ended by itself; it said {:?}", heard.last()),
                Err(Silence) => break,
            }
            if tokio::time::Instant::now() >= end {
                break;
            }
        }
        heard.extend(victim.kill());
        for report in heard {
            let VictimReport::Acknowledged { item, write, .. } = report else {
                panic!("a post does not say {report:?}")
            };
            let heard = self.heard.entry(item).or_default();
            self.words += 1;
            match write {
                word::ACCEPTED => heard.accepted = true,
                word::RETRIED => heard.retried = true,
                ended => assert_eq!(heard.ended.replace(ended), None, "event {item} ended twice"),
            }
        }
    }

    /// Everything that was heard is there.
    fn verify(&self) {
        let ledger = open(&self.store);
        block_on(async {
            for (number, heard) in &self.heard {
                let found = ledger.find(key(*number).id).await.expect("it can be looked for");
                let Some(found) = found.holder else {
                    panic!("event {number} was acknowledged and is gone: {heard:?}")
                };
                let told = ledger.deliveries_of(found.event).await.expect("they can be read");
                let [told] = &told[..] else { panic!("event {number} has {} deliveries", told.len()) };
                assert_eq!(told.event.new.payload, number.to_string().as_bytes());
                let state = told.delivery.state;
                match heard.ended {
                    Some(word::DONE) => assert_eq!(state, DeliveryState::Done, "event {number}"),
                    Some(_) => assert_eq!(state, DeliveryState::Dlq, "event {number}"),
                    None => {}
                }
                if heard.retried {
                    let failed = |class| ended_as(told, class) > 0;
                    assert!(failed(AttemptClass::Transient), "event {number}: its failed attempt is gone");
                }
                whole(&ledger, told).await;
            }
            counts_agree(&ledger).await;
        });
        drop(ledger);
        intact(&self.store);
    }

    /// Does what the victims left, and looks at every event. Answers how many there are.
    fn finish(&self) -> usize {
        let ledger = open(&self.store);
        block_on(async {
            let mut quiet = 0;
            while quiet < 2 {
                let take = Take {
                    worker: "the last one".to_owned(),
                    targets: vec![(TARGET.to_owned(), 100)],
                    limit: 100,
                    lease: Duration::from_secs(60),
                };
                let taken = ledger.take(take).await.expect("work can be taken");
                if taken.is_empty() {
                    // What the last victim had in hand is free when its lease is over.
                    quiet += 1;
                    tokio::time::sleep(LEASE).await;
                    continue;
                }
                quiet = 0;
                let settled = taken
                    .iter()
                    .map(|work| (work.holding, ending(number_of(work), work.attempt - work.crashes).0))
                    .collect();
                ledger.settle(settled).await.expect("work can be settled");
            }
            let (mut seen, mut next) = (0, None);
            loop {
                let page = Page { after: next, limit: 500 };
                let part =
                    ledger.deliveries(DeliveryFilter::default(), page).await.expect("they can be listed");
                for delivery in part.items {
                    let told =
                        ledger.delivery(delivery.id).await.expect("it can be read").expect("it is there");
                    let text = std::str::from_utf8(&told.event.new.payload).expect("it is a number");
                    let number: u64 = text.parse().expect("it is a number");
                    let expected =
                        if number.is_multiple_of(10) { DeliveryState::Dlq } else { DeliveryState::Done };
                    assert_eq!(told.delivery.state, expected, "event {number}");
                    let done = usize::from(expected == DeliveryState::Done);
                    assert_eq!(
                        ended_as(&told, AttemptClass::Success),
                        done,
                        "event {number} is delivered once"
                    );
                    whole(&ledger, &told).await;
                    seen += 1;
                }
                next = part.next;
                if next.is_none() {
                    break;
                }
            }
            assert!(seen >= self.heard.len());
            counts_agree(&ledger).await;
            seen
        })
    }
}

fn ended_as(told: &DeliveryHistory, class: AttemptClass) -> usize {
    told.attempts
        .iter()
        .filter(|attempt| attempt.ending.as_ref().is_some_and(|end| end.class == class))
        .count()
}

/// A delivery, its attempts and its letter tell one story.
async fn whole(ledger: &EmbeddedLedger, told: &DeliveryHistory) {
    let delivery = &told.delivery;
    let open = told.attempts.iter().filter(|attempt| attempt.ending.is_none()).count();
    assert_eq!(open, usize::from(delivery.state == DeliveryState::Running), "{delivery:?}");
    assert_eq!(told.attempts.len(), delivery.attempts as usize, "{delivery:?}");
    assert_eq!(ended_as(told, AttemptClass::Crashed), delivery.crashes as usize, "{delivery:?}");
    assert_eq!(delivery.letter.is_some(), delivery.state == DeliveryState::Dlq, "{delivery:?}");
    if let Some(letter) = delivery.letter {
        let letter =
            ledger.letter(letter).await.expect("it can be read").expect("the letter is there").letter;
        assert_eq!((letter.status, letter.delivery), (Status::Pending, Some(delivery.id)));
    }
}

/// The numbers that are kept with every change are those of the rows.
async fn counts_agree(ledger: &EmbeddedLedger) {
    let totals = ledger.totals().await.expect("they can be read");
    let counted = ledger.store().read(|connection| {
        let mut statement =
            connection.prepare("SELECT target, state, count(*) FROM ledger_delivery GROUP BY 1, 2")?;
        let rows = statement.query_map([], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, u32>(2)?))
        })?;
        rows.collect::<Result<Vec<_>, _>>()
    });
    let mut totals: Vec<_> = totals
        .deliveries
        .into_iter()
        .map(|(target, state, count)| {
            (target, state.as_str().to_owned(), u32::try_from(count).expect("it is small"))
        })
        .collect();
    let mut counted = counted.expect("they can be counted");
    totals.sort();
    counted.sort();
    assert_eq!(totals, counted);
}

fn open(path: &Path) -> EmbeddedLedger {
    let store =
        EmbeddedStore::open(path).unwrap_or_else(|error| panic!("it cannot be opened after a kill: {error}"));
    block_on(EmbeddedLedger::open(Arc::new(store))).expect("the ledger can be opened after a kill")
}
