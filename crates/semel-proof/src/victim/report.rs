//! What a victim says.

use std::io::Write as _;

use semel::store::Error;
use serde::{Deserialize, Serialize};

use super::crowd::Crowded;

/// One line on a victim's standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
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
        /// Under which fence.
        fence: u64,
    },
    /// A claim was won and its effect not started.
    Claimed {
        /// Under which fence.
        fence: u64,
    },
    /// Another caller of the same process waits for the effect.
    RivalWaits,
    /// A call has ended.
    Ended(Answered),
    /// The store acknowledged a write of a flood.
    Acknowledged {
        /// Of which item.
        item: u64,
        /// Which of its writes, counted from 1.
        write: u32,
        /// The fence of the item's claim.
        fence: u64,
    },
    /// The store answered a step of a script.
    Answered {
        /// Which step.
        step: usize,
        /// What it said, in words that can be compared.
        answer: String,
    },
    /// The store refused a step of a script.
    Refused {
        /// Which step.
        step: usize,
        /// The kind of the error.
        kind: String,
    },
    /// A finished key was asked for while the disk was full.
    Replayed {
        /// What the store said.
        answer: String,
    },
    /// Every caller of a crowd waits, or stands in the effect.
    AllWait {
        /// Whether one of them stands in the effect.
        in_effect: bool,
    },
    /// Every caller of a crowd has its answer.
    Crowded(Crowded),
    /// Said by the disk below: a fault hits.
    Fault {
        /// Whether it was a sync, and not a write, that failed.
        sync: bool,
        /// The number of the call.
        call: u64,
        /// The name of the file.
        file: String,
    },
    /// Said by the disk below at the end: how many calls there were.
    Calls {
        /// Writes of any kind.
        writes: u64,
        /// Syncs of any kind.
        syncs: u64,
    },
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answered {
    /// With a value.
    Value {
        /// The receipt of the effect.
        receipt: String,
        /// Whether it is somebody else's.
        replayed: bool,
        /// Whether later callers get it too.
        stored: bool,
    },
    /// Without one; the reason.
    Nothing(String),
}

impl Report {
    /// Writes the line, in one write.
    pub fn send(&self) {
        let mut line = serde_json::to_string(self).expect("reports are plain data");
        line.push('\n');
        // Nobody listens any more: then nobody needs to know.
        let _ = std::io::stdout().lock().write_all(line.as_bytes());
    }

    pub(super) fn not_opened(error: &Error) -> Self {
        Self::NotOpened { kind: format!("{:?}", error.kind()), message: error.to_string() }
    }
}
