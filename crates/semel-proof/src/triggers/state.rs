//! The state of the model: ledger, Redis, the next command of each participant, and the witness.

use super::{TriggerBudget, TriggerModel};

/// Maximum number of callers, and so of runs: a caller and its run have the same number.
pub(super) const RUNS: usize = 3;
/// Maximum number of generations of the key.
pub(super) const GENERATIONS: usize = 4;
/// Maximum number of drainers.
pub(super) const DRAINERS: usize = 2;

/// One state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TriggerState {
    /// The SQL ledger: durable and authoritative.
    pub ledger: LedgerState,
    /// Claims and buffer.
    pub redis: RedisState,
    /// The callers that trigger runs.
    pub callers: [CallerState; RUNS],
    /// The drainers.
    pub drainers: [DrainerStep; DRAINERS],
    /// A client that cancels runs.
    pub canceller: ClientStep,
    /// A client that increments metadata of runs.
    pub patcher: ClientStep,
    /// A client that resets the key.
    pub resetter: Resetter,
    /// Runs whose lifetime is over: an absolute time, fixed when the run was accepted.
    pub expired: RunSet,
    /// The rest of the budget.
    pub left: TriggerBudget,
    /// What the witness saw.
    pub witness: TriggerWitness,
}

/// State of the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LedgerState {
    /// How many generations have ended. Stands for the clock that new generations are taken from.
    pub clock: u8,
    /// The row of the key.
    pub row: Option<KeyRow>,
    /// Runs by id.
    pub events: [Option<LedgerRun>; RUNS],
}

/// The row of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyRow {
    /// The current generation of the key.
    pub generation: u8,
    /// The run that owns the key.
    pub holder: Option<u8>,
}

/// A run in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LedgerRun {
    /// The generation it was accepted under.
    pub generation: u8,
    /// State of its delivery.
    pub delivery: ModelDelivery,
    /// Whether another run of its generation already owned the key.
    pub lost_key: bool,
    /// Whether it came from the buffer.
    pub drained: bool,
    /// Number of the last buffered change that was applied.
    pub number: u8,
    /// Increments applied to its metadata.
    pub increments: u8,
}

/// State of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelDelivery {
    /// A worker may execute it at any time.
    Queued,
    /// It was executed.
    Executed,
    /// It was cancelled before that.
    Cancelled,
    /// It is a dead letter.
    Dead,
}

/// State of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RedisState {
    /// The claim of each generation.
    pub claims: [ClaimState; GENERATIONS],
    /// Reserved generations: puts under them are refused.
    pub reserved: [bool; GENERATIONS],
    /// Buffered runs.
    pub entries: [Option<BufferedEntry>; RUNS],
    /// Number of the last announcement while the tenant is in the list that drainers read.
    pub list: Option<u8>,
    /// Whether the tenant is listed, as its own part of the buffer knows it.
    pub part: TenantPart,
}

/// The claim on the key and one generation. [`crate::model`] checks the rules of claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClaimState {
    /// No record.
    #[default]
    Free,
    /// A caller holds it.
    Held {
        /// The caller.
        owner: u8,
        /// Its payload.
        payload: u8,
        /// False if the caller took it over.
        first: bool,
        /// Whether the lease has expired: the next caller takes over.
        lapsed: bool,
    },
    /// Given back. It stays bound to its payload, and the next claim counts as a takeover.
    Bound {
        /// Its payload.
        payload: u8,
    },
    /// Resolved to a run.
    Done {
        /// The run.
        run: u8,
    },
}

/// A buffered run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferedEntry {
    /// The generation it was put under.
    pub generation: u8,
    /// Whether the key index points to it.
    pub indexed: bool,
    /// Holder of the current lease.
    pub lease: Option<LeaseHolder>,
    /// Number of changes appended so far; each change has its number.
    pub version: u8,
}

/// Holder of a lease on a buffered run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseHolder {
    /// A drainer.
    Drainer(u8),
    /// A waiting caller that promotes the run.
    Caller(u8),
    /// The client that cancels the run.
    Canceller,
}

