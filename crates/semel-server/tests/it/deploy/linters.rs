//! Tools of the registries read every manifest and script. `scripts/linters` installs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packages::artifacts::{linter, root};

#[track_caller]
fn passes(command: &mut Command) {
    let output = command.current_dir(root()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The files in a folder of `deploy/` with this ending.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("deploy").join(folder)).unwrap();
    let mut found: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "{folder}");
    found
}

const KUBERNETES: [&str; 2] = ["kubernetes/gateway", "kubernetes/sidecar"];

fn is_kustomization(path: &Path) -> bool {
    path.ends_with("kustomization.yaml")
}

#[test]
fn hadolint_accepts_the_containerfile() {
    passes(linter("hadolint").args(["--failure-threshold", "info", "deploy/container/Containerfile"]));
}

#[test]
fn the_compose_file_follows_the_schema_of_compose() {
    passes(linter("check-jsonschema").args([
        "--builtin-schema",
        "vendor.compose-spec",
        "deploy/compose/compose.yaml",
    ]));
}

#[test]
fn kubernetes_accepts_the_manifests() {
    let manifests: Vec<PathBuf> = KUBERNETES.iter().flat_map(|folder| files(folder, "yaml")).collect();
    let manifests = manifests.iter().filter(|path| !is_kustomization(path));
    // The oldest version that the pages name, and a current one.
    for version in ["1.30", "1.37"] {
        let mut validate = linter("kubernetes-validate");
        passes(
            validate.args(["--strict", "--quiet", "--kubernetes-version", version]).args(manifests.clone()),
        );
    }
}

/// What `kubectl kustomize` would read: no tool of the registries has its schema, so this checks that it names every file beside it,
/// and that what refers to generated names does.
#[test]
fn kustomizations_name_every_file_beside_them() {
    for folder in KUBERNETES {
        let path = root().join("deploy").join(folder);
        let text = fs::read_to_string(path.join("kustomization.yaml")).unwrap();
        assert!(text.contains("\nkind: Kustomization\n"), "{folder}");
        for manifest in files(folder, "yaml").iter().filter(|path| !is_kustomization(path)) {
            let name = manifest.file_name().unwrap().to_str().unwrap();
            assert!(text.contains(&format!("\n  - {name}\n")), "{folder}: {name}");
        }
        assert!(
            text.contains("  - name: semel\n    files: [semel.toml]\n") && path.join("semel.toml").exists()
        );
        let deployment = fs::read_to_string(path.join("deployment.yaml")).unwrap();
        assert!(deployment.contains("configMap: { name: semel }"), "{folder}");
        // Every image that it replaces is used.
        for image in text.lines().filter_map(|line| line.strip_prefix("  - name: ")) {
            assert!(deployment.contains(&format!("image: {image}:")), "{folder}: {image}");
        }
    }
}

#[test]
fn yamllint_accepts_every_manifest() {
    let rules = "{extends: default, rules: {line-length: {max: 160}, document-start: disable, braces: {max-spaces-inside: 1}, \
                 octal-values: {forbid-implicit-octal: false}}}";
    let files = KUBERNETES.iter().copied().chain(["compose"]).flat_map(|folder| files(folder, "yaml"));
    passes(linter("yamllint").args(["--strict", "-d", rules]).args(files));
}

/// What Kubernetes, Compose and systemd wait for a server to end is longer than its default `drain` of 30 s.
#[test]
fn supervisors_wait_longer_than_a_drain() {
    for (path, setting) in [
        ("deploy/kubernetes/gateway/deployment.yaml", "terminationGracePeriodSeconds: "),
        ("deploy/kubernetes/sidecar/deployment.yaml", "terminationGracePeriodSeconds: "),
        ("deploy/compose/compose.yaml", "stop_grace_period: "),
        ("packaging/semel.service", "TimeoutStopSec="),
    ] {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let at = text.find(setting).unwrap_or_else(|| panic!("{setting} in {path}"));
        let digits: String = text[at + setting.len()..].chars().take_while(char::is_ascii_digit).collect();
        assert!(digits.parse::<u32>().unwrap() > 30, "{path}: {setting}{digits}");
    }
}

#[test]
fn shellcheck_accepts_every_script() {
    let mut scripts: Vec<PathBuf> =
        ["postinst", "prerm", "postrm"].map(|name| Path::new("packaging/debian").join(name)).into();
    scripts.push("crates/semel-server/tests/it/packages/booted.sh".into());
    for entry in fs::read_dir(root().join("scripts")).unwrap() {
        let path = entry.unwrap().path();
        let is_python = fs::read_to_string(&path).unwrap().starts_with("#!/usr/bin/env python3");
        if !is_python {
            scripts.push(path);
        }
    }
    passes(linter("shellcheck").args(["--external-sources", "--severity", "warning"]).args(scripts));
}
