//! Damaged heads and chunks, checked against a second reader.

use semel_testbed::fuzz::Fuzz;

use super::chunks::{ChunkProgress, Chunks};
use super::head::{self, Framing};
use super::options::EdgeOptions;
use super::rules::ListenerRules;

/// How the second, lenient reader understands a head.
struct SecondReading {
    lengths: Vec<Vec<u8>>,
    codings: Vec<Vec<u8>>,
    hosts: usize,
}

fn read_leniently(bytes: &[u8]) -> Option<SecondReading> {
    let mut headers = [httparse::EMPTY_HEADER; 256];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(length) = request.parse(bytes).ok()? else { return None };
    assert_eq!(length, bytes.len(), "both readers end the head at the same byte");
    let values = |name: &str| -> Vec<Vec<u8>> {
        let found = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        found.map(|header| header.value.to_vec()).collect()
    };
    Some(SecondReading {
        lengths: values("content-length"),
        codings: values("transfer-encoding"),
        hosts: values("host").len(),
    })
}

#[test]
fn fuzz_http1_head() {
    let rules = ListenerRules::new(&EdgeOptions::default());
    let tokens = [
        "\r\n",
        "\n",
        "\r",
        ": ",
        "Host: a",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        "Connection: close",
        "HTTP/1.1",
        "HTTP/1.0",
        "Upgrade: h2c",
        "Expect: 100-continue",
        "Idempotency-Key: k",
        "http://a/",
        "%2e",
        "\u{b}",
        "_",
    ];
    let fuzz = Fuzz::new("http1_head", include_str!("../../fuzz/http1_head.seeds")).tokens(&tokens);
    fuzz.run(|input| {
        let Some(end) = head::end(input, 0) else { return Err("not ended".to_owned()) };
        let bytes = &input[..end];
        let read = head::read(bytes, &rules, None).map_err(|refusal| format!("{refusal:?}"))?;
        let second = read_leniently(bytes).expect("a lenient reader takes what the strict one takes");
        let framing = match (&second.lengths[..], &second.codings[..]) {
            ([], []) => Framing::None,
            ([length], []) => {
                let text = std::str::from_utf8(length).expect("a length is ASCII");
                match text.trim().parse().expect("a length is a number") {
                    0 => Framing::None,
                    length => Framing::Length(length),
                }
            }
            ([], [coding]) if coding.trim_ascii().eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
            _ => panic!("the framing can be read in two ways"),
        };
        assert_eq!(read.framing, framing);
        assert!(second.hosts <= 1, "two hosts");
        Ok((std::mem::discriminant(&read.framing), read.upgrade))
    });
}

/// The length of a chunked body, computed by a simple reader; `None` if the body is incomplete or malformed.
fn chunked_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let line = |at: usize| Some(at + bytes[at..].windows(2).position(|pair| pair == b"\r\n")?);
    loop {
        let end = line(at)?;
        let size = bytes[at..end].split(|byte| *byte == b';').next()?;
        let size = usize::from_str_radix(std::str::from_utf8(size).ok()?, 16).ok()?;
        at = end + 2;
        if size == 0 {
            break;
        }
        at = at.checked_add(size)?;
        if bytes.get(at..at + 2)? != b"\r\n" {
            return None;
        }
        at += 2;
    }
    loop {
        let end = line(at)?;
        let empty = end == at;
        at = end + 2;
        if empty {
            return Some(at);
        }
    }
}

#[test]
fn fuzz_http1_chunks() {
    let rules = ListenerRules::new(&EdgeOptions::default());
    let tokens = [
        "\r\n",
        "\n",
        "\r",
        "0\r\n\r\n",
        "5\r\n",
        ";x=y",
        "ffffffffffffffff",
        "X-T: v\r\n",
        "Content-Length: 1\r\n",
        "+",
        "0x",
    ];
    let fuzz = Fuzz::new("http1_chunks", include_str!("../../fuzz/http1_chunks.seeds")).tokens(&tokens);
    fuzz.run(|input| {
        let whole = Chunks::default().walk(input, &rules);
        // The result must be the same if the bytes arrive in pieces, cut at any position.
        let mut chunks = Chunks::default();
        let mut taken = 0;
        let in_pieces = input.chunks(3).find_map(|piece| match chunks.walk(piece, &rules) {
            ChunkProgress::On => {
                taken += piece.len();
                None
            }
            ChunkProgress::Ended(at) => Some(ChunkProgress::Ended(taken + at)),
            ChunkProgress::Wrong(at, refusal) => Some(ChunkProgress::Wrong(taken + at, refusal)),
        });
        assert_eq!(in_pieces.unwrap_or(ChunkProgress::On), whole);
        match whole {
            ChunkProgress::Ended(at) => {
                assert_eq!(chunked_length(input), Some(at), "both readers end the body at the same byte");
                (0, String::new())
            }
            ChunkProgress::On => (1, String::new()),
            ChunkProgress::Wrong(_, refusal) => (2, format!("{refusal:?}")),
        }
    });
}
