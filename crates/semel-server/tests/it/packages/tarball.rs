//! The tarball is all that a newcomer needs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

use super::artifacts::{VERSION, artifact, artifacts, binary, host, packaged, release, root};
use super::run;
use crate::kit::{Semel, Upstream};

/// The tarball, unpacked as a prefix.
fn unpacked() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("prefix");
    fs::create_dir(&prefix).unwrap();
    run(Command::new("tar")
        .arg("-xzf")
        .arg(artifact(".tar.gz"))
        .arg("--strip-components=1")
        .arg("-C")
        .arg(&prefix));
    (folder, prefix)
}

fn files(folder: &Path, below: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, below, found);
        } else {
            found.insert(path.strip_prefix(below).unwrap().to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn it_serves_an_api_within_a_minute_and_needs_nothing_else() {
    // Made before the clock starts.
    artifacts();
    let upstream = Upstream::start();
    let start = Instant::now();
    let (folder, prefix) = unpacked();
    let mut command = Command::new(prefix.join("bin/semel"));
    command.env_clear().current_dir(folder.path()).args(["serve", "--upstream", &upstream.url()]);
    command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let semel = Semel::spawn(command);
    let client = semel.gateway().with("authorization", "Bearer me").with("idempotency-key", "order-42");
    let first = client.post("/v1/payments", "{}");
    let again = client.post("/v1/payments", "{}");
    assert_eq!((first.status, again.status), (201, 201), "{}", first.text());
    assert_eq!(first.body, again.body);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert_eq!(upstream.calls("order-42"), 1);
    let health = Command::new(prefix.join("bin/semel"))
        .args(["health", "--admin", semel.admin_url()])
        .output()
        .unwrap();
    assert!(health.status.success(), "{health:?}");
}

#[test]
fn it_has_pages_completions_licences_and_one_folder() {
    let listed = run(Command::new("tar").arg("-tvzf").arg(artifact(".tar.gz")));
    for line in listed.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[1], "0/0", "of nobody in particular: {line}");
        assert!(words[5].starts_with(&format!("semel-{VERSION}-")), "{line}");
        assert!(!words[0].ends_with("w-") && !words[0].contains('s'), "{line}");
    }
    let (_folder, prefix) = unpacked();
    let mut found = BTreeSet::new();
    files(&prefix, &prefix, &mut found);
    for file in [
        "bin/semel",
        "lib/systemd/system/semel.service",
        "share/bash-completion/completions/semel",
        "share/zsh/site-functions/_semel",
        "share/fish/vendor_completions.d/semel.fish",
        "share/man/man1/semel.1",
        "share/man/man1/semel-serve.1",
        "share/man/man1/semel-keys-settle.1",
        "share/doc/semel/BUILD",
        "share/doc/semel/LICENSE",
        "share/doc/semel/THIRD-PARTY-LICENSES",
        "share/doc/semel/README.md",
        "share/doc/semel/docs/howto/install.md",
        "share/doc/semel/deploy/compose/compose.yaml",
        "share/doc/semel/semel.toml",
        "share/doc/semel/environment",
    ] {
        assert!(found.contains(file), "{file} in {found:?}");
    }
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/semel.service")).unwrap();
    assert!(
        unit.contains("\nExecStart=/usr/local/bin/semel serve"),
        "the prefix of its installation: {unit}"
    );
    let build = fs::read_to_string(prefix.join("share/doc/semel/BUILD")).unwrap();
    assert!(
        build.contains(&format!("version: {VERSION}\ncommit: ")) && build.contains("\nrustc: rustc 1."),
        "{build}"
    );

    // `man` finds pages beside the binaries of PATH.
    let mut man = Command::new("man");
    man.arg("--manpath").arg(prefix.join("share/man")).env("MANPAGER", "cat").env("MANWIDTH", "100");
    let page = run(man.args(["semel-serve"]));
    assert!(page.contains("--upstream") && page.contains("Upstream of the gateway"), "{page}");
    let page = run(man.args(["semel"]));
    assert!(page.contains("Makes effects happen once"), "{page}");

    let zsh = fs::read_to_string(prefix.join("share/zsh/site-functions/_semel")).unwrap();
    assert!(zsh.starts_with("#compdef semel\n"), "{zsh}");
    let script = r#"
        source "$1"
        complete -p semel
        COMP_WORDS=(semel serve --up) COMP_CWORD=2
        "$(complete -p semel | sed 's/.*-F \([^ ]*\).*/\1/')" semel --up serve
        echo "reply: ${COMPREPLY[*]}"
    "#;
    let completion = prefix.join("share/bash-completion/completions/semel");
    let completed = run(Command::new("bash").args(["-c", script, "bash"]).arg(completion));
    assert!(completed.contains("reply: --upstream"), "{completed}");
}