/// Whether the tenant is listed, as the tenant's own part of the buffer knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TenantPart {
    /// The tenant is in the list: a put needs no announcement.
    Listed,
    /// Not listed. The next put must carry this token, and its caller must have announced the tenant after it got the
    /// token. 0: no token was issued yet.
    Closed(u8),
}

/// A caller that triggers a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallerState {
    /// Its next command.
    pub stage: CallerStage,
    /// The generation it uses.
    pub generation: u8,
    /// Whether it has won the claim.
    pub claimed: bool,
    /// Token for its put while the tenant is not listed; 0: none.
    pub token: u8,
    /// Whether the buffer has a note of its key that is newer than its last look into the ledger.
    pub outdated: bool,
    /// Whether that look is older than notes last.
    pub late: bool,
    /// Whether a Redis command failed, so that it uses the ledger alone.
    pub alone: bool,
    /// The generation of its put that Redis did not confirm. Its run may be buffered under it.
    pub unconfirmed: Option<u8>,
    /// Witness: number of ended generations when it last read the ledger.
    pub era: u8,
    /// Witness: number of ended generations when it began.
    pub began: u8,
    /// Witness: expired runs when it began.
    pub expired: RunSet,
    /// Witness: the acknowledged run with its payload in the generation in which it began.
    pub acknowledged: Option<u8>,
}

/// The next command of a caller, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallerStage {
    /// There is no such caller.
    Absent,
    /// Not begun.
    Idle,
    /// Claim the key.
    Claim,
    /// Read the row of the key, after the claim answered.
    Find(ClaimAnswer),
    /// The key has another generation than the unconfirmed put: look for the run in the buffer. Then the caller continues
    /// with the row that it has read.
    LookUnconfirmedBuffer(ClaimAnswer, KeyRow),
    /// The same in the ledger. The flag is whether the buffer answered that it does not have the run.
    LookUnconfirmedLedger(ClaimAnswer, KeyRow, bool),
    /// Ask the gate: the claim is won and the ledger has no run.
    Gate,
    /// Put the run into the buffer.
    Put,
    /// Announce the tenant, then put again.
    Announce,
    /// Look up the key in the buffer.
    Look(LookReason),
    /// Look up a run in the ledger that a claim was resolved to.
    LookUp(u8),
    /// The key belongs to another payload: look in the buffer for a run with the caller's payload.
    LookLostBuffer,
    /// The same in the ledger, the last look before a conflict is answered.
    LookLostLedger,
    /// Write the run to the ledger.
    Accept,
    /// End an expired generation.
    Advance(u8),
    /// Wait until the claim is no longer held.
    Wait,
    /// Promotion: lease the run as soon as it has no other lease.
    Lease(u8),
    /// Promotion: write the leased run to the ledger.
    AcceptBuffered(LeasedRunState),
    /// Promotion: take the run out of the buffer.
    Ack(LeasedRunState),
    /// Mutant: remove the promoted run.
    Remove(u8),
    /// Resolve the claim to this run, then answer.
    Resolve(u8),
    /// Over: answered with this run.
    Answered(u8),
    /// Over: answered that the key belongs to another payload.
    Conflict,
    /// Over: answered 503.
    Unavailable,
    /// Over: the process died.
    Gone,
}

/// Answer of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimAnswer {
    /// Won, as the first owner.
    Won,
    /// Won by a takeover.
    TookOver,
    /// It was not asked, or is won: the gate sends the run into the buffer.
    InBurst,
    /// Held by another caller.
    Busy,
    /// Resolved to a run.
    Replay(u8),
    /// Bound to another payload.
    Conflict,
    /// No answer.
    Nothing,
}

/// Reason for a look into the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookReason {
    /// A write to the ledger follows: the key is reserved.
    BeforeAccept,
    /// Another caller holds the claim.
    Busy,
    /// The claim is resolved to this run.
    Replay(u8),
    /// The claim is bound to another payload.
    Conflict,
}

