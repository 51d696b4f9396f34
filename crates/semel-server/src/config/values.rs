//! Values of the file: strings, numbers, durations, sizes, addresses, choices.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use toml::de::DeValue;

use super::problem::meant;

/// A non-empty string.
pub(super) fn text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) if !text.is_empty() => Ok(text.clone().into_owned()),
        DeValue::String(_) => Err("expected some text, found none".to_owned()),
        other => Err(format!("expected text in quotes, found {}", other.type_str())),
    }
}

/// A list of strings.
pub(super) fn texts(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let wrong = |found: &str| format!("expected a list of texts, as in [\"a\", \"b\"], found {found}");
    match value {
        DeValue::Array(items) => items
            .iter()
            .map(|item| text(item.get_ref()).map_err(|_| wrong(item.get_ref().type_str())))
            .collect(),
        other => Err(wrong(other.type_str())),
    }
}

/// A string, or a list of strings.
pub(super) fn one_or_several(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    match value {
        DeValue::Array(_) => texts(value),
        DeValue::String(_) => Ok(vec![text(value)?]),
        other => Err(format!("expected text in quotes or a list of texts, found {}", other.type_str())),
    }
}

/// A boolean.
pub(super) fn switch(value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("expected true or false, found {}", value.type_str()))
}

/// An integer between two bounds.
pub(super) fn count<T: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&DeValue<'_>) -> Result<T, String> {
    move |value| {
        let expected = || format!("expected a whole number from {least} to {most}");
        let DeValue::Integer(integer) = value else {
            return Err(format!("{}, found {}", expected(), value.type_str()));
        };
        u64::from_str_radix(integer.as_str(), integer.radix())
            .ok()
            .filter(|number| (least..=most).contains(number))
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| format!("{}, found {integer}", expected()))
    }
}

/// A duration: `"5s"`.
pub(super) fn duration(value: &DeValue<'_>) -> Result<Duration, String> {
    let expected = "expected a duration such as \"250ms\", \"5s\", \"10m\", \"24h\" or \"7d\"";
    let DeValue::String(text) = value else { return Err(format!("{expected}, found {}", value.type_str())) };
    parse_duration(text).ok_or_else(|| format!("{expected}, found {text:?}"))
}

/// A list of durations: `["10s", "1m"]`.
pub(super) fn duration_list(value: &DeValue<'_>) -> Result<Vec<Duration>, String> {
    let DeValue::Array(items) = value else {
        return Err(format!(
            "expected a list of durations, as in [\"10s\", \"1m\"], found {}",
            value.type_str()
        ));
    };
    items.iter().map(|item| duration(item.get_ref())).collect()
}

/// Durations by name: `{ create_media_buy = "5m" }`.
pub(super) fn durations(value: &DeValue<'_>) -> Result<BTreeMap<String, Duration>, String> {
    let DeValue::Table(table) = value else {
        return Err(format!(
            "expected durations by name, as in {{ create_media_buy = \"5m\" }}, found {}",
            value.type_str()
        ));
    };
    let named = |(name, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        let name: &std::borrow::Cow<'_, str> = name.get_ref();
        let length = duration(value.get_ref()).map_err(|expected| format!("{name}: {expected}"))?;
        Ok((name.to_string(), length))
    };
    table.iter().map(named).collect()
}

/// Parses `1h30m`: numbers with units, without spaces.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut sum = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let (unit, tail) = tail.split_at(tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len()));
        let number: u64 = number.parse().ok()?;
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        sum = sum.checked_add(Duration::from_millis(number.checked_mul(millis)?))?;
        rest = tail;
    }
    Some(sum)
}

/// A duration in the format of the config file.
pub(crate) fn show_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let (unit, length) = units
        .into_iter()
        .find(|(_, length)| millis >= *length && millis.is_multiple_of(*length))
        .unwrap_or(("ms", 1));
    format!("{}{unit}", millis / length)
}

/// A size: `"1MiB"`, or bytes as a number.
pub(super) fn size<T: TryFrom<u64>>(value: &DeValue<'_>) -> Result<T, String> {
    let expected = "expected a size such as \"64KiB\", \"1MiB\", or a number of bytes";
    let wrong = |found: &dyn std::fmt::Display| format!("{expected}, found {found}");
    let bytes = match value {
        DeValue::Integer(integer) => {
            u64::from_str_radix(integer.as_str(), integer.radix()).map_err(|_| wrong(&integer))?
        }
        DeValue::String(text) => parse_size(text).ok_or_else(|| wrong(&format_args!("{text:?}")))?,
        other => return Err(wrong(&other.type_str())),
    };
    T::try_from(bytes).map_err(|_| wrong(&bytes))
}

fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let factor: u64 = match unit.trim_start() {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// One of several words.
pub(super) fn choice<T: Clone>(words: &[(&'static str, T)]) -> impl Fn(&DeValue<'_>) -> Result<T, String> {
    move |value| {
        let expected = || {
            let words: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
            format!("expected {}", words.join(" or "))
        };
        let DeValue::String(text) = value else {
            return Err(format!("{}, found {}", expected(), value.type_str()));
        };
        words.iter().find(|(word, _)| word == text).map(|(_, choice)| choice.clone()).ok_or_else(|| {
            let hint = meant(text, words.iter().map(|(word, _)| *word));
            let hint = hint.map_or_else(String::new, |meant| format!("; did you mean {meant:?}?"));
            format!("{}, found {text:?}{hint}", expected())
        })
    }
}

/// A listen address.
pub(super) fn address(value: &DeValue<'_>) -> Result<SocketAddr, String> {
    parse_address(&text(value)?)
}

/// An address with a port, such as `localhost:8080`.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let expected = || format!("expected an address with a port, as in \"127.0.0.1:8080\", found {text:?}");
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    // Resolved locally: a listener's address is one of this machine.
    text.to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_what_they_write() {
        for (text, millis) in
            [("250ms", 250), ("5s", 5_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("0s", 0)]
        {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for wrong in ["", "5", "s", "5 s", "5sec", "-1s", "1.5s", "99999999999999999999s"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
        for text in ["250ms", "5s", "90m", "36h", "7d", "0ms"] {
            assert_eq!(show_duration(parse_duration(text).unwrap()), text);
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("64KiB"), Some(65_536));
        assert_eq!(parse_size("10 MB"), Some(10_000_000));
        for wrong in ["1", "1kib", "MiB", "-1B", "99999999999GiB"] {
            assert_eq!(parse_size(wrong), None, "{wrong}");
        }
    }
}
