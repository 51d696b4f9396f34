//! Finds the tools that need a key: named by the config or by AdCP, or learned from the upstream's list.
//!
//! This affects only calls without a key. A call with a key is guarded whatever tool it calls.
//!
//! Lists are stored per caller: an agent may list other tools or schemas to another caller, and one caller's list must not decide for
//! another.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::json::Object;
use super::release::Release;
use crate::codec::KeyedTools;
use crate::profile::ADCP_MUTATING_TOOLS;
use crate::scope::Principal;

/// Maximum number of stored lists, one per caller and path. The caller chooses both, so the number is bounded.
const LISTS: usize = 1_024;
/// Maximum number of tools of one list.
const TOOLS: usize = 1_024;
/// Maximum number of `tools/list` requests in progress.
const QUESTIONS: usize = 16;
/// Minimum time before the upstream is asked again for a tool that it does not list.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Minimum time before the upstream is asked again after a failure.
const ASK_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Whether a tool needs a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Key,
    NoKey,
    /// Not known yet.
    Unknown,
}

/// What a list says about a tool.
#[derive(Clone, Copy, Debug)]
struct ListedTool {
    needs: Needs,
    result: DeclaredResult,
}

/// Which structured results a tool can have, by its output schema. Clients that got the list reject others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeclaredResult {
    /// It has only declared members, and `replayed` is not one.
    pub(crate) is_closed: bool,
    /// An error is not among them.
    pub(crate) excludes_errors: bool,
}

/// What the upstream told the caller of a tool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallFacts {
    pub(crate) release: Option<Release>,
    pub(crate) result: DeclaredResult,
}

/// The tools of an upstream.
pub(crate) struct Tools {
    /// Tools that need a key, whatever the upstream lists.
    named: HashSet<String>,
    /// Whether a tool that is not among them needs a key.
    others: Needs,
    learned: Learned,
}

/// What the upstream says about itself, by path and caller.
pub(crate) struct Learned {
    lists: Mutex<Lists>,
    /// Names are stored as hashes, so that all have the same size.
    hasher: RandomState,
    questions: Semaphore,
    /// Limits the warning that an upstream does not list its tools.
    warn: Mutex<NotBefore>,
}

#[derive(Default)]
struct Lists {
    known: HashMap<Principal, KnownTools>,
    /// Incremented with every use.
    clock: u64,
}

struct KnownTools {
    list: Arc<List>,
    used: u64,
}

/// What one caller got under one path: the list of tools, and the announced release.
#[derive(Debug, Default)]
pub(crate) struct List {
    tools: Mutex<HashMap<u64, ListedTool>>,
    release: Mutex<Option<Release>>,
    /// Allows one request at a time, and none before this time.
    pub(crate) asking: tokio::sync::Mutex<NotBefore>,
}

/// The earliest time at which something may be done again.
#[derive(Debug, Default)]
pub(crate) struct NotBefore(Option<Instant>);

/// The result of asking the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedTools {
    Everything,
    Nothing,
}

impl NotBefore {
    pub(crate) fn is_now(&self) -> bool {
        self.0.is_none_or(|at| at <= Instant::now())
    }

    pub(crate) fn asked(&mut self, told: AskedTools) {
        self.pause(match told {
            AskedTools::Everything => ASK_AGAIN,
            AskedTools::Nothing => ASK_AFTER_FAILURE,
        });
    }

    fn pause(&mut self, pause: Duration) {
        self.0 = Some(Instant::now() + pause);
    }
}

impl Tools {
    pub(crate) fn new(tools: &KeyedTools) -> Self {
        match tools {
            KeyedTools::Listed => Self {
                named: ADCP_MUTATING_TOOLS.iter().map(|name| (*name).to_owned()).collect(),
                others: Needs::Unknown,
                learned: Learned::new(),
            },
            KeyedTools::Named(names) => {
                Self { named: names.iter().cloned().collect(), others: Needs::NoKey, learned: Learned::new() }
            }
        }
    }

    /// Whether a tool needs a key, judged by its name alone.
    pub(crate) fn needs(&self, tool: &str) -> Needs {
        if self.named.contains(tool) { Needs::Key } else { self.others }
    }

    /// What the upstream says about itself.
    pub(crate) fn learned(&self) -> &Learned {
        &self.learned
    }
}

impl Learned {
    fn new() -> Self {
        Self {
            lists: Mutex::default(),
            hasher: RandomState::new(),
            questions: Semaphore::new(QUESTIONS),
            warn: Mutex::default(),
        }
    }

