//! Random commands against a small model of deliveries: states, attempts, leases, order, parking.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use semel::time::{Clock, SystemClock, Timestamp};

use super::context::{LONG, LedgerContext, event, failed, fine, line, new_job, page};
use crate::delivery::{DeliveryState, DeliveryStep, Holding, LeaseResult, Settle};
use crate::event::NewEvent;
use crate::id::{DeliveryId, EventId, EventKind};
use crate::ledger::{DeliveryFilter, Error, Take};
use crate::letter::{Cause, PARKED_AFTER};
use crate::replay::{ReplayMode, Selection};

/// Sequences of random commands, from fixed seeds: see [`agrees_with_the_model`].
pub async fn random_commands_agree_with_the_model(context: &LedgerContext) {
    for seed in 1..=8 {
        agrees_with_the_model(context, seed, 80).await;
    }
}

/// Sends `steps` random commands to the ledger and to a model, and compares every answer and every delivery. The same seed
/// gives the same commands.
///
/// If the ledger's clock cannot be moved, no lease and no delay ends.
///
/// # Panics
/// At the first difference, with the seed, the step and the commands that led there.
pub async fn agrees_with_the_model(context: &LedgerContext, seed: u64, steps: usize) {
    let targets = ["a", "b"].map(|name| format!("model-{seed}-{name}"));
    let mut run = ContractRun {
        context,
        seed,
        dice: SeededRandom(seed),
        targets,
        deliveries: BTreeMap::new(),
        accepted: Vec::new(),
        held: Vec::new(),
        history: VecDeque::new(),
    };
    for _ in 0..steps {
        match run.dice.below(100) {
            0..25 => run.accept().await,
            25..50 => run.take().await,
            50..80 => run.settle().await,
            80..86 => run.cancel().await,
            86..92 => run.replay().await,
            _ => run.let_time_pass().await,
        }
        run.compare().await;
    }
}

/// A separate generator (splitmix64), so that a seed always means the same commands.
struct SeededRandom(u64);

impl SeededRandom {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        let place = usize::try_from(self.below(from.len() as u64)).expect("an index is small");
        from[place].clone()
    }
}

/// The model's state of a delivery.
#[derive(Clone, Debug)]
struct KnownDelivery {
    /// Its place in the order of acceptance.
    place: usize,
    target: String,
    order_key: Option<String>,
    state: DeliveryState,
    attempts: u32,
    crashes: u32,
    due_at: Timestamp,
    lease_until: Timestamp,
    /// The token of the current or last holder.
    token: Option<u128>,
    failed_replays: u32,
    was_buried: bool,
}

struct ContractRun<'a> {
    context: &'a LedgerContext,
    seed: u64,
    dice: SeededRandom,
    targets: [String; 2],
    deliveries: BTreeMap<DeliveryId, KnownDelivery>,
    accepted: Vec<(EventId, DeliveryId)>,
    /// All tokens so far: most are stale, and must be refused.
    held: Vec<Holding>,
    history: VecDeque<String>,
}

