//! `semel demo`: a payments API without idempotency, the gateway in front of it, and unreliable clients.
//!
//! Everything runs in this process, on free ports, with an embedded store in a temporary folder that is removed at the end.

mod api;
mod deliveries;
mod tally;
mod traffic;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use tokio::sync::watch;
use tokio::time::Instant;

use self::api::Charges;
use self::tally::Tally;
use super::screen::write_line;
use crate::cli::ServeArgs;
use crate::config::{Config, PROCESS, parse_duration};
use crate::misused::Misused;
use crate::server::Server;
use crate::signals::{Signals, Wish};
use crate::telemetry::logs;

#[derive(Clone, Debug, Args)]
pub(crate) struct DemoArgs {
    /// Stop after this time [default: run until Ctrl-C]
    #[arg(long = "for", value_name = "DURATION")]
    pub(crate) length: Option<String>,
    /// Listen address of the gateway; port 0 selects a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// Listen address of the admin API; port 0 selects a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) admin: String,
    /// Print only one line of JSON at the end
    #[arg(long)]
    pub(crate) json: bool,
}

/// The demo's routes and targets; its store and ports are flags. A refund whose answer is an error may have happened.
const CONFIG: &str = r#"
drain = "10s"
[log]
level = "error"
[[route]]
match = "POST /v1/charges"
key = { header = "Idempotency-Key", required = true }
[[route]]
match = "POST /v1/refunds"
key = { header = "Idempotency-Key", required = true }
on_5xx = "doubt"
[[downstream]]
name = "acquirer"
pattern = "derived-key"
"#;

/// A target of the demo at a path of its API. Failures become dead letters at once, so that there is something to replay.
fn target(api: &str, name: &str) -> String {
    format!(
        "[[target]]\nname = \"{name}\"\nurl = \"{api}/hooks/{name}\"\nevents = [\"order.*\"]\n\
         retry = {{ max_attempts = 1 }}\nschedule = []\nbreaker = {{ failure_calls = 5, rest = \"20s\" }}\n"
    )
}

/// Runs the demo until it is stopped.
///
/// # Errors
/// It could not start, or a card was charged twice.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let length = match &args.length {
        Some(text) => Some(
            parse_duration(text)
                .ok_or_else(|| Misused::new(format!("--for {text}: expected a duration such as 10s")))?,
        ),
        None => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let shown = runtime.block_on(demo(args, length));
    runtime.shutdown_background();
    logs::flush();
    shown
}

async fn demo(args: &DemoArgs, length: Option<Duration>) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let folder = tempfile::Builder::new().prefix("semel-demo-").tempdir().context("a temporary folder")?;
    let charges = Arc::new(Charges::default());
    let api = api::start(Arc::clone(&charges)).await.context("the payments API")?;
    let flags = ServeArgs {
        upstream: Some(format!("http://{api}")),
        listen: Some(args.listen.clone()),
        admin: Some(args.admin.clone()),
        store: Some(format!("embedded:{}", folder.path().join("data").display())),
        ..ServeArgs::default()
    };
    let targets = ["billing", "warehouse", "crm"].map(|name| target(&format!("http://{api}"), name)).concat();
    let config = Config::parse("the demo's config", &format!("{CONFIG}{targets}"), &flags, &PROCESS)?;
    logs::start(config.log);
    let drain = config.drain;
    let server = Box::pin(Server::start(config)).await?;
    let gateway = server.gateway_url().context("the demo has a gateway")?;
    if !args.json {
        explain(&gateway, &server.admin_url(), &format!("http://{api}"))?;
    }

    let tally = Arc::new(Tally::default());
    let (stop, stopped) = watch::channel(false);
    let mut traffic = traffic::start(&gateway, &tally, &stopped)?;
    traffic.push(deliveries::start(&gateway, &server.admin_url(), &stopped)?);
    let began = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_secs(2));
    ticks.tick().await;
    let end = async {
        match length {
            Some(length) => tokio::time::sleep(length).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(end);
    loop {
        tokio::select! {
            () = &mut end => break,
            wish = signals.next() => if wish == Wish::Stop { break },
            _ = ticks.tick() => if !args.json {
                write_line(&format!("{:>4} s  {}", began.elapsed().as_secs(), tally.line(&charges)))?;
            },
        }
    }
    let _ = stop.send(true);
    for client in traffic {
        let _ = client.await;
    }
    server.stop(drain).await;
    // After the store was closed: removes the folder with its content.
    drop(folder);
    if args.json {
        write_line(&tally.json(&charges).to_string())?;
    } else {
        write_line(&tally.summary(&charges))?;
    }
    match charges.twice() {
        0 => Ok(()),
        twice => bail!("{twice} keys were charged more than once"),
    }
}

fn explain(gateway: &str, admin: &str, api: &str) -> anyhow::Result<()> {
    let post = |key: &str| {
        format!("curl -i {gateway}/v1/charges -H 'Authorization: Bearer me' -H 'Idempotency-Key: {key}'")
    };
    let (first, slow) = (post("my-order-1"), post("my-order-2"));
    write_line(&format!(
        "\
A payments API without idempotency runs at {api}.
The gateway in front of it, at {gateway}, charges each key once. Its admin API is at {admin}.
Clients retry, send concurrent duplicates, reuse keys for other amounts, and disconnect from slow answers.
Every order is an event for three targets: billing works, warehouse fails now and then, crm is down.

Open the console in a browser: {admin}

  In doubt          a refund whose result is unknown: click Settle, preview the client's answer, settle it
  Dead letters      deliveries that failed at the warehouse: click Replay, look at the plan, approve it
  Targets, crm      why it gets no calls at present, and when the next one is tried; pause it and resume it
  the search box    paste the X-Request-Id of an answer: the story of that request

Try it in another terminal too:

  charge a card
    {first} -d '{{\"amount\": 1200}}'
  send it again: the same answer, with the header Idempotent-Replayed, and no second charge
    {first} -d '{{\"amount\": 1200}}'
  the same key for another amount: refused as a conflict
    {first} -d '{{\"amount\": 9900}}'
  a slow charge: start it, press Ctrl-C, send it again; the gateway has finished it
    {slow} -d '{{\"amount\": 5, \"slow\": \"5s\"}}'
  the charges that the API made
    curl {api}/v1/charges
  the keys, and the metrics for Prometheus
    curl '{admin}/v1/keys?hint=my-order'
    curl {admin}/metrics

Ctrl-C ends the demo and removes its data.
"
    ))
}
