//! What one try says of itself: not sent, unknown, answered.

use std::time::Duration;

use semel_client::client::{Client, Lost, Sent};
use semel_client::retry::{Repeat, TryFate, Verdict};
use tokio::net::TcpListener;

use super::server::{Act, Server, answer, ok, say};
use super::{bare, builder, client, keyed, ms};

fn nobody() -> String {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!("http://127.0.0.1:{port}")
}

#[tokio::test]
async fn nobody_there_is_not_sent() {
    let client = Client::builder(&nobody()).unwrap().build().unwrap();
    let sent = client.send_once(&bare()).await;
    assert!(matches!(sent, Sent::NotSent(Lost::Connect(_))), "{sent:?}");
    let judged = client.judge_sent(&bare(), &sent);
    assert_eq!((judged.verdict, judged.fate), (Verdict::Retry { after: None }, TryFate::Undone));
    let lost = Client::builder("http://no-such-host.invalid").unwrap().build().unwrap();
    assert!(matches!(lost.send_once(&bare()).await, Sent::NotSent(Lost::Connect(_))));
}

// A service that accepts nothing: its queue is full. Where the system accepts all the same, it is silent: unknown.
#[tokio::test]
async fn tls_that_never_answers_is_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let client = Client::builder(&url).unwrap().connect_timeout(ms(100)).build().unwrap();
    let sent = client.send_once(&bare()).await;
    assert!(matches!(sent, Sent::NotSent(Lost::Timeout)), "{sent:?}");
    drop(listener);
}

#[tokio::test]
async fn a_cut_answer_is_unknown() {
    let whole = answer(200, &[], "0123456789");
    // Cut before, within and after the head.
    for length in [0, 1, 20, whole.len() - 5] {
        let server = Server::script([Act::Cut(whole[..length].to_owned())]).await;
        let client = client(&server);
        let sent = client.send_once(&bare()).await;
        assert!(matches!(sent, Sent::Unknown(Lost::Cut(_))), "{length}: {sent:?}");
        assert_eq!(client.judge_sent(&bare(), &sent).verdict, Verdict::Unknown);
        assert_eq!(client.judge_sent(&keyed(), &sent).verdict, Verdict::Retry { after: None });
        assert_eq!(server.count(), 1, "never a hidden resend");
    }
}

#[tokio::test]
async fn silence_is_unknown() {
    let head_only = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n01234".to_owned();
    for act in [Act::Silence, Act::Late(Duration::from_secs(60), String::new()), Act::Say(head_only)] {
        let server = Server::script([act]).await;
        let client = builder(&server).timeout(ms(150)).build().unwrap();
        let sent = client.send_once(&keyed()).await;
        assert!(matches!(sent, Sent::Unknown(Lost::Timeout)), "{sent:?}");
        assert_eq!(server.count(), 1);
    }
}

#[tokio::test]
async fn what_is_not_http_is_unknown() {
    let server = Server::script([Act::Say("SSH-2.0-OpenSSH_9.2\r\n\r\n".to_owned())]).await;
    let client = client(&server);
    assert!(matches!(client.send_once(&keyed()).await, Sent::Unknown(Lost::Cut(_))));
}

#[tokio::test]
async fn any_status_is_an_answer() {
    for status in [200, 404, 429, 500, 503] {
        let server = Server::script([say(status, &[], "x")]).await;
        let sent = client(&server).send_once(&bare()).await;
        assert!(
            matches!(sent, Sent::Answered(ref response) if response.status == status && response.body == "x")
        );
        assert_eq!(server.count(), 1, "once is once");
    }
}

// The connection that was kept is gone by the next request: it is found closed, and nothing was sent on it.
#[tokio::test]
async fn a_kept_connection_that_was_closed_is_replaced() {
    let server = Server::script([Act::Leave(answer(200, &[], "first")), ok()]).await;
    let client = client(&server);
    assert_eq!(keyed().repeat(), Repeat::Safe);
    for _ in 0..5 {
        // Found closed it is replaced; closed under the request's feet it is said to be unknown. Never sent twice.
        let before = server.count();
        match client.send_once(&keyed()).await {
            Sent::Answered(_) => assert_eq!(server.count(), before + 1),
            Sent::Unknown(_) => assert!(server.count() <= before + 1),
            Sent::NotSent(lost) => panic!("{lost}"),
        }
    }
}

// The service reads a request on a kept connection and closes it: the request may have taken effect, and is not repeated.
#[tokio::test]
async fn a_request_that_was_read_on_a_kept_connection_is_sent_once() {
    let server = Server::script([ok(), Act::Cut(String::new()), ok()]).await;
    let client = client(&server);
    assert!(matches!(client.send_once(&keyed()).await, Sent::Answered(_)));
    let sent = client.send_once(&keyed()).await;
    assert!(matches!(sent, Sent::Unknown(Lost::Cut(_))), "{sent:?}");
    let seen = server.seen();
    assert_eq!(seen.len(), 2, "the request was sent again");
    assert_eq!(seen[0].connection, seen[1].connection, "the connection was not reused, so nothing is shown");
}

// A pool with room for two: the third waits, and says that it was not sent.
#[tokio::test]
async fn the_pool_has_its_bounds() {
    let server = Server::script([Act::Silence]).await;
    let client =
        builder(&server).connections(2, 2).timeout(ms(600)).connect_timeout(ms(100)).build().unwrap();
    let request = keyed();
    let (one, two, three) =
        tokio::join!(client.send_once(&request), client.send_once(&request), client.send_once(&request));
    let unsent =
        [&one, &two, &three].iter().filter(|sent| matches!(sent, Sent::NotSent(Lost::Timeout))).count();
    assert_eq!((unsent, server.count()), (1, 2), "{one:?} {two:?} {three:?}");
}

// An unused connection that this request may not take must not keep it from having one.
#[tokio::test]
async fn unused_connections_give_way() {
    let server = Server::script([ok()]).await;
    let client = builder(&server).connections(1, 1).build().unwrap();
    assert!(matches!(client.send_once(&keyed()).await, Sent::Answered(_)));
    assert!(matches!(client.send_once(&bare()).await, Sent::Answered(_)));
}
