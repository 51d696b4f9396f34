//! What people do with a target: pause and resume it, and let its waiting deliveries go at once.

use semel::time::Timestamp;

use super::{Answer, AuditLine};
use crate::id::DeliveryId;

/// Pausing targets, and retrying their deliveries at once.
pub trait TargetControl: Send + Sync + 'static {
    /// Pauses a target: from now on no take, in any process, returns a delivery to it. Deliveries in progress end, and
    /// events for it are accepted. Again: no change. Answers the pause.
    fn pause_target(&self, target: String, line: AuditLine) -> Answer<'_, TargetPause>;

    /// Ends the pause of a target. Answers it; `None` if the target was not paused.
    fn resume_target(&self, target: String, line: AuditLine) -> Answer<'_, Option<TargetPause>>;

    /// The paused targets, by name.
    fn paused_targets(&self) -> Answer<'_, Vec<TargetPause>>;

    /// Makes those of these deliveries due that wait for a retry later than now. Answers how many.
    fn retry_now(&self, deliveries: Vec<DeliveryId>) -> Answer<'_, u64>;
}

/// A pause of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPause {
    /// The target.
    pub target: String,
    /// When it was paused.
    pub since: Timestamp,
    /// Who paused it: the name of a token.
    pub by: String,
    /// Why.
    pub reason: String,
}
