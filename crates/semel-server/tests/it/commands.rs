//! `semel keys` and `semel config`, end to end.

use semel_testbed::wait;
use serde_json::{Value, json};

use crate::kit::{Http, PATIENCE, Semel, run, semel};

fn keys(admin: &str, args: &[&str]) -> (bool, String) {
    let output = semel().arg("keys").args(args).args(["--admin", admin]).output().unwrap();
    let text = if output.status.success() { &output.stdout } else { &output.stderr };
    (output.status.success(), String::from_utf8_lossy(text).into_owned())
}

/// A key whose worker vanished after begin.
fn in_doubt(admin: &Http, key: &str) -> String {
    let body = json!({ "namespace": "charge", "scope": "acct_1", "key": key, "lease": "50ms" });
    let won = admin.post("/v1/claims", &body.to_string()).expect(200);
    let claim_id = won["claim_id"].as_str().unwrap();
    admin.post(&format!("/v1/claims/{claim_id}/begin"), "").expect(200);
    let id = won["key_id"].as_str().unwrap().to_owned();
    let phase = || admin.get(&format!("/v1/keys/{id}")).expect(200)["phase"].clone();
    wait::until("in doubt", PATIENCE, || phase() == "in_doubt").unwrap();
    id
}

#[test]
fn keys_are_found_shown_settled_and_forgotten() {
    let semel = Semel::start(&["--store", "memory:"]);
    let (admin, url) = (semel.admin(), semel.admin_url());
    let (one, two) = (in_doubt(&admin, "order-1"), in_doubt(&admin, "order-2"));

    let (ok, list) = keys(url, &["list", "--phase", "in_doubt"]);
    assert!(ok && list.contains(&one) && list.contains(&two) && list.contains("order-1"), "{list}");
    let (_, found) =
        keys(url, &["list", "--namespace", "charge", "--scope", "acct_1", "--key", "order-2", "--json"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!((found["items"].as_array().unwrap().len(), &found["items"][0]["id"]), (1, &json!(two)));
    let (_, none) =
        keys(url, &["list", "--namespace", "charge", "--scope", "acct_2", "--key", "order-2", "--json"]);
    assert!(none.contains("\"items\":[]"), "another scope: {none}");
    let (ok, shown) = keys(url, &["show", &one]);
    assert!(ok && shown.contains("in_doubt") && shown.contains("marked"), "{shown}");

    // audit: who, when, before and after, why.
    let (ok, settled) =
        keys(url, &["settle", &one, "--outcome", "{\"receipt\": 7}", "--reason", "asked the bank"]);
    assert!(ok && settled.contains("in_doubt -> done"), "{settled}");
    semel.logged("asked the bank");
    let log = semel.log();
    let line = log.lines().find(|line| line.contains("asked the bank")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    for (name, expected) in [
        ("user", "local"),
        ("operation", "settle_done"),
        ("before", "in_doubt"),
        ("after", "done"),
        ("outcome", "done"),
    ] {
        assert_eq!(line[name], expected, "{line}");
    }
    let body = json!({ "namespace": "charge", "scope": "acct_1", "key": "order-1" });
    let replay = admin.post("/v1/claims", &body.to_string()).expect(200);
    assert_eq!((replay["status"].as_str(), &replay["outcome"]), (Some("replay"), &json!({ "receipt": 7 })));
    let (ok, refused) = keys(url, &["settle", &one, "--run", "--reason", "again"]);
    assert!(!ok && refused.contains("only what is in doubt can be settled"), "{refused}");

    let (ok, refused) = keys(url, &["forget", &two, "--reason", "tidy"]);
    assert!(!ok && refused.contains("in_doubt"), "{refused}");
    let (ok, forgotten) = keys(url, &["forget", &two, "--reason", "tidy", "--force"]);
    assert!(ok && forgotten.contains("in_doubt -> vacant"), "{forgotten}");
    let (ok, unknown) = keys(url, &["show", "00000000000000000000000000000000"]);
    assert!(!ok && unknown.contains("no key has this id"), "{unknown}");
    let (ok, unreadable) = keys(url, &["show", "x"]);
    assert!(!ok && unreadable.contains("32 hex characters"), "{unreadable}");
}

#[test]
fn lists_page_and_export_has_them_all() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    for number in 0..25 {
        let body = json!({ "namespace": "n", "key": format!("key-{number}") });
        assert_eq!(admin.post("/v1/claims", &body.to_string()).expect(200)["status"], "won");
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut path = "/v1/keys?limit=10".to_owned();
    loop {
        let page = admin.get(&path).expect(200);
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 10);
        seen.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/keys?limit=10&cursor={next}");
    }
    assert_eq!(seen.len(), 25);
    let (ok, exported) = keys(semel.admin_url(), &["export"]);
    assert!(ok);
    let exported: std::collections::BTreeSet<String> = exported
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(exported, seen);
    let (_, few) = keys(semel.admin_url(), &["list", "--limit", "3", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&few).unwrap()["items"].as_array().unwrap().len(), 3);
    for (query, expected) in [
        ("phase=x", "expected one of"),
        ("limit=0", "limit"),
        ("cursor=z", "cursor"),
        ("nope=1", "not known"),
        ("key=k", "namespace"),
    ] {
        let refused = admin.get(&format!("/v1/keys?{query}")).expect(400);
        assert!(refused["detail"].as_str().unwrap().contains(expected), "{refused}");
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let (ok, said) = keys("http://127.0.0.1:1", &["list"]);
    assert!(!ok && said.contains("nothing answers at 127.0.0.1:1"), "{said}");
    let (ok, said) = keys("127.0.0.1:1", &["list"]);
    assert!(!ok && said.contains("http://HOST:PORT"), "{said}");
}

// bad_config: the exit code and the place, as a script would read them.
#[test]
fn config_files_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    std::fs::write(&file, "[gateway]\nupstream = \"http://127.0.0.1:3000\"\nlissten = \"x\"\n").unwrap();
    let path = file.display().to_string();
    let checked = run(&["config", "check", &path]);
    assert_eq!(checked.status.code(), Some(2));
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(said.starts_with(&format!("{path}:3:1: unknown key `lissten`")), "{said}");
    let json = run(&["config", "check", &path, "--json"]);
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&report["valid"], &report["problems"][0]["line"]), (&json!(false), &json!(3)));
    assert_eq!(run(&["serve", "--config", &path]).status.code(), Some(2), "serve refuses it too");

    let example = run(&["config", "example"]);
    std::fs::write(&file, &example.stdout).unwrap();
    let checked = semel()
        .args(["config", "check", &path])
        .env("SEMEL_SECRET", "0123456789abcdef")
        .env("BILLING_TOKEN", "0123456789abcdef0123456789abcdef")
        .env("ACQUIRER_KEY", "0123456789abcdef")
        .env("SEMEL_SEAL_2026_11", "0123456789abcdef0123456789abcdef")
        .output();
    assert!(checked.unwrap().status.success());
    let schema: Value = serde_json::from_slice(&run(&["config", "schema"]).stdout).unwrap();
    assert_eq!(schema["properties"]["gateway"]["properties"]["listen"]["type"], "string");
}

