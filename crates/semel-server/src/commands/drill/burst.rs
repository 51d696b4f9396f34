//! Streams, triggers, the gate and the buffer.

use http::Method;
use serde_json::json;

use super::crowd::{SHUT, gate, gate_at, join_all, trigger, trigger_all};
use super::environment::{DrillEnvironment, until};
use super::target::DrillTarget;
use super::wire::{WireAction, WireEnd};

pub(super) async fn duplicate_messages(environment: &mut DrillEnvironment) -> anyhow::Result<()> {
    let target = DrillTarget::start().await?;
    let (url, stream) = (environment.redis()?.url.clone(), format!("{}:orders", environment.redis()?.prefix));
    let source = format!("[[source]]\nkind = \"redis-stream\"\nurl = {url:?}\nstream = \"{stream}\"\n");
    let server = environment.serve(&[&target.config("crm"), &source]).await?;
    for number in 0..50 {
        let key = format!("order-{number}");
        for _ in 0..2 {
            let fields = ["XADD", &stream, "*", "type", "order.paid", "dedupe_key", &key, "payload", "[]"];
            environment.redis()?.command(&fields).await?;
        }
    }
    environment.redis()?.command(&["XADD", &stream, "*", "rubbish", "x"]).await?;
    until("the effects", || async { Ok(target.effects() >= 50) }).await?;
    until("the dead letter", || async { Ok(server.letters("pending").await?.len() == 1) }).await?;
    environment.same("100 messages, 50 of them twice: 50 effects", &target.effects(), &50);
    environment.same("each was sent once", &target.calls().len(), &50);
    let letter = server.letters("pending").await?.remove(0);
    environment.same(
        "the message that cannot be decoded is a dead letter",
        &letter["cause"],
        &json!("undecodable"),
    );
    let pending = environment.redis()?.command(&["XPENDING", &stream, "semel"]).await?;
    environment.check(
        "nothing is pending in the stream",
        format!("{pending:?}").contains("int(0)"),
        format!("{pending:?}"),
    );
    Ok(())
}

pub(super) async fn cold_gate_burst(environment: &mut DrillEnvironment) -> anyhow::Result<()> {
    let target = DrillTarget::start().await?;
    // The window is longer than the drill: the gate counts each round, which is a tenant, from the beginning.
    let gate = gate(environment, &format!("threshold = {THRESHOLD}\nwindow = \"10m\"\nhold = \"50ms\"\n"))?;
    // Only one process can open an embedded ledger.
    let processes = if environment.is_shared() { 3 } else { 1 };
    let mut servers = Vec::new();
    for _ in 0..processes {
        servers.push(environment.serve(&[&target.config("crm"), &gate]).await?);
    }
    let how = match processes {
        1 => "in one process".to_owned(),
        many => format!("through {many} processes"),
    };
    for round in 0..ROUNDS {
        let trigger_key = |key: String| {
            let mut body = trigger(&key);
            body["tenant"] = json!(format!("round-{round}"));
            body
        };
        // Other keys come at the same time: one key alone is one run, which does not close the gate.
        let (told, others) = tokio::join!(
            trigger_all(&servers, (0..60).map(|_| trigger_key(format!("key-{round}")))),
            trigger_all(&servers, (0..OTHERS).map(|number| trigger_key(format!("other-{round}-{number}")))),
        );
        let (told, others) = (told?, others?);
        let what = format!(
            "round {}: 60 triggers of one key {how}: one run, and one caller was told that it is new",
            round + 1
        );
        environment.check(&what, told.is_one() && told.first == 1, &told);
        environment.same("each other key is one run", &others.ids.len(), &OTHERS);
        let buffered = told.buffered + others.buffered;
        environment.check(
            &format!(
                "the gate closed: at most {THRESHOLD} runs went to the ledger, and the others were buffered"
            ),
            (1 + OTHERS - THRESHOLD..1 + OTHERS).contains(&buffered),
            format!("{buffered} of {} buffered", 1 + OTHERS),
        );
    }
    let (mut buffered, mut direct) = (0.0, 0.0);
    for server in &servers {
        buffered += server.metric("semel_triggers_total{to=\"buffer\"}").await?;
        direct += server.metric("semel_triggers_total{to=\"ledger\"}").await?;
    }
    let runs = ROUNDS * (1 + OTHERS);
    environment.check(
        "each run was placed once",
        buffered + direct == runs as f64,
        format!("{buffered} buffered, {direct} to the ledger"),
    );
    until("the runs are delivered", || async { Ok(target.effects() >= runs) }).await?;
    environment.same(&format!("{runs} keys, {runs} effects"), &target.effects(), &runs);
    Ok(())
}

/// Number of bursts.
const ROUNDS: usize = 5;

/// Number of runs of a round that the gate admits.
const THRESHOLD: usize = 5;

/// Number of other keys in a burst of one key: more than the gate admits.
const OTHERS: usize = 12;

