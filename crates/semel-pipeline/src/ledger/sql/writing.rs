//! The steps of writing calls that each database takes in its own way.

use std::time::Duration;

use semel::key::KeyId;
use semel::time::Timestamp;

use super::Database;
use crate::event::{Event, Generation, NewEvent};
use crate::id::{DeliveryId, EventId, JobId, LetterId};
use crate::ledger::rules::Cancelled;
use crate::ledger::{Arrival, Error, KeyState};
use crate::letter::{NewLetter, Status};
use crate::replay::{ItemState, NewJob, Planned};

/// A [`Database`] inside a transaction.
pub(crate) trait Writing: Database {
    /// The time of the call.
    fn now(&self) -> Timestamp;

    /// The refusal in a fault, or the fault itself where the database failed.
    fn refusal(fault: Self::Fault) -> Result<Error, Self::Fault>;

    /// Tells workers to look for work once the transaction has ended, where the database does that.
    fn wake_workers(&mut self) {}

    /// Refuses text that a column cannot hold.
    fn check_text(_what: &str, _text: &str) -> Result<(), Error> {
        Ok(())
    }

    /// Refuses an event that the tables cannot hold.
    fn check_event(_event: &NewEvent) -> Result<(), Error> {
        Ok(())
    }

    /// The generation of a key, and the event that holds it.
    async fn key_state(&mut self, dedupe: KeyId) -> Result<KeyState, Self::Fault>;

    /// Ends a generation of a key, unless it has ended. Answers the one that lasts now.
    async fn end_generation(&mut self, dedupe: KeyId, ended: Generation) -> Result<Generation, Self::Fault>;

    /// Writes a run from the buffer that holds this number of changes. Answers whether it was written.
    async fn add_run(
        &mut self,
        run: &NewEvent,
        changes: u64,
        cancelled: Cancelled,
        arrival: Arrival,
    ) -> Result<bool, Self::Fault>;

    /// Makes the deliveries of an event due after `delay`.
    async fn put_off(&mut self, event: EventId, delay: Duration) -> Result<(), Self::Fault>;

    /// Writes tags and metadata of an event, as its next version.
    async fn save_notes(&mut self, event: &Event) -> Result<(), Self::Fault>;

    /// Cancels deliveries, with their letters and the items that released them.
    async fn cancel_deliveries(&mut self, deliveries: &[DeliveryId]) -> Result<(), Self::Fault>;

    /// Makes those of these deliveries due that wait for a retry later than now. Answers how many.
    async fn make_due(&mut self, deliveries: &[DeliveryId]) -> Result<u64, Self::Fault>;

    /// Writes letters without a delivery, each message once. Answers the ids they are kept under.
    async fn put_letters(&mut self, letters: &[NewLetter]) -> Result<Vec<LetterId>, Self::Fault>;

    /// Gives a letter another status, for a person.
    async fn set_letter(&mut self, id: LetterId, from: Status, to: Status) -> Result<(), Self::Fault>;

    /// Writes an edited copy of a letter, with its event; `None` where the event or its key is there.
    async fn copy_letter(
        &mut self,
        of: LetterId,
        copy: &NewEvent,
        target: &str,
    ) -> Result<Option<LetterId>, Self::Fault>;

    /// Writes the items of a new job.
    async fn add_items(&mut self, job: JobId, items: &[Planned]) -> Result<(), Self::Fault>;

    /// Releases deliveries that failed, each for the item at its position.
    async fn replay(&mut self, job: &NewJob, items: &[(DeliveryId, i64)]) -> Result<(), Self::Fault>;

    /// Makes another delivery of the same event to the same target for each item, in the next epoch.
    async fn execute_again(&mut self, job: JobId, items: &[(DeliveryId, i64)]) -> Result<(), Self::Fault>;

    /// Accepts events, each for the item at its position. Answers the ids of those that are new.
    async fn accept_items(
        &mut self,
        job: JobId,
        events: &[(NewEvent, i64)],
    ) -> Result<Vec<[u8; 16]>, Self::Fault>;

    /// Writes what became of the items of a job.
    async fn save_items(&mut self, job: JobId, results: &[ItemResult]) -> Result<(), Self::Fault>;
}

/// What became of an item of a job.
#[derive(Debug)]
pub(crate) struct ItemResult {
    pub(crate) position: i64,
    pub(crate) state: ItemState,
    pub(crate) error: Option<&'static str>,
    pub(crate) new_event: Option<EventId>,
    /// Its letter, with the status it had and the one it gets.
    pub(crate) letter: Option<(LetterId, Status, Status)>,
}

impl ItemResult {
    pub(crate) fn new(position: i64, state: ItemState, letter: Option<(LetterId, Status, Status)>) -> Self {
        Self { position, state, error: None, new_event: None, letter }
    }

    pub(crate) fn skipped(position: i64, why: &'static str) -> Self {
        Self { error: Some(why), ..Self::new(position, ItemState::SkippedInflight, None) }
    }
}
