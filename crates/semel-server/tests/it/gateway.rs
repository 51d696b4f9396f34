//! The gateway before a counting API.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;

use crate::kit::{PATIENCE, Semel, Upstream, metric};

#[test]
fn a_request_with_a_key_happens_once() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().join("data").display());
    let semel = Semel::start(&["--store", &store, "--upstream", &upstream.url()]);
    assert!(semel.ready.contains("gateway=http://127.0.0.1:"), "{}", semel.ready);
    let gateway = semel.gateway().with("authorization", "Bearer a").with("idempotency-key", "order-1");
    let first = gateway.post("/pay", "{}");
    assert_eq!((first.status, first.header("idempotent-replayed")), (201, None));
    let second = gateway.post("/pay", "{}");
    assert_eq!((second.status, second.header("idempotent-replayed")), (201, Some("true")));
    assert_eq!(first.body, second.body);
    assert_eq!(upstream.calls("order-1"), 1);
    // Another payload.
    assert_eq!(gateway.post("/pay", "{\"other\": 1}").expect(422)["code"], "conflict");
    // Another principal has keys of its own.
    let other = semel.gateway().with("authorization", "Bearer b").with("idempotency-key", "order-1");
    assert_eq!(other.post("/pay", "{}").header("idempotent-replayed"), None);
    assert_eq!(upstream.calls("order-1"), 2);
    let nobody = semel.gateway().with("idempotency-key", "order-1").post("/pay", "{}").expect(400);
    assert_eq!(nobody["code"], "scope_missing");
    let admin = semel.admin();
    assert_eq!(metric(&admin, "semel_requests_total{outcome=\"ran\"}"), 2.0);
    assert_eq!(metric(&admin, "semel_requests_total{outcome=\"replayed\"}"), 1.0);
    assert_eq!(metric(&admin, "semel_requests_total{outcome=\"conflict\"}"), 1.0);
    assert_eq!(metric(&admin, "semel_events_total{event=\"won\"}"), 2.0);
    assert!((metric(&admin, "semel_replay_ratio") - 1.0 / 3.0).abs() < 1e-6);
    let found = admin.get("/v1/keys?hint=order-1&phase=done").expect(200);
    assert_eq!(found["items"].as_array().unwrap().len(), 2);

    // squatting: keys of the gateway's clients are not for workers.
    let squatted = admin.post("/v1/claims", r#"{"namespace": "http", "key": "order-1"}"#).expect(400);
    assert!(squatted["detail"].as_str().unwrap().contains("the gateway's"), "{squatted}");

    // A restart forgets nothing.
    semel.kill();
    let semel = Semel::start(&["--store", &store, "--upstream", &upstream.url()]);
    let gateway = semel.gateway().with("authorization", "Bearer a").with("idempotency-key", "order-1");
    assert_eq!(gateway.post("/pay", "{}").body, first.body);
    assert_eq!(upstream.calls("order-1"), 2);
}

// A client of the commerce protocol needs no setting but the profile.
#[test]
fn a_ucp_client_is_served_with_the_profile_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        // A merchant whose discovery document is built from the Host header.
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream);
            let (mut head, mut host) = (String::new(), String::new());
            while reader.read_line(&mut head).is_ok_and(|read| read > 2) {
                if let Some(value) = head.to_ascii_lowercase().strip_prefix("host:") {
                    host = value.trim().to_owned();
                }
                head.clear();
            }
            let body = format!("{{\"services\": \"http://{host}/checkout-sessions\"}}");
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
            let _ = write!(reader.get_mut(), "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        }
    });
    let semel = Semel::start(&["--store", "memory:", "--upstream", &url, "--profile", "ucp"]);
    let discovered = semel.gateway().get("/.well-known/ucp").expect(200);
    let gateway = semel.ready.split("gateway=").nth(1).unwrap().split_whitespace().next().unwrap();
    assert_eq!(discovered["services"], format!("{gateway}/checkout-sessions"));

    let upstream = Upstream::start();
    let semel = Semel::start(&["--store", "memory:", "--upstream", &upstream.url(), "--profile", "ucp"]);
    let agent = |name: &str| semel.gateway().with("ucp-agent", name).with("idempotency-key", "order-1");
    assert_eq!(agent("a").post("/pay", "{}").status, 201);
    assert_eq!(agent("a").post("/pay", "{}").header("idempotent-replayed"), Some("true"));
    assert_eq!(agent("b").post("/pay", "{}").header("idempotent-replayed"), None);
    let refused = agent("a").post("/pay", "{\"other\": 1}");
    assert_eq!(refused.status, 409);
    assert_eq!(refused.header("link"), Some("</.well-known/idempotency>; rel=\"describedby\""));
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert_eq!(upstream.calls("order-1"), 2);
}

