//! `semel drill`: what people fear, made to happen on purpose (P13, G18). Each drill starts what it needs, on free ports and in
//! a temporary folder, prints what it checked, and says whether it went well.

mod burst;
mod ground;
mod letters;
mod redis;

use std::io::Write as _;

use anyhow::{Context as _, bail};
use semel::store::BoxFuture;
use serde_json::json;

use self::ground::Ground;
use crate::cli::DrillArgs;
use crate::logs;

/// A drill: its name, what it does, and whether it needs a Redis.
struct Drill {
    name: &'static str,
    about: &'static str,
    redis: bool,
    run: for<'a> fn(&'a mut Ground) -> BoxFuture<'a, anyhow::Result<()>>,
}

const DRILLS: [Drill; 9] = [
    Drill {
        name: "target-down",
        about: "a target is gone: retries, then dead letters; another target is not held up",
        redis: false,
        run: |ground| Box::pin(letters::target_down(ground)),
    },
    Drill {
        name: "broken-credentials",
        about: "a target refuses our credentials: not retried, set aside, and replayed once they are right",
        redis: false,
        run: |ground| Box::pin(letters::broken_credentials(ground)),
    },
    Drill {
        name: "replay-dead-letter",
        about: "a dead letter is planned, replayed under its own key, and skipped the second time",
        redis: false,
        run: |ground| Box::pin(letters::replay_dead_letter(ground)),
    },
    Drill {
        name: "duplicate-messages",
        about: "a stream holds every message twice, and some that cannot be read: one effect each, nothing lost",
        redis: true,
        run: |ground| Box::pin(burst::duplicate_messages(ground)),
    },
    Drill {
        name: "cold-gate-burst",
        about: "many triggers of one key at once on a cold gate, through several processes: one run",
        redis: true,
        run: |ground| Box::pin(burst::cold_gate_burst(ground)),
    },
    Drill {
        name: "mutations-while-buffered",
        about: "a buffered run is changed by fifty callers at once: every change arrives, no byte is re-encoded",
        redis: true,
        run: |ground| Box::pin(burst::mutations_while_buffered(ground)),
    },
    Drill {
        name: "reset-while-buffered",
        about: "a key is reset while its run is buffered: the next trigger is another run, and both arrive",
        redis: true,
        run: |ground| Box::pin(burst::reset_while_buffered(ground)),
    },
    Drill {
        name: "drainer-killed",
        about: "a process that drains is killed: every buffered run arrives exactly once",
        redis: true,
        run: |ground| Box::pin(burst::drainer_killed(ground)),
    },
    Drill {
        name: "redis-down",
        about: "Redis goes away under triggers and comes back: the ledger decides alone meanwhile",
        redis: true,
        run: |ground| Box::pin(burst::redis_down(ground)),
    },
];

/// Runs the drills that are named.
///
/// # Errors
/// A drill that failed, or a name that is none.
pub(crate) fn run(args: &DrillArgs) -> anyhow::Result<()> {
    let chosen: Vec<&Drill> = match args.name.as_str() {
        "all" => DRILLS.iter().collect(),
        name => DRILLS.iter().filter(|drill| drill.name == name).collect(),
    };
    if chosen.is_empty() {
        let names: Vec<String> =
            DRILLS.iter().map(|drill| format!("  {:<26}{}", drill.name, drill.about)).collect();
        bail!(
            "there is no drill {:?}; there are\n{}\n  {:<26}all of them",
            args.name,
            names.join("\n"),
            "all"
        );
    }
    logs::start(crate::config::Log::quiet());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut failed = Vec::new();
    for drill in chosen {
        if !runtime.block_on(one(drill, args))? {
            failed.push(drill.name);
        }
    }
    runtime.shutdown_background();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs one. Whether it went well.
async fn one(drill: &Drill, args: &DrillArgs) -> anyhow::Result<bool> {
    if !args.json {
        say(&format!("{}: {}", drill.name, drill.about))?;
    }
    let mut ground = Ground::new(args, drill.redis).await.with_context(|| drill.name)?;
    let ran = (drill.run)(&mut ground).await;
    let checks = ground.end().await;
    let passed = ran.is_ok() && !checks.is_empty() && checks.iter().all(|check| check.passed);
    if args.json {
        let shown: Vec<_> = checks
            .iter()
            .map(|check| json!({ "checked": check.what, "passed": check.passed, "seen": check.seen }))
            .collect();
        let error = ran.as_ref().err().map(|error| format!("{error:#}"));
        say(&json!({ "drill": drill.name, "passed": passed, "checks": shown, "error": error }).to_string())?;
        return Ok(passed);
    }
    for check in &checks {
        let word = if check.passed { "ok    " } else { "FAILED" };
        say(&format!("  {word}  {} ({})", check.what, check.seen))?;
    }
    if let Err(error) = &ran {
        say(&format!("  FAILED  it could not go on: {error:#}"))?;
    }
    let verdict = if passed { "passed" } else { "FAILED" };
    say(&format!("{}: {verdict}, {} checks\n", drill.name, checks.len()))?;
    Ok(passed)
}

fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).context("standard output is closed")
}
