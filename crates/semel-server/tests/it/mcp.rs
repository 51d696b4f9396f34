//! The profile `adcp-mcp`: the sample agent behind the real binary.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use semel_testbed::wait;
use serde_json::{Value, json};

use crate::agent::{Agent, router};
use crate::kit::{Answer, Http, PATIENCE, Semel, metric};

/// The agent on a port of its own, for as long as the tests run.
pub(crate) fn start_agent(takes: Duration) -> (Arc<Agent>, String) {
    let agent = Arc::new(Agent::new(takes));
    let served = Arc::clone(&agent);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, router(served)).await.unwrap();
        });
    });
    let at = told.recv_timeout(PATIENCE).unwrap();
    (agent, format!("http://{at}/"))
}

fn client(semel: &Semel, who: &str, accept: &str) -> Http {
    let gateway = semel.gateway().with("authorization", &format!("Bearer {who}")).with("accept", accept);
    gateway.with("content-type", "application/json").with("mcp-session-id", "session-1")
}

fn call(id: i32, tool: &str, arguments: &Value) -> String {
    let params = json!({ "name": tool, "arguments": arguments });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }).to_string()
}

fn buy(id: i32, key: &str, budget: i32) -> String {
    let context = json!({ "correlation_id": id });
    let arguments = json!({ "idempotency_key": key, "packages": [{ "budget": budget }], "context": context });
    call(id, "create_media_buy", &arguments)
}

/// The message of an answer in either form.
fn said(answer: &Answer) -> Value {
    if answer.header("content-type") == Some("application/json") {
        return answer.json();
    }
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back();
    serde_json::from_str(data.unwrap_or_else(|| panic!("an event in {text}"))).unwrap()
}

fn result(answer: &Answer) -> Value {
    said(answer)["result"]["structuredContent"].clone()
}

fn code(answer: &Answer) -> Option<String> {
    result(answer)["adcp_error"]["code"].as_str().map(str::to_owned)
}

const FORMS: [&str; 2] = ["application/json, text/event-stream", "text/event-stream, application/json"];

#[test]
fn the_sample_agent_conforms_behind_the_gateway() {
    let (agent, url) = start_agent(Duration::from_millis(20));
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().join("data").display());
    let args = ["--profile", "adcp-mcp", "--store", &store, "--upstream", &url];
    let semel = Semel::start(&args);
    semel.logged("which means at least once");
    let mut buys = 0;
    for (number, accept) in FORMS.into_iter().enumerate() {
        let alice = client(&semel, "alice", accept);
        let hello = alice.post(
            "/mcp",
            &json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {} }).to_string(),
        );
        assert_eq!(hello.header("mcp-session-id"), Some("session-1"));
        let capabilities = result(&alice.post("/mcp", &call(1, "get_adcp_capabilities", &json!({}))));
        assert_eq!(
            capabilities["adcp"],
            json!({ "major_versions": [3], "idempotency": { "supported": true, "replay_ttl_seconds": 86_400, "in_flight_max_seconds": 60 } })
        );
        let missing = alice.post("/mcp", &call(2, "create_media_buy", &json!({ "packages": [{}] })));
        assert_eq!((missing.status, code(&missing).as_deref()), (200, Some("INVALID_REQUEST")));
        let key = format!("order-0123456789-{number}");
        let first = result(&alice.post("/mcp", &buy(3, &key, 100)));
        buys += 1;
        assert_eq!(first["media_buy_id"], format!("mb_{buys}"));
        for form in FORMS {
            let again = client(&semel, "alice", form).post("/mcp", &buy(4, &key, 100));
            let (id, again) = (said(&again)["id"].clone(), result(&again));
            assert_eq!((&again["media_buy_id"], &again["replayed"]), (&first["media_buy_id"], &json!(true)));
            assert_eq!((id, &again["context"]), (json!(4), &json!({ "correlation_id": 4 })));
        }
        assert_eq!(code(&alice.post("/mcp", &buy(5, &key, 101))).as_deref(), Some("IDEMPOTENCY_CONFLICT"));
        let other = result(&client(&semel, "bob", accept).post("/mcp", &buy(6, &key, 100)));
        buys += 1;
        assert_eq!((&other["media_buy_id"], other.get("replayed")), (&json!(format!("mb_{buys}")), None));
        // Ten at once.
        let key = format!("race-0123456789-{number}");
        let callers: Vec<_> = (0..10)
            .map(|id| {
                let (alice, body) = (alice.clone(), buy(id, &key, 1));
                std::thread::spawn(move || result(&alice.post("/mcp", &body))["media_buy_id"].clone())
            })
            .collect();
        buys += 1;
        for caller in callers {
            assert_eq!(caller.join().unwrap(), format!("mb_{buys}"));
        }
        assert_eq!(agent.buys(), buys);
    }
    assert_eq!(metric(&semel.admin(), "semel_requests_total{outcome=\"ran\"}"), 6.0);
    // A restart forgets nothing.
    semel.kill();
    let semel = Semel::start(&args);
    let again = result(&client(&semel, "alice", FORMS[0]).post("/mcp", &buy(9, "order-0123456789-0", 100)));
    assert_eq!((&again["media_buy_id"], &again["replayed"]), (&json!("mb_1"), &json!(true)));
    assert_eq!(agent.buys(), buys);
}

