//! The Debian package, read but not installed: `root` installs it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::artifacts::{VERSION, artifact, root};
use super::run;
use crate::kit;

/// Its files.
fn extracted() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    run(Command::new("dpkg-deb").arg("--extract").arg(artifact(".deb")).arg(&tree));
    (folder, tree)
}

/// The second number of the oldest glibc (2.x) that `install.md` promises to run on.
fn newest_glibc() -> u32 {
    let page = fs::read_to_string(root().join("docs/howto/install.md")).unwrap();
    let (_, rest) = page.split_once("glibc 2.").expect("the page names a version");
    rest.split_once(' ').and_then(|(minor, _)| minor.parse().ok()).expect("a number")
}

#[test]
fn lintian_finds_nothing() {
    // Lintian does not remove all of its temporary files.
    let scratch = tempfile::tempdir().unwrap();
    let mut lintian = Command::new("lintian");
    lintian.env("TMPDIR", scratch.path());
    lintian.args(["--fail-on", "error,warning", "--allow-root", "--no-cfg"]).arg(artifact(".deb"));
    let found = run(&mut lintian);
    assert_eq!(found, "", "every remark is an error, a warning, or overridden with a reason");
}

/// What is below this folder in KiB, as dpkg counts it.
fn kibibytes(folder: &Path) -> u64 {
    let size = |entry: fs::DirEntry| {
        let found = entry.metadata().unwrap();
        if found.is_dir() { kibibytes(&entry.path()) } else { found.len().div_ceil(1024) }
    };
    1 + fs::read_dir(folder).unwrap().map(|entry| size(entry.unwrap())).sum::<u64>()
}

#[test]
fn it_says_how_large_it_is_once_installed() {
    let said = run(Command::new("dpkg-deb").arg("--field").arg(artifact(".deb")).arg("Installed-Size"));
    let (_folder, tree) = extracted();
    assert_eq!(said.trim(), kibibytes(&tree).to_string());
}

#[test]
fn it_says_what_it_needs_and_what_is_configuration() {
    let field = |name: &str| run(Command::new("dpkg-deb").arg("--field").arg(artifact(".deb")).arg(name));
    assert_eq!(field("Version").trim(), format!("{VERSION}-1"));
    let depends = field("Depends");
    let libc = depends.strip_prefix("libc6 (>= 2.").and_then(|rest| rest.split_once(')'));
    let minor: u32 = libc.and_then(|(minor, _)| minor.parse().ok()).expect(&depends);
    let newest = newest_glibc();
    assert!(minor <= newest, "install.md promises glibc 2.{newest}: {depends}");
    let conffiles = fs::read_to_string(root().join("packaging/debian/conffiles")).unwrap();
    let (_folder, tree) = extracted();
    for file in conffiles.lines() {
        assert!(tree.join(file.trim_start_matches('/')).exists(), "{file}");
    }
    let shipped = fs::read_dir(tree.join("etc/semel")).unwrap().count();
    assert_eq!(conffiles.lines().count(), shipped, "dpkg asks before it overwrites any of them");
    let mode = fs::metadata(tree.join("etc/semel/environment")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it is for secrets");
    let checked = kit::run(&["config", "check", tree.join("etc/semel/semel.toml").to_str().unwrap()]);
    assert!(checked.status.success(), "{checked:?}");
}

// A typo in a unit is only a warning when the service starts.
#[test]
fn systemd_knows_every_setting_of_the_unit_and_finds_it_hardened() {
    let (folder, tree) = extracted();
    let unit = fs::read_to_string(tree.join("usr/lib/systemd/system/semel.service")).unwrap();
    // The paths of this folder: the binary is not installed here.
    let unit = unit.replace("/usr/bin/semel", tree.join("usr/bin/semel").to_str().unwrap());
    let file = folder.path().join("semel.service");
    fs::write(&file, &unit).unwrap();
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    let about_it: Vec<&str> = said.lines().filter(|line| line.contains("semel.service")).collect();
    assert!(verified.status.success() && about_it.is_empty(), "{said}");
    // Exposure in tenths: what is left is that a gateway needs the network.
    run(Command::new("systemd-analyze").args(["security", "--offline=true", "--threshold=20"]).arg(&file));
    for setting in
        ["DynamicUser=yes", "StateDirectory=semel", "ProtectSystem=strict", "LimitNOFILE=65536", "UMask=0077"]
    {
        assert!(unit.lines().any(|line| line == setting), "{setting}");
    }
}