#[test]
fn links_of_its_pages_lead_to_files_that_it_has() {
    let (_folder, prefix) = unpacked();
    let doc = prefix.join("share/doc/semel");
    let mut found = BTreeSet::new();
    files(&doc, &doc, &mut found);
    let (mut broken, mut links) = (Vec::new(), 0);
    for page in found.iter().filter(|file| file.ends_with(".md")) {
        let text = fs::read_to_string(doc.join(page)).unwrap();
        // Every other part is a block of code.
        let prose: String = text.split("```").step_by(2).collect();
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            links += 1;
            let target = doc.join(page).parent().unwrap().join(link);
            if !link.contains("://") && !target.exists() {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(links > 100, "{links} links");
}

// Those who write a client in another language have no checkout.
#[test]
fn its_contract_of_the_claims_api_runs() {
    let (_folder, prefix) = unpacked();
    let mut runner = Command::new("python3");
    runner.arg(prefix.join("share/doc/semel/clients/contract/run.py"));
    runner.args(["--only", "results keep their form", "--semel"]).arg(prefix.join("bin/semel"));
    let driver = root().join("clients/python/tests/driver.py");
    runner.args(["--", "python3"]).arg(driver).env("PYTHONPATH", root().join("clients/python/src"));
    let printed = run(runner.env("PYTHONDONTWRITEBYTECODE", "1"));
    assert_eq!(printed, "ok      results keep their form: null, texts, lists, numbers\n");
}

#[test]
fn the_same_binary_gives_the_same_artifacts_on_another_machine() {
    // Of a release, `reproducible` compares two builds.
    let sums = fs::read_to_string(packaged().join("SHA256SUMS")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("elsewhere");
    let mut again = Command::new("sh");
    // Another user's habits: rights, time zone, language, folder, and a file system that gives folders another size.
    again.args(["-c", "umask 077; cd /; exec \"$@\"", "sh"]);
    let release = release(&out, &[]);
    again.arg(release.get_program()).args(release.get_args());
    again.env("TZ", "Pacific/Chatham").env("LC_ALL", "C").env("GZIP", "-3").env("XZ_OPT", "-0");
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    run(again.env("TMPDIR", scratch.path()));
    assert_eq!(fs::read_to_string(out.join("SHA256SUMS")).unwrap(), sums);
    assert_eq!(sums.lines().count(), 3, "tarball, package, bill of materials: {sums}");
    run(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&out));
}

/// A repository with the files of this checkout.
fn copied_to(place: &Path) {
    fs::create_dir_all(place).unwrap();
    let script = "git ls-files -z | tar -c --null --files-from=- | tar -x -C \"$1\" && cd \"$1\" && git init --quiet && git add . && \
                  git -c user.name=a -c user.email=a@example -c commit.gpgsign=false commit --quiet --message copy";
    run(Command::new("sh").args(["-ec", script, "sh"]).arg(place).current_dir(root()));
}

// A folder was copied with all that was in it, so what git ignores was published.
#[test]
fn a_checkout_with_spaces_in_its_path_is_packaged_without_what_git_ignores() {
    let folder = tempfile::tempdir().unwrap();
    let (checkout, out) = (folder.path().join("a check out"), folder.path().join("the artifacts"));
    copied_to(&checkout);
    let stray = checkout.join("deploy/compose/__pycache__/api.pyc");
    fs::create_dir(stray.parent().unwrap()).unwrap();
    fs::write(stray, "compiled").unwrap();
    let scratch = folder.path().join("temporary files");
    fs::create_dir(&scratch).unwrap();
    let mut release = Command::new(checkout.join("scripts/release"));
    release.arg("--binary").arg(binary()).arg("--out").arg(&out).env("TMPDIR", &scratch);
    run(&mut release);
    let tarball = out.join(format!("semel-{VERSION}-{}.tar.gz", host()));
    let listed = run(Command::new("tar").arg("-tzf").arg(tarball));
    assert!(listed.contains("/share/doc/semel/deploy/compose/api.py\n"), "{listed}");
    assert!(listed.contains("/share/doc/semel/PROMISES.md\n"), "{listed}");
    assert!(!listed.contains("__pycache__"), "{listed}");
}