// A retry with a renewed token runs again under the default scope. That is counted, and the log names the fix.
#[test]
fn rotating_credentials_are_noticed() {
    let upstream = Upstream::start();
    let semel = Semel::start(&["--store", "memory:", "--upstream", &upstream.url()]);
    for token in
        ["Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.1", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.2"]
    {
        let gateway =
            semel.gateway().with("authorization", token).with("idempotency-key", "0b5a7c5e-order-00001");
        assert_eq!(gateway.post("/pay", "{}").status, 201);
    }
    semel.logged("clients send JWTs");
    semel.logged("the same key and payload arrived under two credentials");
    assert_eq!(metric(&semel.admin(), "semel_rotated_credentials_total"), 1.0);
}

// The policy is published.
#[test]
fn the_policy_is_published() {
    let upstream = Upstream::start();
    let args = [
        "--store",
        "memory:",
        "--upstream",
        &upstream.url(),
        "--profile",
        "stripe",
        "--scope",
        "single-tenant",
    ];
    let semel = Semel::start(&args);
    let policy = semel.gateway().get("/.well-known/idempotency").expect(200);
    assert_eq!((policy["profile"].as_str(), policy["supported"].as_bool()), (Some("stripe"), Some(true)));
    semel.logged("all clients are one principal");
}

#[test]
fn an_upstream_that_is_away_is_told_and_the_key_is_free_again() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let semel = Semel::start(&["--store", "memory:", "--upstream", &url, "--scope", "single-tenant"]);
    assert_eq!(semel.gateway().get("/x").expect(502)["code"], "upstream_unreachable");
    let keyed = semel.gateway().with("idempotency-key", "k");
    for _ in 0..2 {
        let answer = keyed.post("/pay", "{}").expect(502);
        assert_eq!(
            (answer["code"].as_str(), answer["retryable"].as_bool()),
            (Some("upstream_unreachable"), Some(true))
        );
    }
}

#[test]
fn routes_come_from_the_config() {
    let (one, two) = (Upstream::start(), Upstream::start());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"header:x-tenant\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n\
         [[route]]\nmatch = \"POST /pay\"\nkey = {{ header = \"X-Key\", required = true }}\n\
         [[route]]\nmatch = \"POST /other/{{id}}\"\nupstream = \"{}\"\nkey = {{ route = \"other-{{id}}\" }}\nmode = \"keyed\"\n",
        one.url(),
        two.url()
    );
    std::fs::write(&file, config).unwrap();
    let semel = Semel::with_config(&file, &[]);
    let gateway = semel.gateway().with("x-tenant", "t");
    assert_eq!(gateway.post("/pay", "{}").expect(400)["code"], "key_missing");
    assert_eq!(gateway.with("x-key", "a").post("/pay", "{}").status, 201);
    // The path is the key, and the second upstream gets a derived one.
    let first = gateway.post("/other/7", "{}");
    let again = gateway.post("/other/7", "{}");
    assert_eq!((first.status, again.header("idempotent-replayed")), (201, Some("true")));
    assert_eq!(two.calls("other-7"), 0, "the raw key never crosses");
    semel.logged("one effect only if the upstream honours the derived key");
}

/// Answers one request with 200, and gives its head and its body as they came.
fn receive_one(listener: TcpListener) -> std::thread::JoinHandle<(Vec<String>, String)> {
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(&stream);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_owned()),
            }
        }
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        (&stream).write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").unwrap();
        // Nothing comes behind the length that was said, until the gateway closes.
        let mut rest = Vec::new();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        reader.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"", "more than the length says");
        (head, String::from_utf8(body).unwrap())
    })
}

// In keyed, a key in the JSON body is replaced by the derived one on the wire, and the length is right.
#[test]
fn keyed_replaces_a_key_in_the_json_body() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://{}\"\nscope = \"single-tenant\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n\
         [[route]]\nmatch = \"POST /pay\"\nkey = {{ json = \"/meta/key\", derived_header = \"x-token\" }}\nmode = \"keyed\"\n",
        listener.local_addr().unwrap(),
    );
    std::fs::write(&file, config).unwrap();
    let received = receive_one(listener);
    let semel = Semel::with_config(&file, &[]);
    let body = "{ \"amount\": 1.50,\n  \"meta\": { \"key\": \"order-7\" } }";
    let gateway = semel.gateway().with("content-type", "application/json").with("idempotency-key", "order-7");
    assert_eq!(gateway.post("/pay", body).status, 200);
    assert_eq!(gateway.post("/pay", body).header("idempotent-replayed"), Some("true"));
    let (head, seen) = received.join().unwrap();
    let derived = head.iter().find_map(|line| line.strip_prefix("x-token: ")).expect("the derived key");
    assert_eq!(seen, body.replace("order-7", derived), "not a byte beside the key changes");
    assert!(!head.iter().any(|line| line.contains("order-7")), "{head:?}");
}
