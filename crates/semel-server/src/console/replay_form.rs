//! A new replay: what to replay, the plan, the limits, then the start.

use std::collections::BTreeSet;
use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use semel::time::Timestamp;
use semel_pipeline::replay::{ReplayAction, ReplayMode};

use super::actions;
use super::html::{self, Html};
use super::page::{Page, Section, answer, go, show};
use super::replays::{labelled, number, read_number};
use super::strip::Strip;
use super::visitor::{Submission, Visitor};
use crate::admin::answer::length;
use crate::admin::audit::run_to_completion;
use crate::admin::replays::{ReplayPlan, ReplayRequest, create_job, plan_job, time_before};
use crate::admin::targets::why_waiting;
use crate::admin::{Admin, Refusal};
use crate::commands::screen::time_since;
use crate::config::parse_duration;

/// How many items of a plan are listed.
const SHOWN: usize = 50;

/// The fields of the form, as texts.
#[derive(Clone, Default)]
struct ReplayFields {
    status: String,
    ids: String,
    event_id: String,
    targets: Vec<String>,
    tenant: String,
    signature: String,
    limit: String,
    since: String,
    /// The time that `since` goes back to, in microseconds: fixed when a plan is shown, so that what is approved is what was shown.
    since_at: String,
    mode: String,
    rate: String,
    canary: String,
    concurrency: String,
    reason: String,
}

#[derive(Template)]
#[template(path = "replay_form.html")]
struct ReplayForm {
    page: Page,
    fields: ReplayFields,
    targets: Vec<String>,
    modes: Vec<(&'static str, &'static str)>,
    plan: Option<ReplayPlan>,
    /// Why targets of the plan get nothing now.
    waits: Vec<String>,
    problem: Option<String>,
    command: String,
}

/// Suggestions for the time of the failures.
const TIMES: [&str; 5] = ["1h", "24h", "7d", "today", "yesterday"];

impl ReplayForm {
    fn is_chosen(&self, target: &str) -> bool {
        self.fields.targets.iter().any(|chosen| chosen == target)
    }

    /// The time from which on dead letters are in the plan.
    fn since(&self) -> Option<Html> {
        let micros = self.fields.since_at.parse().ok()?;
        Some(html::when(Timestamp::from_micros(micros)))
    }

    /// The first items of the plan, with what happens to each.
    fn items(&self) -> Vec<(String, &str, &'static str, &str)> {
        let items = self.plan.iter().flat_map(|plan| &plan.items).take(SHOWN);
        let word = |action: ReplayAction| match action {
            ReplayAction::Run => "run",
            ReplayAction::Skip => "skip",
            ReplayAction::Conflict => "conflict",
        };
        items
            .map(|item| (item.event.to_string(), item.target.as_str(), word(item.action), item.why.as_str()))
            .collect()
    }

    /// What the limit leaves out. The server counts up to 1000, and with a time all.
    fn left_out(&self) -> Option<String> {
        let plan = self.plan.as_ref().filter(|plan| plan.left_out > 0)?;
        let at_least = if plan.left_out == 1_000 { "At least " } else { "" };
        Some(format!(
            "{at_least}{} more match and are left out by the limit of {}.",
            html::count(plan.left_out),
            if self.fields.limit.is_empty() { "100" } else { &self.fields.limit }
        ))
    }

    fn mode(&self) -> &str {
        if self.fields.mode.is_empty() { "resume" } else { &self.fields.mode }
    }
}

impl ReplayFields {
    fn of(pairs: &[(String, String)]) -> Self {
        let get = |name: &str| {
            pairs
                .iter()
                .find(|(known, _)| known == name)
                .map_or_else(String::new, |(_, value)| value.trim().to_owned())
        };
        let targets = pairs.iter().filter(|(name, value)| name == "targets" && !value.is_empty());
        Self {
            status: get("status"),
            ids: get("ids"),
            event_id: get("event_id"),
            targets: targets.map(|(_, value)| value.clone()).collect(),
            tenant: get("tenant"),
            signature: get("signature"),
            limit: get("limit"),
            since: get("since"),
            since_at: get("since_at"),
            mode: get("mode"),
            rate: get("rate"),
            canary: get("canary"),
            concurrency: get("concurrency"),
            reason: get("reason"),
        }
    }

