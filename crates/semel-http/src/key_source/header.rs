//! The syntax of a key in a header.
//!
//! A key is visible ASCII. It may be bare, as most clients send it, or a quoted string of structured fields (RFC 9651), as the draft
//! standard requires: `abc` and `"abc"` are the same key. A list, parameters and a second header line are refused, because two parsers
//! could read two keys from them.

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::profile::KeyLength;

/// Why a key is invalid. Never contains the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("the key header was sent more than once; send it once")]
    Twice,
    #[error("a key has {min} to {max} characters")]
    Length { min: usize, max: usize },
    #[error("a key consists of visible ASCII characters; encode anything else")]
    Character,
    #[error(
        "a key is one string, not a list or a string with parameters; quote it if it has a comma or a quote in it"
    )]
    List,
    #[error("the quoted key has no closing quote, or has an escape other than \\\" and \\\\")]
    Quotes,
    #[error("the key in the body must be a string")]
    NotAString,
}

/// The only line of a header.
pub(crate) fn one_line<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, Malformed> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next();
    if lines.next().is_some() { Err(Malformed::Twice) } else { Ok(first) }
}

/// The key in the value of a header.
pub(crate) fn parse(value: &[u8], length: KeyLength) -> Result<String, Malformed> {
    let value = value.trim_ascii();
    let key = match value {
        [b'"', quoted @ ..] => unquote(quoted)?,
        bare if bare.iter().any(|byte| matches!(byte, b',' | b'"')) => return Err(Malformed::List),
        bare => bare.to_vec(),
    };
    check(&key, length)?;
    String::from_utf8(key).map_err(|_| Malformed::Character)
}

/// Checks a key, whatever its source.
pub(crate) fn check(key: &[u8], KeyLength { min, max }: KeyLength) -> Result<(), Malformed> {
    if !(min..=max).contains(&key.len()) {
        return Err(Malformed::Length { min, max });
    }
    if key.iter().all(u8::is_ascii_graphic) { Ok(()) } else { Err(Malformed::Character) }
}

/// The text before the closing quote, which must be the last character.
fn unquote(quoted: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut key = Vec::with_capacity(quoted.len());
    let mut rest = quoted.iter();
    loop {
        match rest.next() {
            Some(b'"') if rest.as_slice().is_empty() => return Ok(key),
            Some(b'"') => return Err(Malformed::List),
            Some(b'\\') => match rest.next() {
                Some(escaped @ (b'"' | b'\\')) => key.push(*escaped),
                _ => return Err(Malformed::Quotes),
            },
            Some(byte) => key.push(*byte),
            None => return Err(Malformed::Quotes),
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_testbed::fuzz::Fuzz;

    use super::parse;
    use crate::profile::KeyLength;

    /// The key as a quoted string.
    fn quoted(key: &str) -> String {
        format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""))
    }

    #[test]
    fn fuzz_key_header() {
        let length = KeyLength { min: 1, max: 255 };
        let fuzz = Fuzz::new("key_header", include_str!("../../fuzz/key_header.seeds"));
        fuzz.tokens(&["\"", "\\", ",", ";a=1", " "]).run(|input| {
            let key = parse(input, length).map_err(|malformed| malformed.to_string())?;
            assert!((1..=255).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()));
            assert_eq!(
                parse(quoted(&key).as_bytes(), length).as_deref().ok(),
                Some(&*key),
                "quotes change nothing"
            );
            Ok::<_, String>((input.trim_ascii().starts_with(b"\""), key.len().ilog2()))
        });
    }
}
