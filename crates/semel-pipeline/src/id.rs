//! Ids: a prefix for the kind, and 26 characters that sort by creation time.
//!
//! The crate `ulid` also reads small letters: one id would then have several texts.

use std::fmt;
use std::str::FromStr;

use semel::time::Timestamp;

use crate::names::names;

/// Crockford's base 32: digits and capitals without I, L, O and U, in the order of their values.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// How many characters follow a prefix.
const LENGTH: usize = 26;

/// 128 bits: 48 of milliseconds, 80 of randomness. Later ids sort after earlier ones, as text and as numbers.
fn mint(now: Timestamp) -> u128 {
    let millis = u128::from(now.as_micros() / 1_000);
    (millis << 80) | (rand::random::<u128>() >> 48)
}

fn write(f: &mut fmt::Formatter<'_>, prefix: &str, value: u128) -> fmt::Result {
    let mut text = [b'0'; LENGTH];
    let mut rest = value;
    for place in text.iter_mut().rev() {
        *place = DIGITS[usize::try_from(rest & 31).expect("five bits fit")];
        rest >>= 5;
    }
    f.write_str(prefix)?;
    f.write_str(std::str::from_utf8(&text).expect("the digits are ASCII"))
}

fn read(text: &str) -> Option<u128> {
    if text.len() != LENGTH {
        return None;
    }
    let mut value: u128 = 0;
    for (place, byte) in text.bytes().enumerate() {
        let digit = DIGITS.iter().position(|digit| *digit == byte)?;
        // The first of 26 characters has only three bits.
        if place == 0 && digit > 7 {
            return None;
        }
        value = (value << 5) | u128::try_from(digit).ok()?;
    }
    Some(value)
}

/// A text that is not an id of the expected kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id: expected {expected} followed by 26 characters of 0-9 and A-Z without I, L, O, U")]
pub struct ParseIdError {
    expected: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// A new id, created at `now`.
            pub fn new(now: Timestamp) -> Self {
                Self(mint(now))
            }

            /// The id with these bytes from a ledger.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(u128::from_be_bytes(bytes))
            }

            /// Its bytes; they sort as the ids do.
            pub const fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write(f, $prefix, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                text.strip_prefix($prefix)
                    .and_then(read)
                    .map(Self)
                    .ok_or(ParseIdError { expected: concat!("`", $prefix, "`") })
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(
    /// Names a delivery: one event for one target.
    DeliveryId, "dlv_"
);
id!(
    /// Names a dead letter.
    LetterId, "dlq_"
);
id!(
    /// Names a replay job.
    JobId, "rpl_"
);

/// Names an event. The id of a triggered event, a *run*, has its own prefix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId {
    value: u128,
    kind: EventKind,
}

/// The kind of event that an id names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// Published: by HTTP, by a stream, by an outbox. For every target that subscribes to its type.
    Event,
    /// Triggered: for the one target that it names.
    Run,
}

names!(EventKind {
    Event = "event",
    Run = "run",
});

impl EventKind {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Event => "evt_",
            Self::Run => "run_",
        }
    }
}

impl EventId {
    /// A new id, created at `now`.
    pub fn new(kind: EventKind, now: Timestamp) -> Self {
        Self { value: mint(now), kind }
    }

    /// The id with these bytes from a ledger.
    pub const fn from_bytes(kind: EventKind, bytes: [u8; 16]) -> Self {
        Self { value: u128::from_be_bytes(bytes), kind }
    }

    /// Its bytes, without its kind; they sort as the ids do.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.value.to_be_bytes()
    }

    /// Event or run.
    pub const fn kind(self) -> EventKind {
        self.kind
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.kind.prefix(), self.value)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for EventId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        [EventKind::Event, EventKind::Run]
            .into_iter()
            .find_map(|kind| {
                let value = text.strip_prefix(kind.prefix()).and_then(read)?;
                Some(Self { value, kind })
            })
            .ok_or(ParseIdError { expected: "`evt_` or `run_`" })
    }
}

impl serde::Serialize for EventId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for EventId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_and_sorts_by_time() {
        let early = EventId::new(EventKind::Run, Timestamp::from_micros(1_000_000));
        let late = EventId::new(EventKind::Run, Timestamp::from_micros(2_000_000));
        assert!(early < late && early.to_string() < late.to_string() && early.to_bytes() < late.to_bytes());
        assert_eq!(late.to_string().parse(), Ok(late));
        assert_eq!(EventId::from_bytes(EventKind::Run, late.to_bytes()), late);
    }

    #[test]
    fn what_is_no_id_is_refused() {
        let id = LetterId::new(Timestamp::from_micros(7)).to_string();
        assert!(id.parse::<LetterId>().is_ok());
        for wrong in [
            "",
            "dlq_",
            &id[1..],
            &id[..29],
            &id.replace("dlq_", "dlv_"),
            &format!("{id}0"),
            "dlq_80000000000000000000000000",
        ] {
            assert!(wrong.parse::<LetterId>().is_err(), "{wrong}");
        }
    }
}
