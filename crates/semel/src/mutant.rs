//! Deliberate faults that prove that the chaos harness finds them. Not part of the API.
//!
//! Without the feature `mutants`, [`is`] is a constant and the compiler removes every fault. With it, the variable `SEMEL_MUTANT` chooses
//! one fault for the process; without the variable nothing changes. Some faults change the scripts of Redis: see
//! `store/redis/mutants.rs`.

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Writes are accepted from any owner with any fence.
    FenceOff,
    /// The record does not show that an effect has begun.
    BeginMarkOff,
    /// All claims have the same owner token.
    OwnerTokenOff,
    /// A release removes the claim of any owner.
    ReleaseUnguarded,
    /// The effect ends when its caller leaves.
    EffectTiedToCaller,
    /// A waiter does not ask the store again after it has subscribed.
    NoRecheck,
    /// The embedded store answers before it commits.
    AckBeforeDurable,
    /// Settling a key does not raise its fence.
    SettleKeepsFence,
    /// A claim that was written without a script is not compared with the server's clock.
    NoClockCheck,
    /// The drainer removes runs from the buffer before they are in the ledger.
    AckBeforeLedger,
    /// A buffered run is named by its key alone.
    KeyWithoutGeneration,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::FenceOff,
        Self::BeginMarkOff,
        Self::OwnerTokenOff,
        Self::ReleaseUnguarded,
        Self::EffectTiedToCaller,
        Self::NoRecheck,
        Self::AckBeforeDurable,
        Self::SettleKeepsFence,
        Self::NoClockCheck,
        Self::AckBeforeLedger,
        Self::KeyWithoutGeneration,
    ];

    /// Its name in `SEMEL_MUTANT`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FenceOff => "fence-off",
            Self::BeginMarkOff => "begin-mark-off",
            Self::OwnerTokenOff => "owner-token-off",
            Self::ReleaseUnguarded => "release-unguarded",
            Self::EffectTiedToCaller => "effect-tied-to-caller",
            Self::NoRecheck => "no-recheck",
            Self::AckBeforeDurable => "ack-before-durable",
            Self::SettleKeepsFence => "settle-keeps-fence",
            Self::NoClockCheck => "no-clock-check",
            Self::AckBeforeLedger => "ack-before-ledger",
            Self::KeyWithoutGeneration => "key-without-generation",
        }
    }
}

/// True if this process has this fault.
#[cfg(not(feature = "mutants"))]
pub const fn is(_: Mutant) -> bool {
    false
}

/// True if this process has this fault.
#[cfg(feature = "mutants")]
pub fn is(mutant: Mutant) -> bool {
    static CHOSEN: std::sync::LazyLock<Option<Mutant>> = std::sync::LazyLock::new(|| {
        let name = std::env::var("SEMEL_MUTANT").ok()?;
        let chosen = Mutant::ALL.into_iter().find(|mutant| mutant.name() == name);
        assert!(chosen.is_some(), "SEMEL_MUTANT={name}: there is no such mutant");
        chosen
    });
    *CHOSEN == Some(mutant)
}
