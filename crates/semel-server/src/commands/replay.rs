//! `semel replay`: replays dead letters of a running server, and follows the job.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::Args;
use http::Method;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::listing::{Pages, Paging, Watch, at_least_one};
use super::remote::{QueryString, cell, encode, get, print, send};
use super::screen::{moment, printable, readable, time_since, with_causes, write_line};
use super::table::table;
use crate::admin::replays::{OrderRequest, ReplayRequest};
use crate::cli::Remote;
use crate::client::AdminClient;
use crate::config::parse_duration;
use crate::interrupted::Interrupted;
use crate::misused::Misused;

/// Choose the dead letters: --status failed, --dlq --id, --event-id; or a job: --job, --list.
#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["status", "dlq", "event_id", "job", "list"]))]
pub(crate) struct ReplayArgs {
    /// All deliveries that ended in dlq or blocked
    #[arg(long, value_name = "S", value_parser = ["failed"])]
    pub(crate) status: Option<String>,
    /// Only dead letters written in this time or since this day or time (UTC): 24h, yesterday, 2026-11-18
    #[arg(long, value_name = "TIME", requires = "status")]
    pub(crate) since: Option<String>,
    /// Maximum number: of dead letters, oldest first, or of jobs, newest first [default: 100]
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with_all = ["dlq", "event_id", "job"])]
    pub(crate) limit: Option<usize>,
    /// Only this tenant
    #[arg(long, requires = "status")]
    pub(crate) tenant: Option<String>,
    /// Only this failure signature, as printed by `dlq groups`
    #[arg(long, requires = "status")]
    pub(crate) signature: Option<String>,
    /// Dead letters by id
    #[arg(long, requires = "id")]
    pub(crate) dlq: bool,
    /// A dead letter; can be repeated
    #[arg(long, value_name = "ID", requires = "dlq")]
    pub(crate) id: Vec<String>,
    /// Deliveries of one event
    #[arg(long, value_name = "ID")]
    pub(crate) event_id: Option<String>,
    /// Only these targets, separated by commas
    #[arg(long, visible_alias = "target", value_name = "A,B", value_delimiter = ',')]
    pub(crate) targets: Vec<String>,
    /// resume: skip completed deliveries; re-execute: run effects again; as-new: send as new events [default: resume]
    #[arg(long, value_name = "M", value_parser = ["resume", "re-execute", "as-new"])]
    pub(crate) mode: Option<String>,
    /// Reason; required for re-execute
    #[arg(long, value_name = "R")]
    pub(crate) reason: Option<String>,
    /// Show the plan without executing it
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Maximum rate per second; 0 is no limit [default: 0]. With --job: change it
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<f64>,
    /// Canary size: the rest is released after these succeeded [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) canary: Option<u32>,
    /// Maximum number in progress [default: 16]. With --job: change it
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<u32>,
    /// Do not wait for the end of the job
    #[arg(long)]
    pub(crate) detach: bool,
    /// An existing job: follow or control it
    #[arg(long, value_name = "ID")]
    pub(crate) job: Option<String>,
    /// List jobs, newest first
    #[arg(long)]
    pub(crate) list: bool,
    /// With --list: continue an earlier list
    #[arg(long, value_name = "CURSOR", requires = "list", conflicts_with_all = ["status", "dlq", "event_id", "job"])]
    pub(crate) cursor: Option<String>,
    /// With --list: repeat every two seconds, until Ctrl-C
    #[arg(long, requires = "list", conflicts_with_all = ["status", "dlq", "event_id", "job"])]
    pub(crate) watch: bool,
    /// Pause the job
    // Beside --status, which excludes --job, clap does not enforce `requires`: the flag would be ignored, and a job started.
    #[arg(long, requires = "job", conflicts_with_all = ["resume", "cancel", "status", "dlq", "event_id", "list"])]
    pub(crate) pause: bool,
    /// Resume the job and follow it
    #[arg(long, requires = "job", conflicts_with_all = ["cancel", "status", "dlq", "event_id", "list"])]
    pub(crate) resume: bool,
    /// Cancel the job
    #[arg(long, requires = "job", conflicts_with_all = ["status", "dlq", "event_id", "list"])]
    pub(crate) cancel: bool,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

