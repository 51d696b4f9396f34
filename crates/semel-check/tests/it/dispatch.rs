//! Parallel dispatch is simultaneous, by the server's own log.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use semel_check::{Grade, Reason};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Barrier;
use tokio::time::timeout;

use crate::kit::run_text;

fn storyboard(count: usize) -> String {
    format!(
        "id: t\ntransport: http\nphases:\n  - id: p\n    steps:\n      - id: s\n        request: {{ path: /o, body: {{ a: 1 }} }}\n        \
         parallel_dispatch: {{ count: {count}, barrier_timeout_ms: 30000 }}\n        validations:\n          \
         - {{ check: cross_response_field_equal, path: id }}\n"
    )
}

/// Reads one request to its end: head, then as many bytes as it says.
async fn read_request(stream: &mut tokio::net::TcpStream) -> Option<()> {
    let mut bytes = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).await.ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&chunk[..read]);
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
        if body.len() >= length {
            return Some(());
        }
    }
}

async fn serve<F>(answer: F) -> String
where
    F: Fn(usize, tokio::net::TcpStream) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
        + Send
        + Sync
        + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for number in 0.. {
            let Ok((stream, _)) = listener.accept().await else { return };
            tokio::spawn(answer(number, stream));
        }
    });
    url
}

const ANSWER: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 8\r\n\r\n{\"id\":1}";

// A server that answers nobody before it has the last of a hundred requests: a caller that reads one answer first waits for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_requests_are_there_before_the_first_answer() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::new(Barrier::new(100));
    let (of_server, barrier) = (Arc::clone(&log), Arc::clone(&all));
    let url = serve(move |_, mut stream| {
        let (log, all) = (Arc::clone(&of_server), Arc::clone(&barrier));
        Box::pin(async move {
            if read_request(&mut stream).await.is_none() {
                return;
            }
            log.lock().push("asked");
            all.wait().await;
            log.lock().push("answered");
            let _ = stream.write_all(ANSWER.as_bytes()).await;
        })
    })
    .await;
    let report = run_text(&url, &storyboard(100)).await;
    assert_eq!(report.storyboards[0].steps[0].grade, Grade::Passed, "{}", semel_check::json(&report));
    let log = log.lock();
    assert_eq!(log.iter().take_while(|word| **word == "asked").count(), 100);
    assert_eq!(log.len(), 200);
}

// A server that answers at once, with more than any buffer between the two can take: it can only finish an answer that
// somebody reads. By its log, the first answer is finished after the last request has come.
#[tokio::test(flavor = "multi_thread")]
async fn no_byte_of_an_answer_is_read_before_all_requests_are_written() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let of_server = Arc::clone(&log);
    let url = serve(move |_, mut stream| {
        let log = Arc::clone(&of_server);
        Box::pin(async move {
            if read_request(&mut stream).await.is_none() {
                return;
            }
            log.lock().push("asked");
            let padding = " ".repeat(12 << 20);
            let body = format!("{{\"id\":1}}{padding}");
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(body.as_bytes()).await;
            log.lock().push("read");
        })
    })
    .await;
    let report = run_text(&url, &storyboard(20)).await;
    assert_eq!(report.storyboards[0].steps[0].grade, Grade::Passed, "{}", semel_check::json(&report));
    let log = log.lock();
    assert_eq!(log.iter().take_while(|word| **word == "asked").count(), 20, "{log:?}");
}

// Answers that say "in flight" are waited for, with the same key, until the outcome is there.
#[tokio::test(flavor = "multi_thread")]
async fn answers_in_flight_are_resolved() {
    let asked = Arc::new(Mutex::new(0));
    let of_server = Arc::clone(&asked);
    let url = serve(move |_, mut stream| {
        let asked = Arc::clone(&of_server);
        Box::pin(async move {
            if read_request(&mut stream).await.is_none() {
                return;
            }
            let number = {
                let mut asked = asked.lock();
                *asked += 1;
                *asked
            };
            let busy = "HTTP/1.1 409 Conflict\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}";
            let _ = stream.write_all(if (2..=4).contains(&number) { busy } else { ANSWER }.as_bytes()).await;
        })
    })
    .await;
    let report = run_text(&url, &storyboard(4)).await;
    assert_eq!(report.storyboards[0].steps[0].grade, Grade::Passed, "{}", semel_check::json(&report));
    assert_eq!(*asked.lock(), 7, "three were told to come back");
}

// Time runs out: no verdict on the rule, and no pass.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_does_not_answer_in_time_is_not_judged() {
    let url = serve(|_, mut stream| {
        Box::pin(async move {
            let _ = read_request(&mut stream).await;
            std::future::pending::<()>().await;
        })
    })
    .await;
    let text = storyboard(3).replace("30000", "300");
    let report = timeout(Duration::from_secs(20), run_text(&url, &text)).await.unwrap();
    let step = &report.storyboards[0].steps[0];
    let skip = step.skip.as_ref().unwrap();
    assert_eq!((step.grade, skip.reason), (Grade::Skipped, Reason::NotApplicable));
    assert!(skip.detail.starts_with("step_timeout"), "{skip:?}");
}
