//! Any status of 2xx means that a target took a delivery, whatever becomes of the answer's body.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;
use semel_testbed::wait;
use serde_json::json;

use super::{Bench, count};
use crate::kit::PATIENCE;

/// What a target answers with, and whether it then closes the connection or falls silent.
const ANSWERS: [(&str, &str, Then); 7] = [
    ("silent", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", Then::Silence),
    ("slow", "HTTP/1.1 202 Accepted\r\ncontent-length: 9\r\n\r\nhalf", Then::Silence),
    ("truncated", "HTTP/1.1 201 Created\r\ncontent-length: 9\r\n\r\nhalf", Then::Close),
    ("unchunked", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nrubbish\r\n", Then::Close),
    ("unended", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", Then::Close),
    ("unzipped", "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nhalf", Then::Silence),
    ("endless", "HTTP/1.1 200 OK\r\n\r\n", Then::Talk),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Silence,
    Close,
    /// More and more, until nobody reads it.
    Talk,
}

/// Raw sockets: every path has an answer of its own. Counts calls by path.
fn target() -> (String, Arc<Mutex<BTreeMap<String, usize>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let calls = Arc::new(Mutex::new(BTreeMap::new()));
    let counted = Arc::clone(&calls);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let counted = Arc::clone(&counted);
            std::thread::spawn(move || answer(stream, &counted));
        }
    });
    (url, calls)
}

fn answer(mut stream: TcpStream, counted: &Mutex<BTreeMap<String, usize>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).unwrap();
    let path = line.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        let Some((name, value)) = header.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap();
        }
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
    let Some((name, text, then)) = ANSWERS.iter().find(|(name, ..)| *name == path) else { return };
    *counted.lock().entry((*name).to_owned()).or_default() += 1;
    stream.write_all(text.as_bytes()).unwrap();
    match then {
        Then::Close => {}
        // Until the other side leaves.
        Then::Silence => drop(reader.read(&mut [0])),
        Then::Talk => while stream.write_all(&[b'x'; 4096]).is_ok() {},
    }
}

#[test]
fn a_delivery_that_was_answered_with_2xx_is_done() {
    let (url, calls) = target();
    let targets: String = ANSWERS
        .iter()
        .map(|(name, ..)| {
            format!(
                "[[target]]\nname = \"{name}\"\nurl = \"{url}/{name}\"\n\
                 retry = {{ max_attempts = 2, base = \"10ms\", cap = \"20ms\", timeout = \"500ms\" }}\n"
            )
        })
        .collect();
    let bench = Bench::new(&targets);
    let semel = bench.start();
    let admin = semel.admin();
    let event = json!({ "type": "a", "dedupe_key": "1", "payload": 1 });
    let id = admin.post("/v1/events", &event.to_string()).expect(201)["id"].as_str().unwrap().to_owned();
    let ended = || count(&admin, "queued,running,retry_wait,idle") == 0;
    wait::until("all have ended", PATIENCE, ended).unwrap();
    let expected: BTreeMap<String, usize> =
        ANSWERS.iter().map(|(name, ..)| ((*name).to_owned(), 1)).collect();
    assert_eq!(*calls.lock(), expected, "each is called once");
    assert_eq!((count(&admin, "done"), count(&admin, "dlq")), (ANSWERS.len(), 0));
    // The story has the status that was answered.
    let story = admin.get(&format!("/v1/story/{id}")).expect(200);
    let ends =
        story["timeline"].as_array().unwrap().iter().filter(|moment| moment["what"] == "attempt ended");
    let mut statuses = BTreeMap::new();
    for end in ends {
        assert_eq!(end["outcome"], "success", "{end}");
        statuses.insert(end["target"].as_str().unwrap().to_owned(), end["http_status"].as_u64().unwrap());
    }
    for (name, text, _) in ANSWERS {
        assert_eq!(statuses[name].to_string(), text[9..12], "{name}");
    }
}
