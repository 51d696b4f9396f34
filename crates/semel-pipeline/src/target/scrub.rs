//! What is kept of an answer: a little, in plain characters, without what looks like a secret.

use super::MAX_EXCERPT;

/// A word without breaks that is as long as this, and has letters and digits, may be a token.
const SUSPICIOUS: usize = 24;

/// The beginning of an answer, for people.
pub(crate) fn excerpt(body: &[u8]) -> String {
    // Some more than is kept: what is left out makes it shorter.
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * MAX_EXCERPT)]);
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    scrub(plain.trim())
}

/// Takes out what looks like a secret: long runs of letters and digits as tokens and keys have them, and what stands
/// behind `Bearer` or `Basic`.
pub(crate) fn scrub(text: &str) -> String {
    let mut scrubbed = String::with_capacity(text.len());
    let mut last = "";
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !is_of_token(c)).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        let follows = last.eq_ignore_ascii_case("bearer") || last.eq_ignore_ascii_case("basic");
        scrubbed.push_str(if follows && !word.is_empty() || is_suspicious(word) { "…" } else { word });
        if !word.is_empty() {
            last = word;
        }
        let step = tail.chars().next().map_or(0, char::len_utf8);
        scrubbed.push_str(&tail[..step]);
        if !tail.starts_with([' ', ':']) && step > 0 {
            last = "";
        }
        rest = &tail[step..];
    }
    scrubbed
}

fn is_of_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '/' | '=' | '.' | '~')
}

fn is_suspicious(word: &str) -> bool {
    word.len() >= SUSPICIOUS
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word.bytes().any(|byte| byte.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_secret_is_left_out() {
        for (text, kept) in [
            ("order 17 is locked", "order 17 is locked"),
            ("token sk_live_51Habcdefghijklmnop123456 is wrong", "token … is wrong"),
            ("Authorization: Bearer abc", "Authorization: Bearer …"),
            (r#"{"error":"no such order"}"#, r#"{"error":"no such order"}"#),
            ("authentication-configuration-missing", "authentication-configuration-missing"),
        ] {
            assert_eq!(scrub(text), kept);
        }
    }

    #[test]
    fn an_excerpt_is_plain_and_short() {
        assert_eq!(excerpt(b"a\r\n\x1b[31mb\xff"), "a   [31mb\u{fffd}");
        assert!(excerpt(&[b'x'; 100_000]).len() <= 4 * MAX_EXCERPT);
    }
}
