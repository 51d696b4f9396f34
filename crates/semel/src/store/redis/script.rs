//! One script call per command: its arguments and its answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};

use crate::outcome::Outcome;
use crate::record::{
    Begin, Command, Epoch, Fence, Force, Grant, NewClaim, Phase, Record, Ruling, Settlement, State, Win,
    encode_outcome,
};
use crate::store::{Error, ErrorKind};
use crate::time::Timestamp;

pub(super) const RULES: &str = include_str!("rules.lua");
const MARKS: &str = include_str!("marks.lua");
const MARKER: &str = include_str!("marker.lua");
const TRANSFER: &str = include_str!("transfer.lua");
const IMPORT: &str = include_str!("import.lua");
pub(super) const COMPLETE: &str = include_str!("complete.lua");

/// The script's maximum time: the last integer that its doubles represent exactly.
const FOREVER_MICROS: u64 = 1 << 53;

/// A script and its SHA-1 at the server.
#[derive(Clone, Debug)]
pub(super) struct Script {
    text: String,
    sha: String,
}

impl Script {
    pub(super) fn new(text: String) -> Self {
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha }
    }

    /// The call by SHA-1, which the server usually has.
    pub(super) fn by_sha<'a>(&self, keys: &[&'a [u8]], arguments: impl IntoIterator<Item = &'a [u8]>) -> Cmd {
        call("EVALSHA", &self.sha, keys, arguments)
    }

    /// The call with the whole text, after which the server has the script.
    pub(super) fn by_text<'a>(
        &self,
        keys: &[&'a [u8]],
        arguments: impl IntoIterator<Item = &'a [u8]>,
    ) -> Cmd {
        call("EVAL", &self.text, keys, arguments)
    }
}

fn call<'a>(
    verb: &str,
    script: &str,
    keys: &[&'a [u8]],
    arguments: impl IntoIterator<Item = &'a [u8]>,
) -> Cmd {
    let mut command = Cmd::with_capacity(4 * keys.len() + 4, 256 * keys.len());
    command.arg(verb).arg(script).arg(keys.len());
    for part in keys.iter().copied().chain(arguments) {
        command.arg(part);
    }
    command
}

/// Two variants of the rules. An owner must be able to end its claim even if memory is full.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) usual: Arc<Script>,
    when_full: Arc<Script>,
    /// True if the server is 7.0 or newer: it has flags of scripts, and `NX` together with `GET`.
    new: AtomicBool,
    /// For a batch of completions, on one server of version 7.0 or newer.
    pub(super) completions: Script,
    pub(super) marks: Script,
    /// Increments the marker's beat.
    pub(super) marker: Script,
    /// Changes whether the store grants claims.
    pub(super) transfer: Script,
    /// Writes records of another store.
    pub(super) import: Arc<Script>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// One server, with or without replicas.
    One,
    /// A cluster: wake-ups stay on the shard of their key.
    Cluster,
}

impl Rules {
    pub(super) fn new(dialect: Dialect) -> Self {
        let rules = match dialect {
            Dialect::One => RULES.to_owned(),
            Dialect::Cluster => RULES.replace("'PUBLISH'", "'SPUBLISH'"),
        };
        #[cfg(feature = "mutants")]
        return Self::of(super::mutants::change(rules), &super::mutants::change(COMPLETE.to_owned()));
        #[cfg(not(feature = "mutants"))]
        Self::of(rules, COMPLETE)
    }

    pub(super) fn of(text: String, complete: &str) -> Self {
        let when_full = |text: &str| Script::new(format!("#!lua flags=allow-oom\n{text}"));
        Self {
            when_full: Arc::new(when_full(&text)),
            completions: when_full(complete),
            new: AtomicBool::new(false),
            usual: Arc::new(Script::new(text)),
            marks: Script::new(MARKS.to_owned()),
            marker: Script::new(MARKER.to_owned()),
            transfer: Script::new(TRANSFER.to_owned()),
            import: Arc::new(Script::new(IMPORT.to_owned())),
        }
    }

