//! The same effect in `atomic`: its two steps are rows in the store's own file, committed with the outcome.

use std::sync::Arc;

use semel::store::EmbeddedStore;
use semel::{Engine, Failure};

use super::life::{CREDIT, DEBIT, LifeEnd, VictimLife, answered, devour, key, receipt};
use super::witness::Witness;
use super::{ReportedEnd, VictimReport, die};

/// What the witness records when an effect starts: not the effect, which is in the store, but its start.
pub const TRIED: &str = "tried";

impl VictimLife {
    /// Calls the effect once, inside a transaction of `store`.
    pub async fn call_in(&self, engine: &Engine, store: &Arc<EmbeddedStore>) -> ReportedEnd {
        let (fate, witness) = (self.fate, self.witness.clone());
        if fate == LifeEnd::DiesBeforeClaim {
            die();
        }
        let once = engine.once(key()).fingerprint("17 euro").error();
        let ran = once.run_in(store, move |transaction, attempt| {
            let fence = attempt.fence().get();
            VictimReport::InEffect { fence }.send();
            let unknown = |error: std::io::Error| Failure::Unknown(error);
            Witness::open(&witness)
                .and_then(|mut file| file.act(TRIED, "order-17", fence))
                .map_err(unknown)?;
            let act = |step: &str| {
                let number = fence.cast_signed();
                transaction
                    .execute("INSERT INTO ledger (step, fence) VALUES (?1, ?2)", (step, number))
                    .map_err(|error| unknown(std::io::Error::other(error)))
            };
            let made =
                transaction.execute_batch("CREATE TABLE IF NOT EXISTS ledger (step TEXT, fence INTEGER)");
            made.map_err(|error| unknown(std::io::Error::other(error)))?;
            act(DEBIT)?;
            match fate {
                LifeEnd::DiesMidEffect => die(),
                LifeEnd::DevoursMemory => devour(),
                _ => {}
            }
            act(CREDIT)?;
            if fate == LifeEnd::DiesAfterEffect {
                die();
            }
            Ok(receipt(fence))
        });
        let ended = answered(ran.await);
        if fate == LifeEnd::DiesAfterComplete {
            die();
        }
        ended
    }
}

/// How often the ledger contains each of the effect's steps.
///
/// # Panics
/// The store cannot be read.
pub async fn ledger(store: &EmbeddedStore) -> (u32, u32) {
    let read = store.transact(|transaction| {
        let made = "SELECT count(*) FROM sqlite_master WHERE name = 'ledger'";
        if transaction.query_row(made, (), |row| row.get::<_, u32>(0))? == 0 {
            return Ok((0, 0));
        }
        let count = |step: &str| {
            let sql = "SELECT count(*) FROM ledger WHERE step = ?1";
            transaction.query_row(sql, (step,), |row| row.get(0))
        };
        Ok((count(DEBIT)?, count(CREDIT)?))
    });
    read.await.unwrap_or_else(|error| panic!("the ledger cannot be read: {error}"))
}
