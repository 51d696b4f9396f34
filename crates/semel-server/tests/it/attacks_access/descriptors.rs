//! Clients of the gateway cannot take the file descriptors of the admin listener and the store.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use semel_testbed::wait;

use crate::admin_tls::certificates;
use crate::kit::{PATIENCE, Semel, Upstream, metric, semel};

#[test]
fn slow_calls_at_a_low_descriptor_limit_leave_health_checks_working() {
    // Two descriptors each: more than there are. Those that are not accepted fit into the kernel's queue.
    const CALLS: usize = 150;
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().join("data").display());
    let args = ["--store", &store, "--upstream", &upstream.url(), "--scope", "single-tenant"];
    let semel = Semel::with_descriptors(256, &args);
    semel.logged("the process may open 256 files");
    let admin = semel.admin();
    let most = metric(&admin, "semel_connections_max{listener=\"gateway\"}");
    assert!(most >= 50.0, "{most} clients");
    let at = semel.gateway_url().strip_prefix("http://").unwrap();
    let mut calls: Vec<TcpStream> = (0..CALLS)
        .map(|number| {
            let mut call = TcpStream::connect(at).unwrap();
            let head = format!(
                "POST /slow HTTP/1.1\r\nhost: {at}\r\nidempotency-key: k{number}\r\nconnection: close\r\n\
                 content-length: 2\r\n\r\n{{}}"
            );
            call.write_all(head.as_bytes()).unwrap();
            call.set_read_timeout(Some(PATIENCE)).unwrap();
            call
        })
        .collect();
    wait::until("as many as may be are at the upstream", PATIENCE, || upstream.total() as f64 >= most)
        .unwrap();
    for path in ["/healthz", "/readyz", "/v1/keys", "/metrics"] {
        assert_eq!(admin.get(path).status, 200, "{path}");
    }
    let claim = admin.post("/v1/claims", r#"{"namespace": "n", "key": "k"}"#);
    assert_eq!(claim.expect(200)["status"], "won", "the store has its descriptors");
    assert!(metric(&admin, "process_open_fds") <= 256.0);
    upstream.open();
    for call in &mut calls {
        let mut answer = String::new();
        call.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 201"), "those that waited are served too: {answer}");
    }
    assert!(!semel.log().contains("cannot accept connections"), "{}", semel.log());
}

#[test]
fn a_low_soft_limit_is_raised() {
    let upstream = Upstream::start();
    let semel = Semel::with_ulimit("-S -n 64", &["--store", "memory:", "--upstream", &upstream.url()]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", semel.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = line.trim_start_matches("Max open files").split_whitespace().collect();
    assert_eq!(numbers[0], numbers[1], "soft and hard: {line}");
}

// A stream of HTTP/2 costs its client no connection, and the gateway one to the upstream.
#[test]
fn streams_of_http2_leave_health_checks_working() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path(), "IP:127.0.0.1");
    let path = folder.path().display().to_string();
    let file = folder.path().join("semel.toml");
    let text = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n\
         tls = {{ cert = \"{path}/cert.pem\", key = \"{path}/key.pem\" }}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{path}/data\"\n",
        upstream.url()
    );
    std::fs::write(&file, text).unwrap();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""]).arg(semel().get_program());
    limited.args(["serve", "--config"]).arg(&file).stdin(Stdio::null());
    let semel = Semel::spawn(limited);
    let admin = semel.admin();
    let urls = format!("url = \"{}/slow\"\noutput = \"/dev/null\"\n", semel.gateway_url()).repeat(100);
    let list = folder.path().join("urls");
    std::fs::write(&list, urls).unwrap();
    let mut floods: Vec<Child> = (0..3)
        .map(|_| {
            let mut curl = Command::new("curl");
            curl.args([
                "-sk",
                "--http2",
                "--noproxy",
                "*",
                "--parallel",
                "--parallel-max",
                "100",
                "--config",
            ]);
            curl.arg(&list).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    wait::until("many calls are at the upstream", PATIENCE, || upstream.total() >= 90).unwrap();
    for path in ["/healthz", "/readyz", "/v1/keys"] {
        assert_eq!(admin.get(path).status, 200, "{path}");
    }
    assert!(metric(&admin, "process_open_fds") < 250.0);
    for flood in &mut floods {
        flood.kill().unwrap();
        flood.wait().unwrap();
    }
    upstream.open();
    assert!(!semel.log().contains("cannot accept connections"), "{}", semel.log());
}
