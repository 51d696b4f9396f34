//! The recipes for build servers follow their schemas, and their shell works: a stand-in for `docker compose` starts an API that is
//! idempotent, the tarball is downloaded from this machine, and `semel check` of that tarball judges the API.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use super::pages::{Page, root};
use crate::kit::semel;
use crate::packages::artifacts::{artifacts, linter};

/// Stands in for `docker compose`: the API is the sample API behind a gateway, which makes it idempotent.
const DOCKER: &str = r#"#!/bin/bash
set -eu
start() {
  if [ -e api.pid ] && kill -0 "$(cat api.pid)" 2>/dev/null; then return; fi
  "$SEMEL" serve --upstream "http://127.0.0.1:$SAMPLE_PORT" --listen "127.0.0.1:$API_PORT" --admin 127.0.0.1:0 \
    --store embedded:./api-data >api.out 2>api.err </dev/null &
  echo $! >api.pid
  until grep -q '^semel ready' api.out; do sleep 0.05; kill -0 "$(cat api.pid)"; done
}
cd "$COMPOSE"
case "$*" in
  "compose up --detach --wait" | "compose up --wait api") start ;;
  "compose restart api") kill -9 "$(cat api.pid)"; while kill -0 "$(cat api.pid)" 2>/dev/null; do sleep 0.05; done; start ;;
  *) echo "no such command: docker $*" >&2; exit 1 ;;
esac
"#;

/// Starts what a recipe expects to be there.
const PRELUDE: &str = r#"
set -euo pipefail
export COMPOSE=$PWD SEMEL_DOWNLOADS=http://127.0.0.1:$DOWNLOADS_PORT
python3 "$ROOT/deploy/compose/api.py" "127.0.0.1:$SAMPLE_PORT" >sample.out 2>&1 </dev/null &
python3 -m http.server --bind 127.0.0.1 --directory "$ARTIFACTS" "$DOWNLOADS_PORT" >downloads.out 2>&1 </dev/null &
until curl --silent --fail --output /dev/null "$SEMEL_DOWNLOADS/SHA256SUMS" && [ -s sample.out ]; do sleep 0.05; done
"#;

/// The two recipes: for GitHub and for GitLab.
fn recipes() -> [String; 2] {
    let page = Page::read("docs/howto/check-in-ci.md");
    let blocks: Vec<String> =
        page.blocks.iter().filter(|block| block.language == "yaml").map(|block| block.text.clone()).collect();
    blocks.try_into().expect("one for GitHub, one for GitLab")
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The shell of the `run` members of a workflow, step by step.
fn github_steps(recipe: &str) -> Vec<String> {
    let mut steps = Vec::new();
    let mut lines = recipe.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(command) = line.trim_start().trim_start_matches("- ").strip_prefix("run: ") else {
            continue;
        };
        if command != "|" {
            steps.push(command.to_owned());
            continue;
        }
        let mut step = String::new();
        while let Some(next) = lines.next_if(|next| indentation(next) > indentation(line)) {
            step += next;
            step.push('\n');
        }
        steps.push(step);
    }
    steps
}

/// The lines of `before_script` and `script`.
fn gitlab_lines(recipe: &str) -> Vec<String> {
    let mut is_script = false;
    let mut found = Vec::new();
    for line in recipe.lines() {
        match line.strip_prefix("    - ") {
            Some(command) if is_script => found.push(command.to_owned()),
            _ => is_script = line == "  before_script:" || line == "  script:",
        }
    }
    found
}

/// Runs the shell of a recipe, with the addresses of this test.
fn play(shell: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let write_program = |name: &str, text: &str| {
        fs::write(bin.join(name), text).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    write_program("docker", DOCKER);
    write_program("apt-get", "#!/bin/sh\nexit 0\n");
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [api, sample, downloads] =
        listeners.each_ref().map(|listener| listener.local_addr().unwrap().port().to_string());
    drop(listeners);
    let prefix = folder.path().join("usr-local");
    fs::create_dir(&prefix).unwrap();
    let shell = shell
        .replace("http://api:3000", &format!("http://127.0.0.1:{api}"))
        .replace("127.0.0.1:3000", &format!("127.0.0.1:{api}"))
        .replace("/usr/local", prefix.to_str().unwrap());
    let path = [&bin, &prefix.join("bin"), Path::new("/usr/bin"), Path::new("/bin")];
    let recipe = Command::new("timeout")
        .args(["-k", "10", "300", "bash", "-c", &[PRELUDE, &shell].concat()])
        .current_dir(folder.path())
        .env_clear()
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("SEMEL", semel().get_program())
        .env("ROOT", root())
        .env("ARTIFACTS", artifacts())
        .envs([("API_PORT", api), ("SAMPLE_PORT", sample), ("DOWNLOADS_PORT", downloads)])
        .envs([("RUNNER_TEMP", "."), ("GITHUB_PATH", "github-path"), ("GITHUB_STEP_SUMMARY", "summary")])
        .envs([("SEMEL_CHECK_AUTH", "first-user"), ("SEMEL_CHECK_OTHER_AUTH", "second-user")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let group = Pid::from_child(&recipe);
    let output = recipe.wait_with_output().unwrap();
    let _ = kill_process_group(group, Signal::KILL);
    let [printed, said] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}: {shell}\n{printed}\n{said}", output.status);
    (folder, printed)
}

#[test]
fn recipes_follow_the_schemas_of_their_build_servers() {
    let folder = tempfile::tempdir().unwrap();
    for (recipe, schema) in recipes().iter().zip(["vendor.github-workflows", "vendor.gitlab-ci"]) {
        let file = folder.path().join("recipe.yaml");
        fs::write(&file, recipe).unwrap();
        let output =
            linter("check-jsonschema").args(["--builtin-schema", schema]).arg(&file).output().unwrap();
        assert!(output.status.success(), "{schema}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn the_github_recipe_checks_an_api_from_the_tarball() {
    let steps = github_steps(&recipes()[0]);
    assert_eq!(steps.len(), 3, "start, install, check: {steps:?}");
    // Every step is a shell of its own, in the same folder, with the path that steps before it have extended.
    let steps: String = steps
        .iter()
        .map(|step| format!("(\n{step}\n)\nPATH=$(cat github-path 2>/dev/null || true):$PATH\n"))
        .collect();
    let (folder, _) = play(&steps);
    let summary = fs::read_to_string(folder.path().join("summary")).unwrap();
    // With two users and a restart, every required case has a verdict.
    assert!(summary.contains("scope_isolation") && summary.contains("crash_durability"), "{summary}");
    assert!(!summary.contains("Required cases without a verdict"), "{summary}");
}

#[test]
fn the_gitlab_recipe_checks_an_api_from_the_tarball() {
    let lines = gitlab_lines(&recipes()[1]);
    assert_eq!(lines.len(), 6, "{lines:?}");
    let (folder, _) = play(&format!("docker compose up --detach --wait\n{}", lines.join("\n")));
    let report = fs::read_to_string(folder.path().join("idempotency.xml")).unwrap();
    assert!(report.contains("<testsuite") && report.contains("race_100"), "{report}");
}
