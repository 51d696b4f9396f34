//! Streams, triggers, the gate and the buffer.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Value, json};

use super::ground::{Ground, Server, Target, until};

/// A `[gate]` on the drill's Redis.
fn gate(ground: &Ground, more: &str) -> anyhow::Result<String> {
    let redis = ground.redis()?;
    Ok(format!("[gate]\nmode = \"on\"\nbuffer = {:?}\nprefix = \"{}\"\n{more}\n", redis.url, redis.prefix))
}

/// Everything is buffered.
const SHUT: &str = "threshold = 0\n";

fn trigger(key: &str) -> Value {
    json!({ "target": "crm", "payload": { "key": key, "empty": [], "big": 1 }, "idempotency_key": key })
}

pub(super) async fn duplicate_messages(ground: &mut Ground) -> anyhow::Result<()> {
    let target = Target::start().await?;
    let (url, stream) = (ground.redis()?.url.clone(), format!("{}:orders", ground.redis()?.prefix));
    let source = format!("[[source]]\nkind = \"redis-stream\"\nurl = {url:?}\nstream = \"{stream}\"\n");
    let server = ground.serve(&[&target.config("crm"), &source]).await?;
    for number in 0..50 {
        let key = format!("order-{number}");
        for _ in 0..2 {
            let fields = ["XADD", &stream, "*", "type", "order.paid", "dedupe_key", &key, "payload", "[]"];
            ground.redis()?.tell(&fields).await?;
        }
    }
    ground.redis()?.tell(&["XADD", &stream, "*", "rubbish", "x"]).await?;
    until("the effects", || async { Ok(target.effects() >= 50) }).await?;
    until("the dead letter", || async { Ok(server.letters("pending").await?.len() == 1) }).await?;
    ground.same("100 messages, 50 of them twice: 50 effects", &target.effects(), &50);
    ground.same("each was sent once", &target.calls().len(), &50);
    let letter = server.letters("pending").await?.remove(0);
    ground.same("what cannot be read is a dead letter", &letter["cause"], &json!("undecodable"));
    let pending = ground.redis()?.tell(&["XPENDING", &stream, "semel"]).await?;
    ground.check(
        "nothing is pending in the stream",
        format!("{pending:?}").contains("int(0)"),
        format!("{pending:?}"),
    );
    Ok(())
}

/// Triggers one key many times at once. The ids that were told, and how often it was said to be new.
async fn crowd(servers: &[Server], key: &str, count: usize) -> anyhow::Result<(BTreeSet<String>, usize)> {
    let asked: Vec<_> = (0..count)
        .map(|number| {
            let server = &servers[number % servers.len()];
            Box::pin(async move { server.post("/v1/runs", &trigger(key)).await })
        })
        .collect();
    let told = join_all(asked).await;
    let (mut ids, mut first) = (BTreeSet::new(), 0);
    for answer in told {
        let answer = answer?;
        ids.insert(answer["id"].as_str().unwrap_or_default().to_owned());
        first += usize::from(answer["cached"] == false);
    }
    Ok((ids, first))
}

