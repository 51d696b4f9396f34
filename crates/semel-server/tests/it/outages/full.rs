//! A store without space refuses new keys, and reads go on: two log lines, however long it lasts and whatever succeeds
//! meanwhile.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::*;
use crate::kit::semel;

fn pay(server: &Semel, key: &str) -> u16 {
    server.gateway().with("idempotency-key", key).post("/pay", "{}").status
}

/// Sends new keys until one is refused.
fn until_refused(server: &Semel, before: &str) {
    let mut number = 0;
    wait::until("a new key is refused", PATIENCE, || {
        number += 1;
        pay(server, &format!("{before}-{number}")) == 503
    })
    .unwrap();
}

/// Sends new keys until the end of the outage is logged.
fn until_available(server: &Semel) {
    let mut number = 0;
    wait::until("the end of the outage", PATIENCE, || {
        number += 1;
        pay(server, &format!("after-{number}"));
        pass(Duration::from_millis(100));
        server.log().contains("store available again")
    })
    .unwrap();
    assert_eq!(pay(server, "last"), 201);
}

/// The lines about the outage, without times.
fn lines(server: &Semel, since: usize) -> Vec<Value> {
    let log = server.log();
    let lines = log[since..].lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let members = ["level", "message", "store", "used_for", "error"];
    lines
        .map(|line| {
            let shown = members.iter().filter(|name| !line[**name].is_null());
            Value::Object(shown.map(|name| ((*name).to_owned(), line[*name].clone())).collect())
        })
        .collect()
}

/// Cause: any read ended the outage after five seconds, and the next write began it again. Consequence: a pair of log
/// lines for every health check. Fix: only a new row ends it.
#[test]
fn postgres_without_space_is_one_outage() {
    let (upstream, postgres) = (Upstream::start(), postgres());
    let url = postgres.url();
    let server = Semel::start(&["--store", &url, "--upstream", &upstream.url(), "--scope", "single-tenant"]);
    assert_eq!(pay(&server, "order-1"), 201);
    let since = server.log().len();
    postgres
        .sql(
            "CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$; \
             CREATE TRIGGER no_space BEFORE INSERT ON semel.record FOR EACH ROW EXECUTE FUNCTION no_space()",
        )
        .unwrap();
    until_refused(&server, "full");
    let refused = tokio::time::Instant::now();
    // Longer than a successful write would need to end the outage.
    while refused.elapsed() < Duration::from_secs(6) {
        assert_eq!(pay(&server, "order-1"), 201, "stored answers are given");
        assert_eq!(server.admin().get("/v1/keys").status, 200);
        pass(Duration::from_millis(100));
    }
    until_refused(&server, "still-full");
    postgres.sql("DROP TRIGGER no_space ON semel.record").unwrap();
    until_available(&server);

    let name = name_of(&postgres);
    let error = format!(
        "PostgreSQL at {}/postgres has no disk space left (could not extend file); nothing was changed, make room",
        postgres.addr()
    );
    let begin = json!({
        "level": "WARN", "message": "store unavailable", "store": name, "used_for": "ledger, store", "error": error,
    });
    let end = json!({
        "level": "INFO", "message": "store available again", "store": name, "used_for": "ledger, store",
    });
    assert_eq!(lines(&server, since), [begin, end]);
}

/// The embedded store on a disk that another program fills.
#[test]
fn an_embedded_store_without_space_is_one_outage() {
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    // A small disk that only this server sees.
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c"]);
    command.arg("mount -t tmpfs -o size=64m disk \"$1\" && shift && exec \"$0\" \"$@\"");
    command.arg(semel().get_program()).arg(&disk);
    command.args(["serve", "--admin", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--scope", "single-tenant"]);
    let data = disk.join("data").display().to_string();
    command.args(["--store", &format!("embedded:{data}"), "--upstream", &upstream.url()]);
    let server = Semel::spawn({
        command.stdin(Stdio::null());
        command
    });
    assert_eq!(pay(&server, "order-1"), 201);
    let since = server.log().len();

    let filler = format!("/proc/{}/root{}/filler", server.pid(), disk.display());
    let mut file = std::fs::File::create(&filler).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    drop(file);
    until_refused(&server, "full");
    assert_eq!(pay(&server, "order-1"), 201, "stored answers are given");
    std::fs::remove_file(&filler).unwrap();
    until_available(&server);

    let found = lines(&server, since);
    assert_eq!(found.len(), 2, "{found:?}");
    let error = format!(
        "{data}/semel.db: there is no disk space: free some; nothing was changed, stored outcomes are still served (database or \
         disk is full)"
    );
    let name = format!("embedded:{data}");
    let begin = json!({
        "level": "WARN", "message": "store unavailable", "store": name, "used_for": "store", "error": error,
    });
    let end =
        json!({ "level": "INFO", "message": "store available again", "store": name, "used_for": "store" });
    assert_eq!(found, [begin, end]);
}
