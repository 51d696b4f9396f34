//! Settling a key in doubt: what happened, the answer that clients will get, then the settlement.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::actions;
use super::html::{self, Html};
use super::page::{Page, Section, answer, go, show};
use super::strip::Strip;
use super::visitor::{Submission, Visitor};
use crate::admin::audit::run_to_completion;
use crate::admin::keys::{SettleRequest, find, preview_settlement, settle_key};
use crate::admin::records::AnswerContent;
use crate::admin::{Admin, Refusal};

/// The fields of the form.
#[derive(Clone, Default)]
struct SettleFields {
    /// `done` or `run`.
    happened: String,
    status: String,
    headers: String,
    body: String,
    reason: String,
}

#[derive(Template)]
#[template(path = "settle.html")]
struct SettlePage {
    page: Page,
    id: String,
    hint: String,
    request: String,
    request_id: String,
    claimed: Html,
    is_of_gateway: bool,
    fields: SettleFields,
    preview: Option<Preview>,
    problem: Option<String>,
    command: &'static str,
}

/// What clients will get.
enum Preview {
    /// This answer.
    Answer(AnswerContent),
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
    answer(&admin, &visitor, async {
        let fields = SettleFields { status: "200".to_owned(), ..SettleFields::default() };
        page(&admin, &visitor, &id, fields, None, None).await
    })
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
    let origin = snapshot.record.hint.origin();
    let part = |part: Option<&str>| part.unwrap_or_default().to_owned();
    let method = part(origin.and_then(|origin| origin.method()));
    let path = part(origin.and_then(|origin| origin.path()));
    Ok(show(&SettlePage {
        page: Page::new(admin, visitor, Section::Keys, "Settle a key").await,
        id: key.to_string(),
        hint: snapshot.record.hint.to_string(),
        request: format!("{method} {path}").trim().to_owned(),
        request_id: part(origin.and_then(|origin| origin.request_id())),
        claimed: html::when(snapshot.record.claimed_at),
        is_of_gateway: origin.is_some(),
        fields,
        preview,
        problem,
        command: actions::SETTLE_KEY.command,
    }))
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
            body: form.get("body").to_owned(),
            reason: form.get("reason").trim().to_owned(),
        };
        let (_, snapshot) = find(&admin.engine, &id).await?;
        let is_of_gateway = snapshot.record.hint.origin().is_some();
        let asked = match fields.request(is_of_gateway) {
            Ok(asked) => asked,
            Err(problem) => return page(&admin, &visitor, &id, fields, None, Some(problem)).await,
        };
        let preview = match preview_settlement(&snapshot, &asked) {
            Ok(preview) => preview,
            Err(refusal) => {
                let problem = Some(refusal.detail().to_owned());
                return page(&admin, &visitor, &id, fields, None, problem).await;
            }
        };
        if form.get("step") != "settle" {
            let preview = match (preview.answer, &asked.outcome) {
                (Some(answer), _) => Preview::Answer(answer),
                (None, Some(outcome)) => Preview::Outcome(outcome.get().to_owned()),
                (None, None) => Preview::Run,
            };
            return page(&admin, &visitor, &id, fields, Some(preview), None).await;
        }
        let message = if asked.run { "settled-run" } else { "settled" };
        let (own, caller, key) = (Arc::clone(&admin), visitor.caller.clone(), id.clone());
        run_to_completion(async move { settle_key(&own, &caller, &key, asked).await }).await?;
        Strip::forget(&admin).await;
        Ok(go(&format!("/keys/{}", html::encode(&id)), message))
    })
    .await
}

impl SettleFields {
    /// The same request that the API takes.
    fn request(&self, is_of_gateway: bool) -> Result<SettleRequest, String> {
        let reason = self.reason.clone();
        match self.happened.as_str() {
            "run" => Ok(SettleRequest { reason, run: true, outcome: None }),
            "done" => {
                let outcome = if is_of_gateway { self.answer()? } else { self.body.trim().to_owned() };
                let outcome = RawValue::from_string(outcome)
                    .map_err(|error| format!("The outcome is not JSON: {error}."))?;
                Ok(SettleRequest { reason, run: false, outcome: Some(outcome) })
            }
            _ => Err("Say whether the effect happened.".to_owned()),
        }
    }

    /// `{status, headers, body}` of the answer.
    fn answer(&self) -> Result<String, String> {
        let status: u16 = self.status.parse().map_err(|_| "Status: give a number such as 201.".to_owned())?;
        let mut headers = Map::new();
        for line in self.headers.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| format!("Headers: expected Name: value, found {line:?}."))?;
            headers.insert(name.trim().to_owned(), Value::String(value.trim().to_owned()));
        }
        let mut parts =
            vec![format!("\"status\":{status}"), format!("\"headers\":{}", Value::Object(headers))];
        let body = self.body.trim();
        if !body.is_empty() {
            // JSON keeps its text; anything else is a text.
            let raw = serde_json::from_str::<&RawValue>(body).map(|raw| raw.get().to_owned());
            parts.push(format!("\"body\":{}", raw.unwrap_or_else(|_| json!(self.body).to_string())));
        }
        Ok(format!("{{{}}}", parts.join(",")))
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
        };
        let outcome = fields.request(true).unwrap().outcome.unwrap();
        assert_eq!(
            outcome.get(),
            r#"{"status":201,"headers":{"Location":"/charges/1"},"body":{"big": 12345678901234567890123}}"#
        );
        let text = SettleFields { body: "plain <b>".into(), headers: String::new(), ..fields.clone() };
        assert!(text.request(true).unwrap().outcome.unwrap().get().ends_with(r#""body":"plain <b>"}"#));
        assert!(SettleFields { status: "x".into(), ..fields.clone() }.request(true).is_err());
        assert!(SettleFields { happened: String::new(), ..fields.clone() }.request(true).is_err());
        assert!(SettleFields { body: "not json".into(), ..fields.clone() }.request(false).is_err());
        assert!(SettleFields { happened: "run".into(), ..fields }.request(true).unwrap().run);
    }
}
