//! Reads a file into a [`Storyboard`].

mod checks;
mod steps;

use std::collections::BTreeSet;
use std::path::Path as FilePath;

use serde_json::{Map, Value};

use crate::error::{Error, Mistake};
use crate::gate::Release;
use crate::reader::{FoundProblems, MappingReader};
use crate::storyboard::{
    CapabilityGate, Explain, Level, Seeding, Storyboard, StoryboardDialect, StoryboardPhase, Transport, Wants,
};
use crate::yaml::{self, YamlKind, YamlNode};

/// Top-level members that are documentation, or for other runners.
const TOP_DOCUMENTATION: &[&str] =
    &["version", "category", "narrative", "track", "introduced_in", "agent", "caller"];

impl Storyboard {
    /// Reads a file, and the test kit that it names if it is present.
    ///
    /// # Errors
    /// The file cannot be read, or has mistakes: all are reported with their positions.
    pub fn read(file: &FilePath) -> Result<Self, Error> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file)
            .map_err(|source| Error::Unreadable { file: name.clone(), source })?;
        Self::load(&name, &text, file.parent())
    }

    /// Parses a storyboard. `name` is used in messages.
    ///
    /// # Errors
    /// All mistakes with their positions.
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        Self::load(name, text, None)
    }

    fn load(name: &str, text: &str, folder: Option<&FilePath>) -> Result<Self, Error> {
        let file = |mistakes: Vec<Mistake>| Error::File { file: name.to_owned(), mistakes };
        let root = yaml::parse(text).map_err(|mistake| file(vec![mistake]))?;
        let log = FoundProblems::default();
        let storyboard = read(name, &root, folder, &log);
        let notices = log.finish().map_err(file)?;
        let mut storyboard = storyboard.expect("a file that is no mapping is a mistake");
        storyboard.notices.extend(notices);
        storyboard.used_values = used_values(text);
        Ok(storyboard)
    }
}

