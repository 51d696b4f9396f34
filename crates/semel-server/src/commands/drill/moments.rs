//! A process is killed, or a key is reset, at the worst moment. A wire to Redis makes that moment deterministic.

use std::time::Duration;

use serde_json::json;

use super::crowd::{CrowdAnswers, MANY, SHUT, WIDE, crowd, gate, gate_at, trigger};
use super::environment::{DrillEnvironment, DrillServer, until};
use super::target::DrillTarget;
use super::wire::{COMPLETE, GATE, WireAction, WireEnd};

/// Number of triggers of a server that wait for another one with the same key.
pub(super) async fn waiting(server: &DrillServer) -> anyhow::Result<usize> {
    Ok(server.metric("semel_trigger_waiters").await? as usize)
}

pub(super) async fn winner_crashes(environment: &mut DrillEnvironment) -> anyhow::Result<()> {
    let target = DrillTarget::start().await?;
    let wire = environment.wire().await?;
    let more = format!("{WIDE}lease = \"4s\"\nwait = \"20s\"\n");
    let (near, far) = (gate_at(environment, &wire.url, &more)?, gate(environment, &more)?);
    let mut others = Vec::new();
    if environment.is_shared() {
        others.push(environment.serve(&[&target.config("crm"), &far]).await?);
    }
    let winner = environment.serve(&[&target.config("crm"), &near]).await?;
    wire.trap(GATE, WireEnd::Asked, WireAction::Hold);
    let asked = winner.post_later("/v1/runs", &trigger("key"));
    wire.sprung("a caller has won the claim").await?;
    // Its clocks stop too, so it does not give up while the others arrive.
    winner.pause();
    let (told, written) = if others.is_empty() {
        winner.kill().await;
        others.push(environment.serve(&[&target.config("crm"), &far]).await?);
        let written = written(environment, &others[0]).await?;
        (crowd(&others, "key", MANY).await?, written)
    } else {
        let crash = async {
            until("the others wait", || async { Ok(waiting(&others[0]).await? == MANY) }).await?;
            let written = written(environment, &others[0]).await?;
            winner.kill().await;
            anyhow::Ok(written)
        };
        let (told, written) = tokio::join!(crowd(&others, "key", MANY), crash);
        let (told, written) = (told?, written?);
        environment.check("20 others were waiting for it when it was killed", true, MANY);
        (told, written)
    };
    environment.same("the run was pending: neither in the ledger nor in the buffer", &written, &0);
    let unanswered = asked.await?.is_err();
    environment.check(
        "the winner's own caller got no answer",
        unanswered,
        if unanswered { "none" } else { "one" },
    );
    environment.check(
        "all others got one run, and it was new for at most one",
        told.is_one() && told.first <= 1,
        &told,
    );
    let again = crowd(&others, "key", MANY).await?;
    environment.check(
        "the key is not blocked, and names that run",
        again.ids == told.ids && again.first == 0,
        &again,
    );
    until("it is delivered", || async { Ok(target.effects() > 0) }).await?;
    settled(&others[0]).await?;
    environment.same("one run in the ledger", &others[0].runs().await?.len(), &1);
    environment.same("one effect", &target.effects(), &1);
    Ok(())
}

/// Waits until a server is connected to Redis again.
pub(super) async fn again(server: &DrillServer) -> anyhow::Result<()> {
    until("Redis is used again", || async { Ok(server.get("/v1/runs?buffered=true").await.is_ok()) }).await?;
    // Claims use another connection. The end of an outage is noticed by a probe, at most one second apart.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    Ok(())
}

/// Number of runs in the ledger and the buffer.
async fn written(environment: &DrillEnvironment, server: &DrillServer) -> anyhow::Result<usize> {
    Ok(server.runs().await?.len() + environment.redis()?.buffered("runs").await?.len())
}

/// Waits until no delivery is pending.
pub(super) async fn settled(server: &DrillServer) -> anyhow::Result<()> {
    until("nothing is left to deliver", || async {
        Ok(server.deliveries("queued,running,retry_wait,idle").await? == 0)
    })
    .await
}

