//! Raw bytes with a fixed answer: smuggling_set, oversize, slow_body, key_syntax.
//!
//! Every refusal must close its connection, reach the upstream never, and leave the gateway well. Every accepted
//! request must reach it exactly once.

use std::time::Duration;

use crate::edge_kit::{Gateway, Upstream, ok, status};

/// One line of the table.
struct Case {
    name: String,
    /// Sent one after the other, with a pause in between.
    pieces: Vec<Vec<u8>>,
    status: u16,
    /// How many whole requests reach the upstream.
    reaches: usize,
}

fn case(name: &str, bytes: impl AsRef<[u8]>, status: u16) -> Case {
    Case {
        name: name.to_owned(),
        pieces: vec![bytes.as_ref().to_vec()],
        status,
        reaches: usize::from(status == 200),
    }
}

/// A request whose head holds these lines after a good start; closes.
fn with(name: &str, lines: impl AsRef<[u8]>, code: u16) -> Case {
    let head =
        [b"POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n".as_slice(), lines.as_ref(), b"\r\n\r\n"]
            .concat();
    case(name, head, code)
}

/// A chunked request with this body; closes.
fn chunked(name: &str, body: impl AsRef<[u8]>, code: u16) -> Case {
    let head = b"POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    case(name, [head.as_slice(), body.as_ref()].concat(), code)
}

/// A request with this request line.
fn line(name: &str, line: impl AsRef<[u8]>, code: u16) -> Case {
    case(name, [line.as_ref(), b"\r\nHost: a\r\nConnection: close\r\n\r\n"].concat(), code)
}

