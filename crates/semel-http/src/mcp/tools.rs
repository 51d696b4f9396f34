//! Which tools need a key: named by the config, or learned from what the upstream lists.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use super::json::Object;
use crate::codec::KeyedTools;

/// Paths that are learned about. Whoever calls chooses paths, so there is an end to it.
const PATHS: usize = 256;
/// Tools of one path.
const TOOLS: usize = 4_096;
/// When the upstream is asked again for a tool that it does not list.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// The same, where it gave no answer.
const ASK_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// What is known of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Key,
    NoKey,
    /// Nobody has said yet.
    Unknown,
}

/// The tools of an upstream, by the path under which it is called.
#[derive(Debug)]
pub(crate) struct Tools {
    named: Option<HashSet<String>>,
    learned: Mutex<HashMap<String, Arc<Endpoint>>>,
}

/// What is known of one path.
#[derive(Debug, Default)]
pub(crate) struct Endpoint {
    tools: Mutex<HashMap<String, Needs>>,
    /// One question at a time, and none before this.
    pub(crate) asking: tokio::sync::Mutex<NotBefore>,
}

/// When the upstream may be asked.
#[derive(Debug, Default)]
pub(crate) struct NotBefore(Option<Instant>);

/// What came of asking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Everything,
    Nothing,
}

impl NotBefore {
    pub(crate) fn is_now(&self) -> bool {
        self.0.is_none_or(|at| at <= Instant::now())
    }

    pub(crate) fn asked(&mut self, told: Told) {
        let pause = match told {
            Told::Everything => ASK_AGAIN,
            Told::Nothing => ASK_AFTER_FAILURE,
        };
        self.0 = Some(Instant::now() + pause);
    }
}

impl Tools {
    pub(crate) fn new(tools: &KeyedTools) -> Self {
        let named = match tools {
            KeyedTools::Listed => None,
            KeyedTools::Named(names) => Some(names.iter().cloned().collect()),
        };
        Self { named, learned: Mutex::default() }
    }

    /// What is known of a tool without asking anybody.
    pub(crate) fn needs(&self, path: &str, tool: &str) -> Needs {
        if let Some(named) = &self.named {
            return if named.contains(tool) { Needs::Key } else { Needs::NoKey };
        }
        self.learned.lock().get(path).map_or(Needs::Unknown, |endpoint| endpoint.needs(tool))
    }

    /// Whether what the upstream lists matters at all.
    pub(crate) fn is_learning(&self) -> bool {
        self.named.is_none()
    }

    /// What is known of a path; none where there are too many.
    pub(crate) fn endpoint(&self, path: &str) -> Option<Arc<Endpoint>> {
        let mut learned = self.learned.lock();
        if let Some(known) = learned.get(path) {
            return Some(Arc::clone(known));
        }
        if learned.len() >= PATHS {
            // Paths that nothing was learned of make room for those that are real.
            learned.retain(|_, endpoint| !endpoint.tools.lock().is_empty());
            if learned.len() >= PATHS {
                return None;
            }
        }
        Some(Arc::clone(learned.entry(path.to_owned()).or_default()))
    }
}

impl Endpoint {
    pub(crate) fn needs(&self, tool: &str) -> Needs {
        self.tools.lock().get(tool).copied().unwrap_or(Needs::Unknown)
    }

    /// Learns from the answer to `tools/list`; says where the next page begins, if there is one. None where it is no
    /// such answer.
    pub(crate) fn learn(&self, message: &[u8]) -> Option<Page> {
        let message = Object::read_bytes(message)?;
        let listing: Listing = serde_json::from_str(message.get("result")?.get()).ok()?;
        let mut tools = self.tools.lock();
        for Tool { name, input_schema } in listing.tools {
            let required = input_schema.and_then(|schema| schema.required).unwrap_or_default();
            let needs =
                if required.iter().any(|name| name == super::KEY) { Needs::Key } else { Needs::NoKey };
            if tools.len() < TOOLS || tools.contains_key(&name) {
                tools.insert(name, needs);
            }
        }
        Some(listing.next_cursor.map_or(Page::Last, Page::Next))
    }
}

/// Whether there is more to be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    Next(String),
    Last,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listing {
    tools: Vec<Tool>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tool {
    name: String,
    input_schema: Option<Schema>,
}

#[derive(Deserialize)]
struct Schema {
    required: Option<Vec<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learned_from_what_is_listed() {
        let tools = Tools::new(&KeyedTools::Listed);
        assert_eq!(tools.needs("/mcp", "buy"), Needs::Unknown);
        let endpoint = tools.endpoint("/mcp").unwrap();
        let next = endpoint.learn(
            br#"{"id":1,"result":{"tools":[
                {"name":"buy","inputSchema":{"type":"object","required":["a","idempotency_key"]}},
                {"name":"look","inputSchema":{"properties":{"idempotency_key":{}}}},{"name":"bare"}],"nextCursor":"2"}}"#,
        );
        assert_eq!(next, Some(Page::Next("2".to_owned())));
        for (tool, needs) in
            [("buy", Needs::Key), ("look", Needs::NoKey), ("bare", Needs::NoKey), ("new", Needs::Unknown)]
        {
            assert_eq!(tools.needs("/mcp", tool), needs, "{tool}");
        }
        assert_eq!(tools.needs("/other", "buy"), Needs::Unknown, "another path is another agent");
        assert_eq!(endpoint.learn(br#"{"id":1,"error":{}}"#), None);
        let named = Tools::new(&KeyedTools::Named(vec!["buy".to_owned()]));
        assert_eq!((named.needs("/", "buy"), named.needs("/", "look")), (Needs::Key, Needs::NoKey));
    }

    #[test]
    fn callers_cannot_make_it_grow() {
        let tools = Tools::new(&KeyedTools::Listed);
        for number in 0..2 * PATHS {
            let path = format!("/{number}");
            assert_eq!(tools.needs(&path, "buy"), Needs::Unknown);
            tools.endpoint(&path).unwrap();
        }
        assert!(tools.learned.lock().len() <= PATHS);
        let listed =
            br#"{"result":{"tools":[{"name":"buy","inputSchema":{"required":["idempotency_key"]}}]}}"#;
        assert_eq!(tools.endpoint("/mcp").unwrap().learn(listed), Some(Page::Last));
        for number in 0..2 * PATHS {
            tools.endpoint(&format!("/{number}")).unwrap();
        }
        assert_eq!(tools.needs("/mcp", "buy"), Needs::Key, "what was learned stays");
    }
}