    /// Sets the server's version, its first two numbers.
    pub(super) fn server_is(&self, version: (u32, u32)) {
        self.new.store(version >= (7, 0), Ordering::Relaxed);
    }

    /// True if the server is 7.0 or newer.
    pub(super) fn server_is_new(&self) -> bool {
        self.new.load(Ordering::Relaxed)
    }

    /// The script for a command: only a claim may be refused if memory is full.
    pub(super) fn script(&self, command: &Command) -> &Arc<Script> {
        match command {
            Command::Claim(_) => &self.usual,
            _ => self.when_full(),
        }
    }

    /// For commands that must work if memory is full.
    pub(super) fn when_full(&self) -> &Arc<Script> {
        if self.server_is_new() { &self.when_full } else { &self.usual }
    }
}

/// The arguments of a command, as the script's comments list them.
pub(super) fn arguments(command: &Command) -> Vec<Vec<u8>> {
    let named = |name: &str| vec![name.as_bytes().to_vec()];
    let by_owner = |name: &str, grant: &Grant| vec![name.as_bytes().to_vec(), packed_grant(grant)];
    match command {
        Command::Claim(claim) => vec![b"claim".to_vec(), asked(claim)],
        Command::Begin(grant) => by_owner("begin", grant),
        Command::Renew(grant) => by_owner("renew", grant),
        Command::Complete { grant, fingerprint, outcome, retention } => {
            let [grant, outcome, retention] = completion(grant, outcome, *retention);
            vec![b"complete".to_vec(), grant, fingerprint.as_bytes().to_vec(), outcome, retention]
        }
        Command::Release(grant) => by_owner("release", grant),
        Command::Bind(grant) => by_owner("bind", grant),
        Command::Abandon(grant) => by_owner("abandon", grant),
        Command::Settle(Settlement::Done(outcome)) => vec![b"settle_done".to_vec(), packed_outcome(outcome)],
        Command::Settle(Settlement::Run) => named("settle_run"),
        Command::SettleAttempt(fence, Settlement::Done(outcome)) => {
            vec![b"settle_done".to_vec(), packed_outcome(outcome), packed_fence(*fence)]
        }
        Command::SettleAttempt(fence, Settlement::Run) => {
            vec![b"settle_run".to_vec(), Vec::new(), packed_fence(*fence)]
        }
        Command::Forget(Force::No) => named("forget"),
        Command::Forget(Force::Yes) => named("force_forget"),
        Command::Forget(Force::Attempt(fence)) => {
            vec![b"force_forget".to_vec(), Vec::new(), packed_fence(*fence)]
        }
        Command::Reexecute => named("reexecute"),
    }
}

/// The written parts of a completion: owner and fence, outcome, retention or nothing.
pub(super) fn completion(grant: &Grant, outcome: &Outcome, retention: Option<Duration>) -> [Vec<u8>; 3] {
    let retention = retention.map_or_else(Vec::new, |retention| micros(retention).to_string().into_bytes());
    [packed_grant(grant), packed_outcome(outcome), retention]
}

/// The record of a claim; the script fills in fence, counts and times.
fn asked(claim: &NewClaim) -> Vec<u8> {
    Record {
        state: match claim.begin {
            Begin::WithClaim => State::Begun,
            Begin::Later => State::Claimed,
        },
        fingerprint: claim.fingerprint,
        owner: claim.owner,
        fence: Fence::default(),
        epoch: Epoch::default(),
        attempt: 0,
        hint: claim.hint.clone(),
        terms: Arc::clone(&claim.terms),
        claimed_at: Timestamp::default(),
        changed_at: Timestamp::default(),
        lease_until: Timestamp::default(),
        expires_at: Timestamp::default(),
        forget_at: Timestamp::default(),
    }
    .encode()
}

fn packed_grant(grant: &Grant) -> Vec<u8> {
    let mut packed = Vec::with_capacity(24);
    packed.extend(grant.owner().as_bytes());
    packed.extend(grant.fence().get().to_le_bytes());
    packed
}

/// As it is in the record.
fn packed_fence(fence: Fence) -> Vec<u8> {
    fence.get().to_le_bytes().to_vec()
}

