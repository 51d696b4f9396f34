//! Copies the records of one store into another, in passes.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{
    BATCH, ClockShift, DataLoss, TransferRun, TransferSource, TransferState, TransferStore, not_filled,
};
use crate::key::KeyId;
use crate::record::{Command, Fence, Force, Phase, Record, State, Sweep};
use crate::secret::Secret;
use crate::store::{Error, ErrorKind};
use crate::time::Timestamp;

/// A record that one store has removed may stay in the other for this long: their clocks differ a little.
const REMOVAL_SLACK: Duration = Duration::from_secs(60);

/// The size of the outcomes in one write.
const BATCH_BYTES: usize = 4 << 20;

/// A copy of one store into another.
///
/// Every step can be repeated, also by another process after this one was killed.
pub struct Transfer {
    /// The address of the old store.
    old: String,
    to: Arc<dyn TransferStore>,
    run: TransferRun,
    shift: ClockShift,
    /// What the new store has.
    copied: HashMap<KeyId, CopiedRecord>,
    /// The number of the last pass.
    passes: u32,
    /// The last loss of data of the old store before the copy.
    loss: Option<DataLoss>,
    /// Keys of which the new store knew more.
    known: HashSet<KeyId>,
}

/// What was copied of a key.
#[derive(Clone, Copy)]
struct CopiedRecord {
    /// The first bytes of a hash of the record.
    digest: [u8; 8],
    /// The last pass that read it.
    pass: u32,
}

/// The result of one pass over all records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pass {
    /// Records read.
    pub records: u64,
    /// Records that were new or different, and were written.
    pub changed: u64,
    /// Claims whose lease was valid when the pass began.
    pub in_progress: u64,
    /// When the last of these leases expires, unless its owner renews it.
    pub in_progress_until: Timestamp,
    /// When the latest claim with an outcome was granted.
    pub last_done_claim: Timestamp,
    /// The first store's time when the pass began.
    pub began: Timestamp,
}

/// The result of a finished copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transferred {
    /// Records that were compared and are equal.
    pub records: u64,
    /// High-water marks.
    pub marks: u64,
    /// Claims in progress: on the new store their leases expire.
    pub in_progress: u64,
    /// Keys in doubt.
    pub in_doubt: u64,
}

impl Transfer {
    /// Prepares the new store: it grants no claims from here on, and gets the secret of the old one.
    ///
    /// `configured` are the secrets that the servers of the old and of the new store have in their configuration, where
    /// that is known.
    ///
    /// # Errors
    /// [`ErrorKind::Setup`] if the two do not fit together: another secret or an unknown one, records in the new store
    /// that are not of this copy, or another copy; and if the old store lost data and grants no claims because of it.
    pub async fn begin(
        from: &dyn TransferSource,
        to: Arc<dyn TransferStore>,
        configured: [Option<Secret>; 2],
    ) -> Result<Self, Error> {
        let (old, new) = (from.address(), to.address());
        if old == new {
            return Err(setup(format!("{old} cannot be copied to itself")));
        }
        let source = check_state(from, &new).await?;
        let [configured_old, configured_new] = configured;
        check_source(from, configured_old.as_ref()).await?;
        let secret = agreed_secret(from, &*to, [configured_old, configured_new]).await?;
        let state = to.state().await?;
        match &state {
            TransferState::Open => check_empty(&*to, &source).await?,
            TransferState::Filling { from: address, .. } | TransferState::Moved { to: address, .. }
                if *address == old => {}
            TransferState::Filling { from: address, .. } => {
                return Err(setup(format!(
                    "{new} was filled in part from {address}: copy from that store again, or use an empty store"
                )));
            }
            TransferState::Moved { to: address, .. } => {
                return Err(setup(format!("{new} was moved to {address}: use an empty store")));
            }
        }
        let run = TransferRun::random();
        let filling = TransferState::Filling { run, from: old.clone() };
        if !to.change_state(&state, &filling).await? {
            return Err(setup(format!("another process changes {new} at the same time: run one copy")));
        }
        if let Some(secret) = secret {
            let stored = to.secret(secret.clone()).await?;
            if stored.expose() != secret.expose() {
                return Err(setup(format!("another process stored another secret in {new}")));
            }
        }
        let shift = ClockShift::measure(from, &*to).await?;
        let loss = from.data_loss().await?;
        Ok(Self { old, to, run, shift, copied: HashMap::new(), passes: 0, loss, known: HashSet::new() })
    }

    /// The run that the states of both stores name.
    pub fn run(&self) -> TransferRun {
        self.run
    }

    /// The difference between the stores' clocks.
    pub fn clock_shift(&self) -> ClockShift {
        self.shift
    }

