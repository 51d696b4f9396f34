//! Runs one storyboard: decides whether it applies, and runs its phases in order.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::Runner;
use super::seed;
use crate::answer::{Extraction, TargetAnswer};
use crate::call::{Begun, CheckCall};
use crate::error::Error;
use crate::gate::{self, Condition};
use crate::key::KeyForm;
use crate::redact::{Redactor, secrets_in};
use crate::report::{CaseReport, Explanation, FileReport, Grade, Reason, Skip, StepReport};
use crate::storyboard::{
    Level, Seeding, StepAction, Storyboard, StoryboardPhase, StoryboardStep, Transport, ValueSource,
};
use crate::substitute::{Variables, uuid_v4};
use crate::wire::WireError;

/// Reports the number of finished steps, and the next step.
pub(super) type ProgressSink<'a> = &'a (dyn Fn(usize, (&str, &str)) + Sync);

/// The state of one file's run.
pub(super) struct File<'a> {
    pub(super) runner: &'a Runner,
    pub(super) began: Instant,
    pub(super) storyboard: &'a Storyboard,
    pub(super) context: Map<String, Value>,
    pub(super) aliases: Mutex<HashMap<String, String>>,
    /// The payload of each step's answer, as the current phase sees them.
    pub(super) payloads: HashMap<String, Value>,
    /// Each step's answer, as the current phase sees them: the first successful one, else the first.
    pub(super) answers: HashMap<String, TargetAnswer>,
    /// Every answer with its phase and step: steps of two phases may have the same id.
    pub(super) all_answers: Vec<(String, String, TargetAnswer)>,
    /// The form in which the API accepts keys.
    pub(super) key_form: KeyForm,
    /// The tools of the target, with their schemas.
    pub(super) tools: HashMap<String, Value>,
    pub(super) contributions: BTreeSet<String>,
    pub(super) secrets: Vec<String>,
    /// An invalid credential, the same for the whole run.
    pub(super) invalid: String,
    pub(super) notices: Vec<String>,
    capabilities: Option<Value>,
    /// Phases in which a failed step broke the state, and that step.
    broken: HashMap<String, String>,
    /// Phases with a step that was tried and has no answer, and that step.
    unanswered: HashMap<String, String>,
    /// Phases that do not apply, because the API refused what they are about, and the status.
    refused: HashMap<String, u16>,
}

/// Runs a file.
pub(super) async fn run(
    runner: &Runner,
    storyboard: &Storyboard,
    tell: ProgressSink<'_>,
) -> Result<FileReport, Error> {
    let mut file = File::new(runner, storyboard);
    let mut steps = Vec::new();
    let skip = match &storyboard.not_applicable {
        Some(detail) => Some(Skip::new(Reason::NotApplicable, detail.clone())),
        None => file.prepare().await?,
    };
    let mut done = 0;
    for phase in &storyboard.phases {
        let closed = match &skip {
            Some(skip) => Some(skip.clone()),
            None => file.phase_closed(phase).await,
        };
        file.enter(phase);
        for step in &phase.steps {
            tell(done, (&phase.id, &step.id));
            let report = match &closed {
                Some(skip) => file.skipped(phase, step, skip.clone()),
                None => file.step_of(phase, step).await,
            };
            file.cascade(phase, step, &report, closed.is_some());
            steps.push(report);
            done += 1;
        }
    }
    take_branches(storyboard, &file.contributions, &mut steps);
    scrub_words(&mut steps, &Redactor::new(&file.secrets));
    let mut notices = storyboard.notices.clone();
    notices.append(&mut file.notices);
    let cases = storyboard.phases.iter().map(|phase| CaseReport {
        id: phase.id.clone(),
        title: phase.title.clone(),
        level: phase.level,
        explain: phase.explain.as_ref().map(|explain| Explanation {
            harm: explain.suffers.trim().to_owned(),
            fix: explain.fix.trim().to_owned(),
        }),
    });
    Ok(FileReport {
        storyboard: storyboard.id.clone(),
        title: storyboard.title.clone(),
        file: storyboard.file.clone(),
        skip,
        notices,
        steps,
        cases: cases.collect(),
    })
}

