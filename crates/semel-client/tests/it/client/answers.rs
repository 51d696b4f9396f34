//! What goes out and what comes back.

use http::HeaderName;
use semel_client::client::{AnswerDecodeError, Client, Conflicts, Error, Request, Sent};
use semel_client::retry::{Judged, Stop, StoryIds, TryFate, Verdict};
use serde::{Deserialize, Serialize};

use super::server::{Act, Server, answer, ok, say};
use super::{bare, builder, client, keyed};

#[derive(Serialize)]
struct Charge {
    cents: u64,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Receipt {
    id: String,
}

// Everything a service is told.
#[tokio::test]
async fn a_request_carries_what_it_should() {
    let server = Server::script([ok()]).await;
    let client = Client::builder(&format!("{}/base/", server.url()))
        .unwrap()
        .bearer("token-1")
        .unwrap()
        .user_header(HeaderName::from_static("x-acting-user"))
        .build()
        .unwrap();
    let request = Request::post("/v1/charges?expand=1")
        .json(&Charge { cents: 1200 })
        .unwrap()
        .key("derived-key-1")
        .unwrap()
        .user("user-7")
        .unwrap()
        .with_request_id("req-1")
        .unwrap()
        .traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .unwrap();
    let receipt: Receipt = client.json(&request).await.unwrap();
    assert_eq!(receipt, Receipt { id: "ch_1".into() });
    let seen = &server.seen()[0];
    assert!(seen.head.starts_with("POST /base/v1/charges?expand=1 HTTP/1.1\r\n"), "{}", seen.head);
    assert_eq!(seen.body, br#"{"cents":1200}"#);
    for (name, value) in [
        ("host", server.url().trim_start_matches("http://")),
        ("authorization", "Bearer token-1"),
        ("content-type", "application/json"),
        ("idempotency-key", "derived-key-1"),
        ("x-acting-user", "user-7"),
        ("x-request-id", "req-1"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("semel-attempt", "1"),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
}

#[tokio::test]
async fn connections_are_reused_and_redirects_are_not_followed() {
    let server = Server::script([ok(), ok(), say(302, &[("location", "/elsewhere")], "")]).await;
    let client = client(&server);
    client.send(&keyed()).await.unwrap();
    client.send(&keyed()).await.unwrap();
    let error = client.send(&keyed()).await.unwrap_err();
    assert_eq!(error.response().map(|response| response.status.as_u16()), Some(302));
    assert_eq!(server.count(), 3);
    assert!(server.seen().iter().all(|seen| seen.connection == 0));
}

// A server may close an unused connection at any moment; without a key that moment would leave the outcome unknown.
#[tokio::test]
async fn a_request_that_may_not_be_repeated_has_a_connection_of_its_own() {
    let server = Server::script([ok()]).await;
    let client = client(&server);
    for _ in 0..3 {
        client.send(&bare()).await.unwrap();
    }
    assert_eq!(server.seen().iter().map(|seen| seen.connection).collect::<Vec<_>>(), [0, 1, 2]);
}

// A 409 is a success where the call creates what is absent; elsewhere it is refused, and not asked for again.
#[tokio::test]
async fn a_conflict_is_what_the_call_makes_of_it() {
    let server = Server::script([say(409, &[], "exists")]).await;
    let client = client(&server);
    let exists = keyed().conflicts(Conflicts::Exists);
    assert_eq!(client.send(&exists).await.unwrap().status, 409);
    let Err(Error::Call(error)) = client.send(&keyed()).await else { panic!("refused") };
    assert_eq!((error.stop, error.attempts, error.fate), (Stop::Fatal, 1, TryFate::Undone));
    assert_eq!(server.count(), 2);
}

// Our own gateway's words, and those of others.
#[tokio::test]
async fn bodies_say_which_conflict_it_is() {
    let problem = |code: &str, retryable: bool| {
        let body = format!(r#"{{"status":409,"code":"{code}","retryable":{retryable}}}"#);
        say(409, &[("content-type", "application/problem+json")], &body)
    };
    let server = Server::script([
        problem("in_doubt", false),
        problem("conflict", false),
        problem("outcome_not_kept", false),
        say(
            409,
            &[("content-type", "application/json"), ("retry-after", "0")],
            r#"{"error":{"code":"idempotency_key_in_use"}}"#,
        ),
        ok(),
    ])
    .await;
    let client = client(&server);
    for (stop, fate) in
        [(Stop::Unknown, TryFate::Unknown), (Stop::Fatal, TryFate::Undone), (Stop::Fatal, TryFate::Unknown)]
    {
        let Err(Error::Call(error)) = client.send(&keyed()).await else { panic!("refused") };
        assert_eq!((error.stop, error.attempts, error.fate), (stop, 1, fate));
    }
    assert_eq!(client.send(&keyed()).await.unwrap().status, 200);
    assert_eq!(server.count(), 5);
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_says_where_and_not_what() {
    let server =
        Server::script([say(200, &[], r#"{"id": 4111111111111111}"#), say(200, &[], &"x".repeat(100))]).await;
    let client = builder(&server).body_limit(50).build().unwrap();
    let error = client.json::<Receipt>(&keyed()).await.unwrap_err();
    assert!(matches!(error, Error::Decode(AnswerDecodeError::NotJson { line: 1, .. })));
    assert!(!format!("{error} {error:?}").contains("4111"), "{error:?}");
    assert_eq!((error.fate(), error.is_retryable()), (TryFate::Done, false));
    let error = client.json::<Receipt>(&keyed()).await.unwrap_err();
    assert!(matches!(error, Error::Decode(AnswerDecodeError::TooLong { limit: 50, .. })));
}

// dos: a body is read up to its limit; the status counts all the same.
#[tokio::test]
async fn a_long_body_is_cut_at_the_limit() {
    let server = Server::script([say(200, &[], &"x".repeat(100_000)), ok()]).await;
    let client = builder(&server).body_limit(1_000).build().unwrap();
    let Sent::Answered(response) = client.send_once(&keyed()).await else { panic!("answered") };
    assert_eq!((response.status.as_u16(), response.body.len(), response.truncated), (200, 1_000, true));
    assert!(client.send(&keyed()).await.is_ok());
    assert_eq!(server.seen()[1].connection, 1, "what was not read to its end is not used again");
}

// A 200 that carries an error, and a 400 that means later.
#[tokio::test]
async fn answers_can_be_read_another_way() {
    let server =
        Server::script([say(200, &[], "overloaded"), say(400, &[], "overloaded"), say(200, &[], "fine")])
            .await;
    let client = builder(&server)
        .refine(|response, judged| match &response.body[..] {
            b"overloaded" => Judged::from(Verdict::Retry { after: None }),
            _ => judged,
        })
        .build()
        .unwrap();
    assert_eq!(client.send(&keyed()).await.unwrap().body, "fine");
    assert_eq!(server.count(), 3);
}

// No form of a request that is printed shows its key or token.
#[tokio::test]
async fn keys_and_tokens_are_not_printed() {
    let server = Server::script([Act::Cut(answer(500, &[], ""))]).await;
    let client = builder(&server).bearer("hunter2-token").unwrap().build().unwrap();
    let request = bare().key("secret-derived-key").unwrap().story(StoryIds::default());
    let error = client.send(&request).await.unwrap_err();
    let printed = format!("{request:?} {client:?} {error:?} {error}");
    assert!(!printed.contains("secret-derived-key") && !printed.contains("hunter2"), "{printed}");
    assert!(printed.contains("secret-d"), "eight characters are shown: {printed}");
    let refused = Request::get("/").key("line\nbreak").unwrap_err().to_string();
    assert!(!refused.contains("break"), "{refused}");
}