    /// Copies every record that is new or has changed since the last pass. `from` is the store of
    /// [`begin`](Self::begin), or another reader of it.
    ///
    /// # Errors
    /// A store fails, or the new store has later records than the old one: a process uses it.
    pub async fn pass(&mut self, from: &dyn TransferSource) -> Result<Pass, Error> {
        let now = from.now().await?;
        self.passes += 1;
        let mut pass = Pass { began: now, ..Pass::default() };
        let mut walk = from.records();
        let mut batch: HashMap<KeyId, Record> = HashMap::new();
        while let Some(records) = walk.next().await? {
            for (id, record) in records {
                pass.count(&record, now);
                let record = self.shift.apply(record);
                match self.copied.get_mut(&id) {
                    Some(copied) if copied.digest == digest(&record) => copied.pass = self.passes,
                    _ => drop(batch.insert(id, record)),
                }
            }
            if batch.len() >= BATCH {
                pass.changed += self.write(&mut batch).await?;
            }
        }
        pass.changed += self.write(&mut batch).await?;
        Ok(pass)
    }

    /// Writes a batch, at most [`BATCH`] records and about [`BATCH_BYTES`] at once.
    async fn write(&mut self, batch: &mut HashMap<KeyId, Record>) -> Result<u64, Error> {
        let mut records: Vec<(KeyId, Record)> = batch.drain().collect();
        records.sort_unstable_by_key(|(id, _)| *id);
        let written = records.len() as u64;
        while !records.is_empty() {
            let mut bytes = 0;
            let fits = records.iter().take(BATCH).take_while(|(_, record)| {
                let is_first = bytes == 0;
                bytes += outcome_bytes(record);
                is_first || bytes <= BATCH_BYTES
            });
            let some: Vec<(KeyId, Record)> = fits.cloned().collect();
            records.drain(..some.len());
            let copied = |record: &Record| CopiedRecord { digest: digest(record), pass: self.passes };
            let copied: Vec<(KeyId, CopiedRecord)> =
                some.iter().map(|(id, record)| (*id, copied(record))).collect();
            let fences: HashMap<KeyId, Fence> = some.iter().map(|(id, record)| (*id, record.fence)).collect();
            for id in self.to.import(self.run, some).await? {
                self.keep_known(id, fences.get(&id).copied().unwrap_or_default()).await?;
            }
            self.copied.extend(copied);
        }
        Ok(written)
    }

    /// The new store knows more about a record. That is fine if it knows how the same claim ended: after a copy back, of an
    /// owner that was late. A later claim must not be there.
    async fn keep_known(&mut self, id: KeyId, imported: Fence) -> Result<(), Error> {
        match self.to.get(id).await? {
            Some(known) if known.record.fence == imported => {
                self.known.insert(id);
                Ok(())
            }
            _ => Err(setup(format!(
                "{} has later records than {}: a process uses it. Stop that process and copy to an empty store",
                self.to.address(),
                self.old
            ))),
        }
    }

    /// Ends the copy after the last pass: removes what the old store has removed, copies marks and fence floor, compares
    /// every record, and opens the new store.
    ///
    /// # Errors
    /// A store fails, a record differs, or the old store lost data. The new store then stays closed, and the copy can
    /// be repeated.
    pub async fn finish(&mut self, from: &dyn TransferSource) -> Result<Transferred, Error> {
        if !self.to.state().await?.is_filled_by(self.run) {
            return Err(not_filled(&self.to.address()));
        }
        self.remove_forgotten(from).await?;
        if from.data_loss().await?.map(|loss| loss.at) != self.loss.map(|loss| loss.at) {
            return Err(self.lost_data());
        }
        let marks = from.marks().await?;
        for (mark, value) in &marks {
            self.to.raise_mark(*mark, *value).await?;
        }
        self.to.raise_fence_floor(from.fence_floor().await?).await?;
        let result = Transferred { marks: marks.len() as u64, ..self.compare(from).await? };
        let filling = TransferState::Filling { run: self.run, from: self.old.clone() };
        if !self.to.change_state(&filling, &TransferState::Open).await? {
            return Err(not_filled(&self.to.address()));
        }
        Ok(result)
    }

