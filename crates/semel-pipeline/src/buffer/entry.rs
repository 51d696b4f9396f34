//! What a buffered run looks like in bytes, and how its changes are applied to it.
//!
//! The run is its head in JSON, with the length before it, and then the payload's bytes as they came. No script reads any
//! of it, so nothing is ever re-encoded: an empty array stays one, a long number keeps its digits (G12).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};

use super::{hex, unhex};
use crate::event::{Dedupe, NewEvent, Notes, Origin, Trace};
use crate::id::EventId;
use crate::ledger::Change;

/// A buffered run with its changes applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffered {
    /// The run as it is to be accepted. Its notes and delay are as they stand now; its key is gone where it was reset.
    pub run: NewEvent,
    /// Whether somebody cancelled it.
    pub cancelled: bool,
    /// Changes that could not be applied, in words.
    pub refused: Vec<String>,
}

/// A buffered run that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Its bytes.
    pub bytes: Bytes,
    /// What is wrong with them.
    pub why: String,
}

/// A change to a buffered run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Patch {
    /// Tags, metadata, delay.
    Change(Change),
    /// It is not to be delivered.
    Cancel,
    /// It has lost its key.
    DropKey,
}

impl Patch {
    /// Whether it may be added while the run is on its way: the drainer applies it behind. What must not come too late
    /// (cancelling, rescheduling) waits until the run has arrived.
    pub(super) fn may_follow(&self) -> bool {
        match self {
            Self::Change(change) => change.delay.is_none(),
            Self::Cancel => false,
            Self::DropKey => true,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let text = serde_json::to_vec(self).expect("a patch is plain data");
        let length = u32::try_from(text.len()).expect("a patch is far below 4 GiB").to_le_bytes();
        [&length[..], &text].concat()
    }

    pub(super) fn read_all(mut bytes: &[u8]) -> Result<Vec<Self>, String> {
        let mut patches = Vec::new();
        while !bytes.is_empty() {
            let (length, rest) = bytes.split_first_chunk::<4>().ok_or("a change is cut off")?;
            let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| "a change is too long")?;
            let (text, rest) = rest.split_at_checked(length).ok_or("a change is cut off")?;
            patches.push(serde_json::from_slice(text).map_err(|error| format!("a change: {error}"))?);
            bytes = rest;
        }
        Ok(patches)
    }
}

/// What is empty is left out: Redis keeps every byte, and most runs have little.
#[derive(serde::Serialize, serde::Deserialize)]
struct Head<'a> {
    id: EventId,
    #[serde(borrow)]
    tenant: Cow<'a, str>,
    #[serde(borrow)]
    event_type: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dedupe: Option<Key>,
    #[serde(borrow)]
    content_type: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    headers: Cow<'a, [(String, String)]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    order_key: Option<Cow<'a, str>>,
    origin: Cow<'a, Origin>,
    targets: Cow<'a, [String]>,
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    delay: Duration,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deliver_within: Option<Duration>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    tags: Cow<'a, [String]>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    metadata: Cow<'a, BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_id: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    traceparent: Option<Cow<'a, str>>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Key {
    id: KeyId,
    hint: Hint,
    print: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lifetime: Option<Duration>,
}

/// A run in bytes.
pub(super) fn encode(run: &NewEvent) -> Vec<u8> {
    let dedupe = run.dedupe.as_ref().map(|dedupe| Key {
        id: dedupe.id,
        hint: dedupe.hint.clone(),
        print: hex(dedupe.fingerprint.as_bytes()),
        lifetime: dedupe.lifetime,
    });
    let head = Head {
        id: run.id,
        tenant: run.tenant.as_str().into(),
        event_type: run.event_type.as_str().into(),
        dedupe,
        content_type: run.content_type.as_str().into(),
        headers: run.headers.as_slice().into(),
        order_key: run.order_key.as_deref().map(Into::into),
        origin: Cow::Borrowed(&run.origin),
        targets: run.targets.as_slice().into(),
        delay: run.delay,
        deliver_within: run.deliver_within,
        tags: run.notes.tags.as_slice().into(),
        metadata: Cow::Borrowed(&run.notes.metadata),
        request_id: run.trace.request_id.as_deref().map(Into::into),
        traceparent: run.trace.traceparent.as_deref().map(Into::into),
    };
    let mut bytes = Vec::with_capacity(512 + run.payload.len());
    bytes.extend_from_slice(&[0; 4]);
    serde_json::to_writer(&mut bytes, &head).expect("a head is plain data");
    let length = u32::try_from(bytes.len() - 4).expect("a head is far below 4 GiB");
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&run.payload);
    bytes
}

fn decode(bytes: &Bytes) -> Result<NewEvent, String> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or("it is cut off")?;
    let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| "its head is too long")?;
    let (text, _) = rest.split_at_checked(length).ok_or("it is cut off")?;
    let head: Head<'_> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let dedupe = match head.dedupe {
        None => None,
        Some(key) => {
            let print = unhex(&key.print).ok_or("its fingerprint is not one")?;
            let fingerprint = Fingerprint::from_bytes(print);
            Some(Dedupe { id: key.id, hint: key.hint, fingerprint, lifetime: key.lifetime })
        }
    };
    Ok(NewEvent {
        id: head.id,
        tenant: head.tenant.into_owned(),
        event_type: head.event_type.into_owned(),
        dedupe,
        payload: bytes.slice(4 + length..),
        content_type: head.content_type.into_owned(),
        headers: head.headers.into_owned(),
        order_key: head.order_key.map(Cow::into_owned),
        origin: head.origin.into_owned(),
        targets: head.targets.into_owned(),
        delay: head.delay,
        deliver_within: head.deliver_within,
        notes: Notes { tags: head.tags.into_owned(), metadata: head.metadata.into_owned() },
        trace: Trace {
            request_id: head.request_id.map(Cow::into_owned),
            traceparent: head.traceparent.map(Cow::into_owned),
        },
    })
}

