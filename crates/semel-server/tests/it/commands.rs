//! `semel keys` and `semel config`, end to end.

use std::process::Stdio;

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
    let body =
        json!({ "namespace": "charge", "scope": "acct_1", "key": key, "lease": "50ms", "begin": true });
    let won = admin.post("/v1/claims", &body.to_string()).expect(200);
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
        (&["drill", "target-dwn"], "a similar value exists: 'target-down'"),
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
    // Every command that talks to a server. None of them reaches the upstream, which would see the token.
    for command in [
        "status",
        "targets",
        "targets pause crm --reason r",
        "targets resume crm --reason r",
        "targets retry crm --reason r",
        "health",
        "health --live",
        "audit",
        "keys list",
        "keys export",
        "keys show 00000000000000000000000000000000",
        "keys find --key k",
        "keys forget 00000000000000000000000000000000 --reason r",
        "keys settle 00000000000000000000000000000000 --run --reason r",
        "events list",
        "events show evt_1",
        "events publish --type a --dedupe-key k --payload {}",
        "deliveries list",
        "deliveries show dlv_1",
        "dlq list",
        "dlq groups",
        "dlq show dlq_1",
        "dlq discard dlq_1 --reason r",
        "dlq discard --target crm --reason r --yes",
        "dlq restore dlq_1 --reason r",
        "dlq edit dlq_1 --payload {} --reason r",
        "runs list",
        "runs list --buffered",
        "runs show run_1",
        "runs trigger crm",
        "runs cancel run_1",
        "runs tag run_1 x",
        "runs reset-key crm k",
        "replay --list",
        "replay --status failed",
        "replay --job rpl_1 --cancel",
    ] {
        let args: Vec<&str> = command.split(' ').collect();
        let output = run(&[&args[..], &["--admin", semel.gateway_url(), "--token", "t"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        assert!(said.contains("is a gateway, not an admin address"), "{command}: {said}");
    }
    assert_eq!(upstream.total(), 0);
}

// A port may belong to any other service, which must see neither the token nor a change.
#[test]
fn a_server_that_is_no_semel_gets_neither_a_token_nor_a_change() {
    let other = crate::kit::Sink::start();
    let address = other.url().trim_end_matches("/hook").to_owned();
    let commands = [
        "targets pause crm --reason r",
        "events publish --type a --dedupe-key k --payload {}",
        "keys settle 00000000000000000000000000000000 --run --reason r",
        "runs trigger crm",
        "replay --status failed",
        "status",
        "health",
    ];
    for command in commands {
        let args: Vec<&str> = command.split(' ').collect();
        let output = run(&[&args[..], &["--admin", &address, "--token", "topsecret"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        assert!(said.contains("is not the admin address of a `semel serve`"), "{command}: {said}");
    }
    let seen = other.seen();
    assert_eq!(seen.len(), commands.len(), "one request each");
    for request in seen {
        assert_eq!(
            (request.path.as_str(), request.header("authorization")),
            ("/.well-known/idempotency", "")
        );
    }
}

// `| head` closes the pipe: no message, and the code that shells know.
#[test]
fn a_closed_pipe_ends_a_command_silently() {
    for args in
        [&["config", "example"][..], &["config", "schema"], &["metrics", "list"], &["metrics", "dashboard"]]
    {
        // Closed before the command writes.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = semel().args(args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
        assert_eq!(output.status.code(), Some(141), "{args:?}");
    }
}

#[test]
fn colours_are_for_terminals_unless_they_are_wanted() {
    let semel = Semel::start(&["--store", "memory:"]);
    in_doubt(&semel.admin(), "order-1");
    let listed = |more: &[&str]| keys(semel.admin_url(), &[&["list"], more].concat()).1;
    assert!(!listed(&[]).contains('\x1b') && !listed(&["--color", "never"]).contains('\x1b'));
    assert!(listed(&["--color", "always"]).contains("\x1b[31min_doubt\x1b[0m"));
    // On a terminal, and not where NO_COLOR asks for none.
    let program = crate::kit::semel();
    let list = format!("{} keys list --admin {}", program.get_program().to_str().unwrap(), semel.admin_url());
    for (no_color, expected) in [("", true), ("1", false)] {
        let terminal = std::process::Command::new("script")
            .args(["-qec", &list, "/dev/null"])
            .env("NO_COLOR", no_color)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&terminal.stdout).into_owned();
        assert_eq!(said.contains("\x1b[31m"), expected, "NO_COLOR={no_color:?}: {said}");
    }
}

/// The names below `Commands:` in a help text.
fn commands_of(names: &[&str]) -> Vec<String> {
    let help = run(&[names, &["--help"]].concat()).stdout;
    let help = String::from_utf8_lossy(&help).into_owned();
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = list.lines().take_while(|line| !line.is_empty());
    // Descriptions that continue on the next line are indented further.
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn completions_of_every_shell_name_every_command() {
    let commands = commands_of(&[]);
    assert!(commands.len() > 15, "{commands:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        let script = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{shell}");
        for command in commands.iter().chain(&commands_of(&["keys"])) {
            assert!(script.contains(command.as_str()), "{shell}: {command}");
        }
        assert!(!script.contains("watchdog"), "{shell}: a command that is not for users");
    }
    // As bash asks for them: commands, their flags, and the values of flags.
    let complete = |line: &str| {
        let words: Vec<String> = line.split(' ').map(|word| format!("'{word}'")).collect();
        let script = format!(
            "source <(\"$0\" completions bash); COMP_WORDS=({}); COMP_CWORD={}; \
             _semel semel \"${{COMP_WORDS[$COMP_CWORD]}}\" \"${{COMP_WORDS[$COMP_CWORD - 1]}}\"; echo \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len() - 1
        );
        let output =
            std::process::Command::new("bash").arg("-c").arg(script).arg(semel().get_program()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete("semel repl"), ["replay"]);
    assert_eq!(complete("semel keys se"), ["settle"]);
    assert_eq!(complete("semel dlq list --stat"), ["--status"]);
    assert_eq!(complete("semel keys list --phase in"), ["in_doubt"]);
    assert_eq!(complete("semel drill target"), ["target-down"]);
}

#[test]
fn manual_pages_describe_every_command() {
    let page = |names: &[&str]| String::from_utf8(run(&[&["man"], names].concat()).stdout).unwrap();
    assert!(page(&[]).contains(".TH semel 1"));
    let settle = page(&["keys", "settle"]);
    assert!(
        settle.contains(".TH semel-keys-settle 1") && settle.contains("after a look at the answer"),
        "{settle}"
    );
    let folder = tempfile::tempdir().unwrap();
    assert!(run(&["man", "--out", folder.path().to_str().unwrap()]).status.success());
    let mut pages = 1;
    for command in commands_of(&[]) {
        let below = commands_of(&[&command]);
        for name in below.iter().map(|one| format!("{command}-{one}")).chain([command.clone()]) {
            let text = std::fs::read_to_string(folder.path().join(format!("semel-{name}.1")));
            assert!(
                text.is_ok_and(|text| text.contains(".SH NAME") && text.contains(".SH SYNOPSIS")),
                "{name}"
            );
            pages += 1;
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), pages, "and of nothing else");
}
