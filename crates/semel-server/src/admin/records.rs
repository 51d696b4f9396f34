//! Records, outcomes and times in answers of the admin API.

use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use schemars::JsonSchema;
use semel::key::Origin;
use semel::outcome::{Outcome, OutcomeBody};
use semel::record::{Mode, Phase, State};
use semel::store::Snapshot;
use semel::time::Timestamp;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::schema::OneOf;
use crate::config::show_duration;

/// The phases by their names, the same everywhere.
pub(crate) const PHASES: [(&str, Phase); 8] = [
    ("vacant", Phase::Vacant),
    ("bound", Phase::Bound),
    ("claimed", Phase::Claimed),
    ("begun", Phase::Begun),
    ("lapsed", Phase::Lapsed),
    ("in_doubt", Phase::InDoubt),
    ("done", Phase::Done),
    ("expired", Phase::Expired),
];

/// The modes that a caller from outside may name.
pub(super) const MODES: [(&str, Mode); 3] =
    [("marked", Mode::Marked), ("keyed", Mode::Keyed), ("rerun", Mode::Rerun)];

/// A phase's name.
pub(crate) fn phase_name(phase: Phase) -> &'static str {
    PHASES.iter().find(|(_, known)| *known == phase).map_or("unknown", |(name, _)| name)
}

pub(crate) fn mode_name(mode: Mode) -> &'static str {
    MODES.iter().find(|(_, known)| *known == mode).map_or("atomic", |(name, _)| name)
}

/// A key and the state of its record.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Key")]
pub(crate) struct KeyDetails {
    /// 32 hexadecimal characters.
    id: String,
    /// The first eight characters of the value of the key.
    pub(super) key: String,
    /// The request that claimed the key, for keys of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request: Option<KeyRequest>,
    #[schemars(with = "OneOf<Phase>")]
    pub(super) phase: &'static str,
    #[schemars(with = "OneOf<Mode>")]
    mode: &'static str,
    fence: u64,
    attempt: u32,
    epoch: u32,
    #[schemars(extend("format" = "date-time"))]
    claimed_at: String,
    #[schemars(extend("format" = "date-time"))]
    changed_at: String,
    /// Remaining time of the lease, while the key is claimed.
    lease_left: Option<String>,
    /// When the outcome is no longer replayed.
    expires_at: Option<String>,
    /// When the key is forgotten.
    remembered_until: Option<String>,
    retention: String,
    pub(super) outcome: Option<OutcomeSummary>,
    /// The outcome itself. Only operators see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) returned: Option<OutcomeContent>,
    /// The answer that clients get from the record, for keys of the gateway. Only operators see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) answer: Option<AnswerContent>,
}

/// A request as its record shows it. Each member has a maximum length.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct KeyRequest {
    method: Option<String>,
    /// The path without its query; the pattern of the route if the path contains the key.
    path: Option<String>,
    /// The ID that the upstream received in `X-Request-Id`.
    request_id: Option<String>,
    /// The same eight characters for all keys of one caller.
    caller: Option<String>,
}

impl KeyRequest {
    fn new(origin: &Origin) -> Self {
        let [method, path, request_id, caller] =
            [origin.method(), origin.path(), origin.request_id(), origin.caller()]
                .map(|part| part.map(ToOwned::to_owned));
        Self { method, path, request_id, caller }
    }
}

/// An answer of the gateway.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct AnswerContent {
    pub(crate) status: u16,
    /// Name and value of each header.
    pub(crate) headers: Vec<(String, String)>,
    /// The body, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
    /// The body in base64, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body_base64: Option<String>,
}

impl AnswerContent {
    /// `None` if the outcome is not an answer, or was not kept.
    pub(crate) fn new(outcome: &Arc<Outcome>) -> Option<Self> {
        let answer = semel_http::stored::answer(outcome).ok()?;
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let headers = answer.headers().iter().map(line).collect();
        let (body, body_base64) = match std::str::from_utf8(answer.body()) {
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (None, Some(BASE64.encode(answer.body()))),
        };
        Some(Self { status: answer.status().as_u16(), headers, body, body_base64 })
    }
}

/// An outcome without its body.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct OutcomeSummary {
    kind: String,
    /// Size of the body.
    bytes: usize,
    /// False if the body was not kept.
    kept: bool,
}

