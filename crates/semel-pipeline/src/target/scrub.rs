//! Shortens answers for storage: a few plain characters, without anything that looks like a secret.

use semel_client::downstream::Scrubber;

use super::{MAX_EXCERPT, SigningSecret};

/// A word of at least this length with letters and digits may be a token.
const SUSPICIOUS: usize = 24;

/// Shorter values of a query cannot be secrets, and removing them would only damage the text.
const LEAST_SECRET: usize = 4;

/// The beginning of an answer, for people, without known secrets and without anything that looks like one.
pub(crate) fn excerpt(body: &[u8], secrets: &Scrubber) -> String {
    // More than is stored: removing parts makes it shorter.
    let read = &body[..body.len().min(4 * MAX_EXCERPT)];
    // The last word may be the first half of a secret, which would not be recognised.
    let whole = match read.len() < body.len() {
        true => read.iter().rposition(|byte| !is_of_token(char::from(*byte))).map_or(0, |at| at + 1),
        false => read.len(),
    };
    let text = String::from_utf8_lossy(&read[..whole]);
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    // Known secrets first: a word that was removed by its looks could be a part of one.
    scrub(&secrets.scrub(plain.trim()))
}

/// Finds a target's secrets in its answers: its bearer token, its signing secret, and the values and long words of
/// its URL.
pub(crate) fn of_target(bearer: Option<&str>, secret: Option<&SigningSecret>, path: &str) -> Scrubber {
    let mut scrubber = Scrubber::default();
    if let Some(token) = bearer {
        scrubber = scrubber.and(token);
    }
    for text in secret.into_iter().flat_map(SigningSecret::texts) {
        scrubber = scrubber.and(&text);
    }
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let values = query.split('&').map(|pair| pair.split_once('=').map_or(pair, |(_, value)| value));
    let values = values.filter(|value| value.len() >= LEAST_SECRET);
    let words = path.split('/').filter(|word| is_suspicious(word) || looks_random(word));
    for word in values.chain(words) {
        scrubber = scrubber.and(word);
        let decoded = percent_decoded(word);
        if decoded != word {
            scrubber = scrubber.and(&decoded);
        }
    }
    scrubber
}

/// True if a part of a path looks more like a secret than like a name.
fn looks_random(word: &str) -> bool {
    word.len() >= 12
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word.bytes().any(|byte| byte.is_ascii_alphabetic())
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let pair = tail.get(..2).filter(|_| *first == b'%');
        let byte = pair.and_then(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Removes anything that looks like a secret: long words of letters and digits, as in tokens and keys, and the value
/// after `Bearer` or `Basic`.
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
        let none = Scrubber::default();
        assert_eq!(excerpt(b"a\r\n\x1b[31mb\xff", &none), "a   [31mb\u{fffd}");
        assert!(excerpt(&[b' '; 100_000], &none).len() <= 4 * MAX_EXCERPT);
    }

    #[test]
    fn credentials_of_the_target_are_left_out_in_every_form() {
        let encoded = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let secret = SigningSecret::parse(&format!("whsec_{encoded}")).unwrap();
        let path = "/hooks/T024BE7LDAAA?token=p%40ss-word&v=1";
        let scrubber = of_target(Some("short-tok"), Some(&secret), path);
        let base64 = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, "short-tok");
        for echoed in [
            "the token short-tok is wrong",
            "authorization=short%2Dtok",
            "no route for /hooks/T024BE7LDAAA",
            "bad token p%40ss-word",
            "bad token p@ss-word",
            &format!("Authorization: {base64}"),
            &format!("signed with {encoded}"),
        ] {
            let kept = excerpt(echoed.as_bytes(), &scrubber);
            let leaks = ["short-tok", "short%2Dtok", "T024BE7LDAAA", "p%40ss", "p@ss", &base64, encoded];
            assert!(leaks.iter().all(|leak| !kept.contains(leak)), "{kept} of {echoed}");
        }
        assert_eq!(excerpt(b"v=1 is old", &scrubber), "v=1 is old");
    }

    // A token that is cut at the end of the read part must not be stored in part.
    #[test]
    fn a_secret_at_the_end_of_what_is_read_is_not_kept_in_part() {
        let scrubber = of_target(Some("abcdefghijklmnopqrstuvw"), None, "/");
        let noise = "0123456789abcdefghijklmnop ".repeat(200);
        let body = format!("{}abcdefghijklmnopqrstuvw", &noise[..4 * MAX_EXCERPT - 12]);
        assert!(!excerpt(body.as_bytes(), &scrubber).contains("abcdefghijk"));
    }
}
