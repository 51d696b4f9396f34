//! Which events a target receives, by their type.

use std::fmt;

/// The longest type of an event, in bytes.
pub const MAX_TYPE: usize = 200;

/// Which event types a target receives: exact ones, everything below a prefix (`order.*`), or all (`*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventTypes(Vec<TypePattern>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum TypePattern {
    All,
    /// With the dot at its end.
    Below(String),
    Exactly(String),
}

/// An invalid pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no pattern for event types: expected one such as \"order.paid\", \"order.*\" or \"*\"")]
pub struct FilterError(String);

impl EventTypes {
    /// The types that match one of the patterns.
    ///
    /// # Errors
    /// The first invalid pattern.
    pub fn new<T: AsRef<str>>(patterns: &[T]) -> Result<Self, FilterError> {
        patterns.iter().map(|pattern| parse(pattern.as_ref())).collect::<Result<_, _>>().map(Self)
    }

    /// Every event.
    pub fn all() -> Self {
        Self(vec![TypePattern::All])
    }

    /// No event: for a target that only receives runs.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// True if events of this type match. `order.*` matches `order.paid` and `order.line.added`, not `order`.
    pub fn want(&self, event_type: &str) -> bool {
        self.0.iter().any(|pattern| match pattern {
            TypePattern::All => true,
            TypePattern::Below(prefix) => event_type.starts_with(prefix.as_str()),
            TypePattern::Exactly(exact) => event_type == exact,
        })
    }
}

impl fmt::Display for EventTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, pattern) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str(", ")?;
            }
            match pattern {
                TypePattern::All => f.write_str("*")?,
                TypePattern::Below(prefix) => write!(f, "{prefix}*")?,
                TypePattern::Exactly(exact) => f.write_str(exact)?,
            }
        }
        Ok(())
    }
}

fn parse(pattern: &str) -> Result<TypePattern, FilterError> {
    if pattern == "*" {
        return Ok(TypePattern::All);
    }
    let wrong = || FilterError(pattern.to_owned());
    match pattern.strip_suffix(".*") {
        Some(prefix) if is_type(prefix) => Ok(TypePattern::Below(format!("{prefix}."))),
        None if is_type(pattern) => Ok(TypePattern::Exactly(pattern.to_owned())),
        _ => Err(wrong()),
    }
}

/// True if a text is a valid event type: letters, digits, `.`, `_`, `-`, `:` and `/`, at most 200 bytes.
pub(crate) fn is_type(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b':' | b'/');
    !text.is_empty() && text.len() <= MAX_TYPE && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_want_what_they_say() {
        let types = EventTypes::new(&["order.*", "user.created"]).unwrap();
        for (event_type, wanted) in [
            ("order.paid", true),
            ("order.line.added", true),
            ("order", false),
            ("orders.paid", false),
            ("user.created", true),
            ("user.created.twice", false),
        ] {
            assert_eq!(types.want(event_type), wanted, "{event_type}");
        }
        assert!(EventTypes::all().want("x") && !EventTypes::none().want("x"));
        assert_eq!(types.to_string(), "order.*, user.created");
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for wrong in ["", "*.paid", "or*", ".*", "a b", "order.**", "ä"] {
            assert_eq!(EventTypes::new(&[wrong]), Err(FilterError(wrong.to_owned())));
        }
    }
}
