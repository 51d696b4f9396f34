//! `semel demo`: a payments API without idempotency, the gateway in front of it, and unreliable clients.
//!
//! Everything runs in this process, on free ports, with an embedded store in a temporary folder that is removed at the end.

mod api;
mod tally;
mod traffic;

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use tokio::sync::watch;
use tokio::time::Instant;

use self::api::Charges;
use self::tally::Tally;
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

/// The demo's routes; its store and ports are flags.
const CONFIG: &str = r#"
drain = "10s"
[log]
level = "error"
[[route]]
match = "POST /v1/charges"
key = { header = "Idempotency-Key", required = true }
"#;

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
    let config = Config::parse("the demo's config", CONFIG, &flags, &PROCESS)?;
    logs::start(config.log);
    let drain = config.drain;
    let server = Server::start(config).await?;
    let gateway = server.gateway_url().context("the demo has a gateway")?;
    if !args.json {
        explain(&gateway, &server.admin_url(), &format!("http://{api}"))?;
    }

    let tally = Arc::new(Tally::default());
    let (stop, stopped) = watch::channel(false);
    let traffic = traffic::start(&gateway, &tally, &stopped)?;
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
                print_line(&format!("{:>4} s  {}", began.elapsed().as_secs(), tally.line(&charges)))?;
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
        print_line(&tally.json(&charges).to_string())?;
    } else {
        print_line(&tally.summary(&charges))?;
    }
    match charges.twice() {
        0 => Ok(()),
        twice => bail!("{twice} keys were charged more than once"),
    }
}

fn print_line(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).context("standard output is closed")
}

fn explain(gateway: &str, admin: &str, api: &str) -> anyhow::Result<()> {
    let post = |key: &str| {
        format!("curl -i {gateway}/v1/charges -H 'Authorization: Bearer me' -H 'Idempotency-Key: {key}'")
    };
    let (first, slow) = (post("my-order-1"), post("my-order-2"));
    print_line(&format!(
        "\
A payments API without idempotency runs at {api}.
The gateway in front of it, at {gateway}, charges each key once. Its admin API is at {admin}.
Clients retry, send concurrent duplicates, reuse keys for other amounts, and disconnect from slow answers.

Try it, in another terminal:

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