pub(super) async fn publish_lost(environment: &mut DrillEnvironment) -> anyhow::Result<()> {
    let target = DrillTarget::start().await?;
    for (place, limit) in [("ledger", WIDE), ("buffer", SHUT)] {
        // With a long lease, a trigger that only waits for it times out. The short hold keeps this gate from affecting the next case.
        let more = format!("{limit}hold = \"1ms\"\ndrainers = 0\nlease = \"60s\"\nwait = \"1s\"\n");
        let wire = environment.wire().await?;
        let near = gate_at(environment, &wire.url, &more)?;
        let winner = environment.serve(&[&target.config("crm"), &near]).await?;
        let key = format!("key-{place}");
        let before = winner.runs().await?;
        wire.trap(COMPLETE, WireEnd::Asked, WireAction::Hold);
        let asked = winner.post_later("/v1/runs", &trigger(&key));
        wire.sprung("the run is written, and its id about to be published").await?;
        winner.kill().await;
        let unanswered = asked.await?.is_err();
        let others = [environment.serve(&[&target.config("crm"), &gate(environment, &more)?]).await?];
        let written: Vec<String> = match place {
            "ledger" => {
                let runs = others[0].runs().await?;
                let new = runs.iter().filter(|run| !before.contains(run));
                new.map(|run| run.as_str().unwrap_or_default().to_owned()).collect()
            }
            _ => environment.redis()?.buffered("queue").await?,
        };
        environment.check(
            &format!("the run was in the {place} when the winner was killed, and its id was not published"),
            written.len() == 1 && unanswered,
            format!("{} there", written.len()),
        );
        let told = crowd(&others, &key, MANY).await?;
        environment.check(
            &format!("{MANY} others get that run, although the dead process still holds the claim"),
            told.is_one() && told.first == 0 && told.ids.iter().eq(&written),
            &told,
        );
        for server in others {
            server.kill().await;
        }
    }
    published_in_vain(environment, &target).await?;
    let gate = gate(environment, SHUT)?;
    let server = environment.serve(&[&target.config("crm"), &gate]).await?;
    until("all are delivered", || async { Ok(target.effects() >= 3) }).await?;
    settled(&server).await?;
    environment.same("three keys, three runs", &server.runs().await?.len(), &3);
    environment.same("three effects", &target.effects(), &3);
    Ok(())
}

/// The winner stays alive, and Redis does not accept what it publishes.
async fn published_in_vain(environment: &mut DrillEnvironment, target: &DrillTarget) -> anyhow::Result<()> {
    let wire = environment.wire().await?;
    let near =
        gate_at(environment, &wire.url, &format!("{WIDE}drainers = 0\nlease = \"1s\"\nwait = \"5s\"\n"))?;
    let servers = [environment.serve(&[&target.config("crm"), &near]).await?];
    wire.trap(COMPLETE, WireEnd::Asked, WireAction::Cut);
    let first = servers[0].post("/v1/runs", &trigger("key-alive")).await?;
    let first = CrowdAnswers::default().and(&first);
    environment.check("a winner that cannot publish still answers its caller", first.first == 1, &first);
    let counted = servers[0].metric("semel_trigger_claims_total{outcome=\"unpublished\"}").await?;
    environment.same("the failure is counted", &counted, &1.0);
    wire.open();
    again(&servers[0]).await?;
    let told = crowd(&servers, "key-alive", MANY).await?;
    environment.check("the others find that run", told.ids == first.ids && told.first == 0, &told);
    let [server] = servers;
    server.kill().await;
    Ok(())
}

pub(super) async fn reset_while_draining(environment: &mut DrillEnvironment) -> anyhow::Result<()> {
    environment.need_shared()?;
    let target = DrillTarget::start().await?;
    let wire = environment.wire().await?;
    let quiet = gate(environment, &format!("{SHUT}drainers = 0\n"))?;
    let server = environment.serve(&[&target.config("crm"), &quiet]).await?;
    let first = server.post("/v1/runs", &trigger("key-of-both")).await?;
    let near = gate_at(environment, &wire.url, &format!("{SHUT}drainers = 1\n"))?;
    // The first message about the run from Redis to a server that only drains is the lease.
    wire.trap("key-of-both", WireEnd::Answered, WireAction::Hold);
    let drainer = environment.serve(&[&target.config("crm"), &near]).await?;
    wire.sprung("the run is leased").await?;
    let leased = environment.redis()?.buffered("leased").await?;
    environment.check(
        "a drainer holds the run and its key",
        leased.len() == 1 && first["id"] == leased[0].as_str(),
        leased.len(),
    );
    let reset = server.post("/v1/runs/reset-key", &json!({ "target": "crm", "key": "key-of-both" })).await?;
    environment.same("the key named that run", &reset["id"], &first["id"]);
    let second = server.post("/v1/runs", &trigger("key-of-both")).await?;
    let other = second["id"] != first["id"] && second["cached"] == false;
    environment.check("the next trigger is another run", other, second["id"].clone());
    let on_its_way = environment.redis()?.buffered("leased").await?;
    environment.same("the first run was still being moved at that time", &on_its_way.len(), &1);
    wire.open();
    until("both are delivered", || async { Ok(target.effects() >= 2) }).await?;
    until("the buffer is empty", || async { Ok(environment.redis()?.buffered("about").await?.is_empty()) })
        .await?;
    settled(&drainer).await?;
    environment.same("both arrived, each once", &target.effects(), &2);
    environment.same("both are in the ledger", &server.runs().await?.len(), &2);
    let third = server.post("/v1/runs", &trigger("key-of-both")).await?;
    environment.same("the key names the second run", &third["id"], &second["id"]);
    environment.same("the third trigger found an existing run", &third["cached"], &json!(true));
    Ok(())
}
