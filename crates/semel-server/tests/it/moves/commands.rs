//! The commands of `semel store`: what they refuse, export and import, and the way back.

use std::process::Output;

use super::*;

fn printed(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn fails(args: &[&str], with: &str) {
    let output = run(args);
    let (_, said) = printed(&output);
    assert!(!output.status.success() && said.contains(with), "{args:?}: {said}");
    assert!(!said.contains("geheim"), "no password in an error: {said}");
}

fn works(args: &[&str]) -> String {
    let output = run(args);
    let (out, said) = printed(&output);
    assert!(output.status.success(), "{args:?}: {out}{said}");
    out
}

/// A store with one key that was answered; its server has ended.
fn used(store: &str, upstream: &Upstream, key: &str) {
    let mut server =
        Semel::start(&["--store", store, "--upstream", &upstream.url(), "--scope", "single-tenant"]);
    assert_eq!(server.gateway().with("idempotency-key", key).post("/pay", "{}").status, 201);
    server.signal(Signal::TERM);
    server.wait();
}

/// The key is answered from the record.
fn is_known(store: &str, upstream: &Upstream, key: &str) {
    let server = Semel::start(&["--store", store, "--upstream", &upstream.url(), "--scope", "single-tenant"]);
    let answer = server.gateway().with("idempotency-key", key).post("/pay", "{}");
    assert_eq!(
        (answer.status, answer.header("idempotent-replayed")),
        (201, Some("true")),
        "{}",
        answer.text()
    );
    assert_eq!(upstream.calls(key), 1);
}

#[test]
fn what_does_not_fit_is_refused_with_the_way_out() {
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let at = |name: &str| format!("embedded:{}", folder.path().join(name).display());
    let (old, other, empty) = (at("old"), at("other"), at("empty"));
    used(&old, &upstream, "order-1");
    used(&other, &upstream, "order-2");
    fails(&["store", "copy", &old, "memory:", "--switch"], "lost with it");
    fails(&["store", "copy", &at("typo"), &empty, "--switch"], "there is no embedded store");
    assert!(!folder.path().join("typo").exists());
    fails(&["store", "copy", &old, &old, "--switch"], "is open already");
    fails(&["store", "copy", &old, &other, "--switch"], "another secret");
    fails(&["store", "copy", "redis://u:geheim@127.0.0.1:1", &empty, "--switch"], "refuses connections");
    fails(&["store", "copy", &old, "gopher://x", "--switch"], "gopher");

    // Without a terminal and without --switch the old store stays open.
    let out = run(&["store", "copy", &old, &empty]);
    assert!(out.status.success() && printed(&out).1.contains("not moved"), "{:?}", printed(&out));
    is_known(&old, &upstream, "order-1");
    fails(&["serve", "--store", &empty, "--admin", "127.0.0.1:0"], "run `semel store copy` to its end");
    fails(&["store", "reopen", &empty, "--yes"], "is incomplete");

    let moved = works(&["store", "copy", &old, &empty, "--switch"]);
    assert!(moved.contains("start the servers on embedded:"), "{moved}");
    is_known(&empty, &upstream, "order-1");
    fails(&["store", "copy", &old, &empty, "--switch"], "were moved to");
    fails(&["store", "copy", &old, &at("third"), "--switch"], "already: copy from there");
}

#[test]
fn the_old_store_can_be_opened_again() {
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let at = |name: &str| format!("embedded:{}", folder.path().join(name).display());
    let (old, new) = (at("old"), at("new"));
    used(&old, &upstream, "order-1");
    works(&["store", "copy", &old, &new, "--switch"]);
    fails(&["serve", "--store", &old, "--admin", "127.0.0.1:0"], "semel store reopen");
    fails(&["store", "reopen", &old], "add --yes");
    fails(&["store", "reopen", &format!("{old}-of-nobody")], "there is no embedded store in");
    works(&["store", "reopen", &old, "--yes"]);
    assert!(works(&["store", "reopen", &old]).contains("is open"));
    is_known(&old, &upstream, "order-1");
}

#[test]
fn a_copy_back_brings_what_ran_on_the_new_store() {
    let (upstream, folder, redis) =
        (Upstream::start(), tempfile::tempdir().unwrap(), Redis::start().unwrap());
    let (old, new) = (format!("embedded:{}", folder.path().join("old").display()), redis.url());
    used(&old, &upstream, "order-1");
    works(&["store", "copy", &old, &new, "--switch"]);
    used(&new, &upstream, "order-2");
    works(&["store", "copy", &new, &old, "--switch"]);
    for key in ["order-1", "order-2"] {
        is_known(&old, &upstream, key);
    }
    fails(&["serve", "--store", &new, "--admin", "127.0.0.1:0"], "were moved to embedded:");
}

#[test]
fn a_store_moves_through_a_file() {
    use std::os::unix::fs::PermissionsExt as _;

    let (upstream, folder, redis) =
        (Upstream::start(), tempfile::tempdir().unwrap(), Redis::start().unwrap());
    let (old, file) =
        (format!("embedded:{}", folder.path().join("old").display()), folder.path().join("keys.jsonl"));
    let name = file.to_str().unwrap();
    used(&old, &upstream, "order-1");
    let live = works(&["store", "export", &old, folder.path().join("live.jsonl").to_str().unwrap()]);
    assert!(live.contains("records"), "{live}");
    is_known(&old, &upstream, "order-1");
    works(&["store", "export", &old, name, "--switch"]);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    fails(&["store", "export", &old, name], "cannot be created");
    fails(&["serve", "--store", &old, "--admin", "127.0.0.1:0"], "were moved to file:");

    let text = std::fs::read_to_string(&file).unwrap();
    let damaged = folder.path().join("damaged.jsonl");
    let last = text.trim_end().rfind('\n').unwrap();
    for (wrong, said) in [
        (text[..last].to_owned(), "is damaged, or the file was cut short"),
        (with_another_byte(&text), "was changed after it was written"),
        ("{}".to_owned(), "is not a file of `semel store export`"),
    ] {
        assert_ne!(wrong, text);
        std::fs::write(&damaged, wrong).unwrap();
        fails(&["store", "import", damaged.to_str().unwrap(), &redis.url()], said);
    }
    let imported = works(&["store", "import", name, &redis.url(), "--json"]);
    let imported: Value = serde_json::from_str(&imported).unwrap();
    assert!(imported["records"].as_u64().unwrap() >= 1, "{imported}");
    is_known(&redis.url(), &upstream, "order-1");
}

/// The export with one bit of a record changed.
fn with_another_byte(text: &str) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;

    let line = text.lines().find(|line| line.contains("\"record\":")).unwrap();
    let mut parsed: Value = serde_json::from_str(line).unwrap();
    let mut bytes = BASE64.decode(parsed["record"].as_str().unwrap()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    parsed["record"] = BASE64.encode(bytes).into();
    text.replacen(line, &parsed.to_string(), 1)
}

/// Cause: an interrupted export left its file, and the next one could not create it. Fix: the file gets its name when it
/// is complete.
#[test]
fn an_interrupted_export_can_be_repeated() {
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let old = format!("embedded:{}", folder.path().join("old").display());
    let file = folder.path().join("keys.jsonl");
    let name = file.to_str().unwrap();
    let mut server =
        Semel::start(&["--store", &old, "--upstream", &upstream.url(), "--scope", "single-tenant"]);
    assert_eq!(server.gateway().with("idempotency-key", "order-1").post("/pay", "{}").status, 201);

    let files = || {
        let all = std::fs::read_dir(folder.path()).unwrap();
        let names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.contains("keys")).collect::<Vec<_>>()
    };
    let mut command = semel();
    command.args(["store", "export", &old, name, "--switch"]).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("stop the server")));
    assert_eq!(files(), ["keys.jsonl.part"]);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::INT).unwrap();
    let said: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said:?}");
    assert_eq!(
        said,
        [format!(
            "semel: interrupted: run the same command again to continue. If the old store is closed already, `semel store \
             reopen {old}` opens it"
        )]
    );
    assert_eq!(files(), Vec::<String>::new(), "nothing is left");

    server.signal(Signal::TERM);
    server.wait();
    works(&["store", "export", &old, name, "--switch"]);
    assert_eq!(files(), ["keys.jsonl"]);
    let reopened = works(&["store", "reopen", &old, "--yes", "--json"]);
    let reopened: Value = serde_json::from_str(&reopened).unwrap();
    assert_eq!(reopened["open"], true, "{reopened}");
    assert!(reopened["moved_to"].as_str().is_some_and(|to| to.starts_with("file:")), "{reopened}");
}

