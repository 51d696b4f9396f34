//! The reports of a victim.

use std::io::Write as _;

use semel::store::Error;
use serde::{Deserialize, Serialize};

use super::crowd::Crowded;
use crate::chaos::puppet::PuppetReport;

/// One line on a victim's standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VictimReport {
    /// The store is open.
    Ready,
    /// It could not be opened.
    NotOpened {
        /// The kind of the error.
        kind: String,
        /// Its message.
        message: String,
    },
    /// The effect was started.
    InEffect {
        /// The fence.
        fence: u64,
    },
    /// A claim was won and its effect not started.
    Claimed {
        /// The fence.
        fence: u64,
    },
    /// Another caller of the same process waits for the effect.
    RivalWaits,
    /// A call has ended.
    Ended(ReportedEnd),
    /// The store acknowledged a write of a flood.
    Acknowledged {
        /// The item.
        item: u64,
        /// The number of the write, counted from 1.
        write: u32,
        /// The fence of the item's claim.
        fence: u64,
    },
    /// The store answered a step of a script.
    Answered {
        /// The step.
        step: usize,
        /// The answer, in a form that can be compared.
        answer: String,
    },
    /// The store refused a step of a script.
    Refused {
        /// The step.
        step: usize,
        /// The kind of the error.
        kind: String,
    },
    /// A finished key was read while the disk was full.
    Replayed {
        /// The store's answer.
        answer: String,
    },
    /// Every caller of a crowd waits, or is in the effect.
    AllWait {
        /// True if one of them is in the effect.
        in_effect: bool,
    },
    /// Every caller of a crowd has its answer.
    Crowded(Crowded),
    /// It listens on this port.
    Listens {
        /// The port.
        port: u16,
    },
    /// A puppet took a step.
    Step(PuppetReport),
    /// From the disk: a fault occurs.
    Fault {
        /// True if a sync failed, and not a write.
        sync: bool,
        /// The number of the call.
        call: u64,
        /// The name of the file.
        file: String,
    },
    /// From the disk at the end: the number of calls.
    Calls {
        /// Writes of any kind.
        writes: u64,
        /// Syncs of any kind.
        syncs: u64,
    },
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReportedEnd {
    /// With a value.
    Value {
        /// The receipt of the effect.
        receipt: String,
        /// True if it is from another caller.
        replayed: bool,
        /// True if later callers get it too.
        stored: bool,
    },
    /// Without one; the reason.
    Nothing(String),
}

impl VictimReport {
    /// Writes the line, in one write.
    pub fn send(&self) {
        let mut line = serde_json::to_string(self).expect("reports are plain data");
        line.push('\n');
        // If nobody listens any more, nobody needs the report.
        let _ = std::io::stdout().lock().write_all(line.as_bytes());
    }

    pub(crate) fn not_opened(error: &Error) -> Self {
        Self::NotOpened { kind: format!("{:?}", error.kind()), message: error.to_string() }
    }
}
