//! Prepares the calls of a step: fills in values, adds keys, finds credentials.

use base64::Engine as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::file::File;
use super::grade::RecordedExchange;
use super::step::SendResult;
use crate::call::{Begun, CheckCall};
use crate::key::set_key;
use crate::path::Path;
use crate::report::{Reason, Skip};
use crate::storyboard::{Auth, KeyRule, StepAction, StoryboardDialect, StoryboardStep};
use crate::substitute::{Unresolved, uuid_v4};

/// The header that the draft names.
pub(super) const KEY_HEADER: &str = "Idempotency-Key";

pub(super) fn missing(tool: &str) -> Skip {
    let reason =
        if tool == "comply_test_controller" { Reason::MissingTestController } else { Reason::MissingTool };
    Skip::new(reason, format!("the target has no tool `{tool}`"))
}

/// The request or the arguments, with every value filled in.
pub(super) fn filled(
    file: &File<'_>,
    step: &StoryboardStep,
    action: &StepAction,
    key: Option<&str>,
) -> Result<StepAction, SendResult> {
    let scope = file.scope();
    let inject = |into: &mut Value| {
        for input in &step.inputs {
            let Some(value) = file.context.get(&input.key) else {
                // The other dialect ignores an input without a value.
                if file.storyboard.dialect == StoryboardDialect::Own {
                    return Err(SendResult::Unresolved(Unresolved(format!("$context.{}", input.key))));
                }
                continue;
            };
            inject_at(&input.inject_at, action).set(into, value.clone());
        }
        Ok(())
    };
    match action {
        StepAction::Request(request) => {
            let mut request = scope.fill(request).map_err(SendResult::from)?;
            inject(&mut request)?;
            let uuid = |name: &str| {
                let mut aliases = file.aliases.lock();
                aliases.entry(name.to_owned()).or_insert_with(uuid_v4).clone()
            };
            let header = file.runner.options.key_header.as_deref().unwrap_or(KEY_HEADER);
            set_key(&mut request, file.key_form, header, uuid);
            if header != KEY_HEADER {
                rename_key_header(&mut request, header);
            }
            if let Some(key) = key {
                set_key_header(&mut request, header, &file.key_form.key(key));
            }
            Ok(StepAction::Request(request))
        }
        StepAction::Tool { name, arguments } => {
            let (name, fallback) =
                name.split_once('|').map_or((name.as_str(), None), |(name, other)| (name, Some(other)));
            let name = match (scope.fill_text(name), fallback) {
                (Ok(name), _) => name,
                (Err(_), Some(fallback)) => fallback.to_owned(),
                (Err(unresolved), None) => return Err(unresolved.into()),
            };
            if !file.has_tool(&name) {
                return Err(SendResult::Skipped(missing(&name)));
            }
            let mut arguments = scope.fill(arguments).map_err(SendResult::from)?;
            inject(&mut arguments)?;
            if let Some(members) = arguments.as_object_mut() {
                if step.key == KeyRule::Omit {
                    members.shift_remove("idempotency_key");
                } else if let Some(key) = key {
                    members.insert("idempotency_key".to_owned(), json!(key));
                } else if !members.contains_key("idempotency_key") && wants_key(&name, file.tools.get(&name))
                {
                    members.insert("idempotency_key".to_owned(), json!(uuid_v4()));
                }
            }
            Ok(StepAction::Tool { name, arguments })
        }
        other => Ok(other.clone()),
    }
}

/// The place of an input: in the arguments; over HTTP in the body, unless it names another part of the request.
fn inject_at(path: &str, action: &StepAction) -> Path {
    let part = path.split(['.', '[']).next().unwrap_or_default();
    let named = ["method", "path", "headers", "body", "body_raw", "key", "key_text"].contains(&part);
    match action {
        StepAction::Request(_) if !named => match path.strip_prefix('/') {
            Some(pointer) => Path::parse(&format!("/body/{pointer}")),
            None => Path::parse(&format!("body.{path}")),
        },
        _ => Path::parse(path),
    }
}

pub(super) fn set_key_header(request: &mut Value, header: &str, key: &str) {
    let Some(request) = request.as_object_mut() else { return };
    let headers = request.entry("headers").or_insert_with(|| json!({}));
    if let Some(headers) = headers.as_object_mut() {
        let known = headers.keys().find(|name| name.eq_ignore_ascii_case(header)).cloned();
        headers.insert(known.unwrap_or_else(|| header.to_owned()), json!(key));
    }
}

