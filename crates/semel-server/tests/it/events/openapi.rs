//! The OpenAPI document describes what the server takes and answers, on every path.

use std::collections::BTreeSet;

use semel_testbed::{Redis, wait};
use serde_json::{Value, json};

use super::{Bench, target};
use crate::kit::{Http, PATIENCE, Sink};

/// Sends requests and compares both sides with the document.
struct Documented {
    admin: Http,
    document: Value,
    called: BTreeSet<(String, String)>,
}

impl Documented {
    /// Calls `METHOD /path/{id}?query`, where `id` stands for the variable part.
    #[track_caller]
    fn call(&mut self, operation: &str, id: &str, body: impl Into<Option<Value>>, status: u16) -> Value {
        let (method, target) = operation.split_once(' ').unwrap();
        let (path, query) = target
            .split_once('?')
            .map_or((target, String::new()), |(path, query)| (path, format!("?{query}")));
        let described = &self.document["paths"][path][method.to_lowercase()];
        assert!(described.is_object(), "{operation} is documented");
        self.called.insert((path.to_owned(), method.to_lowercase()));
        let variable = path.split_once('{').map(|(_, rest)| rest.split_once('}').unwrap().0);
        let path = variable.map_or(path.to_owned(), |name| path.replace(&format!("{{{name}}}"), id));
        let parameters: Vec<&str> = described["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|one| one["name"].as_str())
            .collect();
        for pair in query.trim_start_matches('?').split('&').filter(|pair| !pair.is_empty()) {
            assert!(
                parameters.contains(&pair.split('=').next().unwrap()),
                "{pair} of {operation} is documented"
            );
        }
        let body: Option<Value> = body.into();
        let text = body.as_ref().map(Value::to_string).unwrap_or_default();
        let answer = self.admin.send(method, &format!("{path}{query}"), &text);
        assert_eq!(answer.status, status, "{operation}: {}", answer.text());
        if status != 400
            && let Some(body) = &body
        {
            let schema = &described["requestBody"]["content"]["application/json"]["schema"];
            self.check(schema, body, operation);
        }
        let media = answer.header("content-type").unwrap().split(';').next().unwrap();
        let schema = &described["responses"][status.to_string()]["content"][media]["schema"];
        assert!(!schema.is_null(), "{status} {media} of {operation} is documented");
        let found = if media == "text/plain" { Value::String(answer.text()) } else { answer.json() };
        self.check(schema, &found, operation);
        found
    }

    /// Compares a value with a schema: the keywords that the document uses, and no others.
    #[track_caller]
    fn check(&self, schema: &Value, value: &Value, place: &str) {
        if let Err(error) = self.compare(schema, value) {
            panic!("{place}: {error}\nvalue: {value}\nschema: {schema}");
        }
    }

    fn compare(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let Value::Object(keywords) = schema else {
            return if *schema == json!(true) { Ok(()) } else { Err(format!("{schema} allows nothing")) };
        };
        for (keyword, wanted) in keywords {
            let items = || value.as_array().into_iter().flatten();
            let members = || value.as_object().into_iter().flatten();
            let wrong = || format!("{keyword}: expected {wanted}, found {value}");
            let fits = match keyword.as_str() {
                "description" | "default" | "format" => true,
                "$ref" => {
                    let name = wanted.as_str().and_then(|name| name.strip_prefix('#')).ok_or_else(wrong)?;
                    let referred = self.document.pointer(name).ok_or_else(wrong)?;
                    self.compare(referred, value)?;
                    true
                }
                "type" => match wanted {
                    Value::Array(types) => types.iter().any(|one| is_of_type(value, one)),
                    one => is_of_type(value, one),
                },
                "enum" => wanted.as_array().ok_or_else(wrong)?.contains(value),
                "const" => wanted == value,
                "minimum" => value.as_f64().is_none_or(|number| Some(number) >= wanted.as_f64()),
                "maximum" => value.as_f64().is_none_or(|number| Some(number) <= wanted.as_f64()),
                "minItems" => {
                    value.as_array().is_none_or(|items| Some(items.len() as u64) >= wanted.as_u64())
                }
                "maxItems" => {
                    value.as_array().is_none_or(|items| Some(items.len() as u64) <= wanted.as_u64())
                }
                "items" => {
                    items().try_for_each(|item| self.compare(wanted, item))?;
                    true
                }
                "prefixItems" => {
                    let each = wanted.as_array().ok_or_else(wrong)?;
                    each.iter().zip(items()).try_for_each(|(schema, item)| self.compare(schema, item))?;
                    true
                }
                "required" => {
                    let names = wanted.as_array().ok_or_else(wrong)?;
                    !value.is_object() || names.iter().all(|name| value.get(name.as_str().unwrap()).is_some())
                }
                "properties" => {
                    for (name, member) in members() {
                        match wanted.get(name) {
                            Some(schema) => {
                                self.compare(schema, member).map_err(|error| format!("{name}: {error}"))?;
                            }
                            None if keywords.contains_key("additionalProperties") => {}
                            // Where nothing says that there can be others, every member is documented.
                            None => return Err(format!("{name} is not documented")),
                        }
                    }
                    true
                }
                "additionalProperties" => {
                    let known = |name: &str| {
                        keywords.get("properties").is_some_and(|known| known.get(name).is_some())
                    };
                    members()
                        .filter(|(name, _)| !known(name))
                        .try_for_each(|(_, member)| self.compare(wanted, member))?;
                    true
                }
                "anyOf" => {
                    wanted.as_array().ok_or_else(wrong)?.iter().any(|one| self.compare(one, value).is_ok())
                }
                "oneOf" => {
                    wanted
                        .as_array()
                        .ok_or_else(wrong)?
                        .iter()
                        .filter(|one| self.compare(one, value).is_ok())
                        .count()
                        == 1
                }
                other => return Err(format!("the keyword {other} is not known here")),
            };
            if !fits {
                return Err(wrong());
            }
        }
        Ok(())
    }
}

fn is_of_type(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is a type"),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is text")).to_owned()
}