impl KeyDetails {
    /// The record, without the body of its outcome.
    pub(super) fn new(snapshot: &Snapshot) -> Self {
        let (record, now) = (&snapshot.record, snapshot.now);
        let phase = snapshot.phase();
        let held = matches!(phase, Phase::Claimed | Phase::Begun);
        let outcome = match &record.state {
            State::Done(outcome) => Some(OutcomeSummary {
                kind: outcome.kind().to_owned(),
                bytes: outcome.size(),
                kept: matches!(outcome.body(), OutcomeBody::Kept(_)),
            }),
            _ => None,
        };
        Self {
            id: snapshot.id.to_string(),
            key: record.hint.to_string(),
            request: record.hint.origin().map(KeyRequest::new),
            phase: phase_name(phase),
            mode: mode_name(record.terms.mode),
            fence: record.fence.get(),
            attempt: record.attempt,
            epoch: record.epoch.get(),
            claimed_at: time(record.claimed_at),
            changed_at: time(record.changed_at),
            lease_left: held.then(|| show_duration(record.lease_until.left(now))),
            expires_at: matches!(phase, Phase::Done | Phase::Bound | Phase::Lapsed)
                .then(|| time(record.expires_at)),
            remembered_until: matches!(phase, Phase::Done | Phase::Expired).then(|| time(record.forget_at)),
            retention: show_duration(record.terms.retention),
            outcome,
            returned: None,
            answer: None,
        }
    }
}

/// What an effect returned.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct OutcomeContent {
    /// The outcome: as it was given if it is JSON, otherwise in base64; null if it was not kept.
    outcome: Option<Box<RawValue>>,
    /// `json`, `http`, or a kind that the application defines.
    outcome_kind: String,
    /// Why the outcome was not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_kept: Option<String>,
}

impl OutcomeContent {
    pub(super) fn new(outcome: &Outcome) -> Self {
        let outcome_kind = outcome.kind().to_owned();
        match outcome.body() {
            OutcomeBody::Tombstone(reason) => {
                Self { outcome: None, outcome_kind, not_kept: Some(reason.clone()) }
            }
            OutcomeBody::Kept(body) => {
                let text = match std::str::from_utf8(body) {
                    Ok(text) if outcome.kind() == "json" => text.to_owned(),
                    _ => Value::String(BASE64.encode(body)).to_string(),
                };
                Self { outcome: RawValue::from_string(text).ok(), outcome_kind, not_kept: None }
            }
        }
    }

    /// Its bytes in JSON, without names.
    pub(super) fn size(&self) -> usize {
        let outcome = self.outcome.as_ref().map_or(0, |outcome| outcome.get().len());
        outcome + self.not_kept.as_ref().map_or(0, String::len)
    }
}

/// A moment as people and programs read it: RFC 3339, UTC, milliseconds.
pub(crate) fn time(moment: Timestamp) -> String {
    let micros = moment.as_micros();
    let (secs, millis) = (micros / 1_000_000, micros / 1_000 % 1_000);
    let (days, of_day) = (secs / 86_400, secs % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The date of a day since 1970 (Hinnant's civil_from_days, for days that are not negative).
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let of_era = z % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_rfc_3339() {
        let shown = |secs: u64| time(Timestamp::from_micros(secs * 1_000_000 + 123_456));
        assert_eq!(shown(0), "1970-01-01T00:00:00.123Z");
        assert_eq!(shown(951_782_400), "2000-02-29T00:00:00.123Z");
        assert_eq!(shown(1_795_000_000), "2026-11-18T11:06:40.123Z");
    }

    #[test]
    fn json_comes_back_as_it_was_given() {
        let text = r#"{"big":12345678901234567890,"f":1.10}"#;
        let returned = OutcomeContent::new(&Outcome::new("json", text));
        assert_eq!(
            serde_json::to_string(&returned).unwrap(),
            format!(r#"{{"outcome":{text},"outcome_kind":"json"}}"#)
        );
        let returned = OutcomeContent::new(&Outcome::new("http", [0xff, 0]));
        assert_eq!(serde_json::to_string(&returned).unwrap(), r#"{"outcome":"/wA=","outcome_kind":"http"}"#);
    }
}
