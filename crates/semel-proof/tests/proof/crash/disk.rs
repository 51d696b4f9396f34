//! A disk in a model: what the log of a run says was written, what of it was synced, and what a power cut may leave.
//!
//! Pessimistic, as a real disk may be: what was written to a file since its last sync may be there or not, write by
//! write or sector by sector, in any combination; a name may be there or not until its folder was synced; the sync
//! of a file says nothing about its name. Only the order of two versions of the same bytes is kept: an older one
//! never comes back over a newer one that reached the disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rand::RngExt as _;
use rand::rngs::StdRng;

/// An entry of the log that `shim/fault.c` writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Create(PathBuf),
    MakeFolder(PathBuf),
    Write(PathBuf, Change),
    Sync(PathBuf),
    /// The sync failed: what it was to save is lost for good, and no later sync will tell.
    FailedSync(PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    /// A line on standard output.
    LeaseResult(String),
}

/// A change to the bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Put { offset: usize, bytes: Vec<u8> },
    Cut(usize),
}

/// Reads a log. A torn tail cannot be: the victim ended by itself.
pub(super) fn read_log(path: &Path) -> Vec<Event> {
    let log = std::fs::read(path).expect("the log can be read");
    let mut rest = &log[..];
    let mut take = |length: usize| {
        let (taken, left) = rest.split_at(length);
        rest = left;
        taken
    };
    let mut events = Vec::new();
    let mut read = 0;
    while read < log.len() {
        let kind = take(1)[0];
        let path_length = u32::from_le_bytes(take(4).try_into().expect("four bytes")) as usize;
        let mut number = || usize::try_from(u64::from_le_bytes(take(8).try_into().expect("eight bytes")));
        let (number, length) = (number().expect("it fits"), number().expect("it fits"));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("paths and reports are text");
        let path = PathBuf::from(text(take(path_length)));
        let bytes = take(length);
        read += 21 + path_length + length;
        events.push(match kind {
            b'C' => Event::Create(path),
            b'D' => Event::MakeFolder(path),
            b'W' => Event::Write(path, Change::Put { offset: number, bytes: bytes.to_vec() }),
            b'T' => Event::Write(path, Change::Cut(number)),
            b'S' => Event::Sync(path),
            b'F' => Event::FailedSync(path),
            b'R' => Event::Rename(path, PathBuf::from(text(bytes))),
            b'U' => Event::Remove(path),
            b'M' => Event::LeaseResult(text(bytes)),
            other => panic!("the log has an entry of kind {other}"),
        });
    }
    events
}

/// What a power cut leaves of the changes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Nothing,
    Everything,
    /// Each write, whole, or not at all.
    SomeWrites,
    /// Each sector of each write, or not.
    SomeSectors,
    /// All up to one write of each file, of which only some first bytes.
    Torn,
    /// All but this number of the bytes that were written last to each file.
    WithoutLast(usize),
    /// Only the last write of each file.
    OnlyTheLast,
}

impl Cut {
    pub(super) const ALL: [Self; 6] =
        [Self::Nothing, Self::Everything, Self::SomeWrites, Self::SomeSectors, Self::Torn, Self::OnlyTheLast];
}

const SECTOR: usize = 512;

/// The disk at one moment of the log.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    files: Vec<File>,
    /// Names as the process sees them.
    names: BTreeMap<PathBuf, usize>,
    synced_names: BTreeMap<PathBuf, usize>,
    unsynced_names: Vec<Naming>,
}

#[derive(Clone, Debug, Default)]
struct File {
    synced: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Naming {
    Set(PathBuf, usize),
    Move(PathBuf, PathBuf, usize),
    Unset(PathBuf),
}

impl Naming {
    fn folder(&self) -> Option<&Path> {
        match self {
            Self::Set(path, _) | Self::Move(_, path, _) | Self::Unset(path) => path.parent(),
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Self::Set(path, file) => drop(names.insert(path.clone(), *file)),
            Self::Move(from, to, file) => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
            Self::Unset(path) => drop(names.remove(path)),
        }
    }
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Put { offset, bytes: new } => put(bytes, *offset, new),
            Self::Cut(size) => bytes.resize(*size, 0),
        }
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
    if bytes.len() < offset + new.len() {
        bytes.resize(offset + new.len(), 0);
    }
    bytes[offset..offset + new.len()].copy_from_slice(new);
}

