//! Whether a store grants claims, as it is written in the store.

use std::fmt;

use crate::hex;
use crate::store::{Error, ErrorKind};

/// Whether a store grants claims.
///
/// Stored as one line of text, so that an operator can read it: `filling RUN ADDRESS`, `moved RUN ADDRESS`, or `open`. A
/// store that was never moved or filled has no line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TransferState {
    /// It does.
    #[default]
    Open,
    /// It does not: records of another store are being copied into it, or were copied in part.
    Filling {
        /// The copying process.
        run: TransferRun,
        /// The store that is copied.
        from: String,
    },
    /// It does not: its records are, or will be, in another store.
    Moved {
        /// The copying process.
        run: TransferRun,
        /// The other store.
        to: String,
    },
}

/// Names one run of a copying process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransferRun([u8; 8]);

impl TransferRun {
    /// A new one.
    pub fn random() -> Self {
        Self(rand::random())
    }
}

impl fmt::Display for TransferRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex::write(f, &self.0)
    }
}

impl fmt::Debug for TransferRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransferRun({self})")
    }
}

impl TransferState {
    /// The stored text.
    pub fn to_stored(&self) -> String {
        match self {
            Self::Open => "open".to_owned(),
            Self::Filling { run, from } => format!("filling {run} {from}"),
            Self::Moved { run, to } => format!("moved {run} {to}"),
        }
    }

    /// Reads [`to_stored`](Self::to_stored).
    ///
    /// # Errors
    /// A newer version wrote it, or not Semel. No claim may be granted then.
    pub fn from_stored(text: Option<&[u8]>) -> Result<Self, Error> {
        let Some(text) = text.filter(|text| *text != b"open") else { return Ok(Self::Open) };
        let read = || {
            let mut words = str::from_utf8(text).ok()?.splitn(3, ' ');
            let (word, run, address) = (words.next()?, words.next()?, words.next()?.to_owned());
            let run = TransferRun(hex::read(run.as_bytes())?);
            match word {
                "filling" => Some(Self::Filling { run, from: address }),
                "moved" => Some(Self::Moved { run, to: address }),
                _ => None,
            }
        };
        read().ok_or_else(|| {
            Error::new(
                ErrorKind::Incompatible,
                "the store has a transfer state that this version of Semel does not know: upgrade Semel",
            )
        })
    }

    /// True if `run` fills the store.
    pub fn is_filled_by(&self, by: TransferRun) -> bool {
        matches!(self, Self::Filling { run, .. } if *run == by)
    }

    /// Why `store` grants no claims; `None` if it does.
    pub fn refusal(&self, store: &dyn fmt::Display) -> Option<Error> {
        let message = match self {
            Self::Open => return None,
            Self::Filling { from, .. } => format!(
                "{store} is being filled from {from}, or was filled in part: run `semel store copy` to its end before \
                 a server uses it"
            ),
            Self::Moved { to, .. } => format!(
                "the records of {store} were moved to {to}: use that store. `semel store reopen` opens this one \
                 again, if nothing has run on the other"
            ),
        };
        Some(Error::new(ErrorKind::Moved, message))
    }
}