#[test]
fn every_path_answers_as_documented() {
    let (redis, sink) = (Redis::start().unwrap(), Sink::start());
    sink.answer_with(422);
    // Everything is buffered, and nothing is drained.
    let gate = format!("[gate]\nmode = \"on\"\nthreshold = 0\nbuffer = \"{}\"\ndrainers = 0\n", redis.url());
    let bench = Bench::new(&[target("crm", &sink, ""), gate].concat());
    let semel = bench.start();
    let admin = semel.admin();
    let document = admin.get("/openapi.json").expect(200);
    let mut api = Documented { admin: admin.clone(), document, called: BTreeSet::new() };
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json"] {
        api.call(&format!("GET {path}"), "", None, 200);
    }

    // Claims and keys.
    let claim =
        |key: &str| json!({ "namespace": "n", "scope": ["a"], "key": key, "mode": "keyed", "provider": "p" });
    let won = api.call("POST /v1/claims", "", claim("done"), 200);
    assert_eq!(api.call("POST /v1/claims", "", claim("done"), 200)["status"], "busy");
    let (key, id) = (text(&won["key_id"]), text(&won["claim_id"]));
    api.call("GET /v1/keys/{id}", &key, None, 200);
    assert_eq!(
        api.call("POST /v1/keys/{id}/forget", &key, json!({ "reason": "r" }), 409)["phase"],
        "claimed"
    );
    api.call("POST /v1/claims/{claim_id}/begin", &id, None, 200);
    api.call("POST /v1/claims/{claim_id}/renew", &id, None, 200);
    api.call(
        "POST /v1/claims/{claim_id}/complete",
        &id,
        json!({ "outcome": { "n": 1 }, "retention": "1h" }),
        200,
    );
    assert_eq!(api.call("POST /v1/claims", "", claim("done"), 200)["outcome"]["n"], 1);
    let lost = api.call("POST /v1/claims/{claim_id}/complete", &id, json!({ "outcome": 2 }), 409);
    assert_eq!(lost["outcome"]["n"], 1);
    let won = api.call("POST /v1/claims", "", claim("released"), 200);
    api.call("POST /v1/claims/{claim_id}/release", &text(&won["claim_id"]), None, 200);
    api.call("POST /v1/claims/{claim_id}/release", "x", None, 404);
    let won = api.call("POST /v1/claims", "", claim("abandoned"), 200);
    api.call("POST /v1/claims/{claim_id}/abandon", &text(&won["claim_id"]), None, 200);
    let operations = json!([{ "claim": claim("batch") }, { "renew": { "claim_id": "x" } }]);
    let batch = api.call("POST /v1/claims/batch", "", json!({ "operations": operations }), 200);
    let id = text(&batch["results"][0]["result"]["claim_id"]);
    api.call("POST /v1/claims/renew", "", json!({ "claim_ids": [id] }), 200);
    let outcome = json!({ "claim_id": id, "outcome": [1] });
    let operations = json!([{ "complete": outcome }, { "claim": claim("done") }]);
    api.call("POST /v1/claims/batch?wait=false", "", json!({ "operations": operations }), 200);
    let won = api.call("POST /v1/claims", "", claim("deferred"), 200);
    let id = text(&won["claim_id"]);
    api.call("POST /v1/claims/{claim_id}/complete?wait=false", &id, json!({ "outcome": [1] }), 202);
    let short =
        json!({ "namespace": "n", "key": "lost", "lease": "1s", "in_flight_max": "1s", "begin": false });
    let doubted = api.call("POST /v1/claims", "", short, 200);
    api.call("POST /v1/claims/{claim_id}/begin", &text(&doubted["claim_id"]), None, 200);
    let doubted = text(&doubted["key_id"]);
    let phase = || admin.get(&format!("/v1/keys/{doubted}")).expect(200)["phase"].clone();
    wait::until("the key is in doubt", PATIENCE, || phase() == "in_doubt").unwrap();
    api.call(
        "POST /v1/keys/{id}/settle",
        &doubted,
        json!({ "reason": "r", "outcome": { "status": 201 } }),
        200,
    );
    api.call("POST /v1/keys/{id}/settle", &doubted, json!({ "reason": "r", "run": true }), 409);
    api.call("GET /v1/keys/{id}", &doubted, None, 200);
    api.call("POST /v1/keys/{id}/preview", &doubted, json!({ "reason": "r", "run": true }), 409);
    api.call("POST /v1/keys/find", "", json!({ "key": "k" }), 501);
    api.call("GET /v1/status", "", None, 200);
    api.call("GET /v1/targets", "", None, 200);
    for action in ["pause", "resume", "retry"] {
        let operation = format!("POST /v1/targets/{{name}}/{action}");
        api.call(&operation, "crm", json!({ "reason": "r" }), 200);
        api.call("GET /v1/targets", "", None, 200);
        api.call("GET /v1/status", "", None, 200);
        api.call(&operation, "x", json!({ "reason": "r" }), 404);
        api.call(&operation, "crm", json!({ "reason": "" }), 400);
    }
    api.call("GET /v1/keys?limit=1", "", None, 200);
    api.call("GET /v1/keys?namespace=n&scope=a&key=done&phase=done", "", None, 200);
    api.call("GET /v1/keys?phase=x", "", None, 400);
    api.call("POST /v1/keys/{id}/forget", &key, json!({ "reason": "r" }), 200);
    api.call("GET /v1/keys/{id}", "x", None, 400);
    api.call("GET /v1/keys/{id}", &"0".repeat(32), None, 404);

    // Events, deliveries, dead letters.
    let event = |payload: u32| json!({ "type": "t", "dedupe_key": "k", "payload": payload, "order_key": "o", "ttl": "1h" });
    let published = api.call("POST /v1/events", "", event(1), 201);
    api.call("POST /v1/events", "", event(1), 200);
    api.call("POST /v1/events", "", event(2), 422);
    api.call("POST /v1/events", "", json!({ "type": "t" }), 400);
    let id = text(&published["id"]);
    let letters = || admin.get("/v1/dead-letters").expect(200)["items"].as_array().unwrap().len();
    wait::until("the delivery is a dead letter", PATIENCE, || letters() == 1).unwrap();
    api.call("GET /v1/events?type=t&kind=event", "", None, 200);
    let found = api.call("GET /v1/events?type=t&dedupe_key=k", "", None, 200);
    assert_eq!(found["items"][0]["id"], published["id"]);
    let shown = api.call("GET /v1/events/{id}", &id, None, 200);
    assert_eq!(shown["deliveries"][0]["attempts"][0]["http_status"], 422);
    api.call("GET /v1/deliveries?state=dlq,done", "", None, 200);
    api.call("GET /v1/deliveries/{id}", &text(&shown["deliveries"][0]["id"]), None, 200);
    let letter = text(&api.call("GET /v1/dead-letters?status=pending", "", None, 200)["items"][0]["id"]);
    api.call("GET /v1/dead-letters/groups", "", None, 200);
    api.call("GET /v1/dead-letters/{id}", &letter, None, 200);
    api.call("POST /v1/dead-letters/{id}/discard", &letter, json!({ "reason": "r" }), 200);
    api.call("POST /v1/dead-letters/{id}/restore", &letter, json!({ "reason": "r" }), 200);
    let discard = |expected: u64| json!({ "status": "pending", "expected": expected, "reason": "r" });
    api.call(
        "POST /v1/dead-letters/discard",
        "",
        json!({ "status": "replayed", "expected": 1, "reason": "r" }),
        400,
    );
    api.call("POST /v1/dead-letters/discard", "", discard(2), 409);
    api.call("POST /v1/dead-letters/discard", "", discard(1), 200);
    api.call("POST /v1/dead-letters/{id}/restore", &letter, json!({ "reason": "r" }), 200);
    let copy = api.call(
        "POST /v1/dead-letters/{id}/edit",
        &letter,
        json!({ "reason": "r", "payload": { "n": 3 } }),
        201,
    );
    api.call("GET /v1/dead-letters/{id}", &text(&copy["id"]), None, 200);
    api.call("GET /v1/audit?limit=5", "", None, 200);
    api.call("GET /v1/story/{id}", &letter, None, 200);

    // Replays. At this rate the second item of the job waits.
    let failed = json!({ "status": "failed", "dry_run": true });
    assert_eq!(api.call("POST /v1/replays", "", failed, 200)["run"], 2);
    let both =
        json!({ "ids": [letter, copy["id"]], "rate": 0.001, "canary": 0, "mode": "resume", "reason": "r" });
    let job = text(&api.call("POST /v1/replays", "", both, 201)["id"]);
    api.call("POST /v1/replays", "", json!({}), 400);
    api.call("GET /v1/replays", "", None, 200);
    api.call("GET /v1/replays/{id}", &job, None, 200);
    api.call("GET /v1/replays/{id}/items", &job, None, 200);
    api.call("POST /v1/replays/{id}/pause", &job, json!({ "reason": "r" }), 200);
    api.call("POST /v1/replays/{id}/resume", &job, None, 200);
    api.call("POST /v1/replays/{id}/pace", &job, json!({ "rate": 0.002, "concurrency": 2 }), 200);
    api.call("POST /v1/replays/{id}/cancel", &job, None, 200);
    api.call("POST /v1/replays/{id}/pause", &job, None, 409);
    api.call("GET /v1/story/{id}", &job, None, 200);

    // Runs.
    let run = |key: &str| {
        json!({
            "target": "crm", "payload": [1], "tenant": "t", "tags": ["a"], "metadata": { "n": 1.10 }, "idempotency_key": key
        })
    };
    let buffered = api.call("POST /v1/runs", "", run("buffered"), 202);
    let id = text(&buffered["id"]);
    api.call("POST /v1/runs", "", run("buffered"), 200);
    assert_eq!(
        api.call("GET /v1/runs?buffered=true&tenant=t", "", None, 200)["items"][0]["id"],
        buffered["id"]
    );
    api.call("GET /v1/runs/{id}", &id, None, 200);
    let change = json!({ "add_tags": ["b"], "metadata": { "m": null, "s": "x" }, "increment": { "n": 2 } });
    api.call("PATCH /v1/runs/{id}", &id, change, 200);
    api.call("PATCH /v1/runs/{id}", &id, json!({ "version": 77 }), 409);
    api.call("GET /v1/story/{id}", &id, None, 200);
    api.call("POST /v1/runs/{id}/cancel", &id, json!({ "reason": "r" }), 200);
    let ended = api.call("POST /v1/runs?wait=true&timeout=30s", "", run("waited"), 201);
    assert_eq!(ended["status"], "dlq");
    let id = text(&ended["id"]);
    api.call("GET /v1/runs/{id}", &id, None, 200);
    api.call("POST /v1/runs/{id}/cancel", &id, None, 409);
    api.call("GET /v1/runs?target=crm", "", None, 200);
    api.call("GET /v1/story/{id}", &id, None, 200);
    api.call("POST /v1/runs/reset-key", "", json!({ "target": "crm", "key": "waited", "tenant": "t" }), 200);
    api.call("POST /v1/runs", "", json!({ "target": "x", "payload": 1 }), 422);
    api.call("GET /v1/runs/{id}", "run_01M7GBM2Y1383HH4YKYPMJEJS6", None, 404);

    // Every operation of the document was called, and a path has no other methods.
    for (path, methods) in api.document["paths"].as_object().unwrap() {
        for method in ["get", "post", "patch", "put", "delete"] {
            let documented = methods.get(method).is_some();
            assert_eq!(
                api.called.contains(&(path.clone(), method.to_owned())),
                documented,
                "{method} {path}"
            );
            if !documented {
                let answer = admin.send(&method.to_uppercase(), &path.replace(['{', '}'], ""), "");
                assert_eq!(answer.status, 405, "{method} {path}");
            }
        }
    }
}
