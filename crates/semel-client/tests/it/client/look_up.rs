//! What a service's answer says of an earlier attempt.

use semel_client::client::Request;
use semel_client::downstream::Reconciled;
use serde::Deserialize;

use super::client;
use super::server::{Act, Server, ok, say};

#[derive(Debug, Deserialize, PartialEq)]
struct Charge {
    id: String,
}

// Found, no record, and everything else is ambiguous: 5xx, the network, a malformed body.
#[tokio::test]
async fn only_a_clear_answer_is_one() {
    let table = [
        (ok(), "found"),
        (say(404, &[], ""), "no record"),
        (say(500, &[], ""), "ambiguous"),
        (say(503, &[], ""), "ambiguous"),
        (say(401, &[], ""), "ambiguous"),
        (say(301, &[("location", "/x")], ""), "ambiguous"),
        (say(200, &[], "<html>"), "ambiguous"),
        (say(200, &[], r#"{"other":1}"#), "ambiguous"),
        (Act::Cut("HTTP/1.1 404 Not".to_owned()), "ambiguous"),
        (Act::Cut(String::new()), "ambiguous"),
        (Act::Silence, "ambiguous"),
    ];
    for (act, expected) in table {
        let server = Server::script([act.clone()]).await;
        let found = match client(&server).look_up::<Charge>(&Request::get("/v1/charges/by-id/1")).await {
            Reconciled::Found(charge) => {
                assert_eq!(charge.id, "ch_1");
                "found"
            }
            Reconciled::NoRecord => "no record",
            Reconciled::Ambiguous(reason) => {
                assert!(!reason.is_empty() && !reason.contains("other"), "{reason}");
                "ambiguous"
            }
        };
        assert_eq!(found, expected, "{act:?}");
    }
}

// A first 503 is retried: it is a GET.
#[tokio::test]
async fn asking_is_retried() {
    let server = Server::script([say(503, &[], ""), say(404, &[], "")]).await;
    let found = client(&server).look_up::<Charge>(&Request::get("/v1/charges/by-id/1")).await;
    assert_eq!(found, Reconciled::NoRecord);
}