    /// What the upstream told `caller` under `path`, as far as it concerns this tool.
    pub(crate) fn facts(&self, path: &str, caller: &Principal, tool: &str) -> CallFacts {
        let lists = self.lists.lock();
        let Some(KnownTools { list, .. }) = lists.known.get(&of(path, caller)) else {
            return CallFacts::default();
        };
        let tool = list.tools.lock().get(&self.hasher.hash_one(tool)).copied();
        let result = tool.map(|tool| tool.result).unwrap_or_default();
        CallFacts { release: *list.release.lock(), result }
    }

    /// The list of `caller` under `path`. If there are too many lists, an empty one is removed, or else the least recently used one.
    pub(crate) fn list(&self, path: &str, caller: &Principal) -> Arc<List> {
        let of = of(path, caller);
        let mut lists = self.lists.lock();
        lists.clock += 1;
        let used = lists.clock;
        if let Some(known) = lists.known.get_mut(&of) {
            known.used = used;
            return Arc::clone(&known.list);
        }
        if lists.known.len() >= LISTS {
            let least = |(_, known): &(&Principal, &KnownTools)| (!known.list.is_empty(), known.used);
            if let Some(least) = lists.known.iter().min_by_key(least).map(|(of, _)| *of) {
                lists.known.remove(&least);
            }
        }
        let list = Arc::new(List::default());
        lists.known.insert(of, KnownTools { list: Arc::clone(&list), used });
        list
    }

    /// Whether a tool needs a key according to a list.
    pub(crate) fn needs(&self, list: &List, tool: &str) -> Needs {
        list.tools.lock().get(&self.hasher.hash_one(tool)).map_or(Needs::Unknown, |tool| tool.needs)
    }

    /// Learns from the answer to `tools/list`, and returns the next page, if there is one. `None` if the message is not such an answer.
    pub(crate) fn learn(&self, list: &List, message: &[u8]) -> Option<ToolPage> {
        let message = Object::read_bytes(message)?;
        let listing: ToolListing = serde_json::from_str(message.get("result")?.get()).ok()?;
        let mut tools = list.tools.lock();
        for Tool { name, input_schema, output_schema } in listing.tools {
            let required = input_schema.and_then(|schema| schema.required).unwrap_or_default();
            let needs =
                if required.iter().any(|name| name == super::KEY) { Needs::Key } else { Needs::NoKey };
            let name = self.hasher.hash_one(name.as_str());
            if tools.len() < TOOLS || tools.contains_key(&name) {
                let result = output_schema.as_ref().map(DeclaredResult::of).unwrap_or_default();
                tools.insert(name, ListedTool { needs, result });
            }
        }
        Some(listing.next_cursor.map_or(ToolPage::Last, ToolPage::Next))
    }

    /// A permit to ask the upstream now. `None` if too many requests are in progress: callers could otherwise double its load.
    pub(crate) fn question(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        self.questions.try_acquire().ok()
    }

    /// True if it is time to warn again that the upstream does not list its tools.
    pub(crate) fn may_warn(&self) -> bool {
        let mut warn = self.warn.lock();
        let is_now = warn.is_now();
        if is_now {
            warn.pause(ASK_AGAIN);
        }
        is_now
    }
}

impl List {
    fn is_empty(&self) -> bool {
        self.tools.lock().is_empty() && self.release.lock().is_none()
    }

    /// Learns the release that the upstream announced.
    pub(crate) fn announced(&self, release: Option<Release>) {
        *self.release.lock() = release;
    }
}

fn of(path: &str, caller: &Principal) -> Principal {
    Principal::new(&["tools/list", path], caller.as_bytes())
}

