//! Other protocols through the gateway.

use std::io::{Read as _, Write as _};

use semel_testbed::wait;

use super::{Recorder, connect, gateway, status_of};
use crate::kit::{PATIENCE, Semel};

/// HTTP/2 in a tunnel would carry requests past every policy.
#[test]
fn an_h2c_upgrade_in_disguise_opens_no_tunnel() {
    let upstream = Recorder::start();
    let (_folder, semel) = gateway(&upstream.url(), "", "");
    for upgrade in [
        "Upgrade: h2c\r\nUpgrade: x",
        "Upgrade: x\r\nUpgrade: h2c",
        "Upgrade: websocket\r\nUpgrade: h2c",
        "Upgrade: h2c,",
        "Upgrade: ,h2c",
        "Upgrade: websocket, h2c",
        "Upgrade: h2c;q=1",
        "Upgrade: web socket",
    ] {
        let request = format!("GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n{upgrade}\r\n\r\n");
        assert_eq!(status_of(&semel, &request), 400, "{upgrade}");
    }
    assert_eq!(upstream.heads(), Vec::<String>::new());
    // One name of a protocol that is not allowed is no reason to refuse: the answer comes in HTTP/1.1.
    for upgrade in ["h2c", "HTTP/2.0", "tls/1.0", "x"] {
        let request =
            format!("GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n");
        assert_eq!(status_of(&semel, &request), 200, "{upgrade}");
    }
    assert!(upstream.heads().iter().all(|head| !head.contains("upgrade:")), "{:?}", upstream.heads());
}

fn open_tunnel(semel: &Semel, protocol: &str) -> std::net::TcpStream {
    let mut stream = connect(semel);
    let request =
        format!("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend_from_slice(&byte);
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    stream
}

#[test]
fn an_idle_tunnel_is_closed_and_a_busy_one_is_not() {
    let upstream = Recorder::start();
    let settings = "upgrades = [\"websocket\", \"chat/1\"]\n[gateway.timeouts]\ntunnel = \"600ms\"";
    let (_folder, semel) = gateway(&upstream.url(), settings, "");
    let (mut busy, mut idle) = (open_tunnel(&semel, "chat/1"), open_tunnel(&semel, "WebSocket"));
    let closed = std::thread::spawn(move || {
        let mut rest = Vec::new();
        // Closed, be it with a reset: what counts is that it ended.
        let _ = idle.read_to_end(&mut rest);
        rest
    });
    wait::until("the end of the idle tunnel", PATIENCE, || {
        busy.write_all(b"x").unwrap();
        busy.read_exact(&mut [0]).unwrap();
        closed.is_finished()
    })
    .unwrap();
    assert_eq!(closed.join().unwrap(), b"");
    busy.write_all(b"y").unwrap();
    busy.read_exact(&mut [0]).unwrap();
    assert_eq!(status_of(&semel, "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"), 200);
}