/// Number of jobs that are listed by default.
const LISTED: usize = 100;
/// Number of failed items that are shown.
const FAILURES_SHOWN: usize = 10;
/// How often the job is polled.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A server that does not say how the job is within this time has stopped or is overloaded.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// How long a server that does not answer may take to return.
const SERVER_RETURNS: Duration = Duration::from_secs(60);

/// Runs the command.
///
/// # Errors
/// The server cannot be reached or refuses, or items failed again.
pub(crate) async fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    let remote = &args.remote;
    let client = AdminClient::of(remote)?;
    if args.list {
        return list(args).await;
    }
    if let Some(job) = &args.job {
        let is_paced = args.rate.is_some() || args.concurrency.is_some();
        let order =
            [("pause", args.pause), ("resume", args.resume), ("cancel", args.cancel), ("pace", is_paced)];
        let asked = match order.iter().find(|(_, wanted)| *wanted) {
            Some((order, _)) => {
                let path = format!("/v1/replays/{}/{order}", encode(job));
                let reason = args.reason.clone().unwrap_or_default();
                let request = OrderRequest { reason, rate: args.rate, concurrency: args.concurrency };
                send(&client, Method::POST, &path, &request).await?
            }
            None => get(&client, &format!("/v1/replays/{}", encode(job))).await?,
        };
        return if args.detach || args.pause || args.cancel {
            print_job(remote, &asked)
        } else {
            follow(args, &client, asked).await
        };
    }
    let job = send(&client, Method::POST, "/v1/replays", &request(args)?).await?;
    if args.dry_run {
        return plan(remote, &job);
    }
    if let Some(more @ 1..) = job["left_out"].as_u64() {
        eprintln!("{}", left_out(more));
    }
    if args.detach {
        return print_job(remote, &job);
    }
    follow(args, &client, job).await
}

/// What the limit left out. The server counts up to 1000, and with `--since` all.
fn left_out(more: u64) -> String {
    let at_least = if more == 1_000 { "at least " } else { "" };
    format!("{at_least}{more} more match and are left out; raise --limit to include them")
}

async fn list(args: &ReplayArgs) -> anyhow::Result<()> {
    let row = |job: &Value| {
        let [id, state, mode, by] = ["id", "state", "mode", "by"].map(|name| cell(job, name));
        let [replayed, total, failed] =
            ["replayed", "total", "failed_again"].map(|name| cell(&job["counts"], name));
        let created = moment(&cell(job, "created_at"));
        [id, state, mode, format!("{replayed}/{total}"), failed, by, created, notes(job)]
    };
    let titles = ["ID", "STATE", "MODE", "REPLAYED", "FAILED AGAIN", "BY", "CREATED", "NOTE"];
    let paging = Paging {
        limit: args.limit.unwrap_or(LISTED),
        cursor: args.cursor.clone(),
        watch: Watch { watch: args.watch },
    };
    let show = |items: &[Value]| table(titles, &items.iter().map(row).collect::<Vec<_>>());
    paging.show(&args.remote, "/v1/replays", QueryString::default(), show).await
}

/// Why a job is in its state, and why it waits.
fn notes(job: &Value) -> String {
    let mut notes: Vec<String> = [cell(job, "note")].into_iter().filter(|note| !note.is_empty()).collect();
    if let Some(why) = job["waiting"].as_str() {
        notes.push(format!("waiting: {why}"));
    }
    notes.join("; ")
}

