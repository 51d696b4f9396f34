//! The byte format of a buffered run, and how its changes are applied.
//!
//! A run is its head in JSON, with the length before it, and then the payload's original bytes. No script reads it,
//! so nothing is ever re-encoded: an empty array stays empty, a long number keeps its digits.
//!
//! The head names its format (`v`). Format 1 is the first; heads without a format have it too. A run of a later
//! format stays in the buffer for a version of Semel that reads it. `fixtures/` contains a run of every format.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::time::Timestamp;
use semel_pipeline::event::{Dedupe, Generation, NewEvent, Notes, Origin, Trace};
use semel_pipeline::id::EventId;
use semel_pipeline::ledger::Patch;

use super::change::decode_changes;

/// A buffered run as it was accepted, and its later changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferedRun {
    /// The run as it was accepted; the buffer decides when its key expires.
    pub run: NewEvent,
    /// Its changes, in order: the first has number 1.
    pub changes: Vec<Patch>,
}

/// A buffered run with its changes applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentRun {
    /// The run, with its current notes and delay.
    pub run: NewEvent,
    /// True if an earlier version cancelled it in the buffer.
    pub cancelled: bool,
}

/// A buffered run that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRun {
    /// Its bytes.
    pub bytes: Bytes,
    /// Why they cannot be read.
    pub why: String,
    /// The format of the run, if this version of Semel does not know it.
    pub newer_format: Option<u32>,
}

/// The format of runs that this version writes, and the latest that it reads.
const FORMAT: u32 = 1;

/// Why bytes are not a run.
struct FormatError {
    why: String,
    newer_format: Option<u32>,
}

impl From<String> for FormatError {
    fn from(why: String) -> Self {
        Self { why, newer_format: None }
    }
}

impl From<&str> for FormatError {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

/// Empty members are omitted: Redis stores every byte, and most runs have little.
#[derive(serde::Serialize, serde::Deserialize)]
struct RunHead<'a> {
    #[serde(default = "first_format")]
    v: u32,
    id: EventId,
    #[serde(borrow)]
    tenant: Cow<'a, str>,
    #[serde(borrow)]
    event_type: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dedupe: Option<RunHeadKey>,
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
struct RunHeadKey {
    id: KeyId,
    hint: Hint,
    print: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lifetime: Option<Duration>,
    #[serde(default, skip_serializing_if = "is_first")]
    generation: Generation,
}

/// The part of a head that is read before its format is known.
#[derive(serde::Deserialize)]
struct HeadFormat {
    #[serde(default = "first_format")]
    v: u32,
}

const fn first_format() -> u32 {
    1
}

fn is_first(generation: &Generation) -> bool {
    *generation == Generation::FIRST
}

pub(super) fn encode_run(run: &NewEvent) -> Vec<u8> {
    let dedupe = run.dedupe.as_ref().map(|dedupe| RunHeadKey {
        id: dedupe.id,
        hint: dedupe.hint.clone(),
        print: hex(dedupe.fingerprint.as_bytes()),
        lifetime: dedupe.lifetime,
        generation: dedupe.generation.unwrap_or_default(),
    });
    let head = RunHead {
        v: FORMAT,
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

fn decode_run(bytes: &Bytes) -> Result<NewEvent, FormatError> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or("it is cut off")?;
    let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| "its head is too long")?;
    let (text, _) = rest.split_at_checked(length).ok_or("it is cut off")?;
    let HeadFormat { v } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if v > FORMAT {
        let why =
            format!("it has format {v}, and this version of Semel reads format {FORMAT}: upgrade Semel");
        return Err(FormatError { why, newer_format: Some(v) });
    }
    let head: RunHead<'_> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let dedupe = match head.dedupe {
        None => None,
        Some(key) => {
            let print = unhex(&key.print).ok_or("its fingerprint is invalid")?;
            let fingerprint = Fingerprint::from_bytes(print);
            Some(Dedupe {
                id: key.id,
                hint: key.hint,
                fingerprint,
                lifetime: key.lifetime,
                expires_at: None,
                generation: Some(key.generation),
            })
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

impl BufferedRun {
    /// The run of these bytes with these changes and this expiry of its key.
    pub(super) fn read(
        run: &Bytes,
        changes: &Bytes,
        expires_at: Option<Timestamp>,
    ) -> Result<Self, UnreadableRun> {
        let unreadable =
            |FormatError { why, newer_format }| UnreadableRun { bytes: run.clone(), why, newer_format };
        let mut read = decode_run(run).map_err(unreadable)?;
        if let Some(dedupe) = &mut read.dedupe {
            dedupe.expires_at = expires_at;
        }
        Ok(Self { run: read, changes: decode_changes(changes).map_err(|why| unreadable(why.into()))? })
    }

    /// The run with its changes applied.
    pub fn current(mut self) -> CurrentRun {
        for change in &self.changes {
            // The ledger refuses the same changes when the run arrives, and the drainer reports them.
            let _ = change.apply(&mut self.run);
        }
        CurrentRun { run: self.run, cancelled: self.changes.contains(&Patch::Cancel) }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(digit.into(), 16).expect("four bits are a digit"));
        }
    }
    text
}

pub(super) fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use semel::secret::Secret;
    use semel_pipeline::id::EventKind;
    use semel_pipeline::ledger::Change;

