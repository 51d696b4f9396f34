//! An agent that is built with `@adcp/sdk` and does not deduplicate, behind the gateway; and that package's own client.

use semel_http::profile::ADCP_MUTATING_TOOLS;
use serde_json::{Value, json};

use super::lines::Lines;
use crate::kit::{Http, Semel};

/// The agent, and the package's client.
struct Sdk {
    process: Lines,
    /// Where the agent listens.
    url: String,
    /// The tools that the package calls mutating.
    mutating: Vec<String>,
}

impl Sdk {
    fn start() -> Self {
        let (process, ready) = Lines::node("agent.mjs");
        let url = ready["url"].as_str().expect("an address").to_owned();
        let mutating = serde_json::from_value(ready["mutating"].clone()).expect("names");
        Self { process, url, mutating }
    }

    /// Buys with the package's client.
    fn buy(&mut self, url: &str, key: &str) -> Value {
        self.buy_at_once(url, key, 100, 1).remove(0)
    }

    /// Buys several times at once.
    fn buy_at_once(&mut self, url: &str, key: &str, budget: u32, times: usize) -> Vec<Value> {
        let url = format!("{url}/mcp");
        let bought = self.process.ask(&json!({ "url": url, "key": key, "budget": budget, "times": times }));
        bought.as_array().expect("a list").clone()
    }

    /// What the package's client reads of the agent's capabilities.
    fn idempotency(&mut self, url: &str) -> Value {
        self.process.ask(&json!({ "ask": format!("{url}/mcp") }))["idempotency"].clone()
    }

    /// How many purchases there are, of media and of slots.
    fn purchases(&mut self) -> (u64, u64) {
        let counted = self.process.ask(&json!({ "count": true }));
        (counted["buys"].as_u64().expect("a number"), counted["slots"].as_u64().expect("a number"))
    }
}

/// Asks by hand, and gives the result.
fn result(at: &Http, method: &str, params: &Value) -> Value {
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let answer = at.post("/mcp", &message.to_string()).text();
    let data = answer.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&answer);
    let said: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error} in {answer}"));
    said["result"].clone()
}

fn call(at: &Http, tool: &str, arguments: &Value) -> Value {
    let result = result(at, "tools/call", &json!({ "name": tool, "arguments": arguments }));
    result["structuredContent"].clone()
}

fn client(url: &str) -> Http {
    let client =
        Http::new(url).with("authorization", "Bearer alice").with("content-type", "application/json");
    client.with("accept", "application/json, text/event-stream")
}

// unguarded_mcp_key: its schemas are empty, and two identical keyed calls still make one purchase.
#[test]
fn an_agent_of_the_adcp_sdk_makes_one_purchase() {
    let mut sdk = Sdk::start();
    let semel =
        Semel::start(&["--profile", "adcp-mcp", "--store", "memory:", "--upstream", &sdk.url.clone()]);
    let (agent, gateway) = (sdk.url.clone(), semel.gateway_url().to_owned());

    // What this test is about: nothing in the list says that a key is needed, and the agent says that it honours none.
    let listed = result(&client(&gateway), "tools/list", &json!({}));
    for tool in listed["tools"].as_array().expect("a list of tools") {
        assert_eq!(
            (&tool["inputSchema"]["properties"], tool["inputSchema"].get("required")),
            (&json!({}), None)
        );
    }
    assert_eq!(sdk.idempotency(&agent), json!({ "supported": false }));
    for buys in 1..=2 {
        assert_eq!(sdk.buy(&agent, "direct-0123456789")["id"], format!("mb_{buys}"), "without the gateway");
    }

    let announced = json!({ "supported": true, "replay_ttl_seconds": 86_400, "in_flight_max_seconds": 60 });
    assert_eq!(sdk.idempotency(&gateway), announced);
    assert_eq!(sdk.buy(&gateway, "order-0123456789"), json!({ "id": "mb_3", "replayed": false }));
    assert_eq!(sdk.buy(&gateway, "order-0123456789"), json!({ "id": "mb_3", "replayed": true }));
    assert_eq!(sdk.buy(&gateway, "other-0123456789"), json!({ "id": "mb_4", "replayed": false }));
    assert_eq!(sdk.purchases(), (4, 0));

    // Twenty at once are one purchase, and another payload is none.
    let bought = sdk.buy_at_once(&gateway, "race-0123456789-a", 100, 20);
    assert!(bought.iter().all(|one| one["id"] == "mb_5"), "{bought:?}");
    assert_eq!(bought.iter().filter(|one| one["replayed"] == false).count(), 1, "{bought:?}");
    let refused = sdk.buy_at_once(&gateway, "race-0123456789-a", 101, 1).remove(0);
    assert!(refused["error"].as_str().is_some_and(|error| error.contains("CONFLICT")), "{refused}");
    assert_eq!(sdk.purchases(), (5, 0));

    // A tool of the agent's own, that no list and no protocol knows of.
    let slot = json!({ "idempotency_key": "slot-0123456789-a" });
    assert_eq!(call(&client(&gateway), "book_slot", &slot), json!({ "slot_id": "slot_1" }));
    assert_eq!(call(&client(&gateway), "book_slot", &slot), json!({ "slot_id": "slot_1", "replayed": true }));
    assert_eq!(
        call(&client(&gateway), "book_slot", &json!({})),
        json!({ "slot_id": "slot_2" }),
        "it needs none"
    );

    // The tools that need a key by name are those that the protocol's own package knows.
    assert_eq!(sdk.mutating, ADCP_MUTATING_TOOLS);
    for tool in ADCP_MUTATING_TOOLS {
        let refused = call(&client(&gateway), tool, &json!({}));
        assert_eq!(refused["adcp_error"]["code"], "INVALID_REQUEST", "{tool}: {refused}");
    }
    assert_eq!(sdk.purchases(), (5, 2));
}
