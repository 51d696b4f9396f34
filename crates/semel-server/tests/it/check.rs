//! `semel check`: the gateway passes every suite of the profile it serves, and the command's own manners.

mod shop;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

use self::shop::Shop;
use crate::kit::{Semel, run};

/// A gateway that can be restarted by a request to another port, as a hook command would do it.
struct Restartable {
    gateway: String,
    admin: String,
    hook: String,
    semel: Arc<Mutex<Option<Semel>>>,
}

// The thread of the hook holds the server too, and never ends.
impl Drop for Restartable {
    fn drop(&mut self) {
        self.semel.lock().take();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The gateway before the shop, with a path of short retention and a limit of new keys, so that every case can be tried.
fn gateway(profile: &str, shop: &Shop, folder: &Path) -> Restartable {
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:{}\"\nupstream = \"{}\"\nprofile = \"{profile}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n\
         [[route]]\nmatch = \"POST /brief\"\nlease = \"2s\"\nin_flight_max = \"3s\"\nwait = \"1s\"\nretention = \"4s\"\ngrace = \"0s\"\n\
         [[route]]\nmatch = \"POST /*\"\nlimits = {{ writes = {{ per_second = 5, burst = 250 }}, reads = {{ per_second = 10000, burst = 10000 }} }}\n",
        free_port(),
        shop.url(),
        folder.join("data").display()
    );
    restartable(folder, &config)
}

fn restartable(folder: &Path, config: &str) -> Restartable {
    let file = folder.join("semel.toml");
    std::fs::write(&file, config).unwrap();
    let semel = Semel::with_config(&file, &[]);
    let (gateway, admin) = (semel.gateway_url().to_owned(), semel.admin_url().to_owned());
    let shared = Arc::new(Mutex::new(Some(semel)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let hook = format!("http://{}/", listener.local_addr().unwrap());
    let of_thread = Arc::clone(&shared);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut line = String::new();
            let _ = BufReader::new(&stream).read_line(&mut line);
            let mut semel = of_thread.lock();
            if let Some(running) = semel.take() {
                running.kill();
            }
            *semel = Some(Semel::with_config(&file, &[]));
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    Restartable { gateway, admin, hook, semel: shared }
}

fn passes(profile: &str, skipped: &[&str]) {
    let shop = Shop::start();
    let folder = tempfile::tempdir().unwrap();
    let target = gateway(profile, &shop, folder.path());
    let restart = format!("curl -fsS {}", target.hook);
    let args = [
        "check",
        "--suite",
        profile,
        "--target",
        &target.gateway,
        "--auth",
        "one",
        "--other-auth",
        "two",
        "--restart",
        &restart,
        "--format",
        "json",
        "--set",
        "flaky_path=/flaky",
        "--set",
        "invalid_body={\"invalid\": true}",
        "--set",
        "other_path=/refunds",
        "--set",
        "brief_path=/brief",
        "--set",
        "kept_for=2",
        "--set",
        "expired_after=2.5",
        "--set",
        "rate_limited=true",
    ];
    let put: &[&str] = if profile == "ucp" { &["--set", "put_path=/put"] } else { &[] };
    let report = graded(&[&args, put].concat(), 0);
    assert_eq!(phases(&report, "not_met"), Vec::<&str>::new(), "{profile}: {report}");
    assert_eq!(phases(&report, "skipped"), skipped, "{profile}: {report}");
    // One effect for each key that succeeded, by the shop's own book: races and replays made no more.
    assert_eq!(shop.repeated(), Vec::<String>::new());
}

#[test]
fn the_gateway_passes_ietf() {
    passes("ietf", &["missing_key"; 2]);
}

#[test]
fn the_gateway_passes_stripe() {
    passes("stripe", &[]);
}

#[test]
fn the_gateway_passes_stripe_v2() {
    passes("stripe-v2", &[]);
}

#[test]
fn the_gateway_passes_ucp() {
    passes("ucp", &[]);
}

// The sample agent knows nothing of idempotency. Behind the gateway it conforms, without it it does not.
#[test]
fn the_sample_agent_conforms_behind_the_gateway_and_not_without_it() {
    let (_agent, upstream) = crate::mcp::start_agent(Duration::from_millis(20));
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:{}\"\nupstream = \"{upstream}\"\nprofile = \"adcp-mcp\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n\
         [[route]]\nmatch = \"POST /mcp\"\nlimits = {{ writes = {{ per_second = 1, burst = 150 }}, reads = {{ per_second = 10000, burst = 10000 }} }}\n",
        free_port(),
        folder.path().join("data").display()
    );
    let target = restartable(folder.path(), &config);
    let url = format!("{}/mcp", target.gateway);
    let restart = format!("curl -fsS {}", target.hook);
    for suite in ["adcp-idempotency", "adcp"] {
        // Another principal each time: the limit is a principal's own.
        let args = [
            "check",
            "--suite",
            suite,
            "--target",
            &url,
            "--auth",
            suite,
            "--other-auth",
            "second-principal",
            "--restart",
            &restart,
            "--format",
            "json",
        ];
        let values: &[&str] = match suite {
            "adcp" => &["--set", "bad_packages=[]", "--set", "rate_limited=true"],
            _ => &[],
        };
        let report = graded(&[&args, values].concat(), 0);
        let skipped: Vec<&str> = phases(&report, "skipped");
        // Answers are kept for an hour at least, so nothing expires here. The agent does not announce AdCP 4.0.
        let not_judged = ["in_flight_limit", "expiry_edge", "expiry_edge", "expiry_edge"];
        let expected: &[&str] = if suite == "adcp" { &not_judged } else { &[] };
        assert_eq!(skipped, expected, "{report}");
    }
    let alone = format!("{upstream}mcp");
    let report = graded(&["check", "--suite", "adcp-idempotency", "--target", &alone, "--format", "json"], 1);
    assert_eq!(phases(&report, "failed"), ["discovery", "missing_key", "replay", "concurrent_retry"]);
}

// The trigger API of a real server passes its suite.
#[test]
fn the_trigger_api_passes_runs() {
    let shop = Shop::start();
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[admin]\nlisten = \"127.0.0.1:{}\"\n[store]\nurl = \"embedded:{}\"\n\
         [[target]]\nname = \"semel-check\"\nurl = \"{}/hook\"\n",
        free_port(),
        folder.path().join("data").display(),
        shop.url(),
    );
    let target = restartable(folder.path(), &config);
    let restart = format!("curl -fsS {}", target.hook);
    let args =
        ["check", "--suite", "runs", "--target", &target.admin, "--restart", &restart, "--format", "json"];
    let report = graded(&args, 0);
    assert_eq!(phases(&report, "skipped"), Vec::<&str>::new(), "{report}");
    assert_eq!(phases(&report, "not_met"), Vec::<&str>::new(), "{report}");
}

/// Runs a check that must end with this code, and reads its report.
fn graded(args: &[&str], code: i32) -> Value {
    let output = run(args);
    let text = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}{told}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The phases of the steps with this grade.
fn phases<'a>(report: &'a Value, grade: &str) -> Vec<&'a str> {
    let steps = report["storyboards"][0]["steps"].as_array().unwrap();
    steps.iter().filter(|step| step["grade"] == grade).map(|step| step["phase"].as_str().unwrap()).collect()
}

