//! The routes of the admin API together with its OpenAPI document. A path that is served is documented, with the schemas of
//! the types that its handler takes and returns.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::handler::Handler;
use axum::http::HeaderName;
use axum::routing::{MethodRouter, get, patch, post};
use axum::{Extension, Router};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Value, json};

use super::Admin;
use super::access::Caller;
use super::answer::{Answer, JsonBody, PathId, PayloadBody, Problem, Refusal};
use super::listing::{Filters, ListQuery};

const DEFINITIONS: &str = "/components/schemas";

/// Routes and their document while they are collected.
pub(super) struct Api {
    router: Router<Arc<Admin>>,
    paths: BTreeMap<String, BTreeMap<&'static str, Operation>>,
    schemas: Schemas,
}

/// The schemas of requests and responses. A member that may be absent from a request can be in every response.
pub(super) struct Schemas {
    requests: SchemaGenerator,
    responses: SchemaGenerator,
}

/// What a path depends on, and so which problems it can answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing: anybody may call it.
    Nothing,
    /// A token, where the config has tokens.
    Token,
    /// A token and the store.
    Store,
    /// A token, the store and the ledger.
    Ledger,
}

/// Paths that share a tag.
pub(super) struct Group<'a> {
    api: &'a mut Api,
    tag: &'static str,
    id: &'static str,
    needs: Needs,
}

/// An operation of the document.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Operation {
    summary: &'static str,
    tags: [&'static str; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    security: Option<[(); 0]>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parameters: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_body: Option<Value>,
    responses: BTreeMap<u16, Value>,
}

impl Api {
    pub(super) fn new() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.meta_schema = None;
            settings.definitions_path = DEFINITIONS.into();
        });
        let requests = settings.clone().for_deserialize().into_generator();
        let responses = settings.for_serialize().into_generator();
        Self { router: Router::new(), paths: BTreeMap::new(), schemas: Schemas { requests, responses } }
    }

    /// Paths with this tag. `id` describes the variable part of those that have one.
    pub(super) fn group(&mut self, tag: &'static str, id: &'static str, needs: Needs) -> Group<'_> {
        Group { api: self, tag, id, needs }
    }

    /// The routes, and the document about them.
    pub(super) fn finish(mut self) -> (Router<Arc<Admin>>, Value) {
        let mut responses = self.schemas.responses.take_definitions(true);
        responses.values_mut().for_each(forbid_null);
        let mut schemas = self.schemas.requests.take_definitions(true);
        schemas.extend(responses);
        let mut document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Semel admin API",
                "version": "1",
                "description": "Keys, claims, events, deliveries, dead letters, replays and runs. Durations are strings such \
                                as \"5s\". A list answers {items, next}; send `next` as `cursor` to get the next page.",
            },
            "security": [{ "token": [] }, {}],
            "paths": self.paths,
            "components": {
                "securitySchemes": {
                    "token": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "Required if the configuration has [[token]] entries.",
                    },
                },
                "schemas": schemas,
            },
        });
        tidy(&mut document);
        (self.router, document)
    }
}

/// A member of a response that can be absent is never null.
fn forbid_null(schema: &mut Value) {
    match schema {
        Value::Object(keywords) => {
            let required = keywords.get("required").cloned().unwrap_or_default();
            let is_required =
                |name: &String| required.as_array().is_some_and(|names| names.iter().any(|one| one == name));
            if let Some(Value::Object(members)) = keywords.get_mut("properties") {
                for (_, member) in members.iter_mut().filter(|(name, _)| !is_required(name)) {
                    if let Some(Value::Array(types)) = member.get_mut("type") {
                        types.retain(|one| one != "null");
                        if let [only] = types.as_slice() {
                            member["type"] = only.clone();
                        }
                    }
                }
            }
            keywords.values_mut().for_each(forbid_null);
        }
        Value::Array(items) => items.iter_mut().for_each(forbid_null),
        _ => {}
    }
}

