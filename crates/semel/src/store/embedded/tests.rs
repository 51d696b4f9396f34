//! The promises of the embedded store that one process can show. Kills and broken disks are in `semel-proof`.

mod basics;
mod damage;
mod open;
mod pressure;

use std::sync::Arc;
use std::time::Duration;

use super::{EmbeddedBuilder, EmbeddedStore};
use crate::fingerprint::Fingerprint;
use crate::key::{Hint, KeyId};
use crate::outcome::Outcome;
use crate::record::{Begin, Command, Grant, NewClaim, Owner, Ruling, Terms};
use crate::store::{Error, Store as _};
use crate::time::ManualClock;

/// A temporary folder, and a clock that does not advance.
struct Place {
    folder: tempfile::TempDir,
    clock: ManualClock,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), clock: ManualClock::default() }
    }

    /// As [`new`](Self::new), in memory if the machine has such a file system: for tests that open thousands of
    /// stores and would only wait for syncs.
    fn quick(clock: &ManualClock) -> Self {
        let memory = std::path::Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Self { folder: folder.unwrap(), clock: clock.clone() }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    fn builder(&self) -> EmbeddedBuilder {
        EmbeddedStore::builder(self.path()).clock(self.clock.clone())
    }

    fn try_open(&self) -> Result<EmbeddedStore, Error> {
        self.builder().open()
    }

    fn open(&self) -> EmbeddedStore {
        self.try_open().unwrap()
    }
}

fn id(number: u64) -> KeyId {
    let hash = blake3::hash(&number.to_le_bytes());
    KeyId::from_bytes(*hash.as_bytes().first_chunk().unwrap())
}

fn claim_as(owner: Owner, fingerprint: u8) -> Command {
    Command::Claim(NewClaim {
        owner,
        fingerprint: Fingerprint::from_bytes([fingerprint; 32]),
        terms: Terms::default().into(),
        begin: Begin::WithClaim,
        hint: Hint::new("order-17"),
    })
}

fn claim() -> Command {
    claim_as(Owner::random(), 1)
}

fn complete(grant: Grant, body: &str) -> Command {
    Command::Complete {
        grant,
        fingerprint: Fingerprint::from_bytes([1; 32]),
        outcome: Arc::new(Outcome::new("text", body)),
        retention: None,
    }
}

fn won(ruling: Ruling) -> Grant {
    match ruling {
        Ruling::Won(win) => win.grant,
        other => panic!("not won: {other:?}"),
    }
}

fn replayed(ruling: Ruling) -> Arc<Outcome> {
    match ruling {
        Ruling::Replay { outcome, .. } => outcome,
        other => panic!("no replay: {other:?}"),
    }
}

/// Claims and completes a key.
async fn finish(store: &EmbeddedStore, id: KeyId, body: &str) {
    let grant = won(store.apply(id, claim()).await.unwrap());
    let ruling = store.apply(id, complete(grant, body)).await.unwrap();
    assert!(matches!(ruling, Ruling::Accepted { .. }), "{ruling:?}");
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