/// For an API that reads keys from another header than the file says.
fn rename_key_header(request: &mut Value, header: &str) {
    let Some(headers) = request.get_mut("headers").and_then(Value::as_object_mut) else { return };
    let written = headers.keys().find(|name| name.eq_ignore_ascii_case(KEY_HEADER)).cloned();
    if let Some(value) = written.and_then(|name| headers.shift_remove(&name)) {
        headers.insert(header.to_owned(), value);
    }
}

/// True if a tool changes something and so needs a key: by its schema, else by its name.
fn wants_key(name: &str, schema: Option<&Value>) -> bool {
    let schema = schema.unwrap_or(&Value::Null);
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    if schema.pointer("/properties/idempotency_key").is_some()
        || required.into_iter().any(|name| name == "idempotency_key")
    {
        return true;
    }
    let strict = schema.get("additionalProperties") == Some(&Value::Bool(false));
    let reads = ["get_", "list_", "check_", "preview_", "validate_", "comply_", "search_", "tasks_"];
    !strict && !reads.iter().any(|start| name.starts_with(start))
}

/// Prepares a call.
pub(super) async fn call(
    file: &File<'_>,
    step: &StoryboardStep,
    action: &StepAction,
) -> Result<CheckCall, SendResult> {
    let credential = match credential(file, &step.auth) {
        Ok(credential) => credential,
        Err(skip) => return Err(SendResult::Skipped(skip)),
    };
    let credential = credential.as_deref();
    let caller = &file.runner.caller;
    let call = match action {
        StepAction::Request(request) => CheckCall::request(request, credential, &file.runner.options),
        StepAction::Tool { name, arguments } => {
            match caller.begin(credential).await {
                Err(error) => return Err(SendResult::Failed(error.to_string())),
                // A credential that cannot begin a session was refused: that is the answer.
                Ok(Begun::Refused(answer)) => {
                    let asked = json!({"tool": name, "arguments": arguments});
                    let exchange = RecordedExchange::new(asked, *answer, Instant::now());
                    return Err(SendResult::Answered(vec![exchange]));
                }
                Ok(Begun::Session) => {}
            }
            caller.tool(name, arguments, credential)
        }
        _ => Err("nothing to send".to_owned()),
    };
    call.map_err(SendResult::Failed)
}

fn credential(file: &File<'_>, auth: &Auth) -> Result<Option<String>, Skip> {
    Ok(match auth {
        Auth::Given => file.credential(),
        Auth::None => None,
        Auth::Token(token) => match file.scope().fill_text(token) {
            Ok(token) => Some(token),
            Err(Unresolved(token)) => {
                return Err(Skip::new(Reason::NotApplicable, format!("needs a credential: {token}")));
            }
        },
        Auth::Other => match &file.runner.options.other_auth {
            Some(other) => Some(other.clone()),
            None => {
                return Err(Skip::new(Reason::NotApplicable, "needs a second principal: --other-auth TOKEN"));
            }
        },
        Auth::Kit(path) => match Path::parse(path).get(&file.storyboard.test_kit) {
            Some(Value::String(token)) => Some(token),
            Some(basic @ Value::Object(_)) => Some(basic_credential(&basic)),
            _ if path == "auth.api_key" && file.credential().is_some() => file.credential(),
            _ => return Err(Skip::new(Reason::NotApplicable, format!("the test kit has no `{path}`"))),
        },
        Auth::Invalid("basic") => {
            Some(basic_credential(&json!({"credentials": format!("nobody:{}", file.invalid)})))
        }
        Auth::Invalid("jwt") => {
            let part = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
            Some(format!("{}.{}.{}", part("head"), part(&file.invalid), part("signature")))
        }
        Auth::Invalid(_) => Some(file.invalid.clone()),
        Auth::Unknown(what) => {
            return Err(Skip::new(
                Reason::NotApplicable,
                format!("this runner cannot authenticate with {what}"),
            ));
        }
    })
}

fn basic_credential(kit: &Value) -> String {
    let text = |name: &str| kit.get(name).and_then(Value::as_str).unwrap_or_default();
    let pair = match text("credentials") {
        "" => format!("{}:{}", text("username"), text("password")),
        pair => pair.to_owned(),
    };
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
}

/// Changes the correlation id, if there is one. Returns the new and the original value.
pub(super) fn tell_apart(arguments: &mut Value, suffix: &str) -> Option<(Value, Value)> {
    let id = arguments.pointer_mut("/context/correlation_id")?;
    let written = id.clone();
    let sent = Value::String(format!("{}--{suffix}", written.as_str()?));
    *id = sent.clone();
    Some((sent, written))
}