// The gateway is killed mid-call: nothing runs again before in_flight_max; then it does, once, and is kept.
#[test]
fn a_gateway_killed_mid_call_is_at_least_once() {
    for accept in FORMS {
        let (agent, url) = start_agent(Duration::from_secs(1));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("semel.toml");
        let text = format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{url}\"\nprofile = \"adcp-mcp\"\ntools = [\"create_media_buy\"]\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n\
             [[route]]\nmatch = \"POST /mcp\"\nlease = \"500ms\"\nwait = \"0s\"\nin_flight_max = \"4s\"\n",
            folder.path().join("data").display(),
        );
        std::fs::write(&file, text).unwrap();
        let semel = Semel::with_config(&file, &[]);
        let body = buy(1, "killed-0123456789", 1);
        let caller = std::thread::spawn({
            let (alice, body) = (client(&semel, "alice", accept), body.clone());
            move || alice.try_send("POST", "/mcp", &body)
        });
        wait::until("the agent is at it", PATIENCE, || agent.buys() == 1).unwrap();
        semel.kill();
        assert!(caller.join().unwrap().is_err(), "nobody was answered");
        let semel = Semel::with_config(&file, &[]);
        let alice = client(&semel, "alice", accept);
        let early = alice.post("/mcp", &body);
        let refused = code(&early);
        assert!(
            matches!(refused.as_deref(), Some("IDEMPOTENCY_IN_FLIGHT" | "SERVICE_UNAVAILABLE")),
            "{}",
            early.text()
        );
        assert!(
            result(&early)["adcp_error"]["retry_after"]
                .as_u64()
                .is_some_and(|after| (1..=4).contains(&after))
        );
        assert_eq!(agent.buys(), 1, "not before in_flight_max");
        let mut answer = early;
        wait::until("it is run again", PATIENCE, || {
            answer = alice.post("/mcp", &body);
            code(&answer).is_none()
        })
        .unwrap_or_else(|_| panic!("{}", answer.text()));
        assert_eq!((agent.buys(), &result(&answer)["media_buy_id"]), (2, &json!("mb_2")));
        let again = result(&alice.post("/mcp", &body));
        assert_eq!(
            (&again["media_buy_id"], &again["replayed"], agent.buys()),
            (&json!("mb_2"), &json!(true), 2)
        );
    }
}

// What cannot be promised does not start.
#[test]
fn bounds_hold_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let text = "[gateway]\nupstream = \"http://127.0.0.1:1\"\nprofile = \"adcp-mcp\"\n[[route]]\nmatch = \"POST /mcp\"\nretention = \"30m\"\n";
    std::fs::write(&file, text).unwrap();
    let output = crate::kit::run(&["serve", "--config", file.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("promises a retention of 3600s to 604800s"), "{told}");
}

// What is guarded is said at start: the tools that need a key, and that any other is guarded when it has one.
#[test]
fn guarded_tools_are_logged_at_start() {
    const OTHERS: &str = "calls of other tools are guarded if they carry one";
    let (_, url) = start_agent(Duration::ZERO);
    let semel = Semel::start(&["--profile", "adcp-mcp", "--store", "memory:", "--upstream", &url]);
    semel.logged(OTHERS);
    let line = semel.log().lines().find(|line| line.contains(OTHERS)).map(str::to_owned).unwrap();
    let logged: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(logged["tools"], semel_http::profile::ADCP_MUTATING_TOOLS.join(", "));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let config = |gateway: &str, route: &str| {
        format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{url}\"\n{gateway}\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n{route}"
        )
    };
    std::fs::write(&file, config("profile = \"adcp-mcp\"\ntools = [\"buy\", \"sell\"]", "")).unwrap();
    let semel = Semel::with_config(&file, &[]);
    semel.logged("\"tools\":\"buy, sell\"");
    semel.logged(OTHERS);
    // Where calls are not tools, nothing is said of them.
    std::fs::write(&file, config("profile = \"ietf\"", "")).unwrap();
    let mut semel = Semel::with_config(&file, &[]);
    // Its log is whole when it has ended.
    semel.signal(Signal::TERM);
    assert!(semel.wait().success());
    assert!(!semel.log().contains(OTHERS), "{}", semel.log());
}