pub(super) async fn mutations_while_buffered(environment: &mut DrillEnvironment) -> anyhow::Result<()> {
    let target = DrillTarget::start().await?;
    let gate = gate(environment, &format!("{SHUT}drainers = 0\n"))?;
    let server = environment.serve(&[&target.config("crm"), &gate]).await?;
    let run = server.post("/v1/runs", &trigger("key")).await?;
    environment.same("it waits in the buffer", &run["buffered"], &json!(true));
    let path = format!("/v1/runs/{}", run["id"].as_str().unwrap_or_default());
    let set = r#"{"metadata":{"n":9007199254740993,"list":[]}}"#;
    server.ask(Method::PATCH, &path, set).await?;
    let increments: Vec<_> =
        (0..50).map(|_| Box::pin(server.ask(Method::PATCH, &path, r#"{"increment":{"n":1}}"#))).collect();
    let applied = join_all(increments).await.iter().filter(|answer| answer.is_ok()).count();
    environment.same("50 concurrent increments were all accepted", &applied, &50);
    server.kill().await;
    let gate = self::gate(environment, SHUT)?;
    let server = environment.serve(&[&target.config("crm"), &gate]).await?;
    until("it is drained", || async { Ok(server.get(&path).await?["buffered"] == false) }).await?;
    let shown = server.get(&path).await?;
    let sum = shown["metadata"]["n"].to_string();
    environment.same("every increment arrived, to the last digit", &sum, &"9007199254741043".to_owned());
    environment.same("an empty array stayed an empty array", &shown["metadata"]["list"], &json!([]));
    until("it is delivered", || async { Ok(target.effects() == 1) }).await?;
    let body = target.calls().first().map(|(_, body)| body.clone()).unwrap_or_default();
    environment.same(
        "the payload was delivered byte for byte",
        &body,
        &trigger("key")["payload"].to_string(),
    );
    Ok(())
}

pub(super) async fn reset_while_buffered(environment: &mut DrillEnvironment) -> anyhow::Result<()> {
    let target = DrillTarget::start().await?;
    let gate = gate(environment, &format!("{SHUT}drainers = 0\n"))?;
    let server = environment.serve(&[&target.config("crm"), &gate]).await?;
    let first = server.post("/v1/runs", &trigger("key")).await?;
    environment.same("it waits in the buffer", &first["buffered"], &json!(true));
    let reset = server.post("/v1/runs/reset-key", &json!({ "target": "crm", "key": "key" })).await?;
    environment.same("the key named the first run", &reset["id"], &first["id"]);
    let second = server.post("/v1/runs", &trigger("key")).await?;
    environment.check("the next trigger is another run", second["id"] != first["id"], second["id"].clone());
    server.kill().await;
    let gate = self::gate(environment, SHUT)?;
    let server = environment.serve(&[&target.config("crm"), &gate]).await?;
    until("both are delivered", || async { Ok(target.effects() == 2) }).await?;
    environment.same("both arrived", &target.effects(), &2);
    let third = server.post("/v1/runs", &trigger("key")).await?;
    environment.same("the key names the second run", &third["id"], &second["id"]);
    Ok(())
}

pub(super) async fn drainer_killed(environment: &mut DrillEnvironment) -> anyhow::Result<()> {
    let target = DrillTarget::start().await?;
    let quiet = gate(environment, &format!("{SHUT}drainers = 0\n"))?;
    let server = environment.serve(&[&target.config("crm"), &quiet]).await?;
    for number in 0..200 {
        server.post("/v1/runs", &trigger(&format!("key-{number}"))).await?;
    }
    server.kill().await;
    let more = &format!("{SHUT}batch = 5\nlease = \"2s\"\n");
    let busy = gate(environment, more)?;
    if environment.redis()?.port().is_some() {
        let wire = environment.wire().await?;
        // The first message about a run from Redis to a server that only drains is the lease.
        wire.trap("key-", WireEnd::Answered, WireAction::Hold);
        let near = gate_at(environment, &wire.url, more)?;
        let server = environment.serve(&[&target.config("crm"), &near]).await?;
        wire.sprung("it has leased some runs").await?;
        server.kill().await;
        let leased = environment.redis()?.buffered("leased").await?.len();
        environment.check("the first process was killed while it held runs", leased > 0, leased);
    }
    for _ in 0..3 {
        let server = environment.serve(&[&target.config("crm"), &busy]).await?;
        let before = target.effects();
        until("it drains", || async { Ok(target.effects() > before) }).await?;
        server.kill().await;
    }
    let server = environment.serve(&[&target.config("crm"), &busy]).await?;
    until("all are delivered", || async { Ok(target.effects() == 200) }).await?;
    environment.same(
        "200 buffered runs, the process killed again and again: 200 effects",
        &target.effects(),
        &200,
    );
    until("nothing is left in the buffer", || async {
        Ok(server.deliveries("queued,running,retry_wait,idle").await? == 0)
    })
    .await?;
    environment.same("no dead letter", &server.letters("pending").await?.len(), &0);
    Ok(())
}
