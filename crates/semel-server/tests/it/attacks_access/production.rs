//! `semel config check --production`, over the configuration of docs/howto/harden-for-production.md.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::admin_tls::certificates;
use crate::kit::run;

const GUIDE: &str = include_str!("../../../../../docs/howto/harden-for-production.md");

/// Writes the guide's configuration with everything that it names.
fn prepare(folder: &Path) -> String {
    certificates(folder, "IP:127.0.0.1");
    for name in ["gateway.pem", "admin.pem"] {
        std::fs::copy(folder.join("cert.pem"), folder.join(name)).unwrap();
    }
    for name in ["gateway.key", "admin.key"] {
        std::fs::copy(folder.join("key.pem"), folder.join(name)).unwrap();
    }
    for name in ["clients.pem", "operators.pem", "upstream-ca.pem", "db-ca.pem"] {
        std::fs::copy(folder.join("ca.pem"), folder.join(name)).unwrap();
    }
    let secrets = folder.join("secrets");
    std::fs::create_dir(&secrets).unwrap();
    let store = format!(
        "postgres://semel:hunter2@db.internal/semel?sslmode=verify-full&sslrootcert={}",
        folder.join("db-ca.pem").display()
    );
    for (name, value) in [
        ("deployment", "a secret of the deployment"),
        ("on-call-token", "11111111111111111111111111111111"),
        ("billing-token", "22222222222222222222222222222222"),
        ("store-url", &store),
        ("seal-2026-11", "33333333333333333333333333333333"),
        ("ledger-signing", "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="),
    ] {
        let file = secrets.join(name);
        std::fs::write(&file, value).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    }
    let toml = GUIDE.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    toml.replace("/etc/semel", &folder.display().to_string())
}

fn check(file: &Path, text: &str) -> (Option<i32>, String) {
    std::fs::write(file, text).unwrap();
    std::fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    let checked = run(&["config", "check", "--production", file.to_str().unwrap()]);
    let said = [checked.stdout, checked.stderr].concat();
    (checked.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn the_production_configuration_of_the_guide_is_accepted_and_each_gap_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let good = prepare(folder.path());
    let file = folder.path().join("semel.toml");
    let (code, said) = check(&file, &good);
    assert_eq!(code, Some(0), "{said}");

    let client_ca = |name: &str| format!(", client_ca = \"{}/{name}\"", folder.path().display());
    let tls = |line: &str| {
        let found = good.lines().find(|found| found.contains(line)).unwrap();
        format!("{found}\n")
    };
    let table: [(&str, &str, &str); 16] = [
        ("hosts = [\"api.example.com\"]\n", "", "[gateway] hosts: not set"),
        ("max_bytes = \"20GiB\"\n", "", "[store] max_bytes: not set"),
        ("new_keys_per_second = 2000", "new_keys_per_second = 0", "[store] new_keys_per_second: 0"),
        (&client_ca("operators.pem"), "", "[admin] tls.client_ca: not set"),
        (&tls("/admin.key"), "", "[admin] tls: not set"),
        (&tls("/gateway.key"), "", "[gateway] tls: not set"),
        (
            "https://payments.internal",
            "http://payments.internal",
            "[gateway] upstream: http:// to payments.internal",
        ),
        ("scope = \"authorization\"", "scope = \"single-tenant\"", "[gateway] scope: single-tenant"),
        ("scope = \"authorization\"", "store_down = \"open\"", "store_down: open"),
        (
            "scope = \"authorization\"",
            "scope = \"authorization\"\nambiguous = \"allow\"",
            "* /** ambiguous: allow",
        ),
        ("plain = \"refuse\"", "plain = \"read\"", "[store.encryption] plain: read"),
        (
            "https://ledger.internal",
            "http://ledger.internal",
            "[[target]] \"ledger\" url: http:// to ledger.internal",
        ),
        (&tls("/ledger-signing"), "", "[[target]] \"ledger\" secret: not set"),
        (&tls("/secrets/deployment"), "", "secret: not set"),
        ("level = \"info\"", "level = \"debug\"", "[log] level: debug"),
        ("name = \"ledger\"\n", "name = \"ledger\"\nallow_link_local = true\n", "allow_link_local: true"),
    ];
    for (from, to, expected) in table {
        let changed = good.replacen(from, to, 1);
        assert_ne!(changed, good, "{from}");
        let (code, said) = check(&file, &changed);
        assert_eq!(code, Some(2), "{expected}: {said}");
        assert_eq!(said.lines().count(), 1, "one gap is one line: {said}");
        assert!(said.contains(expected), "{expected} in {said}");
    }

    let secret = folder.path().join("secrets/store-url");
    std::fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    let unencrypted = "postgres://semel:hunter2@db.internal/semel";
    std::fs::write(&secret, unencrypted).unwrap();
    std::fs::set_permissions(folder.path().join("admin.key"), Permissions::from_mode(0o666)).unwrap();
    let (_, said) = check(&file, &good);
    for expected in
        ["store-url: mode 0644", "admin.key: mode 0666", "[store] url: the connection to db.internal"]
    {
        assert!(said.contains(expected), "{expected} in {said}");
    }
    assert!(!said.contains("hunter2"), "{said}");
}

#[test]
fn a_configuration_for_a_laptop_is_told_everything_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let text =
        "[gateway]\nlisten = \"0.0.0.0:8080\"\nupstream = \"http://10.0.0.9\"\n[store]\nurl = \"memory:\"\n";
    let (code, said) = check(&file, text);
    assert_eq!(code, Some(2));
    for expected in [
        "secret:",
        "[[token]]:",
        "[gateway] tls:",
        "[gateway] upstream:",
        "[store] url:",
        "[store.encryption]:",
        "[ledger] url:",
    ] {
        assert!(said.lines().any(|line| line.contains(expected)), "{expected} in {said}");
    }
    let path = file.to_str().unwrap();
    assert_eq!(run(&["config", "check", path]).status.code(), Some(0), "still valid");
    let json = run(&["config", "check", "--production", "--json", path]);
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(report["problems"].as_array().unwrap().len(), said.lines().count(), "{report}");
}
