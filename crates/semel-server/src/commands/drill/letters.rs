//! Targets that are unavailable or refuse, dead letters, and their replay.

use serde_json::{Value, json};

use super::environment::{DrillEnvironment, DrillServer, until};
use super::target::DrillTarget;

fn event(key: &str) -> Value {
    json!({ "type": "order.paid", "dedupe_key": key, "payload": { "order": key } })
}

async fn replayed(server: &DrillServer, body: &Value) -> anyhow::Result<Value> {
    let job = server.post("/v1/replays", body).await?;
    let path = format!("/v1/replays/{}", job["id"].as_str().unwrap_or_default());
    until("the replay job ends", || async { Ok(server.get(&path).await?["state"] != "running") }).await?;
    server.get(&path).await
}

pub(super) async fn target_down(environment: &mut DrillEnvironment) -> anyhow::Result<()> {
    let (mut gone, there) = (DrillTarget::start().await?, DrillTarget::start().await?);
    let server = environment.serve(&[&gone.config("gone"), &there.config("there")]).await?;
    gone.stop().await;
    for number in 0..5 {
        server.post("/v1/events", &event(&format!("order-{number}"))).await?;
    }
    until("dead letters", || async { Ok(server.letters("pending").await?.len() == 5) }).await?;
    let letters = server.letters("pending").await?;
    let tried = letters.iter().all(|letter| letter["attempts_made"] == 3 && letter["cause"] == "exhausted");
    environment.check("every delivery was attempted three times, then dead-lettered", tried, letters.len());
    until("the other target", || async { Ok(there.effects() == 5) }).await?;
    environment.same("the other target was not delayed", &there.effects(), &5);
    gone.restart().await?;
    let plan =
        server.post("/v1/replays", &json!({ "status": "failed", "limit": 100, "dry_run": true })).await?;
    environment.same("the plan is to run all of them", &plan["run"], &json!(5));
    let job = replayed(&server, &json!({ "status": "failed", "limit": 100 })).await?;
    environment.same("all were replayed once the target was back", &job["counts"]["replayed"], &json!(5));
    environment.same("the target accepted each once", &gone.effects(), &5);
    environment.same("no dead letter is left", &server.letters("pending").await?.len(), &0);
    Ok(())
}

pub(super) async fn broken_credentials(environment: &mut DrillEnvironment) -> anyhow::Result<()> {
    let target = DrillTarget::start().await?;
    target.answer_with(401);
    let server = environment.serve(&[&target.config("crm")]).await?;
    server.post("/v1/events", &event("order-1")).await?;
    until("a dead letter", || async { Ok(server.letters("pending").await?.len() == 1) }).await?;
    let letter = server.letters("pending").await?.remove(0);
    environment.same("a delivery refused with 401 is not retried", &target.calls().len(), &1);
    environment.same("its cause says so", &letter["cause"], &json!("non_retryable"));
    let text = letter.to_string();
    environment.check(
        "the dead letter contains no secret of the answer",
        !text.contains("whsec_"),
        "no secret in it",
    );
    target.answer_with(200);
    let job = replayed(&server, &json!({ "status": "failed" })).await?;
    environment.same("with the right credentials it is replayed", &job["counts"]["replayed"], &json!(1));
    environment.same("one effect", &target.effects(), &1);
    Ok(())
}

pub(super) async fn replay_dead_letter(environment: &mut DrillEnvironment) -> anyhow::Result<()> {
    let target = DrillTarget::start().await?;
    target.answer_with(422);
    let server = environment.serve(&[&target.config("crm")]).await?;
    server.post("/v1/events", &event("order-1")).await?;
    until("a dead letter", || async { Ok(server.letters("pending").await?.len() == 1) }).await?;
    let letter = server.letters("pending").await?.remove(0);
    target.answer_with(200);
    let ids = json!({ "ids": [letter["id"]] });
    let job = replayed(&server, &ids).await?;
    environment.same("it was replayed", &job["counts"]["replayed"], &json!(1));
    let calls = target.calls();
    environment.check(
        "with the key of the first attempt",
        calls.windows(2).all(|two| two[0] == two[1]),
        calls.len(),
    );
    let again = server
        .post("/v1/replays", &json!({ "event_id": letter["event_id"], "dry_run": true, "targets": ["crm"] }))
        .await?;
    environment.same("a second replay would skip it: it is done", &again["skip"], &json!(1));
    let shown =
        server.get(&format!("/v1/dead-letters/{}", letter["id"].as_str().unwrap_or_default())).await?;
    environment.same("the dead letter is resolved", &shown["status"], &json!("replayed"));
    let attempts = shown["attempts"].as_array().map_or(0, Vec::len);
    environment.same("the dead letter lists every attempt", &attempts, &2);
    Ok(())
}
