//! Targets that cannot be used are said to be so; wrong tokens are graded.

use std::net::TcpListener as StdListener;

use semel_check::{Error, Grade, RunOptions, Runner, Storyboard};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use crate::kit::{Server, reply, try_text};

const ONE: &str = "id: t\ntransport: http\nphases: [{id: p, steps: [{id: a, request: {path: /}}]}]\n";
const TOOL: &str = "id: t\nphases: [{id: p, steps: [{id: a, task: create_media_buy}]}]\n";

fn unusable(run: Result<semel_check::Report, Error>) -> String {
    match run {
        Err(Error::Target(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there() {
    let nobody = StdListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    assert!(unusable(try_text(&url, ONE).await).contains("cannot reach"));
    for url in ["not a url", "ftp://x", "http://", "/path"] {
        assert!(!unusable(try_text(url, ONE).await).is_empty());
    }
    assert!(!unusable(try_text("http://name.invalid", ONE).await).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_that_cannot_be_spoken() {
    // A server of plain HTTP behind an https address.
    let server = Server::start(|_| async { reply(200, &[], &json!({})) }).await;
    let url = server.url().replace("http://", "https://");
    assert!(unusable(try_text(&url, ONE).await).contains("TLS"));
    // Certificates that are none.
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut options = RunOptions::new(&url);
    options.roots = Some(file.path().to_owned());
    assert!(matches!(Runner::new(options), Err(Error::Setting(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_graded_over_http_and_makes_an_mcp_target_unusable() {
    let server = Server::start(|asked| async move {
        match asked.header("authorization").as_deref() {
            Some("Bearer right") => reply(200, &[], &json!({})),
            _ => reply(401, &[], &json!({"code": "unauthorized"})),
        }
    })
    .await;
    for (token, grade) in [("right", Grade::Passed), ("wrong", Grade::Failed)] {
        let mut options = RunOptions::new(server.url());
        options.auth = Some(token.to_owned());
        let storyboard = Storyboard::parse("t.yaml", ONE).unwrap();
        let report = Runner::new(options).unwrap().run(&[storyboard], &|_| {}).await.unwrap();
        assert_eq!(report.storyboards[0].steps[0].grade, grade);
    }
    let why = unusable(try_text(&server.url(), TOOL).await);
    assert!(why.contains("401") && why.contains("--auth"), "{why}");
}

// A target that hangs up, answers garbage, or answers with half an answer: failed, never passed, never a panic.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_does_not_speak_http() {
    for answer in [
        "",
        "SSH-2.0-OpenSSH\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{\"id\":",
        "\u{0}\u{1}\u{2}",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let report = try_text(&url, ONE).await.unwrap();
        let step = &report.storyboards[0].steps[0];
        assert_eq!(step.grade, Grade::Failed, "{answer:?}");
        assert!(step.error.is_some(), "{answer:?}");
        assert!(!unusable(try_text(&url, TOOL).await).is_empty());
    }
}