/// Every `NAME` of `context.NAME` in a file.
fn used_values(text: &str) -> BTreeSet<String> {
    let name = |rest: &str| {
        let end = rest.find(|one: char| !one.is_ascii_alphanumeric() && one != '_').unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    text.split("context.").skip(1).map(name).filter(|name| !name.is_empty()).collect()
}

fn read(file: &str, root: &YamlNode, folder: Option<&FilePath>, log: &FoundProblems) -> Option<Storyboard> {
    let mut top = MappingReader::of(root, "a storyboard", log)?;
    let id = top.needed_text("id");
    let title = top.text("title").unwrap_or_else(|| id.clone());
    let summary = top.text("summary").unwrap_or_default();
    let (transport, dialect) = transport(&mut top, log);
    let requires_node = top.node("requires");
    let requires = top.texts("requires").unwrap_or_default();
    if let Some(node) = requires_node
        && requires.is_empty()
    {
        top.wrong(node, "requires", "a list with at least one entry");
    }
    let mut gates: Vec<CapabilityGate> =
        top.table("requires_capability").and_then(|gate| read_gate(gate, log)).into_iter().collect();
    let all = top.tables("requires_all_capabilities");
    if let Some(node) = top.node("requires_all_capabilities")
        && all.len() < 2
    {
        top.wrong(node, "requires_all_capabilities", "a list of at least two");
    }
    gates.extend(all.into_iter().filter_map(|gate| read_gate(gate, log)));
    let families = top.tables("required_any_of_tools").into_iter().map(|mut family| {
        let tools = family.texts("tools").unwrap_or_default();
        family.finish(&["rationale"]);
        tools
    });
    let families = families.collect();
    let mut notices = Vec::new();
    let (mut seeding, mut test_kit) = (Seeding::None, Value::Null);
    if let Some(mut prerequisites) = top.table("prerequisites") {
        if prerequisites.flag("controller_seeding") == Some(true) {
            seeding = Seeding::Controller;
        }
        if let Some(kit) = prerequisites.text("test_kit") {
            match find_kit(&kit, folder) {
                Some(found) => test_kit = found,
                None => {
                    notices.push(format!("the test kit `{kit}` was not found; credentials come from --auth"));
                }
            }
        }
        prerequisites.finish(&["description"]);
    }
    let context = match top.json("context") {
        Some(Value::Object(context)) => context,
        None => Map::new(),
        Some(_) => {
            if let Some(node) = top.node("context") {
                top.wrong(node, "context", "a mapping");
            }
            Map::new()
        }
    };
    let fixtures = top.json("fixtures").unwrap_or(Value::Null);
    let invariants = top.texts("invariants").unwrap_or_default();
    let required_tools = top.texts("required_tools").unwrap_or_default();
    if !top.has("phases") && dialect == StoryboardDialect::Own {
        log.mistake(top.at(), "`phases` in a storyboard");
    }
    let reader = steps::Steps { log, transport, dialect };
    let phases: Vec<StoryboardPhase> =
        top.tables("phases").into_iter().map(|phase| read_phase(phase, &reader)).collect();
    repeated_ids(root, &phases, log);
    top.finish(TOP_DOCUMENTATION);
    let not_applicable = unknown_references(root, &phases);
    Some(Storyboard {
        file: file.to_owned(),
        id,
        title,
        summary,
        transport,
        dialect,
        invariants,
        required_tools,
        tool_families: families,
        requires,
        gates,
        context,
        used_values: BTreeSet::new(),
        seeding,
        fixtures,
        test_kit,
        phases,
        notices,
        not_applicable,
    })
}

fn transport(top: &mut MappingReader<'_>, log: &FoundProblems) -> (Transport, StoryboardDialect) {
    match top.text("transport").as_deref() {
        Some("http") => (Transport::Http, StoryboardDialect::Own),
        Some("mcp") => (Transport::Mcp, StoryboardDialect::Own),
        Some(other) => {
            if let Some(node) = top.node("transport") {
                log.mistake(node.at, format!("`transport` to be http or mcp, not {other:?}"));
            }
            (Transport::Http, StoryboardDialect::Own)
        }
        None => {
            let has_task = |step: &YamlNode| match &step.kind {
                YamlKind::Table(members) => members.iter().any(|member| member.name == "task"),
                YamlKind::Scalar(_) | YamlKind::List(_) => false,
            };
            let phases = top.items("phases").iter();
            let steps = phases.filter_map(|phase| match &phase.kind {
                YamlKind::Table(members) => members.iter().find(|member| member.name == "steps"),
                YamlKind::Scalar(_) | YamlKind::List(_) => None,
            });
            let any = steps.map(|steps| &steps.node.kind).any(|steps| match steps {
                YamlKind::List(steps) => steps.iter().any(has_task),
                YamlKind::Scalar(_) | YamlKind::Table(_) => false,
            });
            if any {
                (Transport::Mcp, StoryboardDialect::Adcp)
            } else {
                (Transport::Http, StoryboardDialect::Own)
            }
        }
    }
}

fn read_phase(mut table: MappingReader<'_>, steps: &steps::Steps<'_>) -> StoryboardPhase {
    let log = steps.log;
    let id = table.needed_text("id");
    let title = table.text("title").unwrap_or_else(|| id.clone());
    let optional = table.flag("optional") == Some(true);
    let level =
        read_level(&mut table, log).unwrap_or(if optional { Level::Optional } else { Level::Required });
    let explain = table.table("explain").map(|mut explain| {
        let read = Explain { suffers: explain.needed_text("suffers"), fix: explain.needed_text("fix") };
        explain.finish(&[]);
        read
    });
    let depends_on = table.texts("depends_on");
    let gate = table.table("requires_capability").and_then(|gate| read_gate(gate, log));
    let skip_if = table.text("skip_if");
    let branch = table.table("branch_set").map(|mut branch| {
        let id = branch.needed_text("id");
        if let Some(semantics) = branch.text("semantics")
            && semantics != "any_of"
        {
            log.notice(branch.at(), &format!("branch sets are read as any_of, not {semantics:?}"));
        }
        branch.finish(&[]);
        id
    });
    let read = table.tables("steps").into_iter().map(|step| steps.read(step, branch.as_deref())).collect();
    table.finish(&["narrative"]);
    StoryboardPhase { id, title, level, explain, depends_on, gate, skip_if, branch, steps: read }
}

pub(super) fn read_level(table: &mut MappingReader<'_>, log: &FoundProblems) -> Option<Level> {
    let text = table.text("level")?;
    match text.as_str() {
        "required" => Some(Level::Required),
        "recommended" => Some(Level::Recommended),
        "optional" => Some(Level::Optional),
        _ => {
            if let Some(node) = table.node("level") {
                log.mistake(
                    node.at,
                    format!("`level` to be required, recommended or optional, not {text:?}"),
                );
            }
            None
        }
    }
}

fn read_gate(mut table: MappingReader<'_>, log: &FoundProblems) -> Option<CapabilityGate> {
    let at = table.at();
    let path = table.needed_text("path");
    let mut wants = Vec::new();
    wants.extend(table.json("equals").map(Wants::Equals));
    wants.extend(table.json("contains").map(Wants::Contains));
    wants.extend(table.json("not_contains").map(Wants::NotContains));
    if let Some(text) = table.text("at_least") {
        match Release::parse(&text) {
            Some(release) => wants.push(Wants::AtLeast(release)),
            None => log.mistake(at, format!("`at_least` to be a release such as \"4.0\", not {text:?}")),
        }
    }
    wants.extend(table.flag("present").map(Wants::Present));
    table.finish(&[]);
    if wants.len() != 1 {
        log.mistake(
            at,
            "exactly one of equals, contains, not_contains, present, at_least in a capability gate",
        );
    }
    wants.pop().map(|wants| CapabilityGate { path, wants })
}

/// A test kit in the folder of the file, or in one of the folders above.
fn find_kit(kit: &str, folder: Option<&FilePath>) -> Option<Value> {
    folder?.ancestors().take(4).find_map(|folder| {
        let text = std::fs::read_to_string(folder.join(kit)).ok()?;
        yaml::parse(&text).ok().map(|node| node.json())
    })
}

/// Ids of phases and steps must be unique.
fn repeated_ids(root: &YamlNode, phases: &[StoryboardPhase], log: &FoundProblems) {
    let mut seen = std::collections::BTreeSet::new();
    for phase in phases {
        if !seen.insert(format!("phase {}", phase.id)) {
            log.mistake(root.at, format!("phase ids that differ; `{}` occurs twice", phase.id));
        }
        for needed in phase.depends_on.iter().flatten() {
            if !seen.contains(&format!("phase {needed}")) {
                log.mistake(
                    root.at,
                    format!("`depends_on` of phase `{}` to name earlier phases, not `{needed}`", phase.id),
                );
            }
        }
        for step in &phase.steps {
            if !seen.insert(format!("step {}/{}", phase.id, step.id)) {
                log.mistake(
                    root.at,
                    format!("step ids that differ; `{}` occurs twice in `{}`", step.id, phase.id),
                );
            }
        }
    }
}

/// A `{{…}}` that neither this file nor this runner can fill: the file does not apply.
fn unknown_references(root: &YamlNode, phases: &[StoryboardPhase]) -> Option<String> {
    let known: Vec<&str> =
        phases.iter().flat_map(|phase| &phase.steps).map(|step| step.id.as_str()).collect();
    let mut unknown = None;
    for part in ["phases", "context"] {
        let Some(part) = root.json().get(part).cloned() else { continue };
        crate::substitute::each_reference(&part, &mut |reference: &str| {
            let step = reference.strip_prefix("prior_step.").and_then(|rest| rest.split('.').next());
            if unknown.is_none() && !step.is_some_and(|step| known.contains(&step)) {
                unknown = Some(format!("unresolved_substitution: {{{{{reference}}}}} cannot be filled"));
            }
        });
    }
    unknown
}