/// A leased run in the memory of its drainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeasedRunState {
    /// The run.
    pub run: u8,
    /// The generation it was put under.
    pub generation: u8,
    /// It has the changes from 1 to this number.
    pub version: u8,
}

/// The next command of a drainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DrainerStep {
    /// There is no such drainer.
    Absent,
    /// Ask for the next tenant, or lease a run.
    Idle,
    /// Lease a run of the tenant, whose announcement had this number.
    Turn(u8),
    /// The tenant has no runs: take it out of the list.
    Leave(u8),
    /// Write the leased run to the ledger.
    AcceptBuffered(LeasedRunState),
    /// Take the run out of the buffer.
    Ack(LeasedRunState),
}

/// The next command of a client that changes a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientStep {
    /// Not begun, or done.
    Idle,
    /// Look into the buffer; wait while the run is leased, if it is to be cancelled.
    Buffer(u8),
    /// The buffer does not have the run: look into the ledger.
    Ledger(u8),
    /// Write the leased run to the ledger, and cancel it there in the same transaction.
    Move(LeasedRunState),
    /// Mutant: cancel the run in the ledger.
    CancelAfterwards(LeasedRunState),
    /// Take the run out of the buffer.
    Ack(LeasedRunState),
}

/// The next command of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resetter {
    /// Not begun, or done.
    Idle,
    /// The ledger has a new generation: close the old one in the buffer.
    Close(u8),
}

/// A set of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RunSet(pub u8);

/// Facts for the properties. No step reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TriggerWitness {
    /// Runs that the ledger or the buffer accepted.
    pub placed: RunSet,
    /// For each run: number of ended generations when its caller last read the ledger before it placed the run.
    pub era: [u8; RUNS],
    /// Runs that were answered to a caller.
    pub answered: RunSet,
    /// Callers answered with `cached: false`, by the era of their run. 2 stands for more.
    pub firsts: [u8; GENERATIONS],
    /// Runs that were executed.
    pub executed: RunSet,
    /// Runs whose cancellation was acknowledged.
    pub cancelled: RunSet,
    /// Acknowledged increments.
    pub increments: [u8; RUNS],
    /// Runs that Redis lost.
    pub lost: RunSet,
    /// Rules that were broken.
    pub broken: u16,
}

/// A rule that a step can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerRule {
    /// A run is executed at most once.
    ExecutedOnce,
    /// A caller is answered only with a run of its own payload.
    OwnPayload,
    /// A caller is not answered with a run whose generation had ended when the caller began.
    CurrentRun,
    /// A repeated trigger of an acknowledged run is not answered with a conflict.
    RetryFinds,
    /// A change of an existing run finds the run.
    ChangeFinds,
    /// A generation ends only by a reset or by expiry.
    KeyKept,
    /// A waiting caller is answered with a run that is in the ledger.
    WaiterServed,
}

impl CallerState {
    /// A caller that remembers nothing.
    fn at(stage: CallerStage) -> Self {
        let (expired, acknowledged) = (RunSet::default(), None);
        let (generation, token, era, began) = (0, 0, 0, 0);
        let (claimed, outdated, late, alone, unconfirmed) = (false, false, false, false, None);
        Self {
            stage,
            generation,
            claimed,
            token,
            outdated,
            late,
            alone,
            unconfirmed,
            era,
            began,
            expired,
            acknowledged,
        }
    }
}

impl TriggerState {
    pub(super) fn new(model: &TriggerModel) -> Self {
        let caller = |at: usize| {
            CallerState::at(if at < model.callers.len() { CallerStage::Idle } else { CallerStage::Absent })
        };
        let drainer = |at: usize| if at < model.drainers { DrainerStep::Idle } else { DrainerStep::Absent };
        Self {
            ledger: LedgerState::default(),
            redis: RedisState::empty(),
            callers: std::array::from_fn(caller),
            drainers: std::array::from_fn(drainer),
            canceller: ClientStep::Idle,
            patcher: ClientStep::Idle,
            resetter: Resetter::Idle,
            expired: RunSet::default(),
            left: model.budget,
            witness: TriggerWitness::default(),
        }
    }