#[test]
fn what_cannot_be_typed_ends_with_two() {
    let publish = ["events", "publish", "--type", "a", "--dedupe-key", "k", "--payload"];
    for (args, expected) in [
        (&["serve", "--nope"][..], "--nope"),
        (&["nope"], "nope"),
        (&["keys", "settle", "x", "--reason", "r"], "--outcome"),
        (&["keys", "settle", "x", "--reason", "r", "--outcome", "{"], "--outcome is not JSON"),
        (&[&publish[..], &["{"]].concat(), "--payload is not JSON"),
        (&[&publish[..], &["@/no/such/file"]].concat(), "/no/such/file: No such file"),
        (&["runs", "trigger", "crm", "--payload", "{"], "--payload is not JSON"),
        (&["dlq", "list", "--admin", "ftp://h"], "ftp://h"),
        (&["demo", "--for", "a while"], "--for a while: expected a duration"),
        (&["drill", "nope"], "there is no drill"),
    ] {
        let output = run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(expected), "{args:?}: {said}");
    }
    assert!(run(&["--version"]).status.success());
}

#[test]
fn a_probe_needs_no_curl() {
    let semel = Semel::start(&["--store", "memory:"]);
    let health = |more: &[&str]| run(&[&["health", "--admin", semel.admin_url()], more].concat());
    for (more, said) in
        [(&[][..], "ready\n"), (&["--live"], "alive\n"), (&["--live", "--json"], "{\"alive\":true}\n")]
    {
        let output = health(more);
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stdout), said);
    }
    let url = semel.admin_url().to_owned();
    semel.kill();
    let output = run(&["health", "--admin", &url]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_gateway_that_is_taken_for_an_admin_address_is_named() {
    let upstream = crate::kit::Upstream::start();
    let semel = Semel::start(&["--store", "memory:", "--upstream", &upstream.url()]);
    let (ok, said) = keys(semel.gateway_url(), &["list"]);
    assert!(!ok && said.contains("is a gateway, not an admin address"), "{said}");
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    for (shell, part) in [("bash", "semel__"), ("zsh", "#compdef semel"), ("fish", "complete -c semel")] {
        let output = run(&["completions", shell]);
        let script = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && script.contains(part) && script.contains("replay"), "{shell}");
    }
    let page = run(&["man"]);
    assert!(String::from_utf8_lossy(&page.stdout).contains(".TH semel 1"));
    let folder = tempfile::tempdir().unwrap();
    assert!(run(&["man", "--out", folder.path().to_str().unwrap()]).status.success());
    for name in ["semel.1", "semel-serve.1", "semel-keys-settle.1", "semel-replay.1"] {
        assert!(folder.path().join(name).exists(), "{name}");
    }
}