    fn letters(&self) -> Vec<String> {
        self.ids.split([',', ' ', '\n', '\r']).filter(|id| !id.is_empty()).map(str::to_owned).collect()
    }

    /// The same replay on the command line.
    fn command(&self) -> String {
        let (ids, mut flags) = (self.letters(), String::new());
        let mut add = |flag: &str, value: &str| {
            if !value.is_empty() {
                flags.push_str(&format!(" {flag} {}", html::shell(value)));
            }
        };
        if !ids.is_empty() {
            add("--dlq --id", &ids[0]);
            ids.iter().skip(1).for_each(|id| add("--id", id));
        } else if !self.event_id.is_empty() {
            add("--event-id", &self.event_id);
        } else {
            add("--status", "failed");
            for (flag, value) in [
                ("--since", &self.since),
                ("--limit", &self.limit),
                ("--tenant", &self.tenant),
                ("--signature", &self.signature),
            ] {
                add(flag, value);
            }
        }
        if ids.is_empty() {
            add("--targets", &self.targets.join(","));
        }
        for (flag, value, usual) in [
            ("--mode", &self.mode, "resume"),
            ("--canary", &self.canary, "1"),
            ("--rate", &self.rate, ""),
            ("--concurrency", &self.concurrency, ""),
        ] {
            add(flag, if value == usual { "" } else { value });
        }
        format!("{}{flags} --reason …", actions::START_REPLAY.command)
    }

    /// The same request that the API takes.
    fn request(&self) -> Result<ReplayRequest, Refusal> {
        Ok(ReplayRequest {
            rate: read_number("rate", &self.rate)?,
            canary: read_number("canary", &self.canary)?,
            concurrency: read_number("concurrency", &self.concurrency)?,
            ..self.selection()?
        })
    }

    /// The same without the limits: a plan does not depend on them, and stays when one of them cannot be used.
    fn selection(&self) -> Result<ReplayRequest, Refusal> {
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let ids = self.letters();
        Ok(ReplayRequest {
            status: some(&self.status).filter(|_| ids.is_empty() && self.event_id.is_empty()),
            limit: read_number("limit", &self.limit)?,
            since: some(&self.since).map(|since| length_since(&since)).transpose()?,
            since_at: read_number("since_at", &self.since_at)?.map(Timestamp::from_micros),
            tenant: some(&self.tenant),
            signature: some(&self.signature),
            ids: Some(ids).filter(|ids| !ids.is_empty()),
            event_id: some(&self.event_id),
            targets: self.targets.clone(),
            mode: some(&self.mode),
            reason: some(&self.reason),
            rate: None,
            canary: None,
            concurrency: None,
            pause_above: None,
            dry_run: false,
        })
    }
}

impl ReplayFields {
    /// Fixes the time that `since` goes back to, unless an earlier page did.
    fn fix_since(&mut self) -> Result<(), Refusal> {
        if self.since.is_empty() {
            self.since_at.clear();
        } else if self.since_at.is_empty() {
            let length = length("since", Some(&length_since(&self.since)?))?.unwrap_or_default();
            self.since_at = time_before(length).as_micros().to_string();
        }
        Ok(())
    }
}

/// A length of time, or the time since a day or moment, as the command takes it too.
fn length_since(text: &str) -> Result<String, Refusal> {
    if parse_duration(text).is_some() {
        return Ok(text.to_owned());
    }
    match time_since(text).filter(|age| !age.is_zero()) {
        Some(age) => Ok(format!("{}ms", age.as_millis().max(1))),
        None => Err(Refusal::bad(format!(
            "since: expected a time such as 24h, or a past day or moment in UTC such as yesterday, 2026-11-18 or \
             2026-11-18T03:00:00Z, found {text:?}"
        ))),
    }
}

/// The form; with a selection in the address, its plan too.
pub(super) async fn form(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    answer(&admin, &visitor, async {
        let mut fields = ReplayFields::of(&pairs);
        // A new plan is for the time that it is made at.
        fields.since_at.clear();
        if fields.canary.is_empty() {
            fields.canary = "1".to_owned();
        }
        let has_selection =
            !(fields.status.is_empty() && fields.ids.is_empty() && fields.event_id.is_empty());
        page(&admin, &visitor, fields, has_selection, None).await
    })
    .await
}