/// The time since a day or moment (`2026-11-18`, `2026-11-18T03:00:00Z`, `yesterday`, `today`), as a duration; durations stay.
fn since(text: &str) -> anyhow::Result<String> {
    if parse_duration(text).is_some() {
        return Ok(text.to_owned());
    }
    match time_since(text).filter(|age| *age >= Duration::from_secs(1)) {
        Some(age) => Ok(format!("{}s", age.as_secs())),
        None => Err(Misused::new(format!(
            "--since: expected a duration such as 24h, or a past day or time in UTC such as yesterday, 2026-11-18 or \
             2026-11-18T03:00:00Z, found {text:?}"
        ))
        .into()),
    }
}

fn request(args: &ReplayArgs) -> anyhow::Result<ReplayRequest> {
    Ok(ReplayRequest {
        status: args.status.clone(),
        limit: args.limit.map(|limit| limit as u64),
        since: args.since.as_deref().map(since).transpose()?,
        since_at: None,
        tenant: args.tenant.clone(),
        signature: args.signature.clone(),
        ids: (!args.id.is_empty()).then(|| args.id.clone()),
        event_id: args.event_id.clone(),
        targets: args.targets.clone(),
        mode: args.mode.clone(),
        reason: args.reason.clone(),
        rate: args.rate,
        canary: args.canary,
        concurrency: args.concurrency,
        pause_above: None,
        dry_run: args.dry_run,
    })
}

