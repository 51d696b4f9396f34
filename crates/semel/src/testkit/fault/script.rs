//! The faults, and when they occur.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::FaultGate;
use crate::record::Command;
use crate::store::ErrorKind;

/// A kind of call to a store. Each command is its own kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "named after the command or method they stand for")]
#[non_exhaustive]
pub enum StoreCall {
    Claim,
    Begin,
    Renew,
    Complete,
    Release,
    Bind,
    Abandon,
    Settle,
    Forget,
    Reexecute,
    Get,
    Scan,
    Sweep,
    Watch,
    Attach,
    Secret,
    ReadMark,
    RaiseMark,
}

impl StoreCall {
    /// Every kind of call.
    pub const ALL: [Self; 18] = [
        Self::Claim,
        Self::Begin,
        Self::Renew,
        Self::Complete,
        Self::Release,
        Self::Bind,
        Self::Abandon,
        Self::Settle,
        Self::Forget,
        Self::Reexecute,
        Self::Get,
        Self::Scan,
        Self::Sweep,
        Self::Watch,
        Self::Attach,
        Self::Secret,
        Self::ReadMark,
        Self::RaiseMark,
    ];

    /// The kind of a command.
    pub const fn of(command: &Command) -> Self {
        match command {
            Command::Claim(_) => Self::Claim,
            Command::Begin(_) => Self::Begin,
            Command::Renew(_) => Self::Renew,
            Command::Complete { .. } => Self::Complete,
            Command::Release(_) => Self::Release,
            Command::Bind(_) => Self::Bind,
            Command::Abandon(_) => Self::Abandon,
            Command::Settle(_) | Command::SettleAttempt(..) => Self::Settle,
            Command::Forget(_) => Self::Forget,
            Command::Reexecute => Self::Reexecute,
        }
    }
}

/// Which calls of a kind are affected, counted from when the fault was scripted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The n-th one only; 1 is the next.
    Nth(u64),
    /// The first n.
    First(u64),
    /// Every one.
    Always,
}

impl When {
    pub(super) const fn hits(self, number: u64) -> bool {
        match self {
            Self::Nth(nth) => number == nth,
            Self::First(count) => number <= count,
            Self::Always => true,
        }
    }

    /// True if no later call can be affected.
    pub(super) const fn is_spent(self, number: u64) -> bool {
        match self {
            Self::Nth(last) | Self::First(last) => number >= last,
            Self::Always => false,
        }
    }
}

/// The fault of a call.
///
/// `watch` and `attach` do not wait and do not fail: only hooks apply to them. To suppress wake-ups see
/// [`FaultStore::deliver`](super::FaultStore::deliver).
#[derive(Clone)]
#[non_exhaustive]
pub enum InjectedFault {
    /// The call fails with this kind of error and is not executed.
    Refuse(ErrorKind),
    /// The call is executed and its reply lost: the caller gets [`ErrorKind::Ambiguous`].
    LoseReply,
    /// The call is not executed until the gate is opened.
    HoldRequest(FaultGate),
    /// The call is executed; its reply arrives when the gate is opened.
    HoldReply(FaultGate),
    /// The call is executed this much later.
    Delay(Duration),
    /// Called right before the call is executed. May end the process.
    Before(Hook),
    /// Called right after the call was executed, before its reply. May end the process.
    After(Hook),
}

/// A function that a test runs at a point of a call.
pub type Hook = Arc<dyn Fn() + Send + Sync>;

impl InjectedFault {
    /// A hook to be called before the call is executed.
    pub fn before(hook: impl Fn() + Send + Sync + 'static) -> Self {
        Self::Before(Arc::new(hook))
    }

    /// A hook to be called after the call was executed.
    pub fn after(hook: impl Fn() + Send + Sync + 'static) -> Self {
        Self::After(Arc::new(hook))
    }
}

impl fmt::Debug for InjectedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refuse(kind) => write!(f, "Refuse({kind:?})"),
            Self::LoseReply => f.write_str("LoseReply"),
            Self::HoldRequest(gate) => write!(f, "HoldRequest({gate:?})"),
            Self::HoldReply(gate) => write!(f, "HoldReply({gate:?})"),
            Self::Delay(by) => write!(f, "Delay({by:?})"),
            Self::Before(_) => f.write_str("Before(..)"),
            Self::After(_) => f.write_str("After(..)"),
        }
    }
}

/// Whether wake-ups are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WakeUpDelivery {
    /// As the inner store sends them.
    #[default]
    Delivered,
    /// A new watch never fires, as after an undetected loss of the subscription.
    Lost,
}
