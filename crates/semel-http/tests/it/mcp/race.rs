//! Many at once: one effect, one answer.

use serde_json::json;
use tokio::task::JoinSet;

use super::{Bench, EVENTS, FORMS, JSON, buy, message, payload, said, with_argument};

// Ten at once, in both forms mixed: one effect, and answers that are equal but for id, context and replayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_at_once_are_one_effect() {
    for count in [10, 100] {
        let bench = Bench::new();
        let mut callers = JoinSet::new();
        for n in 0..count {
            let call = with_argument(buy(n, "a"), "context", json!({ "correlation_id": n }));
            let (kit, accept) = (bench.kit.clone(), FORMS[n as usize % 2]);
            callers.spawn(async move { (n, kit.send(message(&call, accept)).await) });
        }
        let (mut firsts, mut replays) = (0, 0);
        let mut bodies = Vec::new();
        while let Some(answer) = callers.join_next().await {
            let (n, answer) = answer.unwrap();
            let mut said = said(&answer);
            assert_eq!(said["id"], n);
            assert_eq!(payload(&said)["context"], json!({ "correlation_id": n }));
            match payload(&said).get("replayed") {
                None => firsts += 1,
                Some(replayed) => {
                    assert_eq!((replayed, answer.is_replay()), (&json!(true), true));
                    replays += 1;
                }
            }
            let payload = said["result"]["structuredContent"].as_object_mut().unwrap();
            payload.remove("replayed");
            payload.remove("context");
            bodies.push(payload.clone());
        }
        assert_eq!((firsts, replays, bench.agent.buys()), (1, count - 1, 1));
        assert!(bodies.iter().all(|body| *body == bodies[0]));
    }
}

// A client that hangs up changes nothing: the call ends, and its retry is given the answer.
#[tokio::test]
async fn a_client_that_hangs_up_changes_nothing() {
    for accept in [JSON, EVENTS] {
        let bench = Bench::new();
        {
            let sent = bench.kit.send(message(&buy(1, "a"), accept));
            let late = tokio::time::timeout(std::time::Duration::from_millis(2), sent).await;
            assert!(late.is_err() || bench.agent.buys() == 1);
        }
        bench.kit.guard.engine().drain().await;
        let again = bench.call(message(&buy(2, "a"), accept)).await;
        assert_eq!(payload(&again)["media_buy_id"], "mb_1");
        assert_eq!(bench.agent.buys(), 1);
    }
}