fn framing() -> Vec<Case> {
    let mut cases = vec![
        with("length and chunked", "Content-Length: 5\r\nTransfer-Encoding: chunked", 400),
        with("chunked and length", "Transfer-Encoding: chunked\r\nContent-Length: 5", 400),
        with("two equal lengths", "Content-Length: 5\r\nContent-Length: 5", 400),
        with("two lengths", "Content-Length: 5\r\nContent-Length: 6", 400),
        with("zero and another length", "Content-Length: 0\r\nContent-Length: 6", 400),
        with("two zero lengths", "Content-Length: 0\r\nContent-Length: 0", 400),
        with("chunked twice", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
        with("chunked and identity", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", 400),
        with("underscore length", "Content_Length: 5", 400),
        with("underscore coding", "Transfer_Encoding: chunked", 400),
        with("underscore host", "X-A: b\r\nHost: a", 400),
        with("length zero", "Content-Length: 0", 200),
        with("length many zeros", "Content-Length: 000", 200),
        with("no body", "X-A: b", 200),
        case(
            "length body",
            "POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc",
            200,
        ),
        case(
            "1.0 with chunked",
            "POST /x HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        case("1.0 plain", "GET /x HTTP/1.0\r\nHost: a\r\n\r\n", 200),
        case("1.0 without host", "GET /x HTTP/1.0\r\n\r\n", 200),
    ];
    for coding in [
        "gzip, chunked",
        "chunked, chunked",
        "chunked, gzip",
        "identity",
        "gzip",
        "xchunked",
        "chunkedx",
        "chunked;q=1",
        "\"chunked\"",
        "chunked,",
        ",chunked",
        "chunk ed",
        "",
        "deflate, chunked",
        "chunked\t, identity",
        "\u{b}chunked",
        "chunked\u{c}",
    ] {
        cases.push(with(&format!("coding {coding:?}"), format!("Transfer-Encoding: {coding}"), 400));
    }
    for length in [
        "+2",
        "-1",
        "0x2",
        "2a",
        "",
        "2 ",
        "1 2",
        "2,2",
        "2, 2",
        "2.0",
        "1e1",
        "99999999999999999999",
        "18446744073709551616",
        "1000000000000000000",
        "٣",
        "\"2\"",
        " +2",
    ] {
        let code = if length == "2 " { 408 } else { 400 };
        cases.push(with(&format!("length {length:?}"), format!("Content-Length: {length}"), code));
    }
    for name in [
        "Transfer-Encoding ",
        "Content-Length ",
        "Content-Length\t",
        " Content-Length",
        "Content-Length\u{0}",
        "Content Length",
    ] {
        cases.push(with(&format!("name {name:?}"), format!("{name}: 5"), 400));
    }
    cases
}

fn chunks() -> Vec<Case> {
    vec![
        chunked("one chunk", "3\r\nabc\r\n0\r\n\r\n", 200),
        chunked("capital size", "A\r\n0123456789\r\n0\r\n\r\n", 200),
        chunked("leading zeros", "0003\r\nabc\r\n0\r\n\r\n", 200),
        chunked("an extension", "3;a=b\r\nabc\r\n0;c\r\n\r\n", 200),
        chunked("a trailer", "3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n", 200),
        chunked("bare feed after size", "3\nabc\r\n0\r\n\r\n", 400),
        chunked("bare feed after data", "3\r\nabc\n0\r\n\r\n", 400),
        chunked("bare feed at the end", "3\r\nabc\r\n0\r\n\n", 400),
        chunked("bare feed in extension", "3;a\nb\r\nabc\r\n0\r\n\r\n", 400),
        chunked("bare return in extension", "3;a\rb\r\nabc\r\n0\r\n\r\n", 400),
        chunked("size longer than data", "5\r\nabc\r\n0\r\n\r\n", 400),
        chunked("data longer than size", "2\r\nabc\r\n0\r\n\r\n", 400),
        chunked("no size", "\r\nabc\r\n0\r\n\r\n", 400),
        chunked("size 0x3", "0x3\r\nabc\r\n0\r\n\r\n", 400),
        chunked("size +3", "+3\r\nabc\r\n0\r\n\r\n", 400),
        chunked("size -3", "-3\r\nabc\r\n0\r\n\r\n", 400),
        chunked("space before size", " 3\r\nabc\r\n0\r\n\r\n", 400),
        chunked("space after size", "3 \r\nabc\r\n0\r\n\r\n", 400),
        chunked("size overflow", "10000000000000003\r\nabc\r\n0\r\n\r\n", 400),
        chunked("size of sixteen digits", "ffffffffffffffff\r\nabc\r\n0\r\n\r\n", 400),
        chunked("long extension", format!("3;{}\r\nabc\r\n0\r\n\r\n", "a".repeat(20_000)), 400),
        chunked("NUL in extension", "3;\0\r\nabc\r\n0\r\n\r\n", 400),
        chunked("key in a trailer", "3\r\nabc\r\n0\r\nIdempotency-Key: k\r\n\r\n", 400),
        chunked("key in a trailer, other case", "3\r\nabc\r\n0\r\nidempotency-KEY: k\r\n\r\n", 400),
        chunked("underscore key in a trailer", "3\r\nabc\r\n0\r\nIdempotency_Key: k\r\n\r\n", 400),
        chunked("second trailer is a key", "0\r\nX-A: b\r\nIdempotency-Key: k\r\n\r\n", 400),
        chunked("length in a trailer", "0\r\nContent-Length: 3\r\n\r\n", 400),
        chunked("coding in a trailer", "0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        chunked("host in a trailer", "0\r\nHost: b\r\n\r\n", 400),
        chunked("authorization in a trailer", "0\r\nAuthorization: b\r\n\r\n", 400),
        chunked("cookie in a trailer", "0\r\nCookie: b\r\n\r\n", 400),
        chunked("content type in a trailer", "0\r\nContent-Type: b\r\n\r\n", 400),
        chunked("folded trailer", "0\r\nX-A: b\r\n c\r\n\r\n", 400),
        chunked("trailer without colon", "0\r\nX-A\r\n\r\n", 400),
        chunked("trailer without name", "0\r\n: b\r\n\r\n", 400),
        chunked("trailer, space before colon", "0\r\nX-A : b\r\n\r\n", 400),
        chunked("trailer with NUL", "0\r\nX-A: \0\r\n\r\n", 400),
        chunked("trailer with bare feed", "0\r\nX-A: b\n\r\n", 400),
        chunked("trailers too large", format!("0\r\n{}\r\n", "X-A: b\r\n".repeat(8_000)), 431),
        chunked("body too large", format!("{:x}\r\n{}\r\n0\r\n\r\n", 300_000, "a".repeat(300_000)), 413),
    ]
}

fn lines() -> Vec<Case> {
    let mut cases = vec![
        case("bare feeds", "GET /x HTTP/1.1\nHost: a\nConnection: close\n\n", 400),
        case("one bare feed", "GET /x HTTP/1.1\r\nHost: a\nConnection: close\r\n\r\n", 400),
        case("bare feed after the line", "GET /x HTTP/1.1\nHost: a\r\nConnection: close\r\n\r\n", 400),
        case("bare feed at the end", "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\n", 400),
        case("bare return as end", "GET /x HTTP/1.1\rHost: a\r\r\n\r\n", 400),
        case("two returns", "GET /x HTTP/1.1\r\r\nHost: a\r\nConnection: close\r\n\r\n", 400),
        case("empty line first", "\r\nGET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 200),
        case("two empty lines first", "\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        case("bare feed first", "\nGET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 400),
        case("space first", " GET /x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        case("garbage", "\x16\x03\x01\x02\0\x01\0\r\n\r\n", 400),
        case("only an end", "\r\n\r\n", 400),
        case("only bare feeds", "\n\n", 400),
        case("HTTP/0.9", "GET /x\r\n\r\n", 400),
        line("1.1 get", "GET /x HTTP/1.1", 200),
        line("1.1 options star", "OPTIONS * HTTP/1.1", 200),
        line("1.1 own method", "PURGE /x HTTP/1.1", 200),
        line("query", "GET /x?a=%20b&c HTTP/1.1", 200),
        line("lower-case method", "get /x HTTP/1.1", 400),
        line("mixed-case method", "Get /x HTTP/1.1", 400),
        line("lower-case post", "post /x HTTP/1.1", 400),
        line("method with brackets", "G(T /x HTTP/1.1", 400),
        line("method with NUL", "G\0T /x HTTP/1.1", 400),
        line("long method", format!("{} /x HTTP/1.1", "A".repeat(33)), 400),
        line("no method", " /x HTTP/1.1", 400),
        line("no target", "GET  HTTP/1.1", 400),
        line("two spaces", "GET  /x HTTP/1.1", 400),
        line("space in target", "GET /x y HTTP/1.1", 400),
        line("space at the end", "GET /x HTTP/1.1 ", 400),
        line("tab between", "GET\t/x\tHTTP/1.1", 400),
        line("star for get", "GET * HTTP/1.1", 400),
        line("relative target", "GET x HTTP/1.1", 400),
        line("target with fragment", "GET /x#y HTTP/1.1", 400),
        line("target with NUL", "GET /x\0y HTTP/1.1", 400),
        line("target with 0xFF", b"GET /x\xFFy HTTP/1.1", 400),
        line("target with backslash", "GET /x\\y HTTP/1.1", 400),
        line("target with quote", "GET /x\"y HTTP/1.1", 400),
        line("target with return", "GET /x\ry HTTP/1.1", 400),
        line("long target", format!("GET /{} HTTP/1.1", "a".repeat(9_000)), 414),
        line("very long target", format!("GET /{} HTTP/1.1", "a".repeat(100_000)), 414),
        line("HTTP/2.0", "GET /x HTTP/2.0", 505),
        line("HTTP/1.2", "GET /x HTTP/1.2", 505),
        line("HTTP/3.0", "GET /x HTTP/3.0", 505),
        line("HTTP/0.9 named", "GET /x HTTP/0.9", 505),
        line("HTTP/1", "GET /x HTTP/1", 400),
        line("HTTP/1.10", "GET /x HTTP/1.10", 400),
        line("http/1.1", "GET /x http/1.1", 400),
        line("HTTPS/1.1", "GET /x HTTPS/1.1", 400),
        line("no version", "GET /x", 400),
        line("the HTTP/2 preface, late", "PRI * HTTP/2.0", 505),
        line("connect", "CONNECT a:443 HTTP/1.1", 405),
        line("connect a path", "CONNECT /x HTTP/1.1", 405),
        line("absolute, same host", "GET http://a/x HTTP/1.1", 200),
        line("absolute, same host, capitals", "GET HTTP://A/x HTTP/1.1", 200),
        line("absolute, no path", "GET http://a HTTP/1.1", 200),
        line("absolute, other host", "GET http://b/x HTTP/1.1", 400),
        line("absolute, other port", "GET http://a:81/x HTTP/1.1", 400),
        line("absolute, with a user", "GET http://u@a/x HTTP/1.1", 400),
        line("absolute, other scheme", "GET ftp://a/x HTTP/1.1", 400),
        line("absolute, no scheme", "GET //b/x HTTP/1.1", 200),
        line("absolute, no host", "GET http:///x HTTP/1.1", 400),
        line("authority", "GET a:80 HTTP/1.1", 400),
    ];
    for byte in 0..=32_u8 {
        if !matches!(byte, b'\t' | b'\n' | b'\r' | b' ') {
            let lines = [b"X-A: b".as_slice(), &[byte], b"c"].concat();
            cases.push(with(&format!("value with {byte:#x}"), lines, 400));
        }
    }
    for byte in *b"\0\x01\t \"(),/;<=>?@[\\]{}\x7F\x80\xFF" {
        let lines = [b"X".as_slice(), &[byte], b"A: b"].concat();
        cases.push(with(&format!("name with {byte:#x}"), lines, 400));
    }
    cases
}

fn headers() -> Vec<Case> {
    vec![
        case("no host", "GET /x HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        case("two hosts", "GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        case("two equal hosts", "GET /x HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        case("empty host", "GET /x HTTP/1.1\r\nHost:\r\n\r\n", 400),
        case("1.0, two hosts", "GET /x HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        case("1.0, absolute without host", "GET http://a/x HTTP/1.0\r\n\r\n", 400),
        case("host list", "GET /x HTTP/1.1\r\nHost: a, b\r\n\r\n", 400),
        case("host with path", "GET /x HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
        case("host with user", "GET /x HTTP/1.1\r\nHost: u@a\r\n\r\n", 400),
        case("host with space", "GET /x HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        case("host with bad port", "GET /x HTTP/1.1\r\nHost: a:b\r\n\r\n", 400),
        case("host with large port", "GET /x HTTP/1.1\r\nHost: a:65536\r\n\r\n", 400),
        case("host with no port", "GET /x HTTP/1.1\r\nHost: a:\r\n\r\n", 400),
        case("host with two ports", "GET /x HTTP/1.1\r\nHost: a:1:2\r\n\r\n", 400),
        case("host with NUL", "GET /x HTTP/1.1\r\nHost: a\0\r\n\r\n", 400),
        case("host in UTF-8", "GET /x HTTP/1.1\r\nHost: ä\r\n\r\n", 400),
        case("open address", "GET /x HTTP/1.1\r\nHost: [::1\r\n\r\n", 400),
        case("empty address", "GET /x HTTP/1.1\r\nHost: []\r\n\r\n", 400),
        case("address", "GET /x HTTP/1.1\r\nHost: [::1]:80\r\nConnection: close\r\n\r\n", 200),
        with("folded", "X-A: b\r\n c", 400),
        with("folded by tab", "X-A: b\r\n\tc", 400),
        case("folded first", "GET /x HTTP/1.1\r\n Host: a\r\n\r\n", 400),
        with("no colon", "X-A", 400),
        with("no name", ": b", 400),
        with("empty value", "X-A:", 200),
        with("no space", "X-A:b", 200),
        with("tabs around", "X-A:\t b\t ", 200),
        with("high bytes in a value", b"X-A: caf\xC3\xA9", 200),
        with("DEL in a value", "X-A: \x7F", 400),
        with("underscore name", "X_Trace: b", 200),
        with("underscore authorization", "Authorization_: x\r\nX: y", 200),
        with("underscore forwarded for", "X_Forwarded_For: 1.2.3.4", 400),
        with("half underscore forwarded for", "X-Forwarded_For: 1.2.3.4", 400),
        with("hundred headers", ["X-A: b"; 98].join("\r\n"), 200),
        with("hundred and one headers", ["X-A: b"; 99].join("\r\n"), 431),
        with("a thousand headers", ["X-A: b"; 999].join("\r\n"), 431),
        with("large header", format!("X-A: {}", "b".repeat(20_000)), 200),
        with("too large header", format!("X-A: {}", "b".repeat(40_000)), 431),
        with("half a megabyte", format!("X-A: {}", "b".repeat(500_000)), 431),
        with("other expectation", "Expect: 200-ok", 417),
        with("connection takes the host", "Connection: host", 400),
        with("connection takes the key", "Connection: close, Idempotency-Key", 400),
        with("connection takes the authorization", "Connection: Authorization", 400),
        with("connection takes the length", "Connection: content-length", 400),
        with("connection takes forwarded for", "Connection: x-forwarded-for", 400),
        with("connection takes another", "Connection: x-a\r\nX-A: b", 200),
        with(
            "upgrade to h2c",
            "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
            200,
        ),
    ]
}

fn keys() -> Vec<Case> {
    let mut cases = vec![
        with("a key", "Idempotency-Key: abc", 200),
        with("a quoted key", "Idempotency-Key: \"abc\"", 200),
        with("a key of 255", format!("Idempotency-Key: {}", "k".repeat(255)), 200),
        with("two keys", "Idempotency-Key: a\r\nIdempotency-Key: b", 400),
        with("two equal keys", "Idempotency-Key: a\r\nIdempotency-Key: a", 400),
        with("two keys in two cases", "Idempotency-Key: a\r\nidempotency-key: b", 400),
        with("two keys apart", "Idempotency-Key: a\r\nX-A: b\r\nIDEMPOTENCY-KEY: b", 400),
        with("empty key", "Idempotency-Key:", 400),
        with("blank key", "Idempotency-Key:   \t", 400),
        with("key with 0xFF", b"Idempotency-Key: a\xFFb", 400),
        with("key in UTF-8", "Idempotency-Key: ä", 400),
        with("key with tab", "Idempotency-Key: a\tb", 400),
        with("key with DEL", "Idempotency-Key: a\x7Fb", 400),
        with("key with NUL", "Idempotency-Key: a\0b", 400),
        with("key of 600", format!("Idempotency-Key: {}", "k".repeat(600)), 400),
        with("key of 30 KB", format!("Idempotency-Key: {}", "k".repeat(30_000)), 400),
        with("key of 500 KB", format!("Idempotency-Key: {}", "k".repeat(500_000)), 400),
        with("underscore key", "Idempotency_Key: a", 400),
        with("underscore key beside a key", "Idempotency-Key: a\r\nidempotency_key: b", 400),
        with("key, space before colon", "Idempotency-Key : a", 400),
        with("key, folded", "Idempotency-Key: a\r\n b", 400),
    ];
    for byte in 1..32_u8 {
        if !matches!(byte, b'\t' | b'\n' | b'\r') {
            let lines = [b"Idempotency-Key: a".as_slice(), &[byte]].concat();
            cases.push(with(&format!("key ends with {byte:#x}"), lines, 400));
        }
    }
    cases
}

fn pieces() -> Vec<Case> {
    let slow = |name: &str, pieces: &[&str], status, reaches| Case {
        name: name.to_owned(),
        pieces: pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect(),
        status,
        reaches,
    };
    vec![
        slow(
            "head in pieces",
            &["GE", "T /x HT", "TP/1.1\r", "\nHost: a\r\nConnection: clo", "se\r\n\r", "\n"],
            200,
            1,
        ),
        slow("bad head in pieces", &["GET /x HTTP/1.1\r\nHost: a\r\nHo", "st: b\r\n\r\n"], 400, 0),
        slow("bare feed in pieces", &["GET /x HTTP/1.1\r\nHost: a\n", "\n"], 400, 0),
        slow("head never ends", &["GET /x HTTP/1.1\r\nHost: a\r\n"], 408, 0),
        slow("one byte", &["G"], 408, 0),
        slow(
            "trickled head",
            &[
                "GET /x HTTP/1.1\r\n",
                "a: b\r\n",
                "a: b\r\n",
                "a: b\r\n",
                "a: b\r\n",
                "a: b\r\n",
                "a: b\r\n",
                "a: b\r\n",
                "a: b\r\n",
                "a: b\r\n",
                "a: b\r\n",
                "a: b\r\n",
                "a: b\r\n",
                "a: b\r\n",
                "a: b\r\n",
            ],
            408,
            0,
        ),
        slow("body never comes", &["POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"], 408, 0),
        slow("body stops", &["POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", "abc"], 408, 0),
        slow(
            "chunk stops",
            &["POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "5\r\nabc"],
            408,
            0,
        ),
        slow(
            "trickled body",
            &[
                "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 19\r\n\r\n",
                "a",
                "a",
                "a",
                "a",
                "a",
                "a",
                "a",
                "a",
                "a",
                "a",
                "a",
                "a",
                "a",
                "a",
            ],
            408,
            0,
        ),
        slow(
            "chunks in pieces",
            &[
                "POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n1",
                "\r",
                "\na\r\n0",
                "\r\n\r",
                "\n",
            ],
            200,
            1,
        ),
        slow(
            "trailer key in pieces",
            &[
                "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nIdempot",
                "ency-Key: x\r\n\r\n",
            ],
            400,
            0,
        ),
        slow(
            "good, then bad",
            &["GET /x HTTP/1.1\r\nHost: a\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"],
            200,
            1,
        ),
        slow(
            "good, then bad in pieces",
            &["GET /x HTTP/1.1\r\nHost: a\r\n\r\nGET /x", " HTTP/1.1\r\n\r\n"],
            200,
            1,
        ),
        slow(
            "body, then bad",
            &[
                "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcget /x HTTP/1.1\r\nHost: a\r\n\r\n",
            ],
            200,
            1,
        ),
        slow(
            "bad, then good",
            &["get /x HTTP/1.1\r\nHost: a\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n"],
            400,
            0,
        ),
        slow(
            "three good",
            &[
                "GET /x HTTP/1.1\r\nHost: a\r\n\r\nPOST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\naGET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            ],
            200,
            3,
        ),
        slow(
            "announced too large",
            &["POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n"],
            413,
            0,
        ),
        slow(
            "announced far too large",
            &["POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999999999\r\n\r\n"],
            413,
            0,
        ),
        slow(
            "a request hidden in a body",
            &[
                "POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 38\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n",
            ],
            200,
            1,
        ),
    ]
}

#[tokio::test]
async fn smuggling_set() {
    let cases: Vec<Case> =
        [framing(), chunks(), lines(), headers(), keys(), pieces()].into_iter().flatten().collect();
    assert!(cases.len() >= 200, "{} cases", cases.len());
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::before(&upstream).await;
    let mut wrong = Vec::new();
    for case in &cases {
        let before = upstream.count();
        let mut client = gateway.connect().await;
        for (index, piece) in case.pieces.iter().enumerate() {
            if index > 0 {
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
            client.send(piece).await;
        }
        // Panics where the connection stays open.
        let answer = client.rest().await;
        let good = "GET /good HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let after = status(&gateway.ask(good).await);
        let reached = upstream.count() - before - 1;
        let answers = answer.matches("\r\ndate: ").count();
        let refused_well = case.reaches > 0
            || answer.contains("application/problem+json")
                && answer.contains("connection: close")
                && answers == 1;
        if (status(&answer), reached, after, refused_well) != (case.status, case.reaches, 200, true) {
            wrong.push(format!(
                "{}: {} expected, reaching {}; got {}, reaching {reached}, then {after}: {answer:.300}",
                case.name,
                case.status,
                case.reaches,
                status(&answer)
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
