//! The artifacts in a fresh Debian without Rust. The root is made once, by debootstrap, in `target/fresh-root`. `tarball` and `debian`
//! read the artifacts without one.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

use super::artifacts::{artifact, release, target};
use super::run;
use crate::kit::{Semel, Upstream};
use crate::rolling_upgrade::{WorkTree, binary_of, git};

/// The oldest release that the pages name.
const RELEASE: &str = "bookworm";
/// What a server has, and a reader of manuals.
const PACKAGES: &str = "--include=systemd,systemd-sysv,man-db,bash-completion,ca-certificates";

/// The search path of root.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A copy of a freshly installed Debian.
pub(super) fn fresh_root() -> (TempDir, PathBuf) {
    assert!(rustix::process::getuid().is_root(), "a fresh root needs root's rights");
    let folder = target().join("fresh-root");
    fs::create_dir_all(&folder).unwrap();
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let (base, ready) = (folder.join("base"), folder.join("ready"));
    if !ready.exists() {
        let _ = fs::remove_dir_all(&base);
        run(Command::new("debootstrap").args(["--variant=minbase", PACKAGES, RELEASE]).arg(&base));
        File::create(&ready).unwrap();
    }
    let copy = tempfile::tempdir().unwrap();
    // The folder of a root is entered by other users.
    fs::set_permissions(copy.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let place = copy.path().join("root");
    run(Command::new("cp").args(["--archive", "--reflink=auto"]).arg(&base).arg(&place));
    (copy, place)
}

fn within(root: &Path, command: &str) -> String {
    run(Command::new("chroot").arg(root).args(["/bin/bash", "-ec", command]).env_clear().env("PATH", PATH))
}

#[test]
#[ignore = "needs root and a Debian from the network: a part of ./scripts/prove release"]
fn a_newcomer_unpacks_the_tarball_and_has_a_gateway_within_a_minute() {
    let (_copy, root) = fresh_root();
    let tarball = artifact(".tar.gz");
    let name = tarball.file_name().unwrap().to_str().unwrap();
    fs::copy(&tarball, root.join("root").join(name)).unwrap();
    assert_eq!(within(&root, "! command -v cargo rustc cc gcc"), "", "no compiler here");
    let upstream = Upstream::start();

    let start = Instant::now();
    within(&root, &format!("tar -xzf /root/{name} --strip-components=1 -C /usr/local"));
    let mut serve = Command::new("chroot");
    serve.arg(&root).args(["/bin/sh", "-c", "cd /root && exec semel serve \"$@\"", "sh"]);
    serve.args(["--upstream", &upstream.url(), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    serve.env_clear().env("PATH", PATH);
    let semel = Semel::spawn(serve);
    let client = semel.gateway().with("authorization", "Bearer me").with("idempotency-key", "order-42");
    let answers = [client.post("/v1/payments", "{}"), client.post("/v1/payments", "{}")];
    let taken = start.elapsed();
    assert_eq!(answers[0].body, answers[1].body);
    assert_eq!(upstream.calls("order-42"), 1);
    assert!(taken < Duration::from_secs(60), "{taken:?}");
    println!("from the tarball to the second answer of the gateway: {taken:.1?}");
    within(&root, &format!("semel health --admin {}", semel.admin_url()));

    let page = within(&root, "MANPAGER=cat man semel");
    assert!(page.contains("Makes effects happen once"), "{page}");
    // As an interactive shell does when Tab is pressed.
    let completed = within(
        &root,
        "source /usr/share/bash-completion/bash_completion
         _completion_loader semel || true
         COMP_WORDS=(semel he) COMP_CWORD=1
         \"$(complete -p semel | sed 's/.*-F \\([^ ]*\\).*/\\1/')\" semel he semel
         echo \"reply: ${COMPREPLY[*]}\"",
    );
    assert!(completed.contains("reply: health"), "{completed}");
}

/// The package in this folder.
fn package_in(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|ending| ending == "deb")).last().unwrap()
}

/// The package of the first revision that has one, by its own scripts: with other files, and a store of earlier formats.
fn older_package(out: &Path) -> PathBuf {
    let added = git(&["log", "--diff-filter=A", "--format=%H", "--", "packaging/debian/control"]);
    let revision = added.lines().last().expect("the history has the first package");
    let (binary, tree) = (binary_of(revision), WorkTree::of(revision));
    run(Command::new("./scripts/release")
        .current_dir(tree.path())
        .arg("--binary")
        .arg(binary)
        .arg("--out")
        .arg(out));
    package_in(out)
}

/// The commands of `docs/howto/install.md` that run the tarball under systemd. There is no `sudo` in a fresh root.
fn as_a_service() -> String {
    let page = fs::read_to_string(super::artifacts::root().join("docs/howto/install.md")).unwrap();
    let block = page.split("```").find(|block| block.contains("enable --now")).unwrap();
    block.strip_prefix("sh\n").unwrap().replace("sudo ", "")
}

#[test]
#[ignore = "needs root, systemd-nspawn and a Debian from the network: a part of ./scripts/prove release"]
fn the_package_is_installed_started_upgraded_and_purged_under_systemd() {
    let (copy, root) = fresh_root();
    let test = root.join("test");
    fs::create_dir(&test).unwrap();
    fs::copy(older_package(&copy.path().join("older")), test.join("old.deb")).unwrap();
    let newer = copy.path().join("newer");
    run(&mut release(&newer, &["--revision", "2"]));
    fs::copy(package_in(&newer), test.join("new.deb")).unwrap();
    let tarball = artifact(".tar.gz");
    fs::copy(&tarball, test.join(tarball.file_name().unwrap())).unwrap();
    fs::write(test.join("tarball.sh"), as_a_service()).unwrap();
    fs::write(test.join("http.pl"), include_str!("http.pl")).unwrap();
    fs::write(test.join("booted.sh"), include_str!("booted.sh")).unwrap();
    let units = root.join("etc/systemd/system");
    fs::write(
        units.join("package-test.service"),
        "[Unit]\nAfter=basic.target\n[Service]\nExecStart=/bin/bash /test/booted.sh\n",
    )
    .unwrap();
    fs::create_dir_all(units.join("multi-user.target.wants")).unwrap();
    symlink("../package-test.service", units.join("multi-user.target.wants/package-test.service")).unwrap();

    // A machine of its own, as far as systemd can see; without a network, so that its ports are free.
    let machine = Command::new("timeout")
        .args(["--kill-after=10", "300", "systemd-nspawn", "--quiet", "--register=no", "--keep-unit"])
        .args(["--private-network", "--boot", "--directory"])
        .arg(&root)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let log = fs::read_to_string(test.join("log")).unwrap_or_default();
    let console = String::from_utf8_lossy(&machine.stdout).into_owned();
    assert!(machine.status.success(), "{}\n{log}\n{console}", machine.status);
    assert!(log.contains("\nthe package was installed, upgraded, removed and purged\n"), "{log}");
    assert!(log.contains("\nthe tarball ran as a service\n"), "{log}");
}