impl<'a> File<'a> {
    fn new(runner: &'a Runner, storyboard: &'a Storyboard) -> Self {
        let mut context = storyboard.context.clone();
        let mut notices = Vec::new();
        for (name, value) in &runner.options.set {
            context.insert(name.clone(), value.clone());
        }
        let outputs = storyboard.phases.iter().flat_map(|phase| &phase.steps).flat_map(|step| &step.outputs);
        for output in outputs.filter(|output| matches!(output.from, ValueSource::Generate)) {
            context.insert(output.name.clone(), Value::String(uuid_v4()));
        }
        for invariant in &storyboard.invariants {
            if !["idempotency.conflict_no_payload_leak", "context.no_secret_echo"]
                .contains(&invariant.as_str())
            {
                notices.push(format!("the invariant `{invariant}` is unknown and not checked"));
            }
        }
        Self {
            runner,
            began: Instant::now(),
            storyboard,
            context,
            aliases: Mutex::default(),
            payloads: HashMap::new(),
            answers: HashMap::new(),
            all_answers: Vec::new(),
            key_form: KeyForm::Quoted,
            tools: HashMap::new(),
            contributions: BTreeSet::new(),
            secrets: runner.secrets(),
            invalid: format!("invalid-{}", uuid_v4()),
            notices,
            capabilities: None,
            broken: HashMap::new(),
            unanswered: HashMap::new(),
            refused: HashMap::new(),
        }
    }

