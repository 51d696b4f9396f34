//! Taking runs in from the buffer: nearly all are new and go together in one statement, the others one by one.

use std::collections::HashSet;

use super::intake::{self, Batch};
use super::link::{Shape, Shared};
use crate::ledger::rules::{self, Cancelled};
use crate::ledger::sql::bigint;
use crate::ledger::sql::drain::{self, with_generation};
use crate::ledger::{Arrival, Drained, DrainedRun, Error, RunAction};

pub(super) async fn drain(shared: &Shared, drained: &[DrainedRun]) -> Result<Vec<Drained>, Error> {
    let mut answers: Vec<Option<Drained>> = drained.iter().map(|_| None).collect();
    let (mut places, mut runs, mut changes, mut refused) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (at, drained) in drained.iter().enumerate() {
        intake::check(&drained.run)?;
        let mut run = drained.run.clone();
        let (cancelled, why) = rules::patch(&mut run, &drained.changes);
        if cancelled == Cancelled::No && drained.then.is_none() {
            places.push(at);
            runs.push(with_generation(run));
            changes.push(bigint(drained.changes.len() as u64));
            refused.push(why);
        }
    }
    if !runs.is_empty() {
        let batch = Batch::drained(shared, &runs, changes);
        let kept =
            shared.call(Shape::Transaction, &batch, |db, batch| Box::pin(intake::write(db, batch))).await?;
        let kept: HashSet<[u8; 16]> = kept.into_iter().collect();
        for ((at, run), refused) in places.into_iter().zip(&runs).zip(refused) {
            if kept.contains(&run.id.to_bytes()) {
                answers[at] = Some(Drained { arrival: Arrival::New, refused });
            }
        }
    }
    for (answer, drained) in answers.iter_mut().zip(drained) {
        if answer.is_none() {
            // An increment counts every time: where its commit has an unknown end, the caller decides.
            let shape = match &drained.then {
                Some(RunAction::Change(change)) if !change.increment.is_empty() => Shape::TransactionOnce,
                _ => Shape::Transaction,
            };
            let one = shared.call(shape, drained, |db, drained| Box::pin(drain::drain(db, drained)));
            *answer = Some(one.await?);
        }
    }
    shared.news.tell();
    Ok(answers.into_iter().flatten().collect())
}