fn packed_outcome(outcome: &Outcome) -> Vec<u8> {
    let mut packed = Vec::with_capacity(outcome.size() + 9);
    encode_outcome(outcome, &mut packed);
    packed
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).min(FOREVER_MICROS)
}

pub(super) fn ruling(command: &Command, answer: Value) -> Result<Ruling, Error> {
    let mut answer = ScriptReply::new(answer)?;
    let word = answer.text()?;
    Ok(match word.as_str() {
        "won" => {
            let Command::Claim(claim) = command else {
                return Err(unexpected_reply("grants a claim that was not sent"));
            };
            Ruling::Won(Win {
                grant: Grant::from_parts(claim.owner, Fence::new(answer.number()?)),
                attempt: u32::try_from(answer.number()?).unwrap_or(u32::MAX),
                epoch: Epoch::new(u32::try_from(answer.number()?).unwrap_or(u32::MAX)),
                lease_left: answer.duration()?,
            })
        }
        "busy" => Ruling::Busy { lease_left: answer.duration()? },
        "replay" => {
            let expires_in = answer.duration()?;
            match answer.record()?.state {
                State::Done(outcome) => Ruling::Replay { outcome, expires_in },
                _ => return Err(unexpected_reply("replays a record that is not done")),
            }
        }
        "conflict" => Ruling::Conflict,
        "in_doubt" => Ruling::InDoubt,
        "expired" => Ruling::Expired,
        "accepted" => Ruling::Accepted { lease_left: answer.duration()? },
        "lost" if answer.is_over() => Ruling::Lost { winner: None },
        "lost" => match answer.record()?.state {
            State::Done(outcome) => Ruling::Lost { winner: Some(outcome) },
            _ => return Err(unexpected_reply("names a winner that is not done")),
        },
        "refused" => Ruling::Refused { phase: phase(&answer.text()?)? },
        _ => return Err(unexpected_reply("contains an unknown ruling")),
    })
}

fn phase(word: &str) -> Result<Phase, Error> {
    Ok(match word {
        "vacant" => Phase::Vacant,
        "bound" => Phase::Bound,
        "claimed" => Phase::Claimed,
        "begun" => Phase::Begun,
        "lapsed" => Phase::Lapsed,
        "in_doubt" => Phase::InDoubt,
        "done" => Phase::Done,
        "expired" => Phase::Expired,
        _ => return Err(unexpected_reply("names an unknown phase")),
    })
}

/// The members of a reply, one after the other.
pub(super) struct ScriptReply(std::vec::IntoIter<Value>);

impl ScriptReply {
    pub(super) fn new(answer: Value) -> Result<Self, Error> {
        match answer {
            Value::Array(members) => Ok(Self(members.into_iter())),
            _ => Err(unexpected_reply("is not a list")),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.len() == 0
    }

    pub(super) fn number(&mut self) -> Result<u64, Error> {
        match self.0.next() {
            Some(Value::Int(number)) => Ok(u64::try_from(number).unwrap_or(0)),
            _ => Err(unexpected_reply("lacks a number")),
        }
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, Error> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            _ => Err(unexpected_reply("lacks a string")),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, Error> {
        String::from_utf8(self.bytes()?).map_err(|_| unexpected_reply("holds a word that is no text"))
    }

    pub(super) fn record(&mut self) -> Result<Record, Error> {
        decode(&self.bytes()?)
    }

    fn duration(&mut self) -> Result<Duration, Error> {
        Ok(Duration::from_micros(self.number()?))
    }
}

/// Decodes a record, or returns why it is not served.
pub(super) fn decode(bytes: &[u8]) -> Result<Record, Error> {
    Record::decode(bytes).map_err(|error| {
        let kind = match error {
            crate::record::DecodeError::Version(_) => ErrorKind::Incompatible,
            crate::record::DecodeError::Damaged(_) => ErrorKind::Corrupt,
        };
        Error::new(kind, error.to_string())
    })
}

/// The reply is not from a script of Semel, or the server is not Redis.
pub(super) fn unexpected_reply(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the reply to a Semel script {what}"))
}