impl ContractRun<'_> {
    /// The ledger's time, or a fixed time if it cannot be moved.
    fn now(&self) -> Timestamp {
        self.context.manual_clock().map_or(Timestamp::from_micros(1_000_000), Clock::now)
    }

    fn note(&mut self, what: String) {
        self.history.push_back(what);
        if self.history.len() > 12 {
            self.history.pop_front();
        }
    }

    #[track_caller]
    fn differ(&self, what: &str) -> ! {
        let history: Vec<_> = self.history.iter().map(String::as_str).collect();
        panic!("seed {}: {what}; the last commands were\n{}", self.seed, history.join("\n"))
    }

    async fn accept(&mut self) {
        let movable = self.context.manual_clock().is_some();
        let mut events = Vec::new();
        for _ in 0..=self.dice.below(3) {
            let target = self.dice.pick(&self.targets.clone());
            let delays = [Duration::ZERO, Duration::ZERO, Duration::from_millis(50)];
            let delay = if movable { self.dice.pick(&delays) } else { Duration::ZERO };
            events.push(NewEvent {
                id: EventId::new(EventKind::Event, SystemClock.now()),
                tenant: self.dice.pick(&["x", "y", "z"]).to_owned(),
                order_key: self.dice.pick(&[None, None, Some("k"), Some("l")]).map(str::to_owned),
                delay,
                ..event(&target)
            });
        }
        self.note(format!("accept {} events", events.len()));
        self.context.ledger().accept(events.clone()).await.expect("they are accepted");
        for event in events {
            let id = self.context.only(event.id).await.delivery.id;
            let known = KnownDelivery {
                place: self.deliveries.len(),
                target: event.targets[0].clone(),
                order_key: event.order_key,
                state: if event.delay.is_zero() { DeliveryState::Queued } else { DeliveryState::Idle },
                attempts: 0,
                crashes: 0,
                due_at: self.now().after(event.delay),
                lease_until: Timestamp::default(),
                token: None,
                failed_replays: 0,
                was_buried: false,
            };
            self.deliveries.insert(id, known);
            self.accepted.push((event.id, id));
        }
    }

    /// Gives back the deliveries of lost workers.
    fn notice_the_lost(&mut self) {
        let now = self.now();
        for known in self.deliveries.values_mut() {
            if known.state == DeliveryState::Running && known.lease_until <= now {
                known.state = known.state.after(DeliveryStep::Retry).expect("what runs can be given back");
                known.crashes += 1;
                known.due_at = now;
                known.token = None;
            }
        }
    }

    /// The deliveries that can be taken now.
    fn eligible(&self) -> Vec<DeliveryId> {
        let now = self.now();
        let in_the_way = |of: &KnownDelivery| {
            self.deliveries.values().any(|other| {
                of.order_key.is_some()
                    && (&other.target, &other.order_key) == (&of.target, &of.order_key)
                    && other.place != of.place
                    && (other.state == DeliveryState::Running
                        || (other.state.holds_order() && other.place < of.place))
            })
        };
        let can =
            |known: &KnownDelivery| known.state.is_takeable() && known.due_at <= now && !in_the_way(known);
        self.deliveries.iter().filter(|(_, known)| can(known)).map(|(id, _)| *id).collect()
    }

    async fn take(&mut self) {
        let movable = self.context.manual_clock().is_some();
        let lease = if movable { self.dice.pick(&[Duration::from_millis(40), LONG]) } else { LONG };
        let limit = 1 + self.dice.below(4);
        let targets = self.targets.iter().map(|target| (target.clone(), 100)).collect();
        let take = Take {
            worker: "worker-1".to_owned(),
            targets,
            limit: u32::try_from(limit).expect("it is small"),
            lease,
        };
        self.note(format!("take {limit} for {lease:?}"));
        self.notice_the_lost();
        let eligible = self.eligible();
        let taken = self.context.ledger().take(take).await.expect("work can be taken");
        let expected = eligible.len().min(usize::try_from(limit).expect("it is small"));
        if taken.len() != expected {
            self.differ(&format!("{} were taken, {expected} could be: {eligible:?}, {taken:?}", taken.len()));
        }
        let now = self.now();
        for work in taken {
            let id = work.holding.delivery;
            if !eligible.contains(&id) {
                self.differ(&format!("{id} was taken and cannot be"));
            }
            let known = self.deliveries.get_mut(&id).expect("what is eligible is known");
            if known.state == DeliveryState::Idle {
                known.state = known.state.after(DeliveryStep::Enqueue).expect("idle can be enqueued");
            }
            let Ok(state) = known.state.after(DeliveryStep::Take) else {
                self.differ(&format!("{id} was taken twice"))
            };
            known.state = state;
            known.attempts += 1;
            known.lease_until = now.after(lease);
            known.token = Some(work.holding.token);
            let same = (work.attempt, work.crashes) == (known.attempts, known.crashes);
            self.held.push(work.holding);
            if !same {
                self.differ(&format!("attempt {} and {} crashes of {id}", work.attempt, work.crashes));
            }
        }
    }

    async fn settle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        // Mostly a current holder.
        let current: Vec<_> = self
            .held
            .iter()
            .copied()
            .filter(|held| self.deliveries[&held.delivery].state == DeliveryState::Running)
            .collect();
        let from = if current.is_empty() || self.dice.below(5) == 0 { self.held.clone() } else { current };
        let held = self.dice.pick(&from);
        let after =
            if self.context.manual_clock().is_some() { Duration::from_millis(30) } else { Duration::ZERO };
        let word = self.dice.pick(&[
            Settle::Done(fine()),
            Settle::Retry(failed("no"), after),
            Settle::Retry(failed("no"), Duration::ZERO),
            Settle::Defer(after),
            Settle::Block(failed("no")),
            Settle::Bury(failed("no"), Cause::Exhausted),
            Settle::Bury(failed("no"), Cause::Exhausted),
        ]);
        self.note(format!("settle {} with {:?}", held.delivery, word.step()));
        let said = self.context.say(held, word.clone()).await;
        let now = self.now();
        let known = self.deliveries.get_mut(&held.delivery).expect("what was held is known");
        let step = word.step();
        let expected = if known.token != Some(held.token) {
            LeaseResult::Lost
        } else if known.state == DeliveryState::Running {
            known.state = known.state.after(step).expect("what runs can end in every way");
            match word {
                Settle::Done(_) | Settle::Block(_) => {}
                Settle::Bury(..) if known.was_buried => known.failed_replays += 1,
                Settle::Bury(..) => known.was_buried = true,
                Settle::Retry(_, after) => known.due_at = now.after(after),
                Settle::Defer(after) => {
                    known.attempts -= 1;
                    known.due_at = now.after(after);
                }
            }
            if step == DeliveryStep::Block && known.was_buried {
                known.failed_replays += 1;
            }
            LeaseResult::Kept
        } else if known.state == step.to() {
            LeaseResult::Kept
        } else {
            LeaseResult::Lost
        };
        if said != expected {
            self.differ(&format!("settling {} was {said:?}, not {expected:?}", held.delivery));
        }
    }

    async fn cancel(&mut self) {
        if self.accepted.is_empty() {
            return;
        }
        let (event, delivery) = self.dice.pick(&self.accepted.clone());
        self.note(format!("cancel {delivery}"));
        let answer = self.context.ledger().cancel(event, line("cancel", &event)).await;
        let known = self.deliveries.get_mut(&delivery).expect("what was accepted is known");
        match (known.state.after(DeliveryStep::Cancel), answer) {
            (Ok(state), Ok(1)) => known.state = state,
            (Err(why), Err(Error::Impossible(said))) if why == said => {}
            (expected, answer) => {
                self.differ(&format!("cancelling {delivery}: {answer:?}, not {expected:?}"))
            }
        }
    }

    async fn replay(&mut self) {
        let targets = self.targets.to_vec();
        let selection =
            Selection::Failed { limit: 1_000, tenant: None, targets: targets.clone(), signature: None };
        self.note("replay what failed".to_owned());
        let job = self.context.ledger().create(new_job(selection, ReplayMode::Resume), targets).await;
        let job = job.expect("a job can be made");
        let now = self.now();
        let mut released = 0;
        for known in self.deliveries.values_mut().filter(|known| known.failed_replays < PARKED_AFTER) {
            if let Ok(state) = known.state.after(DeliveryStep::Replay) {
                (known.state, known.attempts, known.crashes) = (state, 0, 0);
                (known.due_at, known.token) = (now, None);
                released += 1;
            }
        }
        let job = self.context.release(job.new.id).await;
        if (job.counts.total, job.counts.released) != (released, released) {
            self.differ(&format!("{:?} were released, not {released}", job.counts));
        }
    }

    async fn let_time_pass(&mut self) {
        if self.context.manual_clock().is_some() {
            let by = Duration::from_millis(10 + self.dice.below(50));
            self.note(format!("{by:?} pass"));
            self.context.pass(by).await;
        }
    }

    async fn compare(&self) {
        for target in &self.targets {
            let filter = DeliveryFilter { target: Some(target.clone()), ..DeliveryFilter::default() };
            let mut next = None;
            let mut seen = 0;
            loop {
                let part = self.context.ledger().deliveries(filter.clone(), page(next, 200)).await;
                let part = part.expect("they can be listed");
                for delivery in part.items {
                    seen += 1;
                    let Some(known) = self.deliveries.get(&delivery.id) else {
                        self.differ(&format!("nobody accepted {}", delivery.id))
                    };
                    let there = (delivery.state, delivery.attempts, delivery.crashes);
                    if there != (known.state, known.attempts, known.crashes) {
                        self.differ(&format!("{} is {there:?}, not {known:?}", delivery.id));
                    }
                }
                next = part.next;
                if next.is_none() {
                    break;
                }
            }
            let expected = self.deliveries.values().filter(|known| known.target == *target).count();
            if seen != expected {
                self.differ(&format!("{seen} deliveries are there, not {expected}"));
            }
        }
    }
}
