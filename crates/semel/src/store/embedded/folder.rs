//! The folder of a store, and the lock that keeps other processes out.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::schema;
use crate::store::{Error, ErrorKind};

/// The temporary name of a new database.
const DRAFT: &str = "semel.new";

/// A folder that this process has locked. The lock ends with the process, or when this is dropped.
#[derive(Debug)]
pub(super) struct LockedFolder {
    path: PathBuf,
    _lock: File,
}

impl LockedFolder {
    /// Creates the folder if it is missing, and locks it.
    pub(super) fn hold(path: &Path) -> Result<Self, Error> {
        make(path).map_err(|error| setup(path, "the folder cannot be created", error))?;
        if !path.is_dir() {
            let name = path.display();
            return Err(Error::new(
                ErrorKind::Setup,
                format!("{name} is a file: give the embedded store a folder of its own"),
            ));
        }
        let lock_path = path.join("lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        private_file(&mut options);
        let mut lock = options
            .open(&lock_path)
            .map_err(|error| setup(&lock_path, "the lock file cannot be opened for writing", error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(locked(path, &mut lock)),
            Err(TryLockError::Error(error)) => {
                return Err(setup(
                    &lock_path,
                    "the file system does not support locks, so a second process could open the store",
                    error,
                ));
            }
        }
        // Only for people who look for the holder; nothing depends on it.
        let note = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        note.map_err(|error| setup(&lock_path, "the lock file cannot be written", error))?;
        keep_private(path);
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Creates the file of a new database, empty and accessible to its owner only. SQLite gives its logs the
    /// permissions of their database.
    pub(super) fn make_draft(&self) -> Result<(), Error> {
        let path = self.draft();
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        private_file(&mut options);
        options.open(&path).map(drop).map_err(|error| setup(&path, "the new file cannot be created", error))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The database.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join("semel.db")
    }

    /// SQLite's write-ahead log of the database.
    pub(super) fn wal(&self) -> PathBuf {
        self.path.join("semel.db-wal")
    }

    /// The temporary name of a new database.
    pub(super) fn draft(&self) -> PathBuf {
        self.path.join(DRAFT)
    }

    /// The draft by a path without links above it. SQLite refuses links in the path of a new file; the folder itself may be
    /// reached by one, as a state directory of systemd is.
    pub(super) fn draft_without_links(&self) -> Result<PathBuf, Error> {
        let folder = fs::canonicalize(&self.path)
            .map_err(|error| setup(&self.path, "the folder cannot be accessed", error))?;
        Ok(folder.join(DRAFT))
    }

    /// Rewrites the log that a process left behind with its own content, and syncs it.
    ///
    /// After a failed sync the system may show bytes that never reached the disk, and treat them as written. The file
    /// is about to be repaired from them: a power cut in between would leave it half repaired from a log that does
    /// not exist.
    pub(super) fn write_log_again(&self) -> Result<(), Error> {
        let path = self.wal();
        let written = OpenOptions::new().read(true).write(true).open(&path).and_then(|mut log| {
            let mut piece = vec![0; 1 << 20];
            let mut at = 0;
            loop {
                log.seek(SeekFrom::Start(at))?;
                let length = log.read(&mut piece)?;
                if length == 0 {
                    return log.sync_all();
                }
                log.seek(SeekFrom::Start(at))?;
                log.write_all(&piece[..length])?;
                at += length as u64;
            }
        });
        written.map_err(|error| setup(&path, "the log cannot be written", error))
    }

    /// Removes the remains of an interrupted creation.
    pub(super) fn discard_draft(&self) -> Result<(), Error> {
        for name in ["semel.new", "semel.new-journal", "semel.new-wal", "semel.new-shm"] {
            let path = self.path.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(setup(&path, "the file cannot be removed", error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Gives the draft its name, durably: after a crash the file is complete or missing.
    pub(super) fn publish_draft(&self) -> Result<(), Error> {
        let published = File::open(self.draft())
            .and_then(|draft| draft.sync_all())
            .and_then(|()| fs::rename(self.draft(), self.database()))
            .and_then(|()| schema::sync_folder(&self.path));
        published.map_err(|error| setup(&self.database(), "the new file cannot be put in place", error))
    }
}

/// Creates the folder with permissions for its owner only: it contains the deployment's secret and outcomes.
fn make(path: &Path) -> io::Result<()> {
    if path.try_exists()? {
        return Ok(());
    }
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => schema::sync_folder(Path::new(".")),
        Some(parent) => schema::sync_folder(parent),
        None => Ok(()),
    }
}

#[cfg(unix)]
fn private_file(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600);
}

#[cfg(not(unix))]
fn private_file(_: &mut OpenOptions) {}

/// Removes the permissions of other users from the store's files, which contain the deployment's secret. The folder
/// may be shared with other programs, so its permissions only cause a warning.
#[cfg(unix)]
fn keep_private(folder: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    const OTHERS: u32 = 0o077;
    let mode = |found: io::Result<fs::Metadata>| found.ok().map(|found| found.permissions().mode() & 0o7777);
    // Of the folder, not of a link that leads to it.
    if let Some(mode) = mode(fs::metadata(folder)).filter(|mode| mode & OTHERS != 0) {
        tracing::warn!(
            target: "semel", folder = %folder.display(), mode = format_args!("{mode:04o}"),
            "other users have permissions on the store's folder: chmod 700 it"
        );
    }
    for name in FILES {
        let path = folder.join(name);
        let is_file = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
        let rights = mode(fs::symlink_metadata(&path));
        let Some(mode) = rights.filter(|mode| is_file && mode & OTHERS != 0) else { continue };
        let file = path.display();
        match fs::set_permissions(&path, fs::Permissions::from_mode(0o600)) {
            Ok(()) => tracing::warn!(
                target: "semel", %file, mode = format_args!("{mode:04o}"),
                "other users had permissions on a file of the store; removed them"
            ),
            Err(error) => tracing::warn!(
                target: "semel", %file, mode = format_args!("{mode:04o}"), %error,
                "other users have permissions on a file of the store that cannot be removed: chmod 600 it"
            ),
        }
    }
}

#[cfg(not(unix))]
fn keep_private(_: &Path) {}

/// Every file that a store has in its folder.
#[cfg(unix)]
const FILES: [&str; 8] = [
    "semel.db",
    "semel.db-wal",
    "semel.db-shm",
    "semel.db-journal",
    "semel.new",
    "semel.new-wal",
    "semel.new-journal",
    "lock",
];

fn locked(path: &Path, lock: &mut File) -> Error {
    let mut holder = String::new();
    // Best effort: the holder may not have written its process id yet.
    let _ = lock.take(20).read_to_string(&mut holder);
    let holder = match holder.trim() {
        "" => String::new(),
        number => format!(" (process {number})"),
    };
    Error::new(
        ErrorKind::Locked,
        format!(
            "{} is open already{holder}: an embedded store has one opener. Stop the other one, share its store within the process, or use PostgreSQL or Redis for many processes",
            path.display()
        ),
    )
}

pub(super) fn setup(path: &Path, what: &str, error: io::Error) -> Error {
    let way_out = match error.kind() {
        io::ErrorKind::PermissionDenied => "check its owner and permissions",
        io::ErrorKind::ReadOnlyFilesystem => "the file system is mounted read-only: choose another place",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "there is no disk space: free some",
        _ => "choose another place or repair this one",
    };
    Error::new(ErrorKind::Setup, format!("{}: {what}; {way_out} ({error})", path.display()))
        .with_source(error)
}