    use super::super::change::encode_change;
    use super::*;

    pub(in crate::buffer) fn run() -> NewEvent {
        let payload = Bytes::from_static(br#"{"empty":[],"n":9007199254740993,"f":1.10}"#);
        let secret = Secret::from_bytes([1; 32]);
        let dedupe = Dedupe::of_run(&secret, ("p", "t|{x}", "crm"), "k:1|2", &payload, None);
        NewEvent {
            id: EventId::new(EventKind::Run, Timestamp::from_micros(5_000_000)),
            tenant: "t|{x}".to_owned(),
            event_type: "crm".to_owned(),
            dedupe: Some(Dedupe { generation: Some(Generation::FIRST), ..dedupe.expect("the key is good") }),
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
            let read =
                BufferedRun::read(&Bytes::from(encode_run(&run)), &Bytes::new(), None).expect("it is whole");
            assert_eq!((read.run, read.changes.len()), (run, 0));
        }
    }

    fn fixture(hex: &str) -> Bytes {
        let hex = hex.trim().as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).expect("hex"), 16).expect("hex");
        hex.chunks(2).map(byte).collect::<Vec<u8>>().into()
    }

    // The next version must drain the runs that one version has buffered.
    #[test]
    fn runs_of_every_format_are_read() {
        let unnamed = fixture(include_str!("fixtures/run-unnamed.hex"));
        let first = fixture(include_str!("fixtures/run-1.hex"));
        let read = |bytes: &Bytes| BufferedRun::read(bytes, &Bytes::new(), None).expect("it is whole").run;
        let run = read(&first);
        assert_eq!(read(&unnamed), run, "before formats were named, they were of the first");
        assert_eq!(encode_run(&run), first, "this version writes format 1");
        assert_eq!((run.tenant.as_str(), run.event_type.as_str()), ("acme", "crm"));
        assert_eq!(run.payload, Bytes::from_static(br#"{"empty":[],"n":9007199254740993,"f":1.10}"#));
        assert_eq!((run.delay, run.notes.tags), (Duration::from_millis(1500), vec!["x".to_owned()]));
    }

    #[test]
    fn a_run_of_a_later_format_is_told_from_a_damaged_one() {
        let head = br#"{"v":2,"sealed":"whatever a later version needs"}"#;
        let length = u32::try_from(head.len()).expect("it is short").to_le_bytes();
        let bytes = Bytes::from([&length[..], head].concat());
        let unreadable = BufferedRun::read(&bytes, &Bytes::new(), None).expect_err("it is newer");
        assert_eq!(unreadable.newer_format, Some(2));
        assert!(unreadable.why.contains("upgrade"), "{}", unreadable.why);
    }

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
        let bytes: Vec<u8> = patches.iter().flat_map(encode_change).collect();
        let read = BufferedRun::read(&Bytes::from(encode_run(&run())), &Bytes::from(bytes), None)
            .expect("it is whole");
        assert_eq!(read.changes.len(), patches.len());
        let read = read.current();
        assert_eq!(read.run.notes.metadata.get("n").map(String::as_str), Some("9007199254740995"));
        assert_eq!(read.run.notes.metadata.get("e").map(String::as_str), Some("[]"));
        assert_eq!((read.run.dedupe, read.cancelled), (None, false));
    }

    #[test]
    fn what_is_cut_off_is_unreadable_and_keeps_its_bytes() {
        let whole = encode_run(&run());
        for length in [0, 3, 4, 20, 200] {
            let cut = Bytes::copy_from_slice(&whole[..length]);
            let unreadable = BufferedRun::read(&cut, &Bytes::new(), None).expect_err("it is cut off");
            assert_eq!(unreadable.bytes, cut);
        }
        let changes = Bytes::from_static(&[9, 0, 0, 0, b'{']);
        assert!(BufferedRun::read(&Bytes::from(whole), &changes, None).is_err());
    }
}