/// Changes are copied while the question waits, also for hours: the move itself is short.
#[test]
fn a_copy_follows_changes_while_it_asks() {
    let (upstream, folder, redis) =
        (Upstream::start(), tempfile::tempdir().unwrap(), Redis::start().unwrap());
    let old = format!("embedded:{}", folder.path().join("old").display());
    let server = Semel::start(&["--store", &old, "--upstream", &upstream.url(), "--scope", "single-tenant"]);
    let pay = |key: &str| server.gateway().with("idempotency-key", key).post("/pay", "{}").status;
    assert_eq!(pay("order-1"), 201);
    let program = semel();
    let program = program.get_program().to_str().unwrap();
    let copy = format!("{program} store copy {old} {} --every 100ms", redis.url());
    let mut terminal = std::process::Command::new("script")
        .args(["-qefc", &copy, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = terminal.stdout.take().unwrap();
    let mut shown = Vec::new();
    while !String::from_utf8_lossy(&shown).contains("Move now?") {
        let mut byte = [0];
        printed.read_exact(&mut byte).unwrap();
        shown.extend(byte);
    }
    let keys = || redis.info("db0").unwrap();
    let before = keys();
    assert_eq!(pay("order-2"), 201);
    wait::until("the new key is copied", PATIENCE, || keys() != before).unwrap();
    std::io::Write::write_all(&mut terminal.stdin.take().unwrap(), b"n\n").unwrap();
    let mut rest = String::new();
    printed.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("not moved: run the same command with --switch"), "{rest}");
    assert!(terminal.wait().unwrap().success());
}

#[test]
fn sealed_outcomes_move_and_open_with_the_same_keys() {
    let (upstream, folder, postgres) =
        (Upstream::start(), tempfile::tempdir().unwrap(), Postgres::start().unwrap());
    let config = |name: &str, url: &str, secret: &str| {
        let path = folder.path().join(name);
        let text = format!(
            "secret = {{ env = \"{secret}\" }}\n[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{url}\"\n\
             [store.encryption]\nplain = \"refuse\"\n[[store.encryption.key]]\nid = \"2026-11\"\nvalue = {{ env = \"SEAL\" }}\n",
            upstream.url(),
        );
        std::fs::write(&path, text).unwrap();
        path
    };
    let env = [
        ("OURS", "a secret of this deployment"),
        ("THEIRS", "a secret of another deployment"),
        ("SEAL", "a sealing key of thirty-two bytes or more"),
    ];
    let old = config("old.toml", &format!("embedded:{}", folder.path().join("data").display()), "OURS");
    let new = config("new.toml", &postgres.url(), "OURS");
    let foreign = config("foreign.toml", &postgres.url(), "THEIRS");
    let mut server = Semel::with_config(&old, &env);
    let first = server.gateway().with("idempotency-key", "order-1").post("/pay", "{}");
    assert_eq!(first.status, 201);
    server.signal(Signal::TERM);
    server.wait();

    let copy = |to: &std::path::Path| {
        let mut command = semel();
        command.args(["store", "copy"]).arg(&old).arg(to).arg("--switch").envs(env);
        command.output().unwrap()
    };
    let refused = copy(&foreign);
    assert!(printed(&refused).1.contains("another secret"), "{:?}", printed(&refused));
    let moved = copy(&new);
    assert!(moved.status.success(), "{:?}", printed(&moved));
    let server = Semel::with_config(&new, &env);
    let again = server.gateway().with("idempotency-key", "order-1").post("/pay", "{}");
    assert_eq!((again.status, again.text()), (201, first.text()));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(upstream.calls("order-1"), 1);
}

/// Events and dead letters stay in the old file, which the new server opens as its ledger.
#[test]
fn the_ledger_stays_where_it_was() {
    let (folder, postgres) = (tempfile::tempdir().unwrap(), Postgres::start().unwrap());
    let data = format!("embedded:{}", folder.path().join("data").display());
    let config = |name: &str, store: &str, ledger: &str| {
        let path = folder.path().join(name);
        let text = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\n[ledger]\n{ledger}\n\
             [[target]]\nname = \"books\"\nurl = \"http://127.0.0.1:1/hook\"\n",
        );
        std::fs::write(&path, text).unwrap();
        path
    };
    let mut server = Semel::with_config(&config("old.toml", &data, ""), &[]);
    let event = r#"{"type": "order.placed", "dedupe_key": "order-1", "payload": {}}"#;
    let published = server.admin().post("/v1/events", event);
    assert!((200..300).contains(&published.status), "{}", published.text());
    let claim = r#"{"namespace": "charge", "scope": "acct_1", "key": "order-1", "lease": "1s"}"#;
    let claimed = server.admin().post("/v1/claims", claim);
    assert!((200..300).contains(&claimed.status), "{}", claimed.text());
    server.signal(Signal::TERM);
    server.wait();
    works(&["store", "copy", &data, &postgres.url(), "--switch"]);

    let there = config("new.toml", &postgres.url(), &format!("url = \"{data}\""));
    let server = Semel::with_config(&there, &[]);
    assert_eq!(server.admin().get("/readyz").status, 200);
    let events = server.admin().get("/v1/events").expect(200);
    assert_eq!(events["items"].as_array().map(Vec::len), Some(1), "{events}");
    let keys = server.admin().get("/v1/keys").expect(200);
    assert!(keys["items"].as_array().is_some_and(|keys| !keys.is_empty()), "{keys}");
}