/// Removes number formats that OpenAPI does not know, and the line breaks of doc comments.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if members.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint"))
            {
                members.shift_remove("format");
            }
            if let Some(Value::String(text)) = members.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            members.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

macro_rules! methods {
    ($($name:ident),*) => {$(
        pub(super) fn $name<H, T, D>(&mut self, path: &str, handler: H, summary: &'static str) -> &mut Operation
        where
            H: Handler<T, Arc<Admin>> + Describe<D>,
            T: 'static,
        {
            self.add::<H, D>(stringify!($name), path, $name(handler), summary)
        }
    )*};
}

impl Group<'_> {
    methods!(get, post, patch);

    fn add<H: Describe<D>, D>(
        &mut self,
        method: &'static str,
        path: &str,
        route: MethodRouter<Arc<Admin>>,
        summary: &'static str,
    ) -> &mut Operation {
        let api = &mut *self.api;
        api.router = std::mem::take(&mut api.router).route(path, route);
        let mut operation = Operation {
            summary,
            tags: [self.tag],
            security: (self.needs == Needs::Nothing).then_some([]),
            parameters: Vec::new(),
            request_body: None,
            responses: BTreeMap::new(),
        };
        if let Some((_, rest)) = path.split_once('{')
            && let Some((name, _)) = rest.split_once('}')
        {
            let schema = json!({ "type": "string" });
            operation.parameters.push(
                json!({ "name": name, "in": "path", "required": true, "description": self.id, "schema": schema }),
            );
        }
        H::describe(&mut operation, &mut api.schemas);
        if self.needs != Needs::Nothing {
            operation.problem(401, "The token is missing or unknown.");
            operation.problem(403, "The token has no right to do this, or the request has a foreign origin.");
            operation.problem(
                429,
                "Too many wrong tokens from this address, or too many new keys; retry after Retry-After.",
            );
        }
        if self.needs == Needs::Ledger {
            operation.problem(501, "No ledger is configured; `detail` names the setting.");
        }
        if matches!(self.needs, Needs::Store | Needs::Ledger) {
            operation.problem(503, "The store or the ledger is unavailable; try again.");
        }
        let methods = api.paths.entry(path.to_owned()).or_default();
        methods.entry(method).or_insert(operation)
    }
}

impl Operation {
    /// A problem it can answer with.
    pub(super) fn problem(&mut self, status: u16, description: &str) -> &mut Self {
        let schema = json!({ "$ref": format!("#{DEFINITIONS}/Problem") });
        let content = json!({ "application/problem+json": { "schema": schema } });
        self.responses.insert(status, json!({ "description": description, "content": content }));
        self
    }

    /// The statuses of its successful answers, instead of 200.
    pub(super) fn success(&mut self, statuses: &[(u16, &str)]) -> &mut Self {
        let answer = self.responses.remove(&200).unwrap_or_default();
        for (status, description) in statuses {
            let response = json!({ "description": description, "content": answer["content"] });
            self.responses.insert(*status, response);
        }
        self
    }

    /// Another media type of its request body.
    pub(super) fn also_reads(&mut self, media: &str, schema: &Value) -> &mut Self {
        if let Some(body) = &mut self.request_body {
            body["content"][media] = json!({ "schema": schema });
        }
        self
    }

    /// An answer in plain text.
    fn text(&mut self) {
        let content = json!({ "text/plain": { "schema": { "type": "string" } } });
        self.responses.insert(200, json!({ "description": "The result.", "content": content }));
    }

    /// A parameter of its query.
    pub(super) fn parameter(&mut self, name: &str, description: &str, schema: &Value) -> &mut Self {
        let parameter = json!({ "name": name, "in": "query", "description": description, "schema": schema });
        self.parameters.push(parameter);
        self
    }

    fn bad_request(&mut self) {
        self.problem(400, "The request is invalid; `detail` names the mistake.");
    }

