//! An initialised data folder, created once for all test processes of a build, and copied for each server.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use super::plain;
use crate::{
    Result, Storage,
    error::Doing,
    folder::{Folder, copy_tree},
    process::{SystemUser, run},
    programs::PostgresPrograms,
};

/// Part of the folder's name: increase it when the settings of `initdb` change.
const SERIES: u32 = 1;

/// Copies the template to `data`. Creates the template first if there is none for this version.
pub(super) fn copy_to(data: &Path, programs: &PostgresPrograms, owner: Option<SystemUser>) -> Result<()> {
    copy_tree(&template(programs, owner)?, data, owner)
}

fn template(programs: &PostgresPrograms, owner: Option<SystemUser>) -> Result<PathBuf> {
    let home = home()?;
    fs::create_dir_all(&home).doing(|| format!("creating {}", home.display()))?;
    let version: String = programs.version.chars().filter(char::is_ascii_alphanumeric).collect();
    let template = home.join(format!("{version}-{SERIES}"));
    // Each test may be a process of its own: the one with the lock creates the template, the others wait for it.
    let lock = home.join("lock");
    let lock = File::create(&lock).doing(|| format!("creating {}", lock.display()))?;
    lock.lock().doing(|| "waiting for another test to run initdb".to_owned())?;
    if !template.is_dir() {
        let folder = Folder::create("initdb", Storage::Memory, owner)?;
        let data = folder.path().join("data");
        initialize(&data, programs, owner)?;
        let half = home.join("unfinished");
        if half.exists() {
            fs::remove_dir_all(&half).doing(|| format!("removing {}", half.display()))?;
        }
        copy_tree(&data, &half, None)?;
        fs::rename(&half, &template).doing(|| format!("creating {}", template.display()))?;
    }
    Ok(template)
}

/// Creates an empty data folder.
pub(super) fn initialize(data: &Path, programs: &PostgresPrograms, owner: Option<SystemUser>) -> Result<()> {
    let mut initdb = Command::new(programs.path("initdb")?);
    initdb.arg("-D").arg(data).args([
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
        "--no-sync",
    ]);
    SystemUser::apply(owner, plain(&mut initdb));
    run(&mut initdb).map(drop)
}

/// In the build folder, so that it is removed when the build is cleaned.
fn home() -> Result<PathBuf> {
    let program = env::current_exe().doing(|| "looking for the test program".to_owned())?;
    let folder = program.parent().unwrap_or(Path::new("/tmp"));
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    Ok(folder.join("semel-testbed"))
}
