//! The messages between the two sides: the library's types as plain data.

use std::sync::Arc;
use std::time::Duration;

use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::outcome::{self, Outcome as RealOutcome};
use semel::record::{
    self, Begin, Epoch, Fence, Force, Grant as RealGrant, Mode, NewClaim, Owner, Phase, Record, Settlement,
    Terms, Win as RealWin,
};
use semel::store::{self, Error, ErrorKind};
use semel::time::Timestamp;
use serde::{Deserialize, Serialize};

type Id = [u8; 16];

/// A request. Each has a number.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireQuestion {
    Apply(Id, WireCommand),
    Get(Id),
    Scan {
        phase: Option<usize>,
        after: Option<Id>,
        limit: usize,
    },
    Sweep(usize),
    Watch(Id),
    /// A cache of this side has handled a message. The number is that of the message.
    Heard,
}

/// A line of the answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireLine {
    Answer(u64, WireAnswer),
    Woken(Id),
    /// To be answered by [`WireQuestion::Heard`] with this number.
    Invalid(u64, Id),
    /// Must be answered as well.
    Trust(u64, bool),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireAnswer {
    Ruled(WireRuling),
    Found(Option<WireSnapshot>),
    Listed { items: Vec<WireSnapshot>, next: Option<Id> },
    Swept { shrunk: usize, removed: usize, more: bool },
    Failed { kind: String, message: String },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireGrant(Id, u64);

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireOutcome {
    kind: String,
    metadata: Vec<u8>,
    body: Result<Vec<u8>, String>,
}

/// Id, the record's bytes, and when it was read.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireSnapshot(Id, Vec<u8>, u64);

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireCommand {
    Claim {
        owner: Id,
        fingerprint: [u8; 32],
        mode: usize,
        times: [Duration; 5],
        begin_later: bool,
        hint: String,
    },
    Begin(WireGrant),
    Renew(WireGrant),
    Complete {
        grant: WireGrant,
        fingerprint: [u8; 32],
        outcome: WireOutcome,
        retention: Option<Duration>,
    },
    Release(WireGrant),
    Bind(WireGrant),
    Abandon(WireGrant),
    SettleDone(WireOutcome),
    SettleRun,
    SettleAttemptDone(u64, WireOutcome),
    SettleAttemptRun(u64),
    Forget {
        force: bool,
    },
    ForgetAttempt(u64),
    Reexecute,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireRuling {
    Won { grant: WireGrant, attempt: u32, epoch: u32, lease_left: Duration },
    Busy(Duration),
    Replay(WireOutcome, Duration),
    Conflict,
    InDoubt,
    Expired,
    Accepted(Duration),
    Lost(Option<WireOutcome>),
    Refused(usize),
}

const MODES: [Mode; 4] = [Mode::Atomic, Mode::Keyed, Mode::Marked, Mode::Rerun];

const PHASES: [Phase; 8] = [
    Phase::Vacant,
    Phase::Bound,
    Phase::Claimed,
    Phase::Begun,
    Phase::Lapsed,
    Phase::InDoubt,
    Phase::Done,
    Phase::Expired,
];

pub(super) fn phase_number(phase: Phase) -> usize {
    PHASES.iter().position(|known| *known == phase).expect("every phase is listed")
}

pub(super) fn phase(number: usize) -> Phase {
    PHASES[number]
}

/// The error of the other side.
pub(super) fn error(kind: &str, message: String) -> Error {
    let kinds = [
        ErrorKind::Unavailable,
        ErrorKind::Ambiguous,
        ErrorKind::Full,
        ErrorKind::Poisoned,
        ErrorKind::Corrupt,
        ErrorKind::Incompatible,
        ErrorKind::Locked,
        ErrorKind::Setup,
        ErrorKind::SecretDiffers,
        ErrorKind::Moved,
        ErrorKind::Closed,
    ];
    let known = kinds.into_iter().find(|known| format!("{known:?}") == kind);
    Error::new(known.unwrap_or(ErrorKind::Ambiguous), message)
}

pub(super) fn unexpected(answer: &WireAnswer) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the other process gave an answer to something else: {answer:?}"))
}

impl From<RealGrant> for WireGrant {
    fn from(grant: RealGrant) -> Self {
        Self(*grant.owner().as_bytes(), grant.fence().get())
    }
}

impl From<WireGrant> for RealGrant {
    fn from(WireGrant(owner, fence): WireGrant) -> Self {
        Self::from_parts(Owner::from_bytes(owner), Fence::new(fence))
    }
}

impl From<&RealOutcome> for WireOutcome {
    fn from(outcome: &RealOutcome) -> Self {
        let body = match outcome.body() {
            outcome::OutcomeBody::Kept(bytes) => Ok(bytes.clone()),
            outcome::OutcomeBody::Tombstone(reason) => Err(reason.clone()),
        };
        Self { kind: outcome.kind().to_owned(), metadata: outcome.metadata().to_vec(), body }
    }
}

impl From<WireOutcome> for Arc<RealOutcome> {
    fn from(WireOutcome { kind, metadata, body }: WireOutcome) -> Self {
        let outcome = match body {
            Ok(bytes) => RealOutcome::new(kind, bytes),
            Err(reason) => RealOutcome::tombstone(kind, reason),
        };
        Arc::new(outcome.with_metadata(metadata))
    }
}

impl From<&store::Snapshot> for WireSnapshot {
    fn from(snapshot: &store::Snapshot) -> Self {
        Self(*snapshot.id.as_bytes(), snapshot.record.encode(), snapshot.now.as_micros())
    }
}

impl From<WireSnapshot> for store::Snapshot {
    fn from(WireSnapshot(id, bytes, now): WireSnapshot) -> Self {
        let record = Record::decode(&bytes).expect("the other side encoded it");
        Self { id: KeyId::from_bytes(id), record, now: Timestamp::from_micros(now) }
    }
}

impl From<&record::Command> for WireCommand {
    fn from(command: &record::Command) -> Self {
        match command {
            record::Command::Claim(claim) => {
                let Terms { mode, lease, in_flight_max, retention, grace, memory } = *claim.terms;
                Self::Claim {
                    owner: *claim.owner.as_bytes(),
                    fingerprint: *claim.fingerprint.as_bytes(),
                    mode: MODES.iter().position(|known| *known == mode).expect("every mode is listed"),
                    times: [lease, in_flight_max, retention, grace, memory],
                    begin_later: claim.begin == Begin::Later,
                    hint: claim.hint.to_stored().into_owned(),
                }
            }
            record::Command::Begin(grant) => Self::Begin((*grant).into()),
            record::Command::Renew(grant) => Self::Renew((*grant).into()),
            record::Command::Complete { grant, fingerprint, outcome, retention } => Self::Complete {
                grant: (*grant).into(),
                fingerprint: *fingerprint.as_bytes(),
                outcome: (&**outcome).into(),
                retention: *retention,
            },
            record::Command::Release(grant) => Self::Release((*grant).into()),
            record::Command::Bind(grant) => Self::Bind((*grant).into()),
            record::Command::Abandon(grant) => Self::Abandon((*grant).into()),
            record::Command::Settle(Settlement::Done(outcome)) => Self::SettleDone((&**outcome).into()),
            record::Command::Settle(Settlement::Run) => Self::SettleRun,
            record::Command::SettleAttempt(fence, Settlement::Done(outcome)) => {
                Self::SettleAttemptDone(fence.get(), (&**outcome).into())
            }
            record::Command::SettleAttempt(fence, Settlement::Run) => Self::SettleAttemptRun(fence.get()),
            record::Command::Forget(Force::Attempt(fence)) => Self::ForgetAttempt(fence.get()),
            record::Command::Forget(force) => Self::Forget { force: *force == Force::Yes },
            record::Command::Reexecute => Self::Reexecute,
        }
    }
}

impl From<WireCommand> for record::Command {
    fn from(command: WireCommand) -> Self {
        match command {
            WireCommand::Claim { owner, fingerprint, mode, times, begin_later, hint } => {
                let [lease, in_flight_max, retention, grace, memory] = times;
                let terms = Terms { mode: MODES[mode], lease, in_flight_max, retention, grace, memory };
                Self::Claim(NewClaim {
                    owner: Owner::from_bytes(owner),
                    fingerprint: Fingerprint::from_bytes(fingerprint),
                    terms: Arc::new(terms),
                    begin: if begin_later { Begin::Later } else { Begin::WithClaim },
                    hint: Hint::from_stored(&hint),
                })
            }
            WireCommand::Begin(grant) => Self::Begin(grant.into()),
            WireCommand::Renew(grant) => Self::Renew(grant.into()),
            WireCommand::Complete { grant, fingerprint, outcome, retention } => Self::Complete {
                grant: grant.into(),
                fingerprint: Fingerprint::from_bytes(fingerprint),
                outcome: outcome.into(),
                retention,
            },
            WireCommand::Release(grant) => Self::Release(grant.into()),
            WireCommand::Bind(grant) => Self::Bind(grant.into()),
            WireCommand::Abandon(grant) => Self::Abandon(grant.into()),
            WireCommand::SettleDone(outcome) => Self::Settle(Settlement::Done(outcome.into())),
            WireCommand::SettleRun => Self::Settle(Settlement::Run),
            WireCommand::SettleAttemptDone(fence, outcome) => {
                Self::SettleAttempt(Fence::new(fence), Settlement::Done(outcome.into()))
            }
            WireCommand::SettleAttemptRun(fence) => Self::SettleAttempt(Fence::new(fence), Settlement::Run),
            WireCommand::ForgetAttempt(fence) => Self::Forget(Force::Attempt(Fence::new(fence))),
            WireCommand::Forget { force } => Self::Forget(if force { Force::Yes } else { Force::No }),
            WireCommand::Reexecute => Self::Reexecute,
        }
    }
}

impl From<&record::Ruling> for WireRuling {
    fn from(ruling: &record::Ruling) -> Self {
        match ruling {
            record::Ruling::Won(win) => Self::Won {
                grant: win.grant.into(),
                attempt: win.attempt,
                epoch: win.epoch.get(),
                lease_left: win.lease_left,
            },
            record::Ruling::Busy { lease_left } => Self::Busy(*lease_left),
            record::Ruling::Replay { outcome, expires_in } => Self::Replay((&**outcome).into(), *expires_in),
            record::Ruling::Conflict => Self::Conflict,
            record::Ruling::InDoubt => Self::InDoubt,
            record::Ruling::Expired => Self::Expired,
            record::Ruling::Accepted { lease_left } => Self::Accepted(*lease_left),
            record::Ruling::Lost { winner } => Self::Lost(winner.as_deref().map(Into::into)),
            record::Ruling::Refused { phase } => Self::Refused(phase_number(*phase)),
        }
    }
}

impl From<WireRuling> for record::Ruling {
    fn from(ruling: WireRuling) -> Self {
        match ruling {
            WireRuling::Won { grant, attempt, epoch, lease_left } => {
                Self::Won(RealWin { grant: grant.into(), attempt, epoch: Epoch::new(epoch), lease_left })
            }
            WireRuling::Busy(lease_left) => Self::Busy { lease_left },
            WireRuling::Replay(outcome, expires_in) => Self::Replay { outcome: outcome.into(), expires_in },
            WireRuling::Conflict => Self::Conflict,
            WireRuling::InDoubt => Self::InDoubt,
            WireRuling::Expired => Self::Expired,
            WireRuling::Accepted(lease_left) => Self::Accepted { lease_left },
            WireRuling::Lost(winner) => Self::Lost { winner: winner.map(Into::into) },
            WireRuling::Refused(number) => Self::Refused { phase: phase(number) },
        }
    }
}