/// Polls all of them until the last has ended.
async fn join_all<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut waiting = false;
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none() {
                match std::pin::Pin::new(future).poll(context) {
                    std::task::Poll::Ready(output) => *done = Some(output),
                    std::task::Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    done.into_iter().flatten().collect()
}

pub(super) async fn cold_gate_burst(ground: &mut Ground) -> anyhow::Result<()> {
    let target = Target::start().await?;
    let gate = gate(ground, "threshold = 5\nwindow = \"50ms\"\nhold = \"50ms\"\n")?;
    // An embedded ledger belongs to one process; several need a PostgreSQL.
    let processes = if ground.postgres.is_some() { 3 } else { 1 };
    let mut servers = Vec::new();
    for _ in 0..processes {
        servers.push(ground.serve(&[&target.config("crm"), &gate]).await?);
    }
    let how = match processes {
        1 => "in one process; --postgres URL makes it three".to_owned(),
        many => format!("through {many} processes"),
    };
    for round in 0..5 {
        let (ids, first) = crowd(&servers, &format!("key-{round}"), 60).await?;
        ground.check(
            &format!("round {}: 60 triggers of one key {how}: one run, and one caller was first", round + 1),
            ids.len() == 1 && first == 1,
            format!("{} ids, {first} first", ids.len()),
        );
    }
    until("the runs are delivered", || async { Ok(target.effects() >= 5) }).await?;
    ground.same("five keys, five effects", &target.effects(), &5);
    Ok(())
}

pub(super) async fn mutations_while_buffered(ground: &mut Ground) -> anyhow::Result<()> {
    let target = Target::start().await?;
    let gate = gate(ground, &format!("{SHUT}drainers = 0\n"))?;
    let server = ground.serve(&[&target.config("crm"), &gate]).await?;
    let run = server.post("/v1/runs", &trigger("key")).await?;
    ground.same("it waits in the buffer", &run["buffered"], &json!(true));
    let path = format!("/v1/runs/{}", run["id"].as_str().unwrap_or_default());
    let set = r#"{"metadata":{"n":9007199254740993,"list":[]}}"#;
    server.ask(Method::PATCH, &path, set).await?;
    let increments: Vec<_> =
        (0..50).map(|_| Box::pin(server.ask(Method::PATCH, &path, r#"{"increment":{"n":1}}"#))).collect();
    let applied = join_all(increments).await.iter().filter(|answer| answer.is_ok()).count();
    ground.same("50 callers added one at once, and all were told yes", &applied, &50);
    server.kill().await;
    let gate = self::gate(ground, SHUT)?;
    let server = ground.serve(&[&target.config("crm"), &gate]).await?;
    until("it is drained", || async { Ok(server.get(&path).await?["buffered"] == false) }).await?;
    let shown = server.get(&path).await?;
    let sum = shown["metadata"]["n"].to_string();
    ground.same("every one of them arrived, to the last digit", &sum, &"9007199254741043".to_owned());
    ground.same("an empty array stayed one", &shown["metadata"]["list"], &json!([]));
    until("it is delivered", || async { Ok(target.effects() == 1) }).await?;
    let body = target.calls().first().map(|(_, body)| body.clone()).unwrap_or_default();
    ground.same("the payload was delivered byte for byte", &body, &trigger("key")["payload"].to_string());
    Ok(())
}

pub(super) async fn reset_while_buffered(ground: &mut Ground) -> anyhow::Result<()> {
    let target = Target::start().await?;
    let gate = gate(ground, &format!("{SHUT}drainers = 0\n"))?;
    let server = ground.serve(&[&target.config("crm"), &gate]).await?;
    let first = server.post("/v1/runs", &trigger("key")).await?;
    let reset = server.post("/v1/runs/reset-key", &json!({ "target": "crm", "key": "key" })).await?;
    ground.same("the key was the first run's", &reset["id"], &first["id"]);
    let second = server.post("/v1/runs", &trigger("key")).await?;
    ground.check("the next trigger is another run", second["id"] != first["id"], second["id"].clone());
    server.kill().await;
    let gate = self::gate(ground, SHUT)?;
    let server = ground.serve(&[&target.config("crm"), &gate]).await?;
    until("both are delivered", || async { Ok(target.effects() == 2) }).await?;
    ground.same("both arrived", &target.effects(), &2);
    let third = server.post("/v1/runs", &trigger("key")).await?;
    ground.same("the key is the second one's", &third["id"], &second["id"]);
    Ok(())
}

pub(super) async fn drainer_killed(ground: &mut Ground) -> anyhow::Result<()> {
    let target = Target::start().await?;
    let quiet = gate(ground, &format!("{SHUT}drainers = 0\n"))?;
    let server = ground.serve(&[&target.config("crm"), &quiet]).await?;
    for number in 0..200 {
        server.post("/v1/runs", &trigger(&format!("key-{number}"))).await?;
    }
    server.kill().await;
    let busy = gate(ground, &format!("{SHUT}batch = 5\n"))?;
    for _ in 0..3 {
        let server = ground.serve(&[&target.config("crm"), &busy]).await?;
        let before = target.effects();
        until("it drains", || async { Ok(target.effects() > before) }).await?;
        server.kill().await;
    }
    let server = ground.serve(&[&target.config("crm"), &busy]).await?;
    until("all are delivered", || async { Ok(target.effects() == 200) }).await?;
    ground.same("200 buffered runs, the process killed three times: 200 effects", &target.effects(), &200);
    until("none is left over", || async {
        Ok(server.deliveries("queued,running,retry_wait,idle").await? == 0)
    })
    .await?;
    ground.same("no dead letter", &server.letters("pending").await?.len(), &0);
    Ok(())
}

pub(super) async fn redis_down(ground: &mut Ground) -> anyhow::Result<()> {
    if !ground.redis()?.is_own() {
        anyhow::bail!("this drill kills its Redis: let it start one of its own, without --redis");
    }
    let target = Target::start().await?;
    let gate = gate(ground, "threshold = 5\nwindow = \"50ms\"\nhold = \"50ms\"\nwait = \"2s\"\n")?;
    let servers = [ground.serve(&[&target.config("crm"), &gate]).await?];
    let (before, _) = crowd(&servers, "key-1", 20).await?;
    if let Some(redis) = &mut ground.redis {
        redis.kill();
    }
    let (during, first) = crowd(&servers, "key-2", 20).await?;
    ground.check(
        "without Redis 20 triggers of one key are one run",
        during.len() == 1 && first == 1,
        during.len(),
    );
    let (again, _) = crowd(&servers, "key-1", 5).await?;
    ground.check("a run from before is still known, or waits in the buffer", again.len() == 1, again.len());
    if let Some(redis) = &mut ground.redis {
        redis.restart().await?;
    }
    until("Redis is used again", || async { Ok(crowd(&servers, "key-3", 10).await?.0.len() == 1) }).await?;
    let (after, _) = crowd(&servers, "key-1", 5).await?;
    let known = after == before || after == again;
    ground.check("once it is back the first key names one run still", after.len() == 1 && known, after.len());
    Ok(())
}
