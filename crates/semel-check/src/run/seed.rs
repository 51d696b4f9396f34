//! Creates fixtures through the target's test controller.

use serde_json::{Value, json};

use super::file::File;
use crate::report::{Reason, Skip};
use crate::wire::WireError;

const CONTROLLER: &str = "comply_test_controller";

/// Kinds of fixtures in order of dependency: the name of the list, the scenario, the name of the id.
const KINDS: [(&str, &str, &str); 6] = [
    ("accounts", "seed_account", "account_id"),
    ("products", "seed_product", "product_id"),
    ("pricing_options", "seed_pricing_option", "pricing_option_id"),
    ("plans", "seed_plan", "plan_id"),
    ("creatives", "seed_creative", "creative_id"),
    ("media_buys", "seed_media_buy", "media_buy_id"),
];

/// Creates every fixture. Returns the reason if the file does not apply.
pub(super) async fn seed(file: &mut File<'_>) -> Result<Option<Skip>, WireError> {
    if !file.has_tool(CONTROLLER) {
        return Ok(Some(Skip::new(
            Reason::NotApplicable,
            format!("the target has no tool {CONTROLLER} to seed with"),
        )));
    }
    let listed = call(file, &json!({"scenario": "list_scenarios"})).await?;
    let Ok(listed) = listed else {
        return Ok(Some(Skip::new(
            Reason::NotApplicable,
            format!("{CONTROLLER} does not list its scenarios"),
        )));
    };
    let known = listed.get("scenarios").cloned().unwrap_or(Value::Null);
    for (list, scenario, id) in KINDS {
        let fixtures =
            file.storyboard.fixtures.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
        if fixtures.is_empty() {
            continue;
        }
        if !lists(&known, scenario) {
            let detail = format!("fixture_seed_unsupported: {CONTROLLER} does not offer {scenario}");
            return Ok(Some(Skip::new(Reason::NotApplicable, detail)));
        }
        for fixture in fixtures {
            let Ok(fixture) = file.scope().fill(&fixture) else {
                return Ok(Some(Skip::new(
                    Reason::FixtureUnavailable,
                    format!("an entry of {list} has an unfilled value"),
                )));
            };
            let params = params(&fixture, id);
            if let Err(code) = call(file, &json!({"scenario": scenario, "params": params})).await? {
                let reason = if code == "UNKNOWN_SCENARIO" {
                    Reason::NotApplicable
                } else {
                    Reason::FixtureUnavailable
                };
                return Ok(Some(Skip::new(reason, format!("{scenario} was refused: {code}"))));
            }
        }
    }
    Ok(None)
}

/// The ids of a fixture, and its other members.
fn params(fixture: &Value, id: &str) -> Value {
    let mut params = serde_json::Map::new();
    // A pricing option is identified together with its product.
    for name in [id, "product_id"] {
        if let Some(value) = fixture.get(name) {
            params.insert(name.to_owned(), value.clone());
        }
    }
    let inner = match fixture.get("fixture") {
        Some(inner) => inner.clone(),
        None => {
            let mut inner = fixture.clone();
            if let Some(members) = inner.as_object_mut() {
                members.shift_remove(id);
            }
            inner
        }
    };
    params.insert("fixture".to_owned(), inner);
    Value::Object(params)
}

/// Scenarios are a list of names, a list of objects with a name, or an object by name.
fn lists(known: &Value, scenario: &str) -> bool {
    match known {
        Value::Array(items) => items.iter().any(|item| {
            item.as_str() == Some(scenario)
                || ["name", "scenario", "id"]
                    .iter()
                    .any(|name| item.get(*name).and_then(Value::as_str) == Some(scenario))
        }),
        Value::Object(members) => {
            members.contains_key(scenario) || members.values().any(|inner| lists(inner, scenario))
        }
        _ => false,
    }
}

/// Calls the controller and returns its payload, or the code of its error.
async fn call(file: &File<'_>, arguments: &Value) -> Result<Result<Value, String>, WireError> {
    let caller = &file.runner.caller;
    let credential = file.credential();
    let call = caller.tool(CONTROLLER, arguments, credential.as_deref()).map_err(WireError::Request)?;
    let answer = caller.send(&call).await?;
    let failed = answer.error.is_some() || answer.payload.get("success") == Some(&Value::Bool(false));
    if failed {
        let code = answer.code().map(str::to_owned);
        let other = answer.payload.get("error").and_then(Value::as_str).map(str::to_owned);
        return Ok(Err(code.or(other).unwrap_or_else(|| format!("status {}", answer.status))));
    }
    Ok(Ok(answer.payload))
}
