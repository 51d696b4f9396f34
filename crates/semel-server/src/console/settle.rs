//! Settling a key in doubt: what happened, the answer that clients will get, then the settlement.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use semel::record::Phase;
use semel::store::Snapshot;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::actions;
use super::html::{self, Html};
use super::page::{Notice, Page, Section, answer, go, message_of, show};
use super::strip::Strip;
use super::visitor::{Submission, Visitor};
use crate::admin::answer::reason;
use crate::admin::audit::run_to_completion;
use crate::admin::keys::{SettleRequest, check_fence, find, preview_settlement, settle_key};
use crate::admin::records::{AnswerContent, phase_name};
use crate::admin::{Admin, Refusal};

/// What the form says if another attempt is in doubt than the one that it showed.
const CHANGED: &str = "The key changed since it was shown: somebody settled it, and another attempt is in doubt now. Nothing was changed. \
                       Ask the upstream about the attempt below.";

/// The fields of the form.
#[derive(Clone, Default)]
struct SettleFields {
    /// `done` or `run`.
    happened: String,
    status: String,
    headers: String,
    body: String,
    reason: String,
    /// The fence of the attempt that the form showed.
    fence: Option<u64>,
}

#[derive(Template)]
#[template(path = "settle.html")]
struct SettlePage {
    page: Page,
    id: String,
    /// The attempt that is shown: no other one is settled.
    fence: u64,
    attempt: u32,
    hint: String,
    request: String,
    request_id: String,
    claimed: Html,
    is_of_gateway: bool,
    fields: SettleFields,
    preview: Option<Preview>,
    /// What may be a mistake in the answer: a settled key cannot be settled again.
    cautions: Vec<String>,
    problem: Option<String>,
    command: String,
}

impl SettlePage {
    fn has_preview(&self) -> bool {
        self.preview.is_some()
    }
}

/// What clients will get.
enum Preview {
    /// This answer, and the names of headers that were given and are never stored.
    Answer(AnswerContent, Vec<String>),
    /// The outcome of a key that is not the gateway's.
    Outcome(String),
    /// The effect runs.
    Run,
}