    pub(super) fn break_rule(&mut self, rule: TriggerRule) {
        self.witness.broken |= 1 << rule as u16;
    }

    /// Whether no step has broken the rule.
    pub fn keeps(&self, rule: TriggerRule) -> bool {
        self.witness.broken & (1 << rule as u16) == 0
    }

    /// A number greater than all in use, for announcements and tokens of the tenant list: they come from a clock.
    pub(super) fn fresh_number(&self) -> u8 {
        let callers = self.callers.iter().map(|caller| caller.token);
        let drainers = self.drainers.iter().map(|drainer| match drainer {
            DrainerStep::Turn(number) | DrainerStep::Leave(number) => *number,
            _ => 0,
        });
        callers.chain(drainers).chain([self.redis.last_number()]).max().unwrap_or(0) + 1
    }

    /// Replaces numbers by their rank, because only their order counts, and clears the fields of callers that are over.
    pub(super) fn canonical(mut self) -> Self {
        for caller in &mut self.callers {
            let over = matches!(
                caller.stage,
                CallerStage::Absent
                    | CallerStage::Answered(_)
                    | CallerStage::Conflict
                    | CallerStage::Unavailable
                    | CallerStage::Gone
            );
            if over {
                *caller = CallerState::at(caller.stage);
            }
        }
        let mut used = 0_u64;
        self.each_number(|number| used |= 1 << *number);
        self.each_number(|number| *number = rank(used, *number));
        self
    }

    fn each_number(&mut self, mut visit: impl FnMut(&mut u8)) {
        self.callers.iter_mut().for_each(|caller| visit(&mut caller.token));
        for drainer in &mut self.drainers {
            if let DrainerStep::Turn(number) | DrainerStep::Leave(number) = drainer {
                visit(number);
            }
        }
        if let Some(number) = &mut self.redis.list {
            visit(number);
        }
        if let TenantPart::Closed(token) = &mut self.redis.part {
            visit(token);
        }
    }
}

/// The rank of a number among those in use; 0 stays 0.
fn rank(used: u64, number: u8) -> u8 {
    let up_to = (used & ((2 << number) - 1)) & !1;
    u8::try_from(up_to.count_ones()).unwrap_or(u8::MAX)
}

impl RedisState {
    pub(super) fn empty() -> Self {
        Self {
            claims: [ClaimState::Free; GENERATIONS],
            reserved: [false; GENERATIONS],
            entries: [None; RUNS],
            list: None,
            part: TenantPart::Closed(0),
        }
    }

    pub(super) fn last_number(&self) -> u8 {
        let token = if let TenantPart::Closed(token) = self.part { token } else { 0 };
        token.max(self.list.unwrap_or(0))
    }

    /// The run in the key index of a generation.
    pub fn indexed(&self, generation: u8) -> Option<u8> {
        let found = |entry: &Option<BufferedEntry>| {
            entry.is_some_and(|entry| entry.indexed && entry.generation == generation)
        };
        self.entries.iter().position(found).and_then(|run| u8::try_from(run).ok())
    }

    /// A buffered run.
    pub fn entry(&self, run: u8) -> Option<BufferedEntry> {
        self.entries[usize::from(run)]
    }

    pub(super) fn entry_mut(&mut self, run: u8) -> &mut Option<BufferedEntry> {
        &mut self.entries[usize::from(run)]
    }

    pub(super) fn claim_mut(&mut self, generation: u8) -> &mut ClaimState {
        &mut self.claims[usize::from(generation)]
    }
}

impl RunSet {
    /// Whether the run is in it.
    pub fn has(self, run: u8) -> bool {
        self.0 & (1 << run) != 0
    }

    pub(super) fn add(&mut self, run: u8) {
        self.0 |= 1 << run;
    }

    /// The runs in it.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..8).filter(move |run| self.has(*run))
    }
}
