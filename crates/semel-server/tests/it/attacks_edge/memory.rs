//! Bodies that are half sent.

use std::io::Write as _;
use std::net::TcpStream;

use semel_testbed::wait;

use super::{connect, gateway, read_status};
use crate::kit::{PATIENCE, Upstream, metric};

fn head(key: &str, length: usize) -> String {
    format!("POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\nContent-Length: {length}\r\n\r\n")
}

fn is_answered(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    read.is_ok_and(|bytes| bytes > 0)
}

/// Bodies are read before anybody is authenticated, so all of them together have a bound.
#[test]
fn half_sent_bodies_take_no_more_memory_than_their_budget() {
    let upstream = Upstream::start();
    let settings = "scope = \"single-tenant\"\n[gateway.limits]\nbuffered = \"256KiB\"";
    let routes = "[[route]]\nmatch = \"POST /pay\"\nrequest_limit = \"128KiB\"\n";
    let (_folder, semel) = gateway(&upstream.url(), settings, routes);
    let buffered = || metric(&semel.admin(), "semel_gateway_request_bytes_buffered");
    let mut half_sent = Vec::new();
    for number in 0..8 {
        let mut stream = connect(&semel);
        stream.write_all(head(&format!("half-{number}"), 100_000).as_bytes()).unwrap();
        // The gateway may have refused the request already, and closed the connection.
        let _ = stream.write_all(&[b'x'; 90_000]);
        half_sent.push(stream);
    }
    let admin = semel.admin();
    let refused = || metric(&admin, "semel_gateway_bodies_refused_total");
    // Which of them find room is a matter of luck; two do at most.
    let settled = || refused() >= 6.0 && buffered() == (8.0 - refused()) * 90_000.0;
    wait::until("room for all that are left", PATIENCE, settled).unwrap();
    let answered = || half_sent.iter().filter(|stream| is_answered(stream)).count();
    wait::until("the answers", PATIENCE, || answered() as f64 == refused()).unwrap();
    let statuses: Vec<u16> = half_sent.iter().filter(|stream| is_answered(stream)).map(read_status).collect();
    assert!(statuses.iter().all(|status| *status == 503), "{statuses:?}");
    drop(half_sent);
    wait::until("the end of all", PATIENCE, || buffered() == 0.0).unwrap();
    assert_eq!(upstream.total(), 0);
    let honest = semel.gateway().with("idempotency-key", "whole");
    assert_eq!(honest.post("/pay", &"y".repeat(100_000)).status, 201);
    assert_eq!(buffered(), 0.0);
}

/// Where slow bodies hold the whole budget, the one that has been read for longest makes room for a quick one.
#[test]
fn slow_bodies_do_not_lock_out_an_honest_client() {
    let upstream = Upstream::start();
    let settings = "scope = \"single-tenant\"\n[gateway.limits]\nbuffered = \"256KiB\"";
    let routes = "[[route]]\nmatch = \"POST /pay\"\nrequest_limit = \"128KiB\"\n";
    let (_folder, semel) = gateway(&upstream.url(), settings, routes);
    let buffered = || metric(&semel.admin(), "semel_gateway_request_bytes_buffered");
    let mut slow = Vec::new();
    for number in 0..2 {
        let mut stream = connect(&semel);
        stream.write_all(head(&format!("slow-{number}"), 130_000).as_bytes()).unwrap();
        stream.write_all(&[b'x'; 125_000]).unwrap();
        slow.push(stream);
        wait::until("a slow body", PATIENCE, || buffered() == 125_000.0 * f64::from(number + 1)).unwrap();
    }
    let post =
        |key: &str| semel.gateway().with("idempotency-key", key).post("/pay", &"y".repeat(50_000)).status;
    // Not at once: bodies may take a second undisturbed.
    wait::until("room", PATIENCE, || post("honest-0") == 201).unwrap();
    for number in 1..5 {
        assert_eq!(post(&format!("honest-{number}")), 201);
    }
    assert_eq!(read_status(&slow[0]), 503, "the oldest made room");
    assert_eq!(upstream.total(), 5);
    wait::until("one slow body", PATIENCE, || buffered() == 125_000.0).unwrap();
}
