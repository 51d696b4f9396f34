//! `semel drill`: causes failures on purpose. Each drill starts what it needs, on free ports and in a temporary folder, prints its
//! checks, and reports whether it passed. Nothing is left behind, also if the drill is interrupted or killed.

mod burst;
mod crowd;
pub(super) mod environment;
mod letters;
mod moments;
mod outages;
pub(super) mod postgres;
pub(super) mod redis;
mod target;
pub(crate) mod watchdog;
mod wire;

use anyhow::{Context as _, bail};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use semel::store::BoxFuture;
use serde_json::json;

use self::environment::{DrillEnvironment, DrillNeeds, Skipped};
use self::postgres::DrillPostgres;
use self::redis::DrillRedis;
use super::screen::{with_causes, write_line};
use super::store::shown;
use crate::interrupted::Interrupted;
use crate::signals::Signals;
use crate::telemetry::logs;

#[derive(Clone, Debug, Args)]
pub(crate) struct DrillArgs {
    /// The drill
    #[arg(value_parser = names())]
    pub(crate) name: String,
    /// Redis server to use instead of starting redis-server, for drills that do not kill it
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// PostgreSQL database for the ledger, instead of starting a server, for drills that do not kill it
    #[arg(long, value_name = "URL")]
    pub(crate) postgres: Option<String>,
    /// Print one line of JSON per drill
    #[arg(long)]
    pub(crate) json: bool,
}

/// A drill: its name, its description, and its requirements.
struct Drill {
    name: &'static str,
    about: &'static str,
    needs: DrillNeeds,
    run: for<'a> fn(&'a mut DrillEnvironment) -> BoxFuture<'a, anyhow::Result<()>>,
}

const DRILLS: [Drill; 13] = [
    Drill {
        name: "target-down",
        about: "a target is unavailable: retries, then dead letters; other targets are not delayed",
        needs: DrillNeeds::Nothing,
        run: |environment| Box::pin(letters::target_down(environment)),
    },
    Drill {
        name: "broken-credentials",
        about: "a target refuses our credentials: not retried, dead-lettered, and replayed once they are right",
        needs: DrillNeeds::Nothing,
        run: |environment| Box::pin(letters::broken_credentials(environment)),
    },
    Drill {
        name: "replay-dead-letter",
        about: "a dead letter is planned, replayed with its original key, and skipped the second time",
        needs: DrillNeeds::Nothing,
        run: |environment| Box::pin(letters::replay_dead_letter(environment)),
    },
    Drill {
        name: "duplicate-messages",
        about: "a stream contains every message twice, and one that cannot be decoded: one effect each, nothing lost",
        needs: DrillNeeds::Redis,
        run: |environment| Box::pin(burst::duplicate_messages(environment)),
    },
    Drill {
        name: "cold-gate-burst",
        about: "concurrent triggers of one key on a cold gate, through several processes: one run",
        needs: DrillNeeds::Several,
        run: |environment| Box::pin(burst::cold_gate_burst(environment)),
    },
    Drill {
        name: "mutations-while-buffered",
        about: "fifty callers change a buffered run concurrently: every change arrives, no byte is re-encoded",
        needs: DrillNeeds::Redis,
        run: |environment| Box::pin(burst::mutations_while_buffered(environment)),
    },
    Drill {
        name: "reset-while-buffered",
        about: "a key is reset while its run is buffered: the next trigger is another run, and both arrive",
        needs: DrillNeeds::Redis,
        run: |environment| Box::pin(burst::reset_while_buffered(environment)),
    },
    Drill {
        name: "drainer-killed",
        about: "a draining process is killed: every buffered run arrives exactly once",
        needs: DrillNeeds::Redis,
        run: |environment| Box::pin(burst::drainer_killed(environment)),
    },
    Drill {
        name: "winner-crashes",
        about: "the process that won a key is killed before it stored the run: the waiting callers get one run",
        needs: DrillNeeds::OwnRedis,
        run: |environment| Box::pin(moments::winner_crashes(environment)),
    },
    Drill {
        name: "publish-lost",
        about: "a run is stored, but its id is never published: triggers with the key find the run",
        needs: DrillNeeds::OwnRedis,
        run: |environment| Box::pin(moments::publish_lost(environment)),
    },
    Drill {
        name: "reset-while-draining",
        about: "a key is reset while a drainer holds its run: the next trigger is another run, and both arrive",
        needs: DrillNeeds::OwnRedis,
        run: |environment| Box::pin(moments::reset_while_draining(environment)),
    },
    Drill {
        name: "redis-down",
        about: "Redis fails at the claim, at the wait and at the buffer, and recovers: the ledger decides alone",
        needs: DrillNeeds::OwnRedis,
        run: |environment| Box::pin(outages::redis_down(environment)),
    },
    Drill {
        name: "database-down",
        about: "PostgreSQL crashes while the buffer is drained: no attempt is lost, and every run arrives once",
        needs: DrillNeeds::OwnBoth,
        run: |environment| Box::pin(outages::database_down(environment)),
    },
];

/// The names that the command line accepts, with their descriptions.
fn names() -> PossibleValuesParser {
    let drills = DRILLS.iter().map(|drill| PossibleValue::new(drill.name).help(drill.about));
    drills.chain([PossibleValue::new("all").help("all of them")]).collect::<Vec<_>>().into()
}

