//! A follower of a replicated log. The link repeats, the follower fails once and restarts, and long after that
//! the link delivers an old message again. Every entry ends up in the copy once.
//!
//! `cargo run -p semel-window --example replication_receiver`

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use semel::store::EmbeddedStore;
use semel_window::{Gaps, ReceiveError, Received, Receiver, RefusedBy};

/// One entry on the wire.
#[derive(Clone, Copy)]
struct Entry {
    sequence: u64,
    operation: &'static str,
}

const LOG: [Entry; 6] = [
    Entry { sequence: 1, operation: "set x = 1" },
    Entry { sequence: 2, operation: "set y = 2" },
    Entry { sequence: 3, operation: "add x, 10" },
    Entry { sequence: 4, operation: "add y, 10" },
    Entry { sequence: 5, operation: "del x" },
    Entry { sequence: 6, operation: "set z = 9" },
];

/// The follower: its copy of the log, and the receiver in front of it.
struct Follower {
    receiver: Receiver,
    copy: Arc<Mutex<Vec<&'static str>>>,
}

impl Follower {
    /// Starts over marks on disk and a copy, which both outlive it. The window is small, so that early entries
    /// leave it.
    fn start(marks: &Path, copy: &Arc<Mutex<Vec<&'static str>>>) -> Result<Self, Box<dyn Error>> {
        let store = EmbeddedStore::open(marks)?;
        let receiver = Receiver::builder(store, Gaps::Strict).name("follower").window(3).build()?;
        Ok(Self { receiver, copy: Arc::clone(copy) })
    }

    async fn deliver(&self, entry: Entry, disk: Disk) {
        let Entry { sequence, operation } = entry;
        let apply = async || match disk {
            Disk::Full => Err("the disk is full"),
            Disk::Works => {
                self.copy.lock().unwrap_or_else(PoisonError::into_inner).push(operation);
                Ok(())
            }
        };
        let received = self.receiver.receive(b"leader-7", sequence, operation.as_bytes(), apply).await;
        let what = match received {
            Ok(Received::Applied(())) => "applied".to_owned(),
            Ok(Received::AppliedUnmarked { error, .. }) => format!("applied, its mark is owed: {error}"),
            Ok(Received::Duplicate(RefusedBy::Mark { mark })) => format!("duplicate: the mark is at {mark}"),
            Ok(Received::Duplicate(RefusedBy::Window)) => "duplicate: the window knows it".to_owned(),
            Ok(Received::Gap { expected, .. }) => format!("too early: {expected} comes first"),
            Err(ReceiveError::Apply(error)) => format!("failed, nothing is left behind: {error}"),
            Err(error) => format!("not applied: {error}"),
        };
        println!("  {sequence}  {operation:<10} {what}");
    }
}

#[derive(Clone, Copy)]
enum Disk {
    Works,
    Full,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let copy = Arc::new(Mutex::new(Vec::new()));

    println!("the link repeats and reorders:");
    let follower = Follower::start(folder.path(), &copy)?;
    for at in [0, 0, 2, 1, 2, 1] {
        follower.deliver(LOG[at], Disk::Works).await;
    }
    println!("an apply fails, and the leader sends again:");
    follower.deliver(LOG[3], Disk::Full).await;
    follower.deliver(LOG[3], Disk::Works).await;

    drop(follower);
    println!("after a restart, the leader starts from what it saw acknowledged last:");
    let follower = Follower::start(folder.path(), &copy)?;
    for entry in &LOG[2..] {
        follower.deliver(*entry, Disk::Works).await;
    }
    println!("a message that was stuck in the network for an hour:");
    follower.deliver(LOG[0], Disk::Works).await;

    let copy = copy.lock().unwrap_or_else(PoisonError::into_inner);
    let expected = LOG.map(|entry| entry.operation);
    println!("the copy has {} entries, each once and in order: {}", copy.len(), *copy == expected);
    if *copy == expected { Ok(()) } else { Err(format!("the copy is wrong: {copy:?}").into()) }
}
