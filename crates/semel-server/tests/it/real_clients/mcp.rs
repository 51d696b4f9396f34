//! Agents that are built with the MCP libraries for Node and Python behind `--profile adcp-mcp`, with no other setting, and the
//! clients of the same libraries.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::lines::Lines;
use crate::kit::Semel;

/// How the agents of a library answer, and whether they have sessions.
const AGENTS: [&str; 4] = ["json", "events", "json_session", "events_session"];

/// Agents of one library: four that answer in different ways, and its client.
struct Library {
    program: Lines,
    /// Where they listen.
    agents: BTreeMap<String, String>,
    /// How the client negotiates the protocol.
    mode: &'static str,
}

impl Library {
    fn new((program, ready): (Lines, Value), mode: &'static str) -> Self {
        let agents: BTreeMap<_, _> = serde_json::from_value(ready).expect("addresses");
        Self { program, agents, mode }
    }

    fn call(&mut self, url: &str, tool: &str, arguments: &Value, times: usize) -> Vec<Value> {
        let url = format!("{url}/mcp");
        let mode = self.mode;
        let question =
            json!({ "url": url, "tool": tool, "arguments": arguments, "times": times, "mode": mode });
        let told = self.program.ask(&question);
        told["answers"].as_array().unwrap_or_else(|| panic!("{told}")).clone()
    }

    fn effects(&mut self) -> u64 {
        self.program.ask(&json!({ "count": true }))["effects"].as_u64().expect("a number")
    }

    /// Each agent behind a gateway: what is announced, and what keyed calls of its tools meet.
    fn announces_what_it_does(mut self, agents: &[&str], tools: &[&str]) {
        for form in agents {
            let agent = self.agents[*form].clone();
            let direct = json!({ "idempotency_key": "direct-0123456789" });
            let before = self.effects();
            self.call(&agent, tools[0], &direct, 2);
            assert_eq!(self.effects(), before + 2, "{form}: the agent itself does not deduplicate");

            let semel = Semel::start(&["--profile", "adcp-mcp", "--store", "memory:", "--upstream", &agent]);
            let gateway = semel.gateway_url().to_owned();
            let announced = self.call(&gateway, "get_adcp_capabilities", &json!({}), 1).remove(0);
            let ours =
                json!({ "supported": true, "replay_ttl_seconds": 86_400, "in_flight_max_seconds": 60 });
            assert_eq!(
                announced,
                json!({ "adcp": { "major_versions": [3], "idempotency": ours } }),
                "{form}"
            );
            for tool in tools {
                let what = format!("{form}, {tool}");
                let before = self.effects();
                let key = json!({ "idempotency_key": format!("order-0123456789-{tool}"), "n": 1 });
                let first = payload(&self.call(&gateway, tool, &key, 1)[0]);
                assert_eq!(first, json!({ "effect": before + 1 }), "{what}");
                let again = payload(&self.call(&gateway, tool, &key, 1)[0]);
                assert_eq!(again["effect"], first["effect"], "{what}: {again}");
                let other = json!({ "idempotency_key": key["idempotency_key"], "n": 2 });
                let conflict = self.call(&gateway, tool, &other, 1).remove(0);
                assert!(conflict.to_string().contains("IDEMPOTENCY_CONFLICT"), "{what}: {conflict}");
                assert_eq!(self.effects(), before + 1, "{what}: two identical calls are one effect");
            }
            let before = self.effects();
            let race = json!({ "idempotency_key": "race-0123456789-a" });
            let raced = self.call(&gateway, tools[0], &race, 20);
            assert!(raced.iter().all(|one| payload(one)["effect"] == before + 1), "{form}: {raced:?}");
            assert_eq!(self.effects(), before + 1, "{form}: twenty at once are one effect");
        }
    }
}

/// The result, out of what the library for Python puts it into.
fn payload(answer: &Value) -> Value {
    match answer.get("result") {
        Some(Value::String(text)) => serde_json::from_str(text).expect("JSON"),
        _ => answer.clone(),
    }
}

#[test]
fn agents_of_the_mcp_library_for_node() {
    let library = Library::new(Lines::node("mcp_agents.mjs"), "");
    let tools = ["requires_key", "names_no_key", "names_nothing", "declares_result"];
    library.announces_what_it_does(&AGENTS, &tools);
}

// The versions of the protocol with sessions, and the first without.
#[test]
fn agents_of_the_mcp_library_for_python() {
    for (mode, agents) in [("legacy", &AGENTS[..]), ("2026-07-28", &AGENTS[..2])] {
        let library = Library::new(Lines::python("mcp_agents.py"), mode);
        let tools = ["requires_key", "names_no_key", "names_nothing", "writes_text", "declares_nothing"];
        library.announces_what_it_does(agents, &tools);
    }
}
