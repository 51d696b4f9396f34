//! What commands make of answers that a real server gives rarely.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};

use crate::kit::run;

/// An admin API with these answers, by method and path.
fn serve(answer: fn(&str) -> (u16, Value)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || while respond(&stream, answer).is_some() {});
        }
    });
    url
}

fn respond(mut stream: &TcpStream, answer: fn(&str) -> (u16, Value)) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let request = line.rsplit_once(' ')?.0.to_owned();
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).ok()?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    let (status, body) = answer(&request);
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status} x\r\nsemel-address: admin\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).ok()
}

/// Cause: a dead letter that another operator had changed ended the command. Consequence: those after it stayed. Fix: it
/// goes on, and lists what was refused at the end.
#[test]
fn a_bulk_discard_goes_on_after_a_refusal() {
    let url = serve(|request| match request {
        "POST /v1/dead-letters/discard" => {
            let refused = json!([{ "id": "dlq_2", "status": "replaying", "error": "dlq_2 is replaying" }]);
            (200, json!({ "discarded": 2, "refused": refused }))
        }
        "GET /v1/targets" => (200, json!({ "items": [{ "name": "crm" }], "next": null })),
        _ => {
            (200, json!({ "items": [{ "id": "dlq_1" }, { "id": "dlq_2" }, { "id": "dlq_3" }], "next": null }))
        }
    });
    let args = ["dlq", "discard", "--target", "crm", "--reason", "gone", "--yes", "--admin", &url];
    let output = run(&args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&output.stdout), "2 discarded; `semel dlq list --status discarded` shows them\n");
    assert_eq!(
        text(&output.stderr),
        "dlq_2 was not discarded: dlq_2 is replaying\n\
         semel: 1 dead letters were not discarded: others changed them meanwhile\n"
    );
    assert_eq!(output.status.code(), Some(1));
    let output = run(&[&args[..], &["--json"]].concat());
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        printed,
        json!({ "discarded": 2, "refused": [{ "id": "dlq_2", "error": "dlq_2 is replaying" }] })
    );
    assert_eq!(output.status.code(), Some(1));
}

/// Cause: keys in doubt were sorted page by page in JSON, and the cursor of a person's list went on after keys that were cut
/// off. Fix: both are in the order of all, and the cursor is a place in it.
#[test]
fn a_list_of_keys_in_doubt_says_how_to_read_on() {
    let url = serve(|request| {
        let key = |number: u32| {
            let claimed = format!("2026-11-18T00:00:0{}Z", 9 - number);
            json!({ "id": format!("{number:032}"), "phase": "in_doubt", "claimed_at": claimed })
        };
        match request {
            "GET /v1/keys?phase=in_doubt&limit=1000" => {
                (200, json!({ "items": [key(1), key(2)], "next": "two" }))
            }
            "GET /v1/keys?phase=in_doubt&limit=1000&cursor=two" => {
                (200, json!({ "items": [key(3)], "next": null }))
            }
            other => (400, json!({ "detail": other })),
        }
    });
    let list = |more: &[&str]| {
        let args = ["keys", "list", "--phase", "in_doubt", "--limit", "2", "--json", "--admin", &url];
        let output = run(&[&args[..], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let page: Value = serde_json::from_slice(&output.stdout).unwrap();
        let id = |item: &Value| item["id"].as_str().unwrap().trim_start_matches('0').to_owned();
        let ids = page["items"].as_array().unwrap().iter().map(id);
        (ids.collect::<String>(), page["next"].as_str().map(str::to_owned))
    };
    let (ids, next) = list(&[]);
    assert_eq!(ids, "32", "the oldest of all first");
    assert_eq!(list(&["--cursor", &next.unwrap()]), ("1".to_owned(), None));
}

/// Cause: a search for the beginning of a key read the whole store, page after page. Fix: it ends after a number of pages, and
/// says how to go on.
#[test]
fn a_search_that_finds_nothing_ends() {
    let url = serve(|_| (200, json!({ "items": [], "next": "on" })));
    let output = run(&["keys", "list", "--hint", "zebra", "--admin", &url]);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(err.contains("the search is not complete: continue it with --cursor on"), "{err}");
    let output = run(&["keys", "list", "--hint", "zebra", "--json", "--admin", &url]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "{\"items\":[],\"next\":\"on\"}\n");
}

/// Cause: a replay of more than ten thousand dead letters looked for what failed in its first ten thousand items only.
#[test]
fn failures_at_the_end_of_a_long_replay_are_shown() {
    let url = serve(|request| {
        let item = |result: &str| json!({ "dlq_id": "dlq_1", "target": "crm", "result": result, "error": "it is down" });
        let (path, cursor) = request.split_once("&cursor=").unwrap_or((request, "0"));
        match (path, cursor.parse::<u32>()) {
            ("GET /v1/replays/rpl_1", _) => {
                let counts = json!({ "total": 11_001, "replayed": 11_000, "failed_again": 1 });
                (200, json!({ "id": "rpl_1", "state": "done", "counts": counts }))
            }
            ("GET /v1/replays/rpl_1/items?limit=1000", Ok(page @ 0..11)) => {
                (200, json!({ "items": vec![item("replayed"); 1_000], "next": (page + 1).to_string() }))
            }
            ("GET /v1/replays/rpl_1/items?limit=1000", Ok(11)) => {
                (200, json!({ "items": [item("failed_again")], "next": null }))
            }
            (other, _) => (400, json!({ "detail": other })),
        }
    });
    let output = run(&["replay", "--job", "rpl_1", "--admin", &url]);
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(out.contains("it is down"), "{out}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
}