    pub(super) fn scope(&self) -> Variables<'_> {
        Variables {
            context: &self.context,
            aliases: &self.aliases,
            steps: &self.payloads,
            test_kit: &self.storyboard.test_kit,
        }
    }

    /// The default credential of steps.
    pub(super) fn credential(&self) -> Option<String> {
        let kit =
            || self.storyboard.test_kit.pointer("/auth/api_key").and_then(Value::as_str).map(str::to_owned);
        self.runner.options.auth.clone().or_else(kit)
    }

    pub(super) fn has_tool(&self, name: &str) -> bool {
        self.tools.contains_key(name)
    }

    /// Everything before the first phase. Returns the reason if the file does not apply.
    async fn prepare(&mut self) -> Result<Option<Skip>, Error> {
        let storyboard = self.storyboard;
        if storyboard.phases.is_empty() {
            return Ok(Some(Skip::new(Reason::NoPhases, "the file has no phases")));
        }
        if let Some(secret) = storyboard.test_kit.pointer("/auth/api_key").and_then(Value::as_str) {
            self.secrets.push(secret.to_owned());
        }
        secrets_in(&storyboard.test_kit, &mut self.secrets);
        if storyboard.transport == Transport::Mcp {
            self.begin().await?;
        }
        for closed in &storyboard.gates {
            let capabilities = self.capabilities().await;
            if let Some(skip) = gate::closed(closed, &capabilities) {
                return Ok(Some(skip));
            }
        }
        let tools = &storyboard.required_tools;
        if !tools.is_empty() && !tools.iter().any(|tool| self.has_tool(tool)) {
            let detail = format!("the target has none of the tools {}", tools.join(", "));
            return Ok(Some(Skip::new(Reason::MissingTool, detail)));
        }
        for family in &storyboard.tool_families {
            if !family.iter().any(|tool| self.has_tool(tool)) {
                let detail = format!("the target has none of the tools {}", family.join(", "));
                return Ok(Some(Skip::new(Reason::RequirementUnmet, detail)));
            }
        }
        for requirement in &storyboard.requires {
            if let Some(skip) = gate::unmet(requirement, |tool| self.has_tool(tool)) {
                return Ok(Some(skip));
            }
        }
        if storyboard.seeding == Seeding::Controller {
            return seed::seed(self).await.map_err(|error| Error::Target(error.to_string()));
        }
        Ok(None)
    }

    /// Begins the session and lists the tools. A target that refuses is not usable.
    async fn begin(&mut self) -> Result<(), Error> {
        let credential = self.credential();
        let unusable = |error: WireError| Error::Target(error.to_string());
        let caller = &self.runner.caller;
        match caller.begin(credential.as_deref()).await.map_err(unusable)? {
            Begun::Session => {}
            Begun::Refused(answer) => return Err(Error::Target(refusal("initialize", &answer))),
        }
        let mut cursor: Option<String> = None;
        for _ in 0..100 {
            let params = cursor.as_ref().map_or_else(|| json!({}), |cursor| json!({"cursor": cursor}));
            let call = caller.rpc("tools/list", &params, credential.as_deref()).map_err(Error::Target)?;
            let answer = caller.send(&call).await.map_err(unusable)?;
            if answer.error.is_some() {
                return Err(Error::Target(refusal("tools/list", &answer)));
            }
            for tool in answer.envelope.get("tools").and_then(Value::as_array).into_iter().flatten() {
                if let Some(name) = tool.get("name").and_then(Value::as_str) {
                    self.tools
                        .insert(name.to_owned(), tool.get("inputSchema").cloned().unwrap_or(Value::Null));
                }
            }
            cursor = answer.envelope.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// The declared capabilities of the target, requested once. Null if it declares none.
    async fn capabilities(&mut self) -> Value {
        if let Some(known) = &self.capabilities {
            return known.clone();
        }
        let credential = self.credential();
        let caller = &self.runner.caller;
        let call = match self.storyboard.transport {
            Transport::Mcp if !self.has_tool("get_adcp_capabilities") => Err(String::new()),
            Transport::Mcp => caller.tool("get_adcp_capabilities", &json!({}), credential.as_deref()),
            Transport::Http => {
                let request = json!({"method": "GET", "path": "/.well-known/idempotency"});
                CheckCall::request(&request, credential.as_deref(), &self.runner.options)
            }
        };
        let told = match call {
            Ok(call) => caller.send(&call).await.ok().filter(|answer| answer.error.is_none()),
            Err(_) => None,
        };
        let told = told.map_or(Value::Null, |answer| answer.payload);
        self.capabilities = Some(told.clone());
        told
    }

    /// The reason why a phase does not apply, if it does not.
    async fn phase_closed(&mut self, phase: &StoryboardPhase) -> Option<Skip> {
        if let Some(closed) = &phase.gate {
            let capabilities = self.capabilities().await;
            if let Some(skip) = gate::closed(closed, &capabilities) {
                return Some(skip);
            }
        }
        let restarts = phase.steps.iter().any(|step| matches!(step.action, StepAction::Restart));
        if restarts && self.runner.options.restart.is_none() {
            // Half of such a case would prove nothing.
            let detail = "needs a command that restarts the target: --restart CMD";
            return Some(Skip::new(Reason::NotApplicable, detail));
        }
        let text = phase.skip_if.as_deref()?;
        match gate::condition(text, &self.context, &self.storyboard.test_kit) {
            Condition::True => {
                let detail = match missing_values(text) {
                    Some(needed) => format!("needs {needed}"),
                    None => format!("skip_if: {text}"),
                };
                Some(Skip::new(Reason::NotApplicable, detail))
            }
            Condition::False => None,
            Condition::Unknown => {
                self.notices
                    .push(format!("phase `{}`: the condition `{text}` is invalid; the phase runs", phase.id));
                None
            }
        }
    }

    /// Runs a step, unless a step that it depends on failed.
    async fn step_of(&mut self, phase: &StoryboardPhase, step: &StoryboardStep) -> StepReport {
        if let Some(status) = self.refused.get(&phase.id) {
            return self.skipped(phase, step, request_refused(*status));
        }
        if step.stateful
            && let Some(culprit) = self.broken_before(phase)
        {
            let skip = Skip::new(Reason::PrerequisiteFailed, format!("depends on `{culprit}`"));
            return self.skipped(phase, step, skip);
        }
        super::step::run(self, phase, step).await
    }

    /// The step that broke the state that this phase depends on.
    fn broken_before(&self, phase: &StoryboardPhase) -> Option<String> {
        if let Some(culprit) = self.broken.get(&phase.id).or_else(|| self.unanswered.get(&phase.id)) {
            return Some(culprit.clone());
        }
        let peers = |other: &StoryboardPhase| phase.branch.is_some() && phase.branch == other.branch;
        let named = |other: &StoryboardPhase| depends_on(phase, other);
        let earlier = self.storyboard.phases.iter().take_while(|other| other.id != phase.id);
        let mut needed =
            earlier.filter(|other| !peers(other)).filter(|other| phase.depends_on.is_none() || named(other));
        // Without `depends_on`, a phase only depends on what failed.
        let unanswered = |other: &StoryboardPhase| self.unanswered.get(&other.id).filter(|_| named(other));
        needed.find_map(|other| self.broken.get(&other.id).or_else(|| unanswered(other)).cloned())
    }

    /// Makes the answers of earlier phases visible to a phase. If two of its predecessors have a step of the same id, the
    /// one that it depends on counts; a step of its own is never mistaken for one of another phase.
    fn enter(&mut self, phase: &StoryboardPhase) {
        self.answers.clear();
        let earlier = || self.storyboard.phases.iter().take_while(|other| other.id != phase.id);
        let needed = earlier().filter(|other| depends_on(phase, other));
        for source in earlier().filter(|other| !depends_on(phase, other)).chain(needed) {
            source.steps.iter().for_each(|step| drop(self.answers.remove(&step.id)));
            for (_, step, answer) in self.all_answers.iter().filter(|(of, ..)| *of == source.id) {
                self.answers.insert(step.clone(), answer.clone());
            }
        }
        phase.steps.iter().for_each(|step| drop(self.answers.remove(&step.id)));
        let payload = |(step, answer): (&String, &TargetAnswer)| (step.clone(), answer.payload.clone());
        self.payloads = self.answers.iter().map(payload).collect();
    }

    /// Records the consequences of a step for later ones.
    fn cascade(&mut self, phase: &StoryboardPhase, step: &StoryboardStep, report: &StepReport, closed: bool) {
        let status = self.answers.get(&step.id).map(|answer| answer.status);
        if let Some(status) = status.filter(|status| step.skip_if_refused && (400..500).contains(status)) {
            self.refused.insert(phase.id.clone(), status);
            self.unanswered.entry(phase.id.clone()).or_insert_with(|| step.id.clone());
            return;
        }
        if !step.stateful {
            return;
        }
        let matters = step.level.is_none_or(|level| level <= phase.level);
        let tried = |skip: &Skip| matches!(skip.reason, Reason::NotApplicable | Reason::UnsatisfiedContract);
        if !closed
            && matters
            && report.skip.as_ref().is_some_and(tried)
            && !self.answers.contains_key(&step.id)
        {
            self.unanswered.entry(phase.id.clone()).or_insert_with(|| step.id.clone());
        }
        let only = phase.steps.iter().filter(|step| step.stateful).count() == 1;
        let breaks = match (report.grade, &report.skip) {
            (Grade::Failed, _) => true,
            // No step depends on one with a lower level than its phase.
            (Grade::NotMet, _) => matters,
            (Grade::Skipped, Some(skip)) => match skip.reason {
                Reason::MissingTool | Reason::MissingTestController => !only,
                // Later steps of this phase have no state to use; other phases have their own dependencies.
                Reason::PrerequisiteFailed => true,
                _ => false,
            },
            _ => false,
        };
        if breaks {
            self.broken.entry(phase.id.clone()).or_insert_with(|| step.id.clone());
        }
    }

    /// The report of a step that was not run.
    pub(super) fn skipped(&self, phase: &StoryboardPhase, step: &StoryboardStep, skip: Skip) -> StepReport {
        StepReport {
            storyboard: self.storyboard.id.clone(),
            phase: phase.id.clone(),
            step: step.id.clone(),
            title: step.title.clone(),
            task: step.action.task().to_owned(),
            level: self.level(phase, step),
            grade: Grade::Skipped,
            passed: false,
            duration_ms: 0,
            validations: Vec::new(),
            extraction_path: Extraction::None,
            skip: Some(skip),
            timeline: Vec::new(),
            error: None,
            reviewer_checks: step.reviewer_checks.clone(),
        }
    }

    #[expect(clippy::unused_self, reason = "reads as a question to the file")]
    pub(super) fn level(&self, phase: &StoryboardPhase, step: &StoryboardStep) -> Level {
        step.level.unwrap_or(phase.level)
    }
}

/// The API refuses a request that a case needs.
pub(super) fn request_refused(status: u16) -> Skip {
    Skip::new(Reason::NotApplicable, format!("the API refuses such a request, with {status}"))
}

/// True if a phase names another in `depends_on`.
fn depends_on(phase: &StoryboardPhase, other: &StoryboardPhase) -> bool {
    phase.depends_on.as_ref().is_some_and(|needed| needed.contains(&other.id))
}

/// The missing settings, if a condition only asks whether values are set: `!context.a || !context.b`.
fn missing_values(condition: &str) -> Option<String> {
    let name = |term: &str| {
        let name = term.trim().strip_prefix("!context.")?;
        (!name.contains([' ', '=', '&'])).then(|| format!("--set {name}=…"))
    };
    let names: Option<Vec<String>> = condition.split("||").map(name).collect();
    names.map(|names| names.join(" "))
}

/// Only one branch of a set is taken: failures of the others do not count.
fn take_branches(storyboard: &Storyboard, contributions: &BTreeSet<String>, steps: &mut [StepReport]) {
    for phase in &storyboard.phases {
        let Some(branch) = phase.branch.as_ref().filter(|branch| contributions.contains(*branch)) else {
            continue;
        };
        for step in steps.iter_mut().filter(|step| step.phase == phase.id) {
            if matches!(step.grade, Grade::Failed | Grade::NotMet) {
                step.grade = Grade::Skipped;
                step.skip =
                    Some(Skip::new(Reason::NotApplicable, format!("another branch of `{branch}` was taken")));
            }
        }
    }
}

/// Removes secrets from texts that may quote the target.
fn scrub_words(steps: &mut [StepReport], scrubber: &Redactor) {
    let scrub = |text: &mut String| *text = scrubber.scrub(text);
    for step in steps {
        step.error.as_mut().into_iter().for_each(scrub);
        step.skip.as_mut().into_iter().for_each(|skip| scrub(&mut skip.detail));
        for validation in &mut step.validations {
            validation.note.as_mut().into_iter().for_each(scrub);
            validation.json_pointer.as_mut().into_iter().for_each(scrub);
        }
    }
}

fn refusal(what: &str, answer: &TargetAnswer) -> String {
    match answer.status {
        401 | 403 => {
            format!("{what} was answered with {}: the credential was refused (--auth)", answer.status)
        }
        status => {
            let code = answer.code().map(|code| format!(" ({code})")).unwrap_or_default();
            format!("{what} was answered with {status}{code}: is this an MCP endpoint?")
        }
    }
}
