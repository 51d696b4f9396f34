//! One opener at a time, across processes.

use std::path::Path;

use semel::store::{EmbeddedStore, ErrorKind};
use semel_proof::victim::{VictimJob, VictimReport};

use super::folder;
use super::supervisor::Victim;

fn refused(path: &Path) {
    let error = EmbeddedStore::open(path).expect_err("a second opener is refused");
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    let hold = VictimJob::Hold { store: path.to_owned() };
    let (said, status) = Victim::start(&hold).end();
    assert!(matches!(&said[..], [VictimReport::NotOpened { kind, .. }] if kind == "Locked"), "{said:?}");
    assert!(!status.success());
}

// two_openers
#[test]
fn two_openers() {
    let folder = folder();
    let path = folder.path().join("store");
    let hold = VictimJob::Hold { store: path.clone() };
    let mut holder = Victim::start(&hold);
    holder.wait_for("it opened", |report| (*report == VictimReport::Ready).then_some(()));
    refused(&path);
    // Standing still is not being gone.
    holder.freeze();
    refused(&path);
    holder.thaw();
    refused(&path);

    holder.kill();
    let open = EmbeddedStore::open(&path).expect("free right after the kill");
    let (said, _) = Victim::start(&hold).end();
    assert!(matches!(&said[..], [VictimReport::NotOpened { kind, .. }] if kind == "Locked"), "{said:?}");
    drop(open);
    let holder = Victim::start(&hold);
    holder.wait_for("it opened", |report| (*report == VictimReport::Ready).then_some(()));
}
