//! The artifacts of the binary under test, made once for all tests.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::run;

/// The version in the names of files.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The binary that is packaged: the one under test, or that of a release (`scripts/prove release`).
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("SEMEL_RELEASE_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_semel").into(), PathBuf::from)
}

/// The target of this machine, in the names of files. A release can also hold a static (musl) build.
pub(super) fn host() -> String {
    let libc = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
    format!("{}-unknown-linux-{libc}", std::env::consts::ARCH)
}

/// The folder of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Cargo's target folder.
pub(crate) fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_owned()
}

/// A program of `scripts/linters`.
pub(crate) fn linter(name: &str) -> Command {
    let folder = target().join("linters");
    let ready = folder.join("made-of").exists();
    assert!(ready, "the linters are not installed in {}: run ./scripts/linters", folder.display());
    Command::new(folder.join("venv/bin").join(name))
}

/// Makes the artifacts with `scripts/release` and further arguments.
pub(super) fn release(out: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(root().join("scripts/release"));
    command.arg("--binary").arg(binary()).arg("--out").arg(out).args(arguments);
    command
}

/// The folder of the artifacts: those of a release, if there are any.
pub(crate) fn artifacts() -> PathBuf {
    std::env::var_os("SEMEL_RELEASE_ARTIFACTS").map_or_else(packaged, PathBuf::from)
}

/// The folder of artifacts that are weakly compressed ([`release`]). Tests are processes of their own, and the first one makes
/// them.
pub(super) fn packaged() -> PathBuf {
    let folder = target().join("test-artifacts");
    fs::create_dir_all(&folder).unwrap();
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let (out, note, wanted) = (folder.join("out"), folder.join("made-of"), sources());
    if fs::read_to_string(&note).ok().as_ref() != Some(&wanted) {
        run(&mut release(&out, &[]));
        fs::write(&note, wanted).unwrap();
    }
    out
}

/// The artifact of this machine with this ending.
pub(crate) fn artifact(ending: &str) -> PathBuf {
    let files = fs::read_dir(artifacts()).unwrap().map(|file| file.unwrap().path());
    only(files.collect(), ending)
}

fn only(files: Vec<PathBuf>, ending: &str) -> PathBuf {
    let mut found: Vec<_> =
        files.into_iter().filter(|file| file.to_str().unwrap().ends_with(ending)).collect();
    if found.len() > 1 {
        found.retain(|file| file.to_str().unwrap().contains(&host()));
    }
    assert_eq!(found.len(), 1, "{ending}: {found:?}");
    found.remove(0)
}

// Where musl is installed, a release has two tarballs and two bills of materials.
#[test]
fn a_static_build_beside_it_is_not_the_artifact_of_this_machine() {
    for ending in [".tar.gz", ".cdx.json"] {
        let [own, other] = [host(), host().replace("-gnu", "-musl")]
            .map(|triple| PathBuf::from(format!("semel-{VERSION}-{triple}{ending}")));
        assert_eq!(only(vec![other, own.clone()], ending), own);
    }
}

/// What the artifacts are made of, with times and sizes.
fn sources() -> String {
    let mut paths = vec![binary()];
    let names = ["packaging", "deploy", "docs", "clients", "scripts/release", "Cargo.lock", "LICENSE"];
    let pages = fs::read_dir(root()).unwrap().map(|file| file.unwrap().path());
    paths.extend(pages.filter(|file| file.extension().is_some_and(|ending| ending == "md")));
    paths[1..].sort();
    names.iter().for_each(|name| collect(&root().join(name), &mut paths));
    let described = paths.iter().map(|path| {
        let found = fs::metadata(path).unwrap();
        format!("{} {} {:?}\n", path.display(), found.len(), found.modified().unwrap())
    });
    described.collect()
}

fn collect(path: &Path, paths: &mut Vec<PathBuf>) {
    if path.is_dir() {
        let mut entries: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries.iter().for_each(|entry| collect(entry, paths));
    } else {
        paths.push(path.to_owned());
    }
}
