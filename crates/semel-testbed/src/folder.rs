//! A folder for each server, and a watcher that cleans up when the test process cannot.
//!
//! `Drop` does not run when the test process is killed. So a small shell waits on a pipe whose other end this process holds. When the
//! pipe is closed, for whatever reason, the shell kills the server and removes its data.

use std::{
    fs,
    io::Write,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

use parking_lot::Mutex;
use rustix::process::Pid;
use tempfile::TempDir;

use crate::{
    Result,
    error::Doing,
    process::{StopMethod, SystemUser},
};

/// Where a server stores its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// In the system's folder for temporary files: syncs have their real cost.
    #[default]
    Disk,
    /// In `/dev/shm`: syncs are free, for tests that do not measure them.
    Memory,
}

const WATCHER: &str = r#"
pid=0
while read -r p h; do pid=$p how=$h; done
children() { cat /proc/"$pid"/task/*/children; }
if [ "$pid" != 0 ]; then
  all="$pid $(children)"
  if [ "$how" = quit ]; then
    kill -CONT $all
    kill -QUIT "$pid"
    n=0
    while kill -0 "$pid" && [ $n -lt 30 ]; do sleep 0.1; n=$((n + 1)); done
  fi
  kill -KILL $all $(children)
fi 2>/dev/null
# A killed PostgreSQL leaves a segment of shared memory, which no folder holds. It noted its number.
segment=$(sed -n '7s/.* //p' "$1/data/postmaster.pid" 2>/dev/null)
[ -z "$segment" ] || ipcrm -m "$segment" 2>/dev/null
n=0
while [ -e "$1" ] && [ $n -lt 20 ]; do
  rm -rf -- "$1" && break
  sleep 0.1
  n=$((n + 1))
done 2>/dev/null
"#;

/// A temporary folder with its watcher. Dropping it removes the folder.
#[derive(Debug)]
pub(crate) struct Folder {
    // Its own drop removes what the watcher could not.
    dir: TempDir,
    watcher: Child,
    // Closed, not killed, at the end: the shell then cleans up and exits.
    pipe: Mutex<Option<ChildStdin>>,
}

impl Folder {
    pub(crate) fn create(name: &str, storage: Storage, owner: Option<SystemUser>) -> Result<Self> {
        let parent = match storage {
            Storage::Disk => std::env::temp_dir(),
            Storage::Memory => PathBuf::from("/dev/shm"),
        };
        let dir = tempfile::Builder::new()
            .prefix(&format!("semel-{name}-"))
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(&parent)
            .doing(|| format!("creating a folder in {}", parent.display()))?;
        if let Some(owner) = owner {
            chown(dir.path(), Some(owner.uid), Some(owner.gid))
                .doing(|| format!("giving {} to its server", dir.path().display()))?;
        }
        let mut watcher = Command::new("/bin/sh")
            .args(["-c", WATCHER, "semel-testbed-watcher"])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            // A process group of its own: a signal to the test's group must not kill the watcher.
            .process_group(0)
            .spawn()
            .doing(|| "starting the watcher".to_owned())?;
        let pipe = Mutex::new(watcher.stdin.take());
        Ok(Self { dir, watcher, pipe })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Tells the watcher which process to kill when the test ends.
    pub(crate) fn watch(&self, pid: Pid, ending: StopMethod) {
        self.tell(&format!("{} {}\n", pid.as_raw_nonzero(), ending.word()));
    }

    /// Tells the watcher that the process was reaped, because its id may be reused.
    pub(crate) fn unwatch(&self) {
        self.tell("0 -\n");
    }

    fn tell(&self, line: &str) {
        if let Some(pipe) = self.pipe.lock().as_mut() {
            // If the watcher was killed, only the clean-up after a crash of the test is lost.
            let _ = pipe.write_all(line.as_bytes());
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.pipe.lock().take());
        // The watcher now cleans up. A failure cannot be reported.
        let _ = self.watcher.wait();
    }
}

/// Copies a folder with its content, for a new owner if one is given.
pub(crate) fn copy_tree(from: &Path, to: &Path, owner: Option<SystemUser>) -> Result<()> {
    let doing = || format!("copying {} to {}", from.display(), to.display());
    fs::create_dir(to).doing(doing)?;
    for entry in fs::read_dir(from).doing(doing)? {
        let entry = entry.doing(doing)?;
        let target = to.join(entry.file_name());
        if entry.file_type().doing(doing)?.is_dir() {
            copy_tree(&entry.path(), &target, owner)?;
        } else {
            fs::copy(entry.path(), &target).doing(doing)?;
            give(&target, owner)?;
        }
    }
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).doing(doing)?;
    give(to, owner)
}

fn give(path: &Path, owner: Option<SystemUser>) -> Result<()> {
    let Some(owner) = owner else { return Ok(()) };
    chown(path, Some(owner.uid), Some(owner.gid)).doing(|| format!("giving {} to its server", path.display()))
}
