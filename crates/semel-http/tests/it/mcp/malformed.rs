//! Raw bodies that are not what they should be: each has a defined answer, and none leaves a record.

use serde_json::json;

use super::{Bench, FORMS, buy, error_of, key, raw_message, said};

fn call(arguments: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"create_media_buy","arguments":{arguments}}}}}"#
    )
}

#[tokio::test]
async fn what_is_no_message_is_an_error_of_the_protocol() {
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    let deep_arguments = call(&format!(r#"{{"idempotency_key":"{}","x":{deep}}}"#, key("a")));
    let huge = call(&format!(r#"{{"idempotency_key":"{}","x":"{}"}}"#, key("a"), "x".repeat(2 << 20)));
    let truncated = buy(1, "a").to_string();
    let truncated = truncated[..truncated.len() - 5].to_owned();
    let table: Vec<(Vec<u8>, u16, i64)> = vec![
        (truncated.into_bytes(), 400, -32700),
        (b"{".to_vec(), 400, -32700),
        (b"not json".to_vec(), 400, -32700),
        (b"\xff\xfe{}".to_vec(), 400, -32700),
        (deep.into_bytes(), 400, -32700),
        (huge.into_bytes(), 413, -32600),
        (b"5".to_vec(), 400, -32600),
        (b"\"tools/call\"".to_vec(), 400, -32600),
        (b"[5]".to_vec(), 400, -32600),
        (br#"{"jsonrpc":"2.0","id":7,"method":5}"#.to_vec(), 400, -32600),
        (br#"{"jsonrpc":"2.0","id":7,"method":"ping","method":"tools/call"}"#.to_vec(), 400, -32600),
        (br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":["create_media_buy"]}}"#.to_vec(), 400, -32602),
        (br#"{"jsonrpc":"2.0","id":7,"method":"tools/call"}"#.to_vec(), 400, -32602),
        // Nobody could be told what came of it.
        (format!(r#"{{"jsonrpc":"2.0","method":"tools/call","params":{{"name":"create_media_buy","arguments":{{"idempotency_key":"{}"}}}}}}"#, key("a")).into_bytes(), 400, -32600),
    ];
    let bench = Bench::new();
    for accept in FORMS {
        for (body, status, code) in &table {
            let answer = bench.kit.send(raw_message(body.clone(), accept)).await;
            let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
            assert_eq!(answer.status.as_u16(), *status, "{shown}: {}", answer.text());
            assert_eq!(answer.header("content-type"), Some("application/json"), "{shown}");
            let said = answer.json();
            assert_eq!(
                (&said["jsonrpc"], said["error"]["code"].as_i64()),
                (&json!("2.0"), Some(*code)),
                "{shown}"
            );
            assert_eq!(said["error"]["data"]["code"], "INVALID_REQUEST", "{shown}");
            assert!(
                !answer.text().contains("create_media_buy") && answer.body.len() < 500,
                "{shown}: quotes nothing"
            );
        }
        // Its id can be read although it is refused, so its caller is told in the form it waits for.
        for arguments in [
            format!(r#"{{"idempotency_key":"{0}","x":1,"x":2}}"#, key("a")),
            format!(r#"{{"idempotency_key":"{0}","idempotency_key":"{0}"}}"#, key("a")),
            format!(r#"{{"idempotency_key":"{0}","x":"\ud800"}}"#, key("a")),
            "5".to_owned(),
            "null".to_owned(),
            "[]".to_owned(),
        ] {
            let answer = bench.kit.send(raw_message(call(&arguments), accept)).await;
            let said = said(&answer);
            assert_eq!((answer.status.as_u16(), &said["id"]), (200, &json!(7)), "{arguments}");
            assert_eq!(error_of(&said)["code"], "INVALID_REQUEST", "{arguments}");
        }
        let answer = bench.kit.send(raw_message(deep_arguments.clone(), accept)).await;
        assert!(answer.text().contains("INVALID_REQUEST"), "{}", answer.text());
    }
    assert_eq!((bench.agent.buys(), bench.kit.store.all_calls()), (0, 0), "no record");
}

// Any bytes at all: an answer, never a panic, never a record.
#[test]
fn any_bytes_have_an_answer() {
    use proptest::prelude::*;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bench = Bench::new();
    let good = buy(1, "prop").to_string().into_bytes();
    let strategy = (prop::collection::vec(any::<u8>(), 0..4), 0..good.len(), 0..8_usize);
    let mut runner =
        proptest::test_runner::TestRunner::new(ProptestConfig { cases: 300, ..ProptestConfig::default() });
    runner
        .run(&strategy, |(insert, at, drop)| {
            let mut bytes = good.clone();
            bytes.splice(at..(at + drop).min(good.len()), insert);
            let answer = runtime.block_on(bench.kit.send(raw_message(bytes, FORMS[0])));
            prop_assert!(matches!(answer.status.as_u16(), 200 | 202 | 400), "{}", answer.status);
            Ok(())
        })
        .unwrap();
}
