//! Secrets are not in the config file: it names an environment variable or a file.

use std::ops::Range;

use semel::secret::Secret;

use super::reader::Table;
use super::values::text;

/// Looks up environment variables; tests replace it.
pub(crate) struct Environment<'a>(pub(crate) &'a dyn Fn(&str) -> Option<String>);

/// The environment of the process.
pub(crate) const PROCESS: Environment<'static> = Environment(&|name| std::env::var(name).ok());

/// Prefix of the 64 hexadecimal digits of a secret that a store generated. A deployment that has run without a configured secret can
/// configure the existing one.
const MADE_BY_A_STORE: &str = "hex:";

/// The deployment's secret.
pub(super) fn passphrase(table: &mut Table<'_>, key: &'static str, from: &Environment<'_>) -> Option<Secret> {
    let (text, span) = read(table, key, from)?;
    if text.len() < 16 {
        table.problems().at(&span, format!("{key}: is shorter than 16 characters and could be guessed"));
        return None;
    }
    let Some(digits) = text.strip_prefix(MADE_BY_A_STORE) else {
        return Some(Secret::from_passphrase(text.as_bytes()));
    };
    let secret = bytes_of(digits).map(Secret::from_bytes);
    if secret.is_none() {
        table.problems().at(&span, format!("{key}: expected 64 hexadecimal digits after {MADE_BY_A_STORE}"));
    }
    secret
}

fn bytes_of(digits: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u8>> =
        digits.chars().map(|digit| digit.to_digit(16).and_then(|value| value.try_into().ok())).collect();
    let bytes: Vec<u8> =
        digits.filter(|digits| digits.len() == 64)?.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    bytes.try_into().ok()
}

/// A URL: a string, or a secret if it contains a password.
pub(super) fn read_url(
    table: &mut Table<'_>,
    key: &'static str,
    from: &Environment<'_>,
) -> Option<(String, Range<usize>)> {
    let is_secret = table.located(key, |value| Ok(value.is_table())).is_some_and(|found| found.value);
    if is_secret {
        return read(table, key, from);
    }
    table.located(key, text).map(|url| (url.value, url.span))
}

/// A secret: `{ env = "NAME" }` or `{ file = "PATH" }`, without the line break at its end.
pub(super) fn read(
    table: &mut Table<'_>,
    key: &'static str,
    from: &Environment<'_>,
) -> Option<(String, Range<usize>)> {
    let expected =
        "expected { env = \"NAME\" } or { file = \"PATH\" }: secrets are not written into the file";
    let problems = table.problems();
    // The value is not repeated, because it may be the secret itself.
    let written =
        table.located(key, |value| if value.is_table() { Ok(()) } else { Err(expected.to_owned()) })?;
    let mut place = table.table(key)?;
    let (env, file) = (place.get("env", text), place.get("file", text));
    place.done();
    let found = match (env, file) {
        (Some(name), None) => {
            (from.0)(&name).ok_or_else(|| format!("the environment variable {name} is not set"))
        }
        (None, Some(path)) => std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}")),
        _ => Err(expected.to_owned()),
    };
    let found = found
        .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
        .and_then(|text| if text.is_empty() { Err("the secret is empty".to_owned()) } else { Ok(text) });
    match found {
        Ok(text) => Some((text, written.span)),
        Err(why) => {
            problems.at(&written.span, format!("{key}: {why}"));
            None
        }
    }
}
