//! Headers by which a client would make itself somebody else.

use std::io::Write as _;

use super::{Recorder, connect, gateway, read_status, status_of};

/// What a client says of its own address and of the gateway's is not believed.
#[test]
fn a_client_cannot_choose_its_own_address_at_the_upstream() {
    let lies = "X-Real-IP: 6.6.6.6\r\nTrue-Client-IP: 6.6.6.6\r\nX-Forwarded-Port: 6666\r\nX-Forwarded-Prefix: /6666\r\n\
                X-Forwarded-For: 6.6.6.6\r\nCF-Connecting-IP: 6.6.6.6\r\nX-Client-IP: 6.6.6.6\r\n";
    for (forwarded, believed) in [("replace", false), ("remove", false), ("append", true)] {
        let upstream = Recorder::start();
        let (_folder, semel) = gateway(&upstream.url(), &format!("forwarded = \"{forwarded}\""), "");
        // The gateway's own request id may contain any digits.
        let request = format!("GET /x HTTP/1.1\r\nHost: a\r\nX-Request-Id: r\r\n{lies}\r\n");
        assert_eq!(status_of(&semel, &request), 200);
        let head = upstream.heads().pop().unwrap();
        assert_eq!(head.contains("666") || head.contains("6.6.6.6"), believed, "{forwarded}: {head}");
    }
}

/// `Connection: x-user-id` has the next hop remove the header by which a proxy before us says who asks.
#[test]
fn connection_cannot_remove_headers_that_the_upstream_trusts() {
    let upstream = Recorder::start();
    let (_folder, semel) = gateway(&upstream.url(), "trusted_headers = [\"x-shop\"]", "");
    for name in [
        "x-user-id",
        "X-User-Id",
        "x-tenant-id",
        "stripe-account",
        "x-api-key",
        "x-shop",
        "x-http-method-override",
    ] {
        let request = format!("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close, {name}\r\n{name}: 1\r\n\r\n");
        assert_eq!(status_of(&semel, &request), 400, "{name}");
        let folded = name.replace('-', "_");
        let request = format!("GET /x HTTP/1.1\r\nHost: a\r\n{folded}: 1\r\n\r\n");
        assert_eq!(status_of(&semel, &request), 400, "{folded} is read as {name} by some");
    }
    assert_eq!(upstream.heads(), Vec::<String>::new());
    let request = "GET /x HTTP/1.1\r\nHost: a\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n";
    assert_eq!(status_of(&semel, request), 200);
    assert!(!upstream.heads()[0].contains("x-hop"));
}

#[test]
fn a_request_for_another_host_is_refused() {
    let upstream = Recorder::start();
    let settings = "hosts = [\"api.example.com\", \"127.0.0.1:1234\"]";
    let (_folder, semel) = gateway(&upstream.url(), settings, "");
    for (host, status) in [
        ("api.example.com", 200),
        ("API.example.com:8443", 200),
        ("127.0.0.1:1234", 200),
        ("127.0.0.1:1235", 421),
        ("evil.example.com", 421),
        ("api.example.com.evil.com", 421),
    ] {
        assert_eq!(status_of(&semel, &format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n")), status, "{host}");
    }
    assert_eq!(status_of(&semel, "GET /x HTTP/1.0\r\n\r\n"), 421, "no host at all");
    let mut stream = connect(&semel);
    stream.write_all(b"GET http://evil.example.com/x HTTP/1.1\r\nHost: evil.example.com\r\n\r\n").unwrap();
    assert_eq!(read_status(&stream), 421);
    assert_eq!(upstream.heads().len(), 3);
}