    /// Removes the records that were copied and that the last pass did not find: an operator forgot their keys, and a
    /// sweep removed the stubs. Records at the end of their time are left to the sweep.
    async fn remove_forgotten(&mut self, from: &dyn TransferSource) -> Result<(), Error> {
        let unseen = self.copied.iter().filter(|(_, copied)| copied.pass != self.passes);
        let unseen: Vec<KeyId> = unseen.map(|(id, _)| *id).collect();
        let mut gone: HashMap<KeyId, Record> = HashMap::new();
        for id in unseen {
            if let Some(found) = self.to.get(id).await?
                && !is_removable(&found.record, found.now)
            {
                let mut stub = found.record;
                let _ = stub.apply(&Command::Forget(Force::Yes), found.now, Fence::default());
                gone.insert(id, stub);
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        // A wrong removal would run an effect again, so look twice. A store raises its floor above a record before it
        // removes it; without that, the record was lost.
        let mut walk = from.records();
        while let Some(records) = walk.next().await? {
            for (id, _) in records {
                gone.remove(&id);
            }
        }
        let floor = from.fence_floor().await?;
        let is_lost = from.data_loss().await?.map(|loss| loss.at) != self.loss.map(|loss| loss.at);
        if is_lost || gone.values().any(|stub| stub.fence > floor) {
            return Err(self.lost_data());
        }
        self.write(&mut gone).await.map(drop)
    }

    fn lost_data(&self) -> Error {
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "{} lost records during the copy, and their keys would run again. {} stays closed; find the cause, and \
                 copy to an empty store",
                self.old,
                self.to.address()
            ),
        )
    }

    /// Reads the new store and compares every record with what was copied.
    async fn compare(&self, from: &dyn TransferSource) -> Result<Transferred, Error> {
        let now = self.to.now().await?;
        let mut result = Transferred::default();
        let mut missing = self.copied.clone();
        let (mut different, mut unknown) = (0_u64, 0_u64);
        let to = Arc::clone(&self.to);
        let mut walk = to.records();
        while let Some(records) = walk.next().await? {
            for (id, record) in records {
                match missing.remove(&id) {
                    Some(copied) if copied.digest == digest(&record) || self.known.contains(&id) => {
                        result.records += 1;
                        match record.phase(now) {
                            Phase::Claimed | Phase::Begun => result.in_progress += 1,
                            Phase::InDoubt => result.in_doubt += 1,
                            _ => {}
                        }
                    }
                    // A walk may meet a record twice.
                    None if self.copied.contains_key(&id) => {}
                    // Copied by an earlier run, and removed from the old store since.
                    None if is_removable(&record, now) => {}
                    Some(_) => different += 1,
                    None => unknown += 1,
                }
            }
        }
        let gone = self.lost(from, &missing).await?;
        if different + unknown + gone > 0 {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{} differs from {}: {different} records are different, {gone} are missing, {unknown} are only there. A \
                     process uses it, or it lost data; it stays closed. Copy to an empty store",
                    self.to.address(),
                    self.old
                ),
            ));
        }
        Ok(result)
    }

    /// How many of these records the new store must have: Redis removes a record at the end of its time by itself.
    async fn lost(
        &self,
        from: &dyn TransferSource,
        missing: &HashMap<KeyId, CopiedRecord>,
    ) -> Result<u64, Error> {
        let mut lost = HashSet::new();
        if missing.is_empty() {
            return Ok(0);
        }
        let now = self.to.now().await?;
        let mut walk = from.records();
        while let Some(records) = walk.next().await? {
            for (id, record) in records {
                if missing.contains_key(&id) && !is_removable(&self.shift.apply(record), now) {
                    lost.insert(id);
                }
            }
        }
        Ok(lost.len() as u64)
    }
}

/// Counts the records of a store without copying them.
///
/// # Errors
/// The store fails.
pub async fn survey(from: &dyn TransferSource) -> Result<Pass, Error> {
    let now = from.now().await?;
    let mut pass = Pass { began: now, ..Pass::default() };
    let mut walk = from.records();
    while let Some(records) = walk.next().await? {
        records.iter().for_each(|(_, record)| pass.count(record, now));
    }
    Ok(pass)
}

impl Pass {
    fn count(&mut self, record: &Record, now: Timestamp) {
        self.records += 1;
        if let Phase::Claimed | Phase::Begun = record.phase(now) {
            self.in_progress += 1;
            self.in_progress_until = self.in_progress_until.max(record.lease_until);
        }
        if let State::Done(_) = record.state {
            self.last_done_claim = self.last_done_claim.max(record.claimed_at);
        }
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("from", &self.old)
            .field("to", &self.to)
            .field("run", &self.run)
            .field("copied", &self.copied.len())
            .finish_non_exhaustive()
    }
}

