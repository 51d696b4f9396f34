//! Redis or the database fails while it is needed.

use super::crowd::{CrowdAnswers, MANY, SHUT, crowd, gate, gate_at, trigger};
use super::environment::{DrillEnvironment, DrillServer, until};
use super::moments::{again, settled, waiting};
use super::target::DrillTarget;
use super::wire::{CLAIM, DrillWire, WireAction, WireEnd};

const FAILED_OPEN: &str = "semel_trigger_claims_total{outcome=\"failed_open\"}";

pub(super) async fn redis_down(environment: &mut DrillEnvironment) -> anyhow::Result<()> {
    let target = DrillTarget::start().await?;
    let wire = environment.wire().await?;
    let more = format!("{SHUT}lease = \"5s\"\nwait = \"5s\"\n");
    let (near, far) = (gate_at(environment, &wire.url, &more)?, gate(environment, &more)?);
    let servers = [environment.serve(&[&target.config("crm"), &near]).await?];
    let mut known: Vec<(String, CrowdAnswers)> = Vec::new();
    let moments = [
        ("at-claim", CLAIM, WireAction::Cut, "at claim: Redis fails when the claim is sent"),
        (
            "at-accept-never",
            &["key-at-accept-never"][..],
            WireAction::Cut,
            "at accept: the run does not reach the buffer",
        ),
        (
            "at-accept-maybe",
            &["key-at-accept-maybe"],
            WireAction::CutTheAnswer,
            "at accept: the run is buffered, and the answer is lost",
        ),
    ];
    for (name, says, then, about) in moments {
        let key = format!("key-{name}");
        wire.trap_any(says, WireEnd::Asked, then);
        let told = crowd(&servers, &key, MANY).await?;
        wire.sprung("the moment has come").await?;
        let what = format!("{about}; {MANY} triggers of one key are one run, and it was new for one caller");
        environment.check(&what, told.is_one() && told.first == 1, &told);
        known.push((key, told));
        wire.open();
        again(&servers[0]).await?;
    }
    let counted = servers[0].metric(FAILED_OPEN).await?;
    environment.check("triggers without Redis are counted", counted > 0.0, counted);
    if environment.is_shared() {
        let others = [environment.serve(&[&target.config("crm"), &far]).await?];
        known.push(at_wait(environment, &wire, &servers[0], &others).await?);
    } else {
        environment
            .note("at wait: not tried, since the one that waits and the one it waits for are two processes");
    }
    environment.redis()?.kill();
    let told = crowd(&servers, "key-without", MANY).await?;
    environment.check(
        "without any Redis 20 triggers of one key are one run, and it was new for one caller",
        told.is_one() && told.first == 1,
        &told,
    );
    known.push(("key-without".to_owned(), told));
    environment.redis()?.restart()?;
    again(&servers[0]).await?;
    until("the buffer is empty", || async { Ok(environment.redis()?.buffered("about").await?.is_empty()) })
        .await?;
    until("all are delivered", || async { Ok(target.effects() >= known.len()) }).await?;
    settled(&servers[0]).await?;
    for (key, told) in &known {
        let now = crowd(&servers, key, 3).await?;
        environment.check(
            &format!("{key} still names the same run"),
            now.ids == told.ids && now.first == 0,
            &now,
        );
    }
    environment.same("as many runs as keys", &servers[0].runs().await?.len(), &known.len());
    environment.same("as many effects", &target.effects(), &known.len());
    Ok(())
}

/// Redis fails while one process holds the claim and callers of another wait for it.
async fn at_wait(
    environment: &mut DrillEnvironment,
    wire: &DrillWire,
    winner: &DrillServer,
    others: &[DrillServer],
) -> anyhow::Result<(String, CrowdAnswers)> {
    let key = "key-at-wait";
    // When the run is about to be buffered.
    wire.trap(key, WireEnd::Asked, WireAction::Hold);
    let asked = winner.post_later("/v1/runs", &trigger(key));
    wire.sprung("a caller has won the claim").await?;
    // Its clocks stop too, so it does not give up while the others arrive.
    winner.pause();
    let outage = async {
        until("the others wait", || async { Ok(waiting(&others[0]).await? == MANY) }).await?;
        environment.redis()?.kill();
        wire.cut();
        winner.resume();
        anyhow::Ok(())
    };
    let (told, outage) = tokio::join!(crowd(others, key, MANY), outage);
    outage?;
    let told = told?.and(&asked.await??);
    environment.check(
        "at wait: Redis fails under a winner and 20 waiting callers; all get one run, and it was new for one",
        told.is_one() && told.first == 1,
        &told,
    );
    environment.redis()?.restart()?;
    wire.open();
    for server in others.iter().chain([winner]) {
        again(server).await?;
    }
    Ok((key.to_owned(), told))
}

/// Number of runs in the drill.
const RUNS: usize = 100;

pub(super) async fn database_down(environment: &mut DrillEnvironment) -> anyhow::Result<()> {
    let target = DrillTarget::start().await?;
    environment.postgres_timeout = "1s";
    let quiet = gate(environment, &format!("{SHUT}drainers = 0\n"))?;
    let server = environment.serve(&[&target.config("crm"), &quiet]).await?;
    for number in 0..RUNS {
        server.post("/v1/runs", &trigger(&format!("key-{number}"))).await?;
    }
    server.kill().await;
    let busy = gate(environment, &format!("{SHUT}batch = 5\nrest = \"50ms\"\n"))?;
    let server = environment.serve(&[&target.config("crm"), &busy]).await?;
    until("it drains", || async { Ok(target.effects() > 0) }).await?;
    if let Some(postgres) = &environment.postgres {
        postgres.kill()?;
    }
    let left = environment.redis()?.buffered("about").await?.len();
    environment.check("PostgreSQL died while runs were being drained, and others waited", left > 0, left);
    let failure = "semel_buffer_drained_total{outcome=\"failure\"}";
    until("failed attempts to drain", || async { Ok(server.metric(failure).await? >= 4.0) }).await?;
    let tries = server.metric(failure).await?;
    // Pauses grow: the real number of attempts is far lower, and a loop without pauses would be far above.
    environment.check("it was retried with backoff", tries < 100.0, tries);
    let about = environment.redis()?.buffered("about").await?;
    // `state|token|attempts|…`
    let burned = about.iter().filter(|run| run.split('|').nth(2) != Some("0")).count();
    environment.check(
        "no attempt was used up, and all waiting runs still wait",
        burned == 0 && !about.is_empty(),
        format!("{burned} of {} used one up", about.len()),
    );
    if let Some(postgres) = &environment.postgres {
        postgres.restart()?;
    }
    until("all are delivered", || async { Ok(target.effects() >= RUNS) }).await?;
    until("the buffer is empty", || async { Ok(environment.redis()?.buffered("about").await?.is_empty()) })
        .await?;
    settled(&server).await?;
    environment.same("the same process delivered all of them, each once", &target.effects(), &RUNS);
    if let Some(postgres) = &environment.postgres {
        let (rows, keys) = ("count(*) FROM ledger_event", "count(DISTINCT dedupe) FROM ledger_event");
        let (rows, keys) = (postgres.count(rows).await?, postgres.count(keys).await?);
        let all = i64::try_from(RUNS).unwrap_or(i64::MAX);
        environment.check(
            "the database contains each once",
            rows == all && keys == all,
            format!("{rows} rows"),
        );
    }
    environment.same("no dead letter", &server.letters("pending").await?.len(), &0);
    Ok(())
}