/// Runs the named drills.
///
/// # Errors
/// A drill that failed, or Ctrl-C.
pub(crate) fn run(args: &DrillArgs) -> anyhow::Result<()> {
    let chosen: Vec<&Drill> = match args.name.as_str() {
        "all" => DRILLS.iter().collect(),
        name => DRILLS.iter().filter(|drill| drill.name == name).collect(),
    };
    logs::start(crate::config::LogConfig::quiet());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // Before anything is started: from now on a signal ends the drill in order.
    let mut signals = {
        let _runtime = runtime.enter();
        Signals::listen()?
    };
    let needs = |wanted: fn(DrillNeeds) -> bool| chosen.iter().any(|drill| wanted(drill.needs));
    let redis = args.redis.as_deref().filter(|_| needs(DrillNeeds::uses_named_redis));
    let postgres = args.postgres.as_deref().filter(|_| needs(DrillNeeds::uses_named_postgres));
    runtime.block_on(async {
        tokio::select! {
            biased;
            _ = signals.next() => Err(Interrupted::default().into()),
            answered = check_servers(redis, postgres) => answered,
        }
    })?;
    let (mut failed, mut skipped) = (Vec::new(), Vec::new());
    let several = chosen.len() > 1;
    for drill in chosen {
        match runtime.block_on(one(drill, args, &mut signals))? {
            DrillVerdict::Passed => {}
            DrillVerdict::Failed => failed.push(drill.name),
            DrillVerdict::Skipped => skipped.push(drill.name),
        }
    }
    runtime.shutdown_background();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    match (skipped.is_empty(), several) {
        (true, _) => Ok(()),
        // With several drills a skip is only reported; a single drill that is skipped is an error, because nothing was checked.
        (false, true) if args.json => Ok(()),
        (false, true) => write_line(&format!("skipped: {}; nothing was checked there", skipped.join(", "))),
        (false, false) => bail!("skipped: nothing was checked"),
    }
}

/// An error unless the servers that the user named answer.
pub(super) async fn check_servers(redis: Option<&str>, postgres: Option<&str>) -> anyhow::Result<()> {
    if let Some(url) = redis {
        DrillRedis::named(url, String::new())
            .command(&["PING"])
            .await
            .with_context(|| format!("--redis {}", shown(url)))?;
    }
    if let Some(url) = postgres {
        DrillPostgres::check(url).await.with_context(|| format!("--postgres {}", shown(url)))?;
    }
    Ok(())
}

/// The result of a drill.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DrillVerdict {
    Passed,
    Failed,
    /// A requirement is not installed.
    Skipped,
}

/// Runs one drill.
async fn one(drill: &Drill, args: &DrillArgs, signals: &mut Signals) -> anyhow::Result<DrillVerdict> {
    if !args.json {
        write_line(&format!("{}: {}", drill.name, drill.about))?;
    }
    let (ran, checks, notes) = match DrillEnvironment::new(args, drill.needs) {
        Ok(mut environment) => {
            let ran = tokio::select! {
                biased;
                _ = signals.next() => None,
                ran = (drill.run)(&mut environment) => Some(ran),
            };
            let (checks, notes) = environment.end();
            let Some(ran) = ran else {
                return Err(Interrupted::new("everything that the drill started is removed").into());
            };
            (ran, checks, notes)
        }
        Err(error) => (Err(error), Vec::new(), Vec::new()),
    };
    let why_not = ran.as_ref().err().and_then(|error| error.downcast_ref::<Skipped>());
    if let Some(why) = why_not.filter(|_| checks.is_empty()) {
        if args.json {
            let told = json!({ "drill": drill.name, "passed": null, "skipped": why.to_string() });
            write_line(&told.to_string())?;
        } else {
            write_line(&format!("{}: SKIPPED, {why}\n", drill.name))?;
        }
        return Ok(DrillVerdict::Skipped);
    }
    let passed = ran.is_ok() && !checks.is_empty() && checks.iter().all(|check| check.passed);
    let verdict = if passed { DrillVerdict::Passed } else { DrillVerdict::Failed };
    if args.json {
        let shown: Vec<_> = checks
            .iter()
            .map(|check| json!({ "checked": check.what, "passed": check.passed, "seen": check.seen }))
            .collect();
        let error = ran.as_ref().err().map(with_causes);
        let told =
            json!({ "drill": drill.name, "passed": passed, "checks": shown, "notes": notes, "error": error });
        write_line(&told.to_string())?;
        return Ok(verdict);
    }
    for note in &notes {
        write_line(&format!("  note    {note}"))?;
    }
    for check in &checks {
        let word = if check.passed { "ok    " } else { "FAILED" };
        write_line(&format!("  {word}  {} ({})", check.what, check.seen))?;
    }
    if let Err(error) = &ran {
        write_line(&format!("  FAILED  it could not go on: {}", with_causes(error)))?;
    }
    let word = if passed { "passed" } else { "FAILED" };
    write_line(&format!("{}: {word}, {} checks\n", drill.name, checks.len()))?;
    Ok(verdict)
}
