//! Steps of a phase.

use std::time::Duration;

use serde_json::{Map, Value};

use super::checks::Checks;
use super::read_level;
use crate::reader::{FoundProblems, MappingReader};
use crate::storyboard::{
    Auth, Expects, Input, KeyRule, Output, Parallel, SharedKey, Spread, StepAction, StoryboardDialect,
    StoryboardStep, Transport, Trip, ValueSource,
};

/// Members of a step that are documentation, or for other runners.
const DOCUMENTATION: &[&str] = &[
    "narrative",
    "schema_ref",
    "response_schema_ref",
    "doc_ref",
    "expected",
    "negative_path",
    "comply_scenario",
    "sample_request_skip_schema",
    "sample_response",
    "expected_arm",
];

/// Reads steps according to the file's transport and dialect.
pub(super) struct Steps<'a> {
    pub(super) log: &'a FoundProblems,
    pub(super) transport: Transport,
    pub(super) dialect: StoryboardDialect,
}

impl Steps<'_> {
    pub(super) fn read(&self, mut table: MappingReader<'_>, branch: Option<&str>) -> StoryboardStep {
        let id = table.needed_text("id");
        let title = table.text("title").unwrap_or_else(|| id.clone());
        let action = self.action(&mut table);
        let spread = self.spread(&mut table);
        let level = read_level(&mut table, self.log);
        let wait = table.json("wait");
        let expects = match table.flag("expect_error") {
            Some(true) => Expects::Error,
            Some(false) | None => Expects::Success,
        };
        let key = match table.flag("omit_idempotency_key") {
            Some(true) => KeyRule::Omit,
            Some(false) | None => KeyRule::Add,
        };
        let contributes = table.flag("contributes") == Some(true);
        let contributes_to =
            table.text("contributes_to").or_else(|| branch.filter(|_| contributes).map(str::to_owned));
        let schema = table.json("response_schema").filter(Value::is_object);
        let several = !matches!(spread, Spread::Once);
        let tripping = matches!(action, StepAction::Trip(_));
        let checks = Checks { log: self.log, dialect: self.dialect, several, tripping };
        let step = StoryboardStep {
            id,
            title,
            action,
            spread,
            wait,
            level,
            checks: table.tables("validations").into_iter().map(|check| checks.read(check)).collect(),
            outputs: self.outputs(&mut table),
            inputs: Self::inputs(&mut table),
            expects,
            key,
            // In files of this dialect every step depends on the earlier ones, unless it says otherwise.
            stateful: table.flag("stateful").unwrap_or(self.dialect == StoryboardDialect::Own),
            requires_tool: table.text("requires_tool"),
            requires_contract: table.text("requires_contract"),
            auth: Self::auth(&mut table),
            finds_key_form: table.flag("finds_key_form") == Some(true),
            skip_if_refused: table.flag("skip_if_refused") == Some(true),
            contributes_to,
            reviewer_checks: table.texts("reviewer_checks").unwrap_or_default(),
            schema,
        };
        table.finish(DOCUMENTATION);
        step
    }

    fn action(&self, table: &mut MappingReader<'_>) -> StepAction {
        if table.flag("restart") == Some(true) {
            return StepAction::Restart;
        }
        if let Some(trip) = table.table("rate_limit_trip") {
            // The name of the task has no further meaning.
            table.has("task");
            return self.trip(trip);
        }
        match self.transport {
            Transport::Http => {
                if table.has("task") {
                    self.log.mistake(table.at(), "`request` in a step over http; `task` is for mcp");
                }
                let Some(mut request) = table.table("request") else {
                    self.log.mistake(table.at(), "`request` in a step over http");
                    return StepAction::Request(Value::Null);
                };
                StepAction::Request(self.request(&mut request, table))
            }
            Transport::Mcp => {
                let mut name = table.needed_text("task");
                let fallback = table.text("task_default");
                if name.starts_with("$test_kit.")
                    && let Some(fallback) = fallback
                {
                    name = format!("{name}|{fallback}");
                }
                if name == "assert_contribution" {
                    return StepAction::Contributions;
                }
                let arguments = table.json("sample_request").unwrap_or_else(|| Value::Object(Map::new()));
                if !arguments.is_object()
                    && let Some(node) = table.node("sample_request")
                {
                    table.wrong(node, "sample_request", "a mapping");
                }
                StepAction::Tool { name, arguments }
            }
        }
    }

    fn request(&self, request: &mut MappingReader<'_>, step: &mut MappingReader<'_>) -> Value {
        let method = request.text("method").unwrap_or_else(|| "POST".to_owned());
        if !method.starts_with('$') && http::Method::from_bytes(method.as_bytes()).is_err() {
            self.log.mistake(request.at(), format!("`method` to be an HTTP method, not {method:?}"));
        }
        let path = request.needed_text("path");
        if !path.is_empty()
            && !path.starts_with(['/', '$', '{'])
            && let Some(node) = request.node("path")
        {
            self.log.mistake(node.at, "`path` to begin with / or a value from the context");
        }
        if request.has("body") && request.has("body_raw") {
            self.log.mistake(request.at(), "`body` or `body_raw`, not both");
        }
        if let Some(headers) = request.table("headers") {
            drop(headers);
        }
        if request.has("key") && request.has("key_text") {
            self.log.mistake(request.at(), "`key` or `key_text`, not both");
        }
        for name in ["headers", "body", "body_raw", "key", "key_text"] {
            // Read, so that they are not reported as unknown.
            request.has(name);
        }
        let whole = step.json("request").unwrap_or(Value::Null);
        let mut whole = match whole {
            Value::Object(members) => members,
            _ => Map::new(),
        };
        whole.insert("method".to_owned(), Value::String(method));
        for name in whole.keys() {
            if !["method", "path", "headers", "body", "body_raw", "key", "key_text"].contains(&name.as_str())
            {
                self.log.notice(request.at(), &format!("`{name}` of a request is unknown and ignored"));
            }
        }
        Value::Object(whole)
    }

    fn trip(&self, mut trip: MappingReader<'_>) -> StepAction {
        let attempts = match self.dialect {
            StoryboardDialect::Own => 1..=5000,
            StoryboardDialect::Adcp => 50..=500,
        };
        let attempts = trip.number("max_attempts", attempts).unwrap_or(200);
        let longest = trip.number("replay_max_wait_seconds", 0..=3600).unwrap_or(30);
        let target = match self.transport {
            Transport::Mcp => {
                let name = trip.needed_text("trip_target_task");
                let arguments =
                    trip.json("trip_target_sample_request").unwrap_or_else(|| Value::Object(Map::new()));
                StepAction::Tool { name, arguments }
            }
            Transport::Http => {
                let Some(mut request) = trip.table("request") else {
                    self.log.mistake(trip.at(), "`request` in a rate_limit_trip over http");
                    return StepAction::Restart;
                };
                StepAction::Request(self.request(&mut request, &mut trip))
            }
        };
        trip.finish(&[]);
        let attempts = usize::try_from(attempts).unwrap_or(usize::MAX);
        StepAction::Trip(Trip { target: Box::new(target), attempts, longest: Duration::from_secs(longest) })
    }

    fn spread(&self, table: &mut MappingReader<'_>) -> Spread {
        if let Some(times) = table.number("repeat", 2..=1000) {
            return Spread::Repeat(usize::try_from(times).unwrap_or(usize::MAX));
        }
        let Some(mut dispatch) = table.table("parallel_dispatch") else { return Spread::Once };
        let most = match self.dialect {
            StoryboardDialect::Own => 1000,
            StoryboardDialect::Adcp => 10,
        };
        if !dispatch.has("count") {
            self.log.mistake(dispatch.at(), format!("`count` in parallel_dispatch, from 2 to {most}"));
        }
        let count = dispatch.number("count", 2..=most).unwrap_or(2);
        let key = match dispatch.flag("same_idempotency_key") {
            Some(false) => SharedKey::Fresh,
            Some(true) | None => SharedKey::Same,
        };
        let barrier = dispatch.number("barrier_timeout_ms", 1..=600_000).unwrap_or(5000);
        let vary = dispatch.items("vary").iter().map(crate::yaml::YamlNode::json).collect();
        dispatch.finish(&[]);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        Spread::Parallel(Parallel { count, key, barrier: Duration::from_millis(barrier), vary })
    }

    fn outputs(&self, table: &mut MappingReader<'_>) -> Vec<Output> {
        let read = |mut output: MappingReader<'_>| {
            let at = output.at();
            // Both names are in use.
            let name = output.text("key").unwrap_or_else(|| output.needed_text("name"));
            // An empty path is the whole answer.
            let path = output.text("path");
            let generate = output.text("generate");
            output.finish(&["description"]);
            let from = match (path, generate.as_deref()) {
                (Some(path), None) => ValueSource::Path(path),
                (None, Some("uuid_v4" | "opaque_id")) => ValueSource::Generate,
                (None, Some(other)) => {
                    self.log.mistake(at, format!("`generate` to be uuid_v4 or opaque_id, not {other:?}"));
                    return None;
                }
                (Some(_), Some(_)) | (None, None) => {
                    self.log
                        .mistake(at, format!("exactly one of `path` and `generate` for the output `{name}`"));
                    return None;
                }
            };
            Some(Output { name, from })
        };
        table.tables("context_outputs").into_iter().filter_map(read).collect()
    }

    fn inputs(table: &mut MappingReader<'_>) -> Vec<Input> {
        let read = |mut input: MappingReader<'_>| {
            let read = Input { key: input.needed_text("key"), inject_at: input.needed_text("inject_at") };
            input.finish(&["description"]);
            read
        };
        table.tables("context_inputs").into_iter().map(read).collect()
    }

    fn auth(table: &mut MappingReader<'_>) -> Auth {
        let Some(value) = table.json("auth") else { return Auth::Given };
        match &value {
            Value::String(word) if word == "none" => Auth::None,
            Value::String(word) if word == "other" => Auth::Other,
            Value::Object(members) => {
                let text = |name: &str| members.get(name).and_then(Value::as_str);
                if let Some(token) = text("token") {
                    return Auth::Token(token.to_owned());
                }
                match (text("from_test_kit"), members.get("from_test_kit"), text("value_strategy")) {
                    (Some(path), _, _) => Auth::Kit(path.to_owned()),
                    (None, Some(Value::Bool(true)), _) => Auth::Kit("auth.api_key".to_owned()),
                    (None, _, Some("random_invalid")) if text("type") == Some("basic") => {
                        Auth::Invalid("basic")
                    }
                    (None, _, Some("random_invalid_jwt")) => Auth::Invalid("jwt"),
                    (None, _, Some("random_invalid")) => Auth::Invalid("bearer"),
                    _ => Auth::Unknown(value.to_string()),
                }
            }
            _ => {
                if let Some(node) = table.node("auth") {
                    table.wrong(node, "auth", "none, other or a mapping");
                }
                Auth::Given
            }
        }
    }
}