    /// A JSON answer with the schema of `T`, described by the doc comment of `T`.
    pub(super) fn answer<T: JsonSchema>(&mut self, status: u16, schemas: &mut Schemas) {
        let own = T::json_schema(&mut schemas.responses);
        let description = own.get("description").cloned().unwrap_or_else(|| json!("The result."));
        let mut schema = schemas.responses.subschema_for::<T>().to_value();
        forbid_null(&mut schema);
        let content = json!({ "application/json": { "schema": schema } });
        self.responses.insert(status, json!({ "description": description, "content": content }));
    }

    fn body<T: JsonSchema>(&mut self, schemas: &mut Schemas) {
        // An empty body is read as `{}`.
        let required = T::json_schema(&mut schemas.requests).get("required").is_some();
        let schema = schemas.requests.subschema_for::<T>();
        let content = json!({ "application/json": { "schema": schema } });
        self.request_body = Some(json!({ "required": required, "content": content }));
        self.bad_request();
    }
}

/// Plain text with its media type.
pub(super) type Text = ([(HeaderName, &'static str); 1], String);

/// A handler whose arguments and result can be described.
pub(super) trait Describe<Arguments> {
    fn describe(operation: &mut Operation, schemas: &mut Schemas);
}

/// An argument of a handler.
pub(super) trait Input {
    fn describe(_: &mut Operation, _: &mut Schemas) {}
}

/// The result of a handler.
pub(super) trait Output {
    fn describe(operation: &mut Operation, schemas: &mut Schemas);
}

macro_rules! describe_functions {
    ($(($($argument:ident),*))*) => {$(
        impl<F, R, $($argument),*> Describe<($($argument,)*)> for F
        where
            F: Fn($($argument),*) -> R,
            R: Future<Output: Output>,
            $($argument: Input),*
        {
            fn describe(operation: &mut Operation, schemas: &mut Schemas) {
                $($argument::describe(operation, schemas);)*
                <R::Output as Output>::describe(operation, schemas);
            }
        }
    )*};
}

describe_functions! { () (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) }

impl Input for State<Arc<Admin>> {}
impl Input for Extension<Caller> {}
impl Input for Query<Vec<(String, String)>> {}

impl Input for PathId {
    fn describe(operation: &mut Operation, _: &mut Schemas) {
        operation.bad_request();
    }
}

impl<T: JsonSchema> Input for JsonBody<T> {
    fn describe(operation: &mut Operation, schemas: &mut Schemas) {
        operation.body::<T>(schemas);
    }
}

impl<T: JsonSchema> Input for PayloadBody<T> {
    fn describe(operation: &mut Operation, schemas: &mut Schemas) {
        operation.body::<T>(schemas);
        operation.problem(413, "The payload is larger than `payload` in [limits].");
    }
}

impl<F: Filters> Input for ListQuery<F> {
    fn describe(operation: &mut Operation, _: &mut Schemas) {
        for parameter in F::PARAMETERS {
            let mut schema = json!({ "type": "string" });
            if let Some(values) = parameter.values {
                schema["enum"] = json!(values());
            }
            operation.parameter(parameter.name, parameter.description, &schema);
        }
        let limit = json!({ "type": "integer", "minimum": 1, "maximum": 1000, "default": 100 });
        operation.parameter("cursor", "`next` of the previous page.", &json!({ "type": "string" }));
        operation.parameter("limit", "Maximum number of items in a page.", &limit);
        operation.bad_request();
    }
}

impl Output for &'static str {
    fn describe(operation: &mut Operation, _: &mut Schemas) {
        operation.text();
    }
}

impl Output for Text {
    fn describe(operation: &mut Operation, _: &mut Schemas) {
        operation.text();
    }
}

impl<T: JsonSchema> Output for Answer<T> {
    fn describe(operation: &mut Operation, schemas: &mut Schemas) {
        operation.answer::<T>(200, schemas);
    }
}

impl<T: Output> Output for Result<T, Refusal> {
    fn describe(operation: &mut Operation, schemas: &mut Schemas) {
        // Every operation that can fail answers with it.
        schemas.responses.subschema_for::<Problem>();
        T::describe(operation, schemas);
    }
}
