//! Whose key it is: the principal, and the account it acts for.

use serde_json::{Value, json};

use super::{Bench, FORMS, buy, message, payload, with_argument};

async fn buy_as(bench: &Bench, accept: &str, who: &str, account: Option<Value>) -> Value {
    let mut call = buy(1, "shared");
    if let Some(account) = account {
        call = with_argument(call, "account", account);
    }
    let mut request = message(&call, accept);
    request.headers_mut().insert("authorization", format!("Bearer {who}").parse().unwrap());
    payload(&bench.call(request).await).clone()
}

#[tokio::test]
async fn principals_and_accounts_have_keys_of_their_own() {
    for accept in FORMS {
        let bench = Bench::new();
        let scopes = [
            ("alice", None),
            ("bob", None),
            ("alice", Some(json!({ "account_id": "a" }))),
            ("alice", Some(json!({ "account_id": "b" }))),
            ("bob", Some(json!({ "account_id": "a" }))),
            ("alice", Some(json!("a"))),
        ];
        let mut buys = Vec::new();
        for (who, account) in &scopes {
            let first = buy_as(&bench, accept, who, account.clone()).await;
            assert_eq!(first.get("replayed"), None, "{who} {account:?} sees nothing of the others");
            buys.push(first["media_buy_id"].clone());
        }
        assert_eq!(bench.agent.buys(), scopes.len());
        for ((who, account), first) in scopes.iter().zip(&buys) {
            let again = buy_as(&bench, accept, who, account.clone()).await;
            assert_eq!((&again["media_buy_id"], &again["replayed"]), (first, &json!(true)));
        }
        // Another spelling of the same account is the same account.
        let bench = Bench::new();
        let spelled = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let one = buy_as(&bench, accept, "alice", Some(spelled(r#"{"a": 1.0, "b": "x"}"#))).await;
        let other = buy_as(&bench, accept, "alice", Some(spelled(r#"{"b": "\u0078", "a": 1}"#))).await;
        assert_eq!(one["media_buy_id"], other["media_buy_id"]);
    }
}

// The same key and arguments of another account behind the credential must not give that account's answer.
#[tokio::test]
async fn a_call_for_another_account_by_header_conflicts() {
    for (name, compared) in
        [("cookie", true), ("x-api-key", true), ("x-tenant-id", true), ("mcp-session-id", false)]
    {
        let bench = Bench::new();
        let call = |value: &str| {
            let mut request = message(&buy(1, "shared"), FORMS[0]);
            request.headers_mut().insert(name, value.parse().unwrap());
            request
        };
        let first = payload(&bench.call(call("a")).await).clone();
        assert!(first["media_buy_id"].is_string(), "{first}");
        let other = bench.call(call("b")).await.to_string();
        assert_eq!(other.contains("IDEMPOTENCY_CONFLICT"), compared, "{name}: {other}");
        let again = payload(&bench.call(call("a")).await).clone();
        assert_eq!(
            (&again["media_buy_id"], &again["replayed"]),
            (&first["media_buy_id"], &json!(true)),
            "{name}"
        );
        assert_eq!(bench.agent.buys(), 1);
    }
}