/// Whether there are more pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToolPage {
    Next(String),
    Last,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolListing {
    tools: Vec<Tool>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tool {
    name: String,
    input_schema: Option<Schema>,
    output_schema: Option<Value>,
}

#[derive(Deserialize)]
struct Schema {
    required: Option<Vec<String>>,
}

impl DeclaredResult {
    fn of(schema: &Value) -> Self {
        let is_open = schema["additionalProperties"] != false;
        let allows = |name: &str| is_open || schema["properties"].get(name).is_some();
        let requires = schema["required"].as_array().is_some_and(|required| !required.is_empty());
        Self { is_closed: !allows("replayed"), excludes_errors: requires || !allows("adcp_error") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUY: &[u8] =
        br#"{"result":{"tools":[{"name":"buy","inputSchema":{"required":["idempotency_key"]}}]}}"#;

    fn caller(number: usize) -> Principal {
        Principal::new(&["test"], &number.to_le_bytes())
    }

    #[test]
    fn learned_from_what_is_listed() {
        let learned = Learned::new();
        let list = learned.list("/mcp", &caller(1));
        assert_eq!(learned.needs(&list, "buy"), Needs::Unknown);
        let next = learned.learn(
            &list,
            br#"{"id":1,"result":{"tools":[
                {"name":"buy","inputSchema":{"type":"object","required":["a","idempotency_key"]}},
                {"name":"look","inputSchema":{"properties":{"idempotency_key":{}}}},{"name":"bare"}],"nextCursor":"2"}}"#,
        );
        assert_eq!(next, Some(ToolPage::Next("2".to_owned())));
        let list = learned.list("/mcp", &caller(1));
        for (tool, needs) in
            [("buy", Needs::Key), ("look", Needs::NoKey), ("bare", Needs::NoKey), ("new", Needs::Unknown)]
        {
            assert_eq!(learned.needs(&list, tool), needs, "{tool}");
        }
        for (path, number) in [("/other", 1), ("/mcp", 2)] {
            let other = learned.list(path, &caller(number));
            assert_eq!(learned.needs(&other, "buy"), Needs::Unknown, "another agent, or another caller");
        }
        assert_eq!(learned.learn(&list, br#"{"id":1,"error":{}}"#), None);
    }

    #[test]
    fn named_by_adcp_or_by_the_config() {
        let listed = Tools::new(&KeyedTools::Listed);
        assert_eq!((listed.needs("create_media_buy"), listed.needs("buy")), (Needs::Key, Needs::Unknown));
        let named = Tools::new(&KeyedTools::Named(vec!["buy".to_owned()]));
        assert_eq!((named.needs("buy"), named.needs("create_media_buy")), (Needs::Key, Needs::NoKey));
    }

    #[test]
    fn results_that_clients_reject_are_known() {
        let learned = Learned::new();
        let list = learned.list("/mcp", &caller(1));
        for (schema, is_closed, excludes_errors) in [
            (r#"{"type":"object"}"#, false, false),
            (r#"{"properties":{"id":{}},"required":["id"]}"#, false, true),
            (r#"{"properties":{"id":{}},"additionalProperties":false}"#, true, true),
            (r#"{"properties":{"replayed":{},"adcp_error":{}},"additionalProperties":false}"#, false, false),
            (r#"{"properties":{"replayed":{}},"additionalProperties":{}}"#, false, false),
            ("null", false, false),
        ] {
            let listing = format!(r#"{{"result":{{"tools":[{{"name":"buy","outputSchema":{schema}}}]}}}}"#);
            assert_eq!(learned.learn(&list, listing.as_bytes()), Some(ToolPage::Last), "{schema}");
            let facts = learned.facts("/mcp", &caller(1), "buy").result;
            assert_eq!(facts, DeclaredResult { is_closed, excludes_errors }, "{schema}");
            assert_eq!(learned.facts("/mcp", &caller(2), "buy").result, DeclaredResult::default());
        }
    }

    #[test]
    fn callers_cannot_make_it_grow() {
        let learned = Learned::new();
        let known = |learned: &Learned| learned.lists.lock().known.len();
        let mine = learned.list("/mcp", &caller(0));
        assert_eq!(learned.learn(&mine, BUY), Some(ToolPage::Last));
        // Empty lists are removed first.
        for number in 1..2 * LISTS {
            learned.list("/mcp", &caller(number));
            learned.list(&format!("/{number}"), &caller(0));
        }
        assert_eq!(known(&learned), LISTS);
        let mine = learned.list("/mcp", &caller(0));
        assert_eq!(learned.needs(&mine, "buy"), Needs::Key, "what was learned stays");
        // Then the least recently used ones.
        for number in 1..2 * LISTS {
            learned.learn(&learned.list("/mcp", &caller(number)), BUY);
            learned.list("/mcp", &caller(0));
        }
        assert_eq!(known(&learned), LISTS);
        let needs = |number| learned.needs(&learned.list("/mcp", &caller(number)), "buy");
        assert_eq!((needs(0), needs(2 * LISTS - 1)), (Needs::Key, Needs::Key));
        assert_eq!(needs(1), Needs::Unknown, "forgotten");
        let many: Vec<_> =
            (0..2 * TOOLS).map(|number| serde_json::json!({ "name": format!("{number}") })).collect();
        let listing = serde_json::json!({ "result": { "tools": many } }).to_string();
        learned.learn(&mine, listing.as_bytes());
        assert_eq!(mine.tools.lock().len(), TOOLS);
        assert_eq!(learned.needs(&mine, "buy"), Needs::Key);
        let held: Vec<_> = std::iter::repeat_with(|| learned.question()).take(QUESTIONS + 1).collect();
        assert_eq!(held.iter().flatten().count(), QUESTIONS);
    }
}