impl Buffered {
    /// The run of these bytes with these changes.
    pub(super) fn read(run: &Bytes, changes: &Bytes) -> Result<Self, Unreadable> {
        let unreadable = |why: String| Unreadable { bytes: run.clone(), why };
        let mut buffered =
            Self { run: decode(run).map_err(unreadable)?, cancelled: false, refused: Vec::new() };
        for patch in Patch::read_all(changes).map_err(unreadable)? {
            buffered.apply(&patch);
        }
        Ok(buffered)
    }

    fn apply(&mut self, patch: &Patch) {
        match patch {
            Patch::Change(change) => {
                if let Err(why) = self.run.notes.apply(change) {
                    self.refused.push(why);
                }
                if let Some(delay) = change.delay {
                    self.run.delay = delay;
                }
            }
            Patch::Cancel => self.cancelled = true,
            Patch::DropKey => self.run.dedupe = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use semel::secret::Secret;
    use semel::time::Timestamp;

    use super::*;
    use crate::id::EventKind;

    fn run() -> NewEvent {
        let payload = Bytes::from_static(br#"{"empty":[],"n":9007199254740993,"f":1.10}"#);
        let secret = Secret::from_bytes([1; 32]);
        let dedupe = Dedupe::of_run(&secret, ("p", "t|{x}", "crm"), "k:1|2", &payload, None);
        NewEvent {
            id: EventId::new(EventKind::Run, Timestamp::from_micros(5_000_000)),
            tenant: "t|{x}".to_owned(),
            event_type: "crm".to_owned(),
            dedupe: Some(dedupe.expect("the key is good")),
            payload,
            content_type: "application/json".to_owned(),
            headers: vec![("a".to_owned(), "b|c".to_owned())],
            order_key: None,
            origin: Origin::Api { principal: "p".to_owned() },
            targets: vec!["crm".to_owned()],
            delay: Duration::from_millis(1500),
            deliver_within: Some(Duration::from_secs(9)),
            notes: Notes::default(),
            trace: Trace::default(),
        }
    }

    // G12
    #[test]
    fn a_run_comes_out_as_it_went_in() {
        let run = run();
        let full = NewEvent {
            order_key: Some("o\"1".to_owned()),
            notes: Notes {
                tags: vec!["x".to_owned()],
                metadata: BTreeMap::from([("n".to_owned(), "9007199254740993".to_owned())]),
            },
            trace: Trace { request_id: Some("r".to_owned()), traceparent: Some("t".to_owned()) },
            ..run.clone()
        };
        let bare = NewEvent {
            dedupe: None,
            headers: Vec::new(),
            delay: Duration::ZERO,
            deliver_within: None,
            payload: Bytes::new(),
            ..run.clone()
        };
        for run in [run, full, bare] {
            let read = Buffered::read(&Bytes::from(encode(&run)), &Bytes::new()).expect("it is whole");
            assert_eq!((read.run, read.cancelled), (run, false));
        }
    }

    // G12
    #[test]
    fn changes_are_applied_in_order_and_exactly() {
        let set = Change {
            set: vec![("n".to_owned(), "9007199254740993".to_owned()), ("e".to_owned(), "[]".to_owned())],
            add_tags: vec!["x".to_owned()],
            ..Change::default()
        };
        let add = Change { increment: vec![("n".to_owned(), "1".to_owned())], ..Change::default() };
        let wrong = Change { increment: vec![("e".to_owned(), "1".to_owned())], ..Change::default() };
        let patches = [
            Patch::Change(set),
            Patch::Change(add.clone()),
            Patch::Change(add),
            Patch::Change(wrong),
            Patch::DropKey,
        ];
        let bytes: Vec<u8> = patches.iter().flat_map(Patch::encode).collect();
        let read = Buffered::read(&Bytes::from(encode(&run())), &Bytes::from(bytes)).expect("it is whole");
        assert_eq!(read.run.notes.metadata.get("n").map(String::as_str), Some("9007199254740995"));
        assert_eq!(read.run.notes.metadata.get("e").map(String::as_str), Some("[]"));
        assert_eq!((read.run.dedupe, read.refused.len()), (None, 1));
    }

    #[test]
    fn what_is_cut_off_is_unreadable_and_keeps_its_bytes() {
        let whole = encode(&run());
        for length in [0, 3, 4, 20, 200] {
            let cut = Bytes::copy_from_slice(&whole[..length]);
            let unreadable = Buffered::read(&cut, &Bytes::new()).expect_err("it is cut off");
            assert_eq!(unreadable.bytes, cut);
        }
        let changes = Bytes::from_static(&[9, 0, 0, 0, b'{']);
        assert!(Buffered::read(&Bytes::from(whole), &changes).is_err());
    }
}
