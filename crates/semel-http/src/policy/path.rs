//! Paths that two servers may read differently.
//!
//! The gateway chooses a route by the path that it reads. An upstream that reads another path, because it decodes once more or ignores
//! some characters, would act outside of the route that is meant for the path.

/// Why two servers may read a path differently.
pub(crate) fn ambiguity(path: &str) -> Option<&'static str> {
    let is_special = |byte: u8| matches!(byte, b'%' | b'\\' | b';');
    if !path.bytes().any(is_special) && !path.contains("/.") {
        return None;
    }
    let bytes = path.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        let found = match byte {
            b'\\' => Some("a backslash"),
            b';' => Some("a parameter of a segment (;)"),
            b'%' => escape(&bytes[at..]),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    // The digits of an escape may be escaped themselves, and non-ASCII bytes are decoded together.
    let once = decode(path);
    if std::str::from_utf8(&once).is_err() {
        return Some("bytes that are no UTF-8");
    }
    let is_special =
        |byte: u8| byte.is_ascii_control() || matches!(byte, b'.' | b'%' | b'/' | b'\\' | b';' | 0x80..);
    if (0..once.len()).any(|at| escaped(&once[at..]).is_some_and(is_special)) {
        return Some("a character that is escaped twice");
    }
    // At this point only harmless characters are still escaped.
    let is_dots = |segment: &str| matches!(decode(segment).as_slice(), b"." | b"..");
    path.split('/').any(is_dots).then_some("a segment of dots")
}

/// The problem with the escape at the start of these bytes.
fn escape(bytes: &[u8]) -> Option<&'static str> {
    match escaped(bytes) {
        None => Some("a percent sign that escapes nothing"),
        Some(b'/') => Some("an escaped slash"),
        Some(b'\\') => Some("an escaped backslash"),
        Some(b';') => Some("an escaped semicolon"),
        Some(byte) if byte.is_ascii_control() => Some("an escaped control character"),
        Some(0xC0 | 0xC1) => Some("bytes that are no UTF-8"),
        Some(b'%') => {
            // Decoded a second time, it would be one of the characters above.
            let twice = [&b"%"[..], bytes.get(3..).unwrap_or_default()].concat();
            let is_special = |byte: u8| matches!(byte, b'.' | b'%') || escape(&twice).is_some();
            escaped(&twice).is_some_and(is_special).then_some("a character that is escaped twice")
        }
        Some(_) => None,
    }
}

/// The byte that the escape at the start encodes.
fn escaped(bytes: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = bytes else { return None };
    Some(hex(*high)? << 4 | hex(*low)?)
}

/// The value of a hexadecimal digit.
pub(super) fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

fn decode(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        match escaped(rest) {
            Some(byte) => {
                decoded.push(byte);
                rest = &rest[3..];
            }
            None => {
                decoded.push(*first);
                rest = tail;
            }
        }
    }
    decoded
}

/// A path as the most lenient server reads it: decoded until nothing changes, backslashes as slashes, parameters dropped. `None` if a
/// segment leads upwards, or if the path cannot be decoded.
pub(crate) fn most_lenient(path: &str) -> Option<String> {
    let mut text = path.to_owned();
    // Each round shortens the path. No server decodes that often, so a path that needs more rounds is an attack.
    for turn in 0.. {
        let decoded = String::from_utf8(decode(&text)).ok().filter(|_| turn < 5)?;
        if decoded == text {
            break;
        }
        text = decoded;
    }
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return None;
    }
    let mut segments: Vec<&str> = Vec::new();
    for segment in text.split(['/', '\\']) {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            // Servers disagree on the directory that it is relative to.
            ".." => return None,
            segment => segments.push(segment),
        }
    }
    Some(format!("/{}", segments.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_in_two_ways() {
        for path in [
            "/a%2Fb",
            "/a%2fb",
            "/a%5Cb",
            "/a\\b",
            "/a;b",
            "/a;",
            "/a%3Bb",
            "/a%00",
            "/a%0d",
            "/a%7F",
            "/a%",
            "/a%2",
            "/a%zz",
            "/a%c0%af",
            "/a%C1%9c",
            "/.",
            "/..",
            "/a/.",
            "/a/./b",
            "/a/../b",
            "/a/%2e/b",
            "/a/%2E./b",
            "/a/.%2e",
            "/a%252fb",
            "/a%252e%252e/b",
            "/a%25252e",
            "/a%255cb",
            "/a%2500",
            "/x/%25%32%65%25%32%65/admin/y",
            "/x/%252%65%252%65%25%32%66admin",
            "/a%e0%80%af",
            "/a%f0%80%80%af",
            "/a%ff%fe",
        ] {
            assert!(ambiguity(path).is_some(), "{path}");
        }
        for path in [
            "/",
            "/a/b",
            "/a%20b",
            "/100%25",
            "/100%25/x",
            "/%41",
            "/...",
            "/.a",
            "/a.",
            "/a..b",
            "/%2Ea",
            "/%E2%82%AC",
            "/a%2520b",
            "//a",
            "*",
        ] {
            assert_eq!(ambiguity(path), None, "{path}");
        }
    }

    #[test]
    fn the_most_lenient_reading() {
        for (path, read) in [
            ("/a/b", Some("/a/b")),
            ("//a//b/", Some("/a/b")),
            ("/a%2Fb", Some("/a/b")),
            ("/a%252Fb", Some("/a/b")),
            ("/a;x=1/b", Some("/a/b")),
            ("/a/..;/b", None),
            ("/a/..%5Cb", None),
            ("/files/..;/admin/%252e%252e/files/x", None),
            ("/..%2fb", None),
            ("/%25252e%25252e/b", None),
            ("/a%00b", None),
            ("/a%c0%af", None),
            ("/", Some("/")),
        ] {
            assert_eq!(most_lenient(path).as_deref(), read, "{path}");
        }
    }
}