fn plan(remote: &Remote, plan: &Value) -> anyhow::Result<()> {
    if remote.json {
        return print(plan);
    }
    let rows: Vec<[String; 6]> = plan["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|item| ["action", "letter", "delivery", "target", "event", "why"].map(|name| cell(item, name)))
        .collect();
    table(["ACTION", "DEAD LETTER", "DELIVERY", "TARGET", "EVENT", "WHY"], &rows)?;
    if let Some(more @ 1..) = plan["more"].as_u64() {
        write_line(&format!("… and {more} more"))?;
    }
    if let Some(more @ 1..) = plan["left_out"].as_u64() {
        write_line(&left_out(more))?;
    }
    let [total, run, skip, conflict] = ["total", "run", "skip", "conflict"].map(|name| cell(plan, name));
    write_line(&format!(
        "{total} in total: {run} to run, {skip} to skip, {conflict} in conflict; nothing was sent"
    ))
}

fn print_job(remote: &Remote, job: &Value) -> anyhow::Result<()> {
    if remote.json {
        return print(job);
    }
    write_line(&line(job))
}

fn line(job: &Value) -> String {
    let counts = &job["counts"];
    let [id, state] = ["id", "state"].map(|name| cell(job, name));
    let mut text = format!("{id}  {state}: {} of {} replayed", counts["replayed"], counts["total"]);
    for (name, words) in [
        ("failed_again", "failed again"),
        ("skipped_completed", "already done"),
        ("skipped_inflight", "not replayed: in progress, discarded or under replay by another job"),
        ("cancelled", "cancelled"),
        ("released", "in progress"),
        ("pending", "pending"),
    ] {
        if counts[name] != 0 {
            text += &format!(", {} {words}", counts[name]);
        }
    }
    let notes = notes(job);
    if !notes.is_empty() {
        text += &format!(" ({notes})");
    }
    text
}

/// Follows a job until it ends or is paused.
async fn follow(args: &ReplayArgs, client: &AdminClient, mut job: Value) -> anyhow::Result<()> {
    let (remote, terminal) = (&args.remote, std::io::stderr().is_terminal());
    let id = cell(&job, "id");
    let path = format!("/v1/replays/{}", encode(&id));
    // Before the id is printed: from then on a person can interrupt.
    let mut interrupt = signal(SignalKind::interrupt())?;
    match job["counts"]["total"].as_u64() {
        Some(0) => eprintln!("{id}: nothing to replay"),
        _ => eprintln!("{id}: {} to replay", cell(&job["counts"], "total")),
    }
    // Above the progress bar.
    let tell = |line: &str| eprintln!("{}{line}", if terminal { "\r\x1b[K" } else { "" });
    let (mut lost, mut told): (Option<Instant>, _) = (None, String::new());
    while job["state"] == "running" {
        let waiting = cell(&job, "waiting");
        if !waiting.is_empty() && waiting != told {
            tell(&format!("waiting: {}", printable(&waiting)));
            told = waiting;
        }
        if terminal && !remote.json {
            progress(&job);
        }
        let next = async {
            tokio::time::sleep(LOOK_EVERY).await;
            let asked = tokio::time::timeout(ANSWERED_WITHIN, get(client, &path)).await;
            asked.unwrap_or_else(|_| {
                let within = readable(ANSWERED_WITHIN);
                Err(anyhow!("{} did not answer within {within}", client.address()))
            })
        };
        let seen = tokio::select! {
            seen = next => seen,
            _ = interrupt.recv() => {
                return Err(Interrupted::new(format!(
                    "{id} is still running on the server; stop it with `semel replay --job {id} --cancel`, follow it with \
                     `semel replay --job {id}`"
                ))
                .into());
            }
        };
        // The server may be restarted meanwhile: the job continues by itself.
        match (seen, lost) {
            (Ok(seen), None) => job = seen,
            (Ok(seen), Some(since)) => {
                tell(&format!("the server answers again, after {}", readable(since.elapsed())));
                (job, lost) = (seen, None);
            }
            (Err(error), None) => {
                let why = printable(&with_causes(&error));
                tell(&format!("{why}; trying again for {}", readable(SERVER_RETURNS)));
                lost = Some(Instant::now());
            }
            (Err(_), Some(since)) if since.elapsed() < SERVER_RETURNS => {}
            (Err(error), Some(_)) => {
                return Err(
                    error.context("the server does not answer; the job continues when it is available again")
                );
            }
        }
    }
    if terminal && !remote.json {
        eprint!("\r\x1b[K");
    }
    print_job(remote, &job)?;
    let [failed, refused] =
        ["failed_again", "skipped_inflight"].map(|name| job["counts"][name].as_u64().unwrap_or(0));
    if failed + refused > 0 && !remote.json {
        failures(client, &cell(&job, "id")).await?;
    }
    match job["state"].as_str() {
        // A person who names a dead letter wants this one.
        Some("done") if failed == 0 && args.dlq && refused > 0 => bail!("{refused} were not replayed"),
        Some("done") if failed == 0 => Ok(()),
        Some("done") => bail!("{failed} failed again; `semel dlq groups` shows why"),
        Some("paused") => {
            bail!("the job is paused; `semel replay --job {} --resume` resumes it", cell(&job, "id"))
        }
        _ => bail!("the job was cancelled"),
    }
}

/// The first items that failed again, or could not be replayed.
async fn failures(client: &AdminClient, job: &str) -> anyhow::Result<()> {
    let path = format!("/v1/replays/{}/items", encode(job));
    let mut pages = Pages::new(client, path, QueryString::default());
    let is_shown = |item: &Value| item["result"] == "failed_again" || item["result"] == "skipped_inflight";
    let mut rows: Vec<[String; 3]> = Vec::new();
    // They can be anywhere in the job.
    while rows.len() < FAILURES_SHOWN
        && let Some(page) = pages.next_longest().await?
    {
        let failed = page.iter().filter(|item| is_shown(item));
        rows.extend(failed.map(|item| ["dlq_id", "target", "error"].map(|name| cell(item, name))));
    }
    rows.truncate(FAILURES_SHOWN);
    table(["DEAD LETTER", "TARGET", "ERROR"], &rows)
}

fn progress(job: &Value) {
    let counts = &job["counts"];
    let number = |name: &str| counts[name].as_u64().unwrap_or(0);
    let total = number("total").max(1);
    let ended = number("total") - number("pending") - number("released");
    let filled = usize::try_from(ended * 30 / total).unwrap_or(30);
    let bar = ["█".repeat(filled), "░".repeat(30 - filled)].concat();
    let failed = number("failed_again");
    eprint!("\r\x1b[K{bar} {ended}/{total}  {failed} failed again");
    let _ = std::io::stderr().flush();
}