// Without the gateway the same shop fails, and the command says so by its exit code.
#[test]
fn the_shop_alone_fails() {
    let shop = Shop::start();
    let output = run(&["check", "--suite", "ietf", "--target", &shop.url(), "--explain"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("✗ race_100") && text.contains("harm to a client:"), "{text}");
    let output = run(&["check", "--suite", "ietf", "--target", &shop.url(), "--format", "junit"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("<?xml"));
}

// A page in a ticket says when and how it was made.
#[test]
fn a_page_names_its_date_its_version_and_its_command_without_secrets() {
    let shop = Shop::start();
    let file = tempfile::tempdir().unwrap();
    let story = file.path().join("mine.yaml");
    std::fs::write(
        &story,
        "id: t\ntransport: http\nphases:\n  - id: p\n    steps: [{id: s, request: {path: /}}]\n",
    )
    .unwrap();
    let args = [
        "check",
        story.to_str().unwrap(),
        "--target",
        &shop.url(),
        "--auth",
        "hidden-token",
        "--format",
        "html",
    ];
    let page = String::from_utf8(run(&args).stdout).unwrap();
    assert!(page.contains(concat!(", Semel ", env!("CARGO_PKG_VERSION"))), "{page}");
    assert!(page.contains("--auth [redacted] --format html</code>"), "{page}");
    assert!(page.contains("<p>20") && page.contains("Z, Semel"), "{page}");
    assert!(!page.contains("hidden-token"), "{page}");
}

#[test]
fn what_cannot_be_used_is_exit_code_two() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.yaml");
    std::fs::write(&file, "id: t\ntransport: http\nphases:\n  - id: p\n    steps: [{id: s}]\n").unwrap();
    let file = file.to_str().unwrap();
    let dead = format!("http://127.0.0.1:{}", free_port());
    for (args, told) in [
        (vec!["check"], "expected a FILE, or --suite NAME"),
        (vec!["check", "--suite", "ietf"], "expected --target URL"),
        (vec!["check", "--suite", "moon", "--target", &dead], "possible values: ietf"),
        (vec!["check", file, "--target", &dead], "mine.yaml:5:13: expected `request` in a step over http"),
        (vec!["check", "no-such-file.yaml", "--target", &dead], "no-such-file.yaml:"),
        (vec!["check", "--suite", "ietf", "--target", &dead], "cannot reach"),
        (vec!["check", "--suite", "ietf", "--target", "nonsense"], "cannot use the target"),
        (vec!["check", "--suite", "ietf", "--target", &dead, "--set", "x"], "expected NAME=VALUE"),
        (vec!["check", "--suite", "ietf", "--target", &dead, "--set", "pth=/v1"], "--set pth: no such value"),
        (vec!["check", "--suite", "ietf", "--target", &dead, "--header", "X-A"], "expected 'NAME: VALUE'"),
        (vec!["check", "--suite", "ietf", "--target", &dead, "--key-header", "a b"], "not a header name"),
        (vec!["check", "--suite", "ietf", "--target", &dead, "--format", "poem"], "invalid value 'poem'"),
    ] {
        let output = run(&args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(told), "{args:?}: {said}");
    }
}

// A certificate that nobody vouches for: nothing is sent, nothing is graded.
#[test]
fn a_target_with_an_unknown_certificate_is_exit_code_two() {
    let shop = Shop::start();
    let folder = tempfile::tempdir().unwrap();
    crate::tls::certificate(folder.path(), "somebody");
    let file = folder.path().join("semel.toml");
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\n\
         tls = {{ cert = \"{path}/cert.pem\", key = \"{path}/key.pem\" }}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n",
        shop.url(),
        path = folder.path().display(),
    );
    std::fs::write(&file, config).unwrap();
    let semel = Semel::with_config(&file, &[]);
    let output = run(&["check", "--suite", "ietf", "--target", semel.gateway_url(), "--auth", "me"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("TLS with 127.0.0.1:") && said.contains("certificate"), "{said}");
}

#[test]
fn suites_are_listed_and_shown_and_a_template_is_written_once() {
    let listed = run(&["check", "--list"]);
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    for suite in ["ietf", "stripe", "stripe-v2", "ucp", "adcp", "adcp-idempotency", "runs"] {
        assert!(text.lines().any(|line| line.starts_with(&format!("{suite} "))), "{text}");
        let shown = run(&["check", "--suite", suite, "--print"]);
        assert!(String::from_utf8_lossy(&shown.stdout).contains("phases:"));
    }
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("payments");
    let name = name.to_str().unwrap();
    assert_eq!(run(&["check", "--new", name]).status.code(), Some(0));
    assert_eq!(run(&["check", "--new", name]).status.code(), Some(2), "nothing is overwritten");
    // The template runs as it is, against an API that it fits.
    let shop = Shop::start();
    let folder = tempfile::tempdir().unwrap();
    let target = gateway("ietf", &shop, folder.path());
    let file = format!("{name}.yaml");
    let args = ["check", &file, "--target", &target.gateway, "--auth", "me", "--set", "path=/orders"];
    let output = run(&args);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("ok: 4 steps"), "{text}");
}
