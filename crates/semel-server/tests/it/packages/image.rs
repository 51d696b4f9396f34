//! The image. No registry can be reached from a test, so a fresh Debian stands in for the base; no engine runs, so the entry
//! point and the health check run in the image's folder, as its user. `deploy::linters` reads the Containerfile.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::artifacts::{VERSION, artifacts, root};
use super::root::{PATH, fresh_root};
use super::run;
use crate::kit::{Semel, Upstream};

/// Images in a folder of their own.
struct Images<'a>(&'a Path);

impl Images<'_> {
    fn podman(&self) -> Command {
        let mut podman = Command::new("podman");
        podman.args(["--storage-driver", "overlay", "--root"]).arg(self.0.join("images"));
        podman.arg("--runroot").arg(self.0.join("run"));
        podman
    }
}

impl Drop for Images<'_> {
    fn drop(&mut self) {
        // What it has mounted is podman's to unmount. A test that has failed already says why.
        let _ = self.podman().args(["image", "unmount", "--all"]).output();
        let _ = Command::new("umount").arg(self.0.join("images/overlay")).output();
    }
}

#[test]
#[ignore = "needs root, podman and a Debian from the network: a part of ./scripts/prove release"]
fn it_is_small_has_no_rights_and_answers_its_health_check() {
    let (copy, base) = fresh_root();
    let images = Images(copy.path());
    let podman = || images.podman();
    let archive = copy.path().join("base.tar");
    run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&base).arg("."));
    run(podman().arg("import").arg(&archive).arg("localhost/base"));
    let file = root().join("deploy/container/Containerfile");
    run(podman()
        .args(["build", "--format", "docker", "--isolation", "chroot", "--build-arg", "BASE=localhost/base"])
        .args(["--tag", "semel", "--file"])
        .arg(file)
        .arg(artifacts()));

    let described: Value = serde_json::from_str(&run(podman().args(["inspect", "semel"]))).unwrap();
    let config = &described[0]["Config"];
    assert_eq!(config["User"], "65532:65532");
    assert_eq!(config["Entrypoint"], json!(["/usr/bin/semel"]));
    assert_eq!(config["Cmd"], json!(["serve", "--config", "/etc/semel/semel.toml"]));
    assert_eq!(config["WorkingDir"], "/var/lib/semel");
    assert_eq!(config["Labels"]["org.opencontainers.image.version"], VERSION);
    assert_eq!(described[0]["Healthcheck"]["Test"], json!(["CMD", "/usr/bin/semel", "health"]));

    let place = PathBuf::from(run(podman().args(["image", "mount", "semel"])).trim());
    let as_user = |arguments: &[&str]| {
        let mut command = Command::new("chroot");
        command.arg("--userspec=65532:65532").arg(&place).args([
            "/usr/bin/env",
            "--chdir=/var/lib/semel",
            "/usr/bin/semel",
        ]);
        command.args(arguments).env_clear().env("PATH", PATH);
        command
    };
    let upstream = Upstream::start();
    let semel = Semel::spawn(as_user(&[
        "serve",
        "--upstream",
        &upstream.url(),
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--store",
        "memory:",
    ]));
    let client = semel.gateway().with("authorization", "Bearer me").with("idempotency-key", "order-42");
    assert_eq!(client.post("/v1/payments", "{}").status, 201);
    assert_eq!(client.post("/v1/payments", "{}").header("idempotent-replayed"), Some("true"));
    run(as_user(&["health"]).env("SEMEL_ADMIN", semel.admin_url()));
    drop(semel);
    let owner = run(Command::new("stat").args(["--format", "%u:%g"]).arg(place.join("var/lib/semel")));
    assert_eq!(owner.trim(), "65532:65532", "its data directory belongs to its user");
}
