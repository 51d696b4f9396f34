//! Which tools need a key: named by the config or by AdCP, or learned from what the upstream lists.
//!
//! This decides only what becomes of calls *without* a key. A call with one is guarded whatever tool it calls.
//!
//! What is learned is kept per caller: an agent may list other tools, or other schemas, to another
//! caller, and one caller's list must not decide for the next.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::json::Object;
use crate::codec::KeyedTools;
use crate::profile::ADCP_MUTATING_TOOLS;
use crate::scope::Principal;

/// Lists that are remembered, one for each caller and path. The caller chooses both, so their number is bounded.
const LISTS: usize = 1_024;
/// Tools of one list.
const TOOLS: usize = 1_024;
/// Lists that are asked for at the same time.
const QUESTIONS: usize = 16;
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

/// The tools of an upstream.
pub(crate) struct Tools {
    /// Those that need a key whatever anybody lists.
    named: HashSet<String>,
    /// What was listed. None where the config names all that need a key.
    learned: Option<Learned>,
}

/// What was listed, by path and caller.
pub(crate) struct Learned {
    lists: Mutex<Lists>,
    /// Names are kept as hashes: as many bytes for every one of them, however long it is.
    hasher: RandomState,
    questions: Semaphore,
    /// When it is said again that an upstream does not list its tools.
    warn: Mutex<NotBefore>,
}

#[derive(Default)]
struct Lists {
    known: HashMap<Principal, Known>,
    /// Grows with every use.
    clock: u64,
}

struct Known {
    list: Arc<List>,
    used: u64,
}

/// What one caller was told under one path.
#[derive(Debug, Default)]
pub(crate) struct List {
    tools: Mutex<HashMap<u64, Needs>>,
    /// One question at a time, and none before this.
    pub(crate) asking: tokio::sync::Mutex<NotBefore>,
}

/// When something may be done again.
#[derive(Debug, Default)]
pub(crate) struct NotBefore(Option<Instant>);

/// What came of asking the upstream.
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
        self.pause(match told {
            Told::Everything => ASK_AGAIN,
            Told::Nothing => ASK_AFTER_FAILURE,
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
                learned: Some(Learned::new()),
            },
            KeyedTools::Named(names) => Self { named: names.iter().cloned().collect(), learned: None },
        }
    }

    /// What a tool needs by its name alone.
    pub(crate) fn needs(&self, tool: &str) -> Needs {
        if self.named.contains(tool) {
            Needs::Key
        } else if self.learned.is_none() {
            Needs::NoKey
        } else {
            Needs::Unknown
        }
    }

    /// What the upstream has listed, where that matters at all.
    pub(crate) fn learned(&self) -> Option<&Learned> {
        self.learned.as_ref()
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

    /// What `caller` was told under `path`. Where there are too many, one of which nothing was learned makes room, or
    /// else the one that was not used for the longest time.
    pub(crate) fn list(&self, path: &str, caller: &Principal) -> Arc<List> {
        let of = Principal::new(&["tools/list", path], caller.as_bytes());
        let mut lists = self.lists.lock();
        lists.clock += 1;
        let used = lists.clock;
        if let Some(known) = lists.known.get_mut(&of) {
            known.used = used;
            return Arc::clone(&known.list);
        }
        if lists.known.len() >= LISTS {
            let least = |(_, known): &(&Principal, &Known)| (!known.list.is_empty(), known.used);
            if let Some(least) = lists.known.iter().min_by_key(least).map(|(of, _)| *of) {
                lists.known.remove(&least);
            }
        }
        let list = Arc::new(List::default());
        lists.known.insert(of, Known { list: Arc::clone(&list), used });
        list
    }

    /// What a list says of a tool.
    pub(crate) fn needs(&self, list: &List, tool: &str) -> Needs {
        list.tools.lock().get(&self.hasher.hash_one(tool)).copied().unwrap_or(Needs::Unknown)
    }

    /// Learns from the answer to `tools/list`; says where the next page begins, if there is one. None where it is no
    /// such answer.
    pub(crate) fn learn(&self, list: &List, message: &[u8]) -> Option<Page> {
        let message = Object::read_bytes(message)?;
        let listing: Listing = serde_json::from_str(message.get("result")?.get()).ok()?;
        let mut tools = list.tools.lock();
        for Tool { name, input_schema } in listing.tools {
            let required = input_schema.and_then(|schema| schema.required).unwrap_or_default();
            let needs =
                if required.iter().any(|name| name == super::KEY) { Needs::Key } else { Needs::NoKey };
            let name = self.hasher.hash_one(name.as_str());
            if tools.len() < TOOLS || tools.contains_key(&name) {
                tools.insert(name, needs);
            }
        }
        Some(listing.next_cursor.map_or(Page::Last, Page::Next))
    }

    /// The right to ask the upstream now. None where too many ask already: callers could otherwise double its load.
    pub(crate) fn question(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        self.questions.try_acquire().ok()
    }

    /// Whether it is time to say that the upstream does not list its tools: not with every caller.
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
        self.tools.lock().is_empty()
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
        assert_eq!(next, Some(Page::Next("2".to_owned())));
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
        assert!(listed.learned().is_some());
        let named = Tools::new(&KeyedTools::Named(vec!["buy".to_owned()]));
        assert_eq!((named.needs("buy"), named.needs("create_media_buy")), (Needs::Key, Needs::NoKey));
        assert!(named.learned().is_none());
    }

    #[test]
    fn callers_cannot_make_it_grow() {
        let learned = Learned::new();
        let known = |learned: &Learned| learned.lists.lock().known.len();
        let mine = learned.list("/mcp", &caller(0));
        assert_eq!(learned.learn(&mine, BUY), Some(Page::Last));
        // Callers to whom nothing is listed make room first.
        for number in 1..2 * LISTS {
            learned.list("/mcp", &caller(number));
            learned.list(&format!("/{number}"), &caller(0));
        }
        assert_eq!(known(&learned), LISTS);
        let mine = learned.list("/mcp", &caller(0));
        assert_eq!(learned.needs(&mine, "buy"), Needs::Key, "what was learned stays");
        // Then those that were not heard of for the longest time.
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