/// Checks that a copy of the store protects its keys: it has all of its records, and the secret of its servers is
/// known. `configured` is the secret in their configuration, if it is known. Returns the secret, or `None` if there are
/// no records.
///
/// # Errors
/// [`ErrorKind::Setup`] if the store lost data and grants no claims because of it, or if its secret is unknown.
pub async fn check_source(
    from: &dyn TransferSource,
    configured: Option<&Secret>,
) -> Result<Option<Secret>, Error> {
    let old = from.address();
    if let Some(DataLoss { refuses_claims: true, .. }) = from.data_loss().await? {
        return Err(setup(format!(
            "{old} lost data and grants no claims for one retention: keys whose records were lost would run again \
             on another store. Wait for that time. If the servers may run such keys again, set on_store_loss = \"alarm\" in \
             their config file and give that file"
        )));
    }
    if let Some(secret) = configured.cloned().or(from.stored_secret().await?) {
        return Ok(Some(secret));
    }
    match has_records(from).await? {
        true => Err(setup(format!(
            "the secret of {old} is not stored in it, so its servers have a configured one: use their config file instead \
             of the URL. Under another secret every key is new, and its effect would run again"
        ))),
        false => Ok(None),
    }
}

/// Refuses a store that was moved elsewhere, is incomplete, or has nothing to copy.
async fn check_state(from: &dyn TransferSource, new: &str) -> Result<TransferState, Error> {
    let old = from.address();
    let state = from.state().await?;
    match &state {
        TransferState::Open => {}
        TransferState::Moved { to, .. } if to == new => {}
        TransferState::Moved { to, .. } => {
            return Err(setup(format!("{old} was moved to {to} already: copy from there")));
        }
        TransferState::Filling { from, .. } => {
            return Err(setup(format!("{old} was filled in part from {from}: copy from there")));
        }
    }
    if !has_records(from).await? {
        return Err(setup(format!("{old} has no records: is it the right store?")));
    }
    Ok(state)
}

/// Records of another history must not be mixed with those of this copy.
async fn check_empty(to: &dyn TransferStore, source: &TransferState) -> Result<(), Error> {
    if !has_records(to).await? {
        return Ok(());
    }
    let new = to.address();
    Err(setup(match source {
        TransferState::Moved { .. } => {
            format!("the records were moved to {new} already: start the servers on it")
        }
        _ => {
            format!("{new} has records already: copy to an empty store (another database, schema or prefix)")
        }
    }))
}

/// True if there is more than stubs, which every start of a server leaves.
async fn has_records(store: &(impl TransferSource + ?Sized)) -> Result<bool, Error> {
    let mut walk = store.records();
    while let Some(records) = walk.next().await? {
        if records.iter().any(|(_, record)| record.state != State::Vacant) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The secret to store in the new store, if the old one stores it.
async fn agreed_secret(
    from: &dyn TransferSource,
    to: &dyn TransferStore,
    [configured_old, configured_new]: [Option<Secret>; 2],
) -> Result<Option<Secret>, Error> {
    let (stored_old, stored_new) = (from.stored_secret().await?, to.stored_secret().await?);
    let same = |one: &Secret, other: &Secret| one.expose() == other.expose();
    let old = configured_old.as_ref().or(stored_old.as_ref());
    let new = configured_new.as_ref().or(stored_new.as_ref());
    let another = |advice: &str| {
        setup(format!(
            "{} has another secret than {}: under it every key is new, and its effect would run again. {advice}",
            to.address(),
            from.address()
        ))
    };
    match (old, new) {
        (Some(old), Some(new)) if !same(old, new) => Err(match configured_new {
            Some(_) => another("Configure the `secret` of the old servers for the new ones"),
            None => another("Use a store without a secret"),
        }),
        (Some(old), None) if !stored_old.as_ref().is_some_and(|stored| same(old, stored)) => {
            Err(setup(format!(
                "the servers of {} have a configured secret: give the config file of the new servers instead of the URL of {}, \
                 with the same `secret`. Without it every key is new, and its effect would run again",
                from.address(),
                to.address()
            )))
        }
        _ => Ok(stored_old.clone().filter(|stored| old.is_some_and(|old| same(old, stored)))),
    }
}

/// True if the next sweep removes the record.
fn is_removable(record: &Record, now: Timestamp) -> bool {
    record.state == State::Vacant || record.sweep(now.after(REMOVAL_SLACK)) == Sweep::Remove
}

fn outcome_bytes(record: &Record) -> usize {
    match &record.state {
        State::Done(outcome) => outcome.size().max(1),
        _ => 1,
    }
}

fn digest(record: &Record) -> [u8; 8] {
    let mut digest = [0; 8];
    blake3::Hasher::new().update(&record.encode()).finalize_xof().fill(&mut digest);
    digest
}

fn setup(message: String) -> Error {
    Error::new(ErrorKind::Setup, message)
}