impl Disk {
    /// Lets one event happen. `rng` draws what a failed sync loses.
    pub(super) fn happen(&mut self, event: &Event, rng: &mut StdRng) {
        match event {
            Event::Create(path) | Event::MakeFolder(path) => {
                self.files.push(File::default());
                let file = self.files.len() - 1;
                self.rename(Naming::Set(path.clone(), file));
            }
            Event::Write(path, change) => {
                let file = self.file(path);
                file.unsynced.push(change.clone());
            }
            Event::Sync(path) if self.is_folder(path) => {
                let synced = self.unsynced_names.extract_if(.., |naming| naming.folder() == Some(path));
                for naming in synced {
                    naming.apply(&mut self.synced_names);
                }
            }
            Event::Sync(path) => {
                let File { synced, unsynced } = self.file(path);
                for change in unsynced.drain(..) {
                    change.apply(synced);
                }
            }
            // Its names stay unsynced.
            Event::FailedSync(path) if self.is_folder(path) => {}
            Event::FailedSync(path) => {
                let file = self.file(path);
                file.synced = file.after(Cut::SomeWrites, rng);
                file.unsynced.clear();
            }
            Event::Rename(from, to) => {
                let file = self.names[from];
                self.rename(Naming::Move(from.clone(), to.clone(), file));
            }
            Event::Remove(path) => self.rename(Naming::Unset(path.clone())),
            Event::LeaseResult(_) => {}
        }
    }

    fn rename(&mut self, naming: Naming) {
        naming.apply(&mut self.names);
        self.unsynced_names.push(naming);
    }

    fn is_folder(&self, path: &Path) -> bool {
        self.names.keys().any(|name| name.parent() == Some(path))
    }

    fn file(&mut self, path: &Path) -> &mut File {
        &mut self.files[self.names[path]]
    }

    /// Whether a file has changes that a power cut may take.
    pub(super) fn is_unsynced(&self, name: &str) -> bool {
        self.names.iter().any(|(path, file)| path.ends_with(name) && !self.files[*file].unsynced.is_empty())
    }

    pub(super) fn has_unsynced_names(&self) -> bool {
        !self.unsynced_names.is_empty()
    }

    /// The files under `folder` as a power cut at this moment may leave them.
    pub(super) fn after(&self, cut: Cut, folder: &Path, rng: &mut StdRng) -> Vec<(PathBuf, Vec<u8>)> {
        let mut names = self.synced_names.clone();
        for naming in &self.unsynced_names {
            let kept = match cut {
                Cut::Nothing => false,
                Cut::Everything | Cut::WithoutLast(_) => true,
                Cut::SomeWrites | Cut::SomeSectors | Cut::Torn | Cut::OnlyTheLast => rng.random_bool(0.5),
            };
            if kept {
                naming.apply(&mut names);
            }
        }
        // A folder that is not there takes its files with it.
        if !names.contains_key(folder) {
            return Vec::new();
        }
        let inside = names.iter().filter(|(path, _)| path.parent() == Some(folder));
        // The shared-memory file is no data: SQLite creates it again.
        let durable = inside.filter(|(path, _)| !path.to_string_lossy().ends_with("-shm"));
        durable.map(|(path, file)| (path.clone(), self.files[*file].after(cut, rng))).collect()
    }
}

impl File {
    fn unsynced_bytes(&self) -> usize {
        self.unsynced.iter().map(Change::size).sum()
    }

    /// Applies the changes in order until this number of bytes is written.
    fn apply_first(&self, mut left: usize, bytes: &mut Vec<u8>) {
        for change in &self.unsynced {
            match change {
                Change::Put { offset, bytes: new } if new.len() > left => {
                    return put(bytes, *offset, &new[..left]);
                }
                whole => whole.apply(bytes),
            }
            left -= change.size();
        }
    }

    fn after(&self, cut: Cut, rng: &mut StdRng) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        match cut {
            Cut::Nothing => {}
            Cut::Everything => self.unsynced.iter().for_each(|change| change.apply(&mut bytes)),
            Cut::SomeWrites => {
                for change in &self.unsynced {
                    if rng.random_bool(0.5) {
                        change.apply(&mut bytes);
                    }
                }
            }
            Cut::SomeSectors => {
                for change in &self.unsynced {
                    change.apply_some_sectors(&mut bytes, rng);
                }
            }
            Cut::Torn => {
                let written = self.unsynced_bytes();
                self.apply_first(if written == 0 { 0 } else { rng.random_range(0..written) }, &mut bytes);
            }
            Cut::WithoutLast(lost) => {
                self.apply_first(self.unsynced_bytes().saturating_sub(lost), &mut bytes);
            }
            Cut::OnlyTheLast => {
                if let Some(last) = self.unsynced.last() {
                    last.apply(&mut bytes);
                }
            }
        }
        bytes
    }
}

impl Change {
    fn size(&self) -> usize {
        match self {
            Self::Put { bytes, .. } => bytes.len(),
            Self::Cut(_) => 0,
        }
    }

    fn apply_some_sectors(&self, bytes: &mut Vec<u8>, rng: &mut StdRng) {
        let Self::Put { offset, bytes: new } = self else {
            if rng.random_bool(0.5) {
                self.apply(bytes);
            }
            return;
        };
        let mut start = 0;
        while start < new.len() {
            // Up to where the next sector of the file begins.
            let end = new.len().min(start + SECTOR - (offset + start) % SECTOR);
            if rng.random_bool(0.5) {
                put(bytes, offset + start, &new[start..end]);
            }
            start = end;
        }
    }
}