pub(super) async fn form(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Response {
    answer(&admin, &visitor, async { page(&admin, &visitor, &id, SettleFields::default(), None, None).await })
        .await
}

async fn page(
    admin: &Arc<Admin>,
    visitor: &Visitor,
    id: &str,
    fields: SettleFields,
    preview: Option<Preview>,
    problem: Option<String>,
) -> Result<Response, Refusal> {
    let (key, snapshot) = find(&admin.engine, id).await?;
    if snapshot.phase() != Phase::InDoubt {
        return Ok(not_in_doubt(admin, visitor, &snapshot).await);
    }
    let origin = snapshot.record.hint.origin();
    let part = |part: Option<&str>| part.unwrap_or_default().to_owned();
    let method = part(origin.and_then(|origin| origin.method()));
    let path = part(origin.and_then(|origin| origin.path()));
    Ok(show(&SettlePage {
        page: Page::new(admin, visitor, Section::Keys, "Settle a key").await,
        id: key.to_string(),
        fence: snapshot.record.fence.get(),
        attempt: snapshot.record.attempt,
        hint: html::hint(&snapshot.record.hint),
        request: format!("{method} {path}").trim().to_owned(),
        request_id: part(origin.and_then(|origin| origin.request_id())),
        claimed: html::when(snapshot.record.claimed_at),
        is_of_gateway: origin.is_some(),
        command: fields.command(&key.to_string(), origin.is_some()),
        cautions: match &preview {
            Some(Preview::Answer(..)) => fields.cautions(),
            _ => Vec::new(),
        },
        fields,
        preview,
        problem,
    }))
}

/// The state of a key that cannot be settled, without a form.
async fn not_in_doubt(admin: &Arc<Admin>, visitor: &Visitor, snapshot: &Snapshot) -> Response {
    let (id, hint) = (snapshot.id, html::hint(&snapshot.record.hint));
    let phase = phase_name(snapshot.phase());
    show(&Notice {
        page: Page::new(admin, visitor, Section::Keys, "Settle a key").await,
        heading: format!("The key {hint} is not in doubt"),
        sentences: vec![format!("It is {}. Only a key in doubt can be settled.", html::word(phase))],
        facts: vec![
            ("State", html::named(phase)),
            ("Claimed", html::when(snapshot.record.claimed_at)),
            ("Changed", html::when(snapshot.record.changed_at)),
            ("Key ID", Html::text(id)),
        ],
        links: vec![
            ("Show the key", format!("/keys/{id}")),
            ("Keys in doubt", "/keys?phase=in_doubt".to_owned()),
        ],
    })
}

/// Shows the preview first; the second form settles.
pub(super) async fn settle(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    form: Submission,
) -> Response {
    let visitor = form.visitor.clone();
    answer(&admin, &visitor, async {
        let fields = SettleFields {
            happened: form.get("happened").to_owned(),
            status: form.get("status").trim().to_owned(),
            headers: form.get("headers").to_owned(),
            // Browsers send lines of a text area with a carriage return.
            body: form.get("body").replace("\r\n", "\n"),
            reason: form.get("reason").trim().to_owned(),
            fence: form.get("fence").parse().ok(),
        };
        let (_, snapshot) = find(&admin.engine, &id).await?;
        // A form without the attempt that it showed is of nobody's making: what it would settle is unknown.
        if fields.fence.is_none() || check_fence(&snapshot, fields.fence).is_err() {
            return page(&admin, &visitor, &id, fields, None, Some(CHANGED.to_owned())).await;
        }
        let is_of_gateway = snapshot.record.hint.origin().is_some();
        let asked = match fields.request(is_of_gateway) {
            Ok(asked) => asked,
            Err(problem) => return page(&admin, &visitor, &id, fields, None, Some(problem)).await,
        };
        // The form that settles is the page of the preview, which must not need another field.
        let preview = reason(&asked.reason).and_then(|_| preview_settlement(&snapshot, &asked));
        let preview = match preview {
            Ok(preview) => preview,
            Err(refusal) => {
                let problem = Some(refusal.detail().to_owned());
                return page(&admin, &visitor, &id, fields, None, problem).await;
            }
        };
        if form.get("step") != "settle" {
            let preview = match (preview.answer, &asked.outcome) {
                (Some(answer), _) => Preview::Answer(answer, preview.not_stored),
                (None, Some(outcome)) => Preview::Outcome(outcome.get().to_owned()),
                (None, None) => Preview::Run,
            };
            return page(&admin, &visitor, &id, fields, Some(preview), None).await;
        }
        let message = if asked.run { "settled-run" } else { "settled" };
        let (own, caller, key) = (Arc::clone(&admin), visitor.caller.clone(), id.clone());
        let done = run_to_completion(async move { settle_key(&own, &caller, &key, asked).await }).await;
        Strip::forget(&admin);
        let message = match done {
            Ok(change) => message_of(message, &change),
            // Another attempt, or no longer in doubt: the page shows what is so now.
            Err(refusal) if refusal.status() == StatusCode::CONFLICT => {
                return page(&admin, &visitor, &id, fields, None, Some(CHANGED.to_owned())).await;
            }
            Err(refusal) => return Err(refusal),
        };
        Ok(go(&format!("/keys/{}", html::encode(&id)), &message))
    })
    .await
}

impl SettleFields {
    /// The same settlement on the command line.
    fn command(&self, id: &str, is_of_gateway: bool) -> String {
        let outcome = match self.happened.as_str() {
            "run" => "--run".to_owned(),
            "done" if is_of_gateway => match self.answer() {
                Ok(answer) => format!("--outcome {}", html::shell(&answer)),
                Err(_) => "--outcome …".to_owned(),
            },
            "done" if !self.body.trim().is_empty() => format!("--outcome {}", html::shell(self.body.trim())),
            "done" => "--outcome …".to_owned(),
            // Nothing is chosen yet.
            _ => "--run (or --outcome …)".to_owned(),
        };
        format!("{} {id} {outcome} --reason …", actions::SETTLE_KEY.command)
    }

    /// What is allowed in an answer, and seldom meant.
    fn cautions(&self) -> Vec<String> {
        let mut cautions = Vec::new();
        if self.status.parse::<u16>().is_ok_and(|status| status >= 400) {
            let caution = format!("With the status {} clients take the request for failed.", self.status);
            cautions.push(caution);
        }
        if self.body.is_empty() && !["204", "205", "304"].contains(&self.status.as_str()) {
            cautions.push("The answer has no body.".to_owned());
        }
        cautions
    }

    /// The same request that the API takes.
    fn request(&self, is_of_gateway: bool) -> Result<SettleRequest, String> {
        let (reason, fence) = (self.reason.clone(), self.fence);
        match self.happened.as_str() {
            "run" => Ok(SettleRequest { reason, run: true, outcome: None, fence }),
            "done" => {
                let outcome = if is_of_gateway { self.answer()? } else { self.body.trim().to_owned() };
                let outcome = RawValue::from_string(outcome)
                    .map_err(|error| format!("The outcome is not JSON: {error}."))?;
                Ok(SettleRequest { reason, run: false, outcome: Some(outcome), fence })
            }
            _ => Err("Say whether the effect happened.".to_owned()),
        }
    }

    /// `{status, headers, body}` of the answer. The body is a text, so that it is stored exactly as it was typed.
    fn answer(&self) -> Result<String, String> {
        let status: u16 =
            self.status.parse().map_err(|_| "Status of the answer: give a number such as 201.".to_owned())?;
        let mut headers = Map::new();
        for line in self.headers.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| format!("Headers: expected Name: value, found {line:?}."))?;
            let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
            if headers.contains_key(&name) {
                return Err(format!("Headers: {name} is given twice; give one line with both values."));
            }
            headers.insert(name, Value::from(value));
        }
        let is_json = || serde_json::from_str::<IgnoredAny>(&self.body).is_ok();
        if !headers.contains_key("content-type") && is_json() {
            headers.insert("content-type".to_owned(), Value::from("application/json"));
        }
        let mut answer = Map::new();
        answer.insert("status".to_owned(), Value::from(status));
        answer.insert("headers".to_owned(), Value::Object(headers));
        if !self.body.is_empty() {
            answer.insert("body".to_owned(), Value::from(self.body.as_str()));
        }
        Ok(Value::Object(answer).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_becomes_the_request_of_the_api() {
        let fields = SettleFields {
            happened: "done".into(),
            status: "201".into(),
            headers: "Location: /charges/1\n\n".into(),
            body: r#"{"big": 12345678901234567890123}"#.into(),
            reason: "asked the bank".into(),
            fence: Some(7),
        };
        let given = |fields: &SettleFields| -> Value {
            serde_json::from_str(fields.request(true).unwrap().outcome.unwrap().get()).unwrap()
        };
        let answer = given(&fields);
        assert_eq!((&answer["status"], &answer["headers"]["location"]), (&201.into(), &"/charges/1".into()));
        // The body is stored as it was typed, and its type follows from it.
        for (body, media) in [
            (r#"{"big": 12345678901234567890123}"#, Some("application/json")),
            (r#""one""#, Some("application/json")),
            (" {\"a\":1}\n", Some("application/json")),
            ("plain <b> ", None),
        ] {
            let answer = given(&SettleFields { body: body.into(), ..fields.clone() });
            assert_eq!(
                (answer["body"].as_str(), answer["headers"]["content-type"].as_str()),
                (Some(body), media)
            );
        }
        let typed = SettleFields { headers: "Content-Type: text/plain".into(), ..fields.clone() };
        assert_eq!(given(&typed)["headers"]["content-type"], "text/plain");
        let twice = SettleFields { headers: "Link: </a>\nlink: </b>".into(), ..fields.clone() };
        assert!(twice.request(true).is_err_and(|error| error.contains("given twice")));
        assert!(SettleFields { status: "x".into(), ..fields.clone() }.request(true).is_err());
        assert!(SettleFields { happened: String::new(), ..fields.clone() }.request(true).is_err());
        assert!(SettleFields { body: "not json".into(), ..fields.clone() }.request(false).is_err());
        assert!(SettleFields { happened: "run".into(), ..fields }.request(true).unwrap().run);
    }
}
