//! Bodies that are half sent.

use std::io::{BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

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

/// Zeros, compressed: some thousandth of the size that they unpack to.
fn bomb(mebibytes: usize) -> Vec<u8> {
    let mut zeros = Command::new("head")
        .args(["-c", &format!("{mebibytes}M"), "/dev/zero"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let packed = Command::new("gzip").arg("-c").stdin(zeros.stdout.take().unwrap()).output().unwrap();
    assert!(zeros.wait().unwrap().success() && packed.status.success());
    packed.stdout
}

/// Reads one message: its head, and as many bytes as the head says.
fn read_message(reader: &mut impl std::io::BufRead) -> (String, Vec<u8>) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "the message is whole: {head}");
    }
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")).unwrap();
    let mut body = vec![0; length.trim().parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    (head, body)
}

/// The most memory that the process ever had, in MiB.
fn peak_memory(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() / 1024
}

/// decompression_bomb: the gateway passes compressed bodies on and stores compressed answers, and never unpacks either.
#[test]
fn decompression_bomb() {
    let mebibytes = if std::env::var_os("SEMEL_PROVE").is_some() { 1024 } else { 256 };
    let bomb = bomb(mebibytes);
    assert!(bomb.len() < mebibytes << 11, "it is small: {}", bomb.len());
    // An upstream that answers with the body that it got.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (_, body) = read_message(&mut BufReader::new(&stream));
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-encoding: gzip\r\ncontent-length";
            let mut writer = &stream;
            let _ = writer.write_all(format!("{head}: {}\r\n\r\n", body.len()).as_bytes());
            let _ = writer.write_all(&body);
        }
    });
    let limits = "request_limit = \"4MiB\"\nresponse_limit = \"4MiB\"\n";
    let routes = format!(
        "[[route]]\nmatch = \"POST /pay\"\n{limits}[[route]]\nmatch = \"POST /json\"\n{limits}fingerprint = \"json\"\n"
    );
    let (_folder, semel) = gateway(&upstream, "scope = \"single-tenant\"", &routes);
    let before = peak_memory(semel.pid());
    let send = |path: &str| {
        let mut stream = connect(&semel);
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
            bomb.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&bomb).unwrap();
        read_message(&mut BufReader::new(stream))
    };
    for replayed in [false, true] {
        let (head, body) = send("/pay");
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert_eq!(head.contains("idempotent-replayed: true"), replayed, "{head}");
        assert!(head.contains("content-encoding: gzip") && body == bomb, "the same bytes both ways");
    }
    let (head, _) = send("/json");
    assert!(head.starts_with("http/1.1 400"), "what is packed has no JSON value: {head}");
    let grown = peak_memory(semel.pid()) - before;
    assert!(grown < 64, "{grown} MiB more for a bomb of {mebibytes} MiB");
}
