//! Puts the failing disk of `shim/fault.c` below a victim.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiled shim, and the folder it watches.
pub(super) struct Shim {
    library: PathBuf,
    prefix: PathBuf,
}

/// What shall fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The n-th write fails with EIO.
    Write(u64),
    /// The n-th sync fails with EIO.
    Sync(u64),
    /// From the n-th write on this number of writes find no room.
    NoRoom { from: u64, count: u64 },
    /// This number of thousandths of the n-th write is executed, then the process ends.
    Torn { write: u64, thousandths: u64 },
}

impl Shim {
    /// Compiles the shim into `folder`, to watch everything under `prefix`.
    pub(super) fn build(folder: &Path, prefix: &Path) -> Self {
        let library = folder.join("fault.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/shim/fault.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&library)
            .args([source, "-ldl"])
            .status()
            .expect("a C compiler (cc) is needed for the failing disk: install gcc");
        assert!(compiled.success(), "the failing disk does not compile");
        Self { library, prefix: prefix.to_owned() }
    }

    /// Puts the shim below a victim. Its syncs are not passed on: what survives is simulated.
    pub(super) fn below(&self, command: &mut Command, failure: Option<Failure>, log: Option<&Path>) {
        command.env("LD_PRELOAD", &self.library).env("SHIM_PREFIX", &self.prefix).env("SHIM_NOSYNC", "1");
        if let Some(failure) = failure {
            command.env(
                "SHIM_FAIL",
                match failure {
                    Failure::Write(call) => format!("write:{call}:1:EIO"),
                    Failure::Sync(call) => format!("sync:{call}:1:EIO"),
                    Failure::NoRoom { from, count } => format!("write:{from}:{count}:ENOSPC"),
                    Failure::Torn { write, thousandths } => format!("write:{write}:1:TORN{thousandths}"),
                },
            );
        }
        if let Some(log) = log {
            command.env("SHIM_LOG", log);
        }
    }
}
