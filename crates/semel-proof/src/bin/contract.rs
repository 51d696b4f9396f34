//! Runs the contract suite over stores and prints a table of the results. See `scripts/contract`.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use semel::testkit::contract::{case_names, run_case};
use semel_proof::grounds::{Servers, StoreKind};
use tokio::task::JoinSet;

const USAGE: &str = "\
usage: scripts/contract [--case NAME]… [STORE…]
       scripts/contract --list

Runs every case of the contract suite over every store, or over those named, on servers that it starts itself.
Prints a table of cases and stores; exits with 1 where anything fails.";

/// Most of a case over a server is waiting for leases to expire, so several run concurrently.
const AT_ONCE: usize = 6;

#[derive(Clone, Debug, PartialEq, Eq)]
enum CaseVerdict {
    Holds,
    Fails(String),
}

type Verdicts = BTreeMap<(&'static str, &'static str), CaseVerdict>;

struct Plan {
    grounds: Vec<StoreKind>,
    cases: Vec<&'static str>,
}

fn main() -> ExitCode {
    let plan = match plan(std::env::args().skip(1)) {
        Ok(Some(plan)) => plan,
        Ok(None) => return ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    // The message of a case is in the list below the table.
    std::panic::set_hook(Box::new(|_| ()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    let verdicts = runtime.expect("a runtime can be started").block_on(run(&plan));
    print(&plan, &verdicts)
}

fn plan(mut words: impl Iterator<Item = String>) -> Result<Option<Plan>, String> {
    let mut plan = Plan { grounds: Vec::new(), cases: Vec::new() };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(None);
            }
            "--list" => {
                println!("stores: {}", StoreKind::ALL.map(StoreKind::name).join(" "));
                println!("cases:");
                case_names().for_each(|name| println!("  {name}"));
                return Ok(None);
            }
            "--case" => {
                let name = words.next().unwrap_or_default();
                let known = case_names().find(|known| *known == name);
                plan.cases
                    .push(known.ok_or_else(|| format!("there is no case `{name}`; --list shows them"))?);
            }
            name => {
                let ground = StoreKind::named(name);
                plan.grounds
                    .push(ground.ok_or_else(|| format!("there is no store `{name}`; --list shows them"))?);
            }
        }
    }
    if plan.grounds.is_empty() {
        plan.grounds = StoreKind::ALL.to_vec();
    }
    if plan.cases.is_empty() {
        plan.cases = case_names().collect();
    }
    Ok(Some(plan))
}

async fn run(plan: &Plan) -> Verdicts {
    let servers = Arc::new(Servers::default());
    let mut verdicts = Verdicts::new();
    let all = plan.grounds.len() * plan.cases.len();
    for ground in &plan.grounds {
        let mut waiting: VecDeque<&'static str> = plan.cases.iter().copied().collect();
        let mut running = JoinSet::new();
        loop {
            while running.len() < AT_ONCE
                && let Some(case) = waiting.pop_front()
            {
                running.spawn(check(Arc::clone(&servers), *ground, case));
            }
            let Some(ended) = running.join_next().await else { break };
            let (case, verdict) = ended.expect("a case's panic is its verdict");
            verdicts.insert((case, ground.name()), verdict);
            progress(ground.name(), verdicts.len(), all);
        }
        // One line for each store, on the stream of the progress.
        eprintln!("\r{:<14} {} cases checked{:20}", ground.name(), plan.cases.len(), "");
    }
    verdicts
}

async fn check(servers: Arc<Servers>, ground: StoreKind, case: &'static str) -> (&'static str, CaseVerdict) {
    let ran = tokio::spawn(async move {
        let context =
            servers.context(ground).await.map_err(|error| format!("it cannot be opened: {error}"))?;
        run_case(case, &context).await.map_err(|error| error.to_string())
    });
    let verdict = match ran.await {
        Ok(Ok(())) => CaseVerdict::Holds,
        Ok(Err(message)) => CaseVerdict::Fails(message),
        Err(error) => CaseVerdict::Fails(match error.try_into_panic() {
            Ok(panic) => panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_else(|| "it panicked without a message".to_owned()),
            Err(error) => error.to_string(),
        }),
    };
    (case, verdict)
}

/// On a terminal only: elsewhere the line per store must suffice.
fn progress(ground: &str, done: usize, all: usize) {
    let mut to = std::io::stderr();
    if to.is_terminal() {
        let filled = done * 30 / all;
        let _ = write!(to, "\r{ground:<14} [{}{}] {done}/{all}", "#".repeat(filled), "-".repeat(30 - filled));
        let _ = to.flush();
    }
}

fn print(plan: &Plan, verdicts: &Verdicts) -> ExitCode {
    let widest = plan.cases.iter().map(|case| case.len()).max().unwrap_or_default();
    let grounds: Vec<&str> = plan.grounds.iter().map(|ground| ground.name()).collect();
    let row = |first: &str, cells: Vec<&str>| {
        let mut line = format!("{first:<widest$}");
        for (cell, ground) in cells.iter().zip(&grounds) {
            line.push_str(&format!("  {cell:<width$}", width = ground.len().max("FAILED".len())));
        }
        println!("{}", line.trim_end());
    };
    row("case", grounds.clone());
    let of = |case, ground| verdicts.get(&(case, ground));
    for case in &plan.cases {
        let cell = |ground: &&'static str| match of(case, ground) {
            Some(CaseVerdict::Holds) => "ok",
            Some(CaseVerdict::Fails(_)) | None => "FAILED",
        };
        row(case, plan.grounds.iter().map(|ground| cell(&ground.name())).collect());
    }
    let failed: Vec<_> = verdicts
        .iter()
        .filter_map(|(place, verdict)| match verdict {
            CaseVerdict::Fails(message) => Some((place, message)),
            CaseVerdict::Holds => None,
        })
        .collect();
    for ((case, ground), message) in &failed {
        println!("\nFAILED  {ground}: {case}\n  {}", message.replace('\n', "\n  "));
    }
    let all = plan.grounds.len() * plan.cases.len();
    println!("\n{} passed, {} failed", all - failed.len(), failed.len());
    if failed.is_empty() && verdicts.len() == all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