async fn page(
    admin: &Arc<Admin>,
    visitor: &Visitor,
    mut fields: ReplayFields,
    has_selection: bool,
    problem: Option<String>,
) -> Result<Response, Refusal> {
    let targets = admin.pipeline()?.registry.current().names();
    let command = fields.command();
    let mut problem = problem;
    let selection = fields.fix_since().and_then(|()| fields.selection());
    let plan = match (has_selection, selection) {
        (false, _) => None,
        (true, Ok(wanted)) => match plan_job(admin, &visitor.caller, &wanted).await {
            Ok(plan) => Some(plan),
            Err(refusal) => {
                problem = problem.or_else(|| Some(labelled(&refusal)));
                None
            }
        },
        (true, Err(refusal)) => {
            problem = problem.or_else(|| Some(labelled(&refusal)));
            None
        }
    };
    let mut waits = Vec::new();
    if let Some(plan) = &plan {
        let pipeline = admin.pipeline()?;
        let pauses = pipeline.ledger.paused_targets().await?;
        let targets: BTreeSet<&str> = plan.items.iter().map(|item| item.target.as_str()).collect();
        waits.extend(targets.into_iter().filter_map(|target| why_waiting(pipeline, &pauses, target)));
    }
    Ok(show(&ReplayForm {
        page: Page::new(admin, visitor, Section::Replays, "New replay").await,
        fields,
        targets,
        modes: vec![
            (ReplayMode::Resume.as_str(), "same keys: what was delivered is skipped, the rest is sent"),
            (ReplayMode::ReExecute.as_str(), "the effects happen again, also of what was delivered"),
            (ReplayMode::AsNew.as_str(), "sent as new events with new keys"),
        ],
        plan,
        waits,
        problem,
        command,
    }))
}

pub(super) async fn start(State(admin): State<Arc<Admin>>, form: Submission) -> Response {
    let visitor = form.visitor.clone();
    answer(&admin, &visitor, async {
        let names = [
            "status",
            "ids",
            "event_id",
            "tenant",
            "signature",
            "limit",
            "since",
            "since_at",
            "mode",
            "rate",
            "canary",
            "concurrency",
            "reason",
        ];
        let mut pairs: Vec<(String, String)> =
            names.iter().map(|name| ((*name).to_owned(), form.get(name).to_owned())).collect();
        pairs.extend(form.all("targets").into_iter().map(|target| ("targets".to_owned(), target)));
        let fields = ReplayFields::of(&pairs);
        let started = async {
            let mut wanted = fields.request()?;
            crate::admin::answer::reason(&fields.reason)?;
            let shown: Option<u64> = number(&form, "planned")?;
            if wanted.status.is_some() {
                // What failed meanwhile comes after what was shown, because the oldest are taken first.
                wanted.limit = shown.filter(|shown| *shown > 0).or(wanted.limit);
            }
            let plan = plan_job(&admin, &visitor.caller, &wanted).await?;
            // An action applies to what was shown: the same deliveries, with the same plan for each.
            if form.get("fingerprint") != plan.fingerprint {
                let detail = "The plan has changed meanwhile; look at it again and confirm.";
                return Err(Refusal::bad(detail));
            }
            // By their ids, so that no other one is taken between this check and the start.
            if let Some(letters) = plan.letters.filter(|_| wanted.status.is_some()) {
                wanted = ReplayRequest {
                    status: None,
                    since: None,
                    since_at: None,
                    limit: None,
                    signature: None,
                    tenant: None,
                    targets: Vec::new(),
                    ids: Some(letters.iter().map(ToString::to_string).collect()),
                    ..wanted
                };
            }
            let (own, caller) = (Arc::clone(&admin), visitor.caller.clone());
            run_to_completion(async move { create_job(&own, &caller, wanted).await }).await
        };
        match started.await {
            Ok(job) => {
                Strip::forget(&admin);
                Ok(go(&format!("/replays/{}", job.id), "started"))
            }
            Err(refusal) => page(&admin, &visitor, fields, true, Some(labelled(&refusal))).await,
        }
    })
    .await
}
