//! The convention for keys that people agree on: `<domain>:<user>:<entity>:<operation>:<version>`, where the operation
//! has one or more parts.
//!
//! The same effect gets the same key from every caller and in every language, and a person can read it. No part
//! contains the separator. The first three parts and the last one have fixed meanings, so the text can be parsed in
//! one way only.

use std::fmt;
use std::str::FromStr;

use super::Key;

const SEPARATOR: char = ':';

/// A business key: `<domain>:<user>:<entity>:<operation>:<version>`. The operation may have several parts, as in
/// `workflow:user_123:run_456:module:resume:v1`.
///
/// As a [`Key`] its namespace is `<domain>:<operation>` (the operation), its scope `<user>` (the caller), its value
/// `<entity>:<version>` (the object). The hint of a record therefore shows the entity, limits and lists work per
/// operation, and keys of two users never collide.
///
/// ```
/// use semel::key::{BusinessKey, Key};
///
/// let key = BusinessKey::builder()
///     .domain("billing")
///     .user("u-17")
///     .entity("invoice-2041")
///     .operation("send")
///     .version("1")
///     .build()?;
/// assert_eq!(key.to_string(), "billing:u-17:invoice-2041:send:1");
/// assert_eq!("billing:u-17:invoice-2041:send:1".parse(), Ok(key.clone()));
/// assert_eq!(Key::from(key), Key::new("billing:send").scope("u-17").value("invoice-2041:1"));
///
/// let key: BusinessKey = "workflow:user_123:run_456:module:resume:v1".parse()?;
/// assert_eq!(key.operation().collect::<Vec<_>>(), ["module", "resume"]);
/// assert_eq!(Key::from(key), Key::new("workflow:module:resume").scope("user_123").value("run_456:v1"));
/// # Ok::<(), semel::key::ConventionError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusinessKey {
    parts: [String; 5],
}

impl BusinessKey {
    /// Starts a key; all five fields must be set.
    pub fn builder() -> BusinessKeyBuilder {
        BusinessKeyBuilder::default()
    }

    /// One field of the key. An operation of several parts is given as it is written, with separators.
    #[must_use]
    pub fn part(&self, field: Field) -> &str {
        &self.parts[field as usize]
    }

    /// The parts of the operation.
    pub fn operation(&self) -> impl Iterator<Item = &str> {
        self.part(Field::Operation).split(SEPARATOR)
    }

    /// `operation` replaces that of `parts`.
    fn checked<T: AsRef<str>>(mut parts: [String; 5], operation: &[T]) -> Result<Self, ConventionError> {
        for field in Field::ALL {
            match field {
                Field::Operation if operation.is_empty() => return Err(ConventionError::Empty { field }),
                Field::Operation => operation.iter().try_for_each(|part| check(field, part.as_ref()))?,
                _ => check(field, &parts[field as usize])?,
            }
        }
        let written: Vec<&str> = operation.iter().map(AsRef::as_ref).collect();
        let (field, written) = (Field::Operation, written.join(":"));
        if written.len() > field.limit() {
            return Err(ConventionError::TooLong { field, length: written.len(), limit: field.limit() });
        }
        parts[field as usize] = written;
        Ok(Self { parts })
    }
}

impl fmt::Display for BusinessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [domain, user, entity, operation, version] = &self.parts;
        write!(f, "{domain}:{user}:{entity}:{operation}:{version}")
    }
}

impl fmt::Debug for BusinessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BusinessKey({}…)", Key::from(self.clone()).hint())
    }
}

impl FromStr for BusinessKey {
    type Err = ConventionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found: Vec<&str> = text.split(SEPARATOR).collect();
        let [domain, user, entity, first, middle @ .., version] = found.as_slice() else {
            return Err(ConventionError::Parts { found: found.len() });
        };
        let operation: Vec<&str> = [*first].into_iter().chain(middle.iter().copied()).collect();
        let parts = [*domain, *user, *entity, "", *version].map(str::to_owned);
        Self::checked(parts, &operation)
    }
}

impl From<BusinessKey> for Key {
    fn from(key: BusinessKey) -> Self {
        let [domain, user, entity, operation, version] = &key.parts;
        Self::new(format!("{domain}:{operation}")).scope(user).value(format!("{entity}:{version}"))
    }
}

/// Collects the parts of a [`BusinessKey`]; [`build`](Self::build) checks them all.
#[derive(Clone, Default)]
#[must_use = "a builder does nothing until build() is called"]
pub struct BusinessKeyBuilder {
    parts: [String; 5],
    operation: Vec<String>,
}

impl BusinessKeyBuilder {
    /// The business domain: `billing`.
    pub fn domain(self, part: impl Into<String>) -> Self {
        self.set(Field::Domain, part.into())
    }

    /// The user, account or tenant of the effect.
    pub fn user(self, part: impl Into<String>) -> Self {
        self.set(Field::User, part.into())
    }

    /// The object of the operation: `invoice-2041`.
    pub fn entity(self, part: impl Into<String>) -> Self {
        self.set(Field::Entity, part.into())
    }

    /// The operation: `send`. Called again, it adds a part: `.operation("module").operation("resume")`.
    pub fn operation(mut self, part: impl Into<String>) -> Self {
        self.operation.push(part.into());
        self
    }

    /// The version of the entity; a new version is a new effect.
    pub fn version(self, part: impl Into<String>) -> Self {
        self.set(Field::Version, part.into())
    }

    /// Builds the key.
    ///
    /// # Errors
    /// The first part that is missing or breaks a rule of the convention, by name and never with its content.
    pub fn build(self) -> Result<BusinessKey, ConventionError> {
        BusinessKey::checked(self.parts, &self.operation)
    }

    fn set(mut self, field: Field, part: String) -> Self {
        self.parts[field as usize] = part;
        self
    }
}

impl fmt::Debug for BusinessKeyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BusinessKeyBuilder(…)")
    }
}

/// A part of a [`BusinessKey`], in the order in which they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// The business domain.
    Domain,
    /// The user, account or tenant.
    User,
    /// The object of the operation.
    Entity,
    /// The operation.
    Operation,
    /// The version of the entity.
    Version,
}

impl Field {
    /// All fields in the order in which they are written.
    pub const ALL: [Self; 5] = [Self::Domain, Self::User, Self::Entity, Self::Operation, Self::Version];

    /// The longest allowed part, in bytes. Chosen so that every business key is a valid [`Key`].
    #[must_use]
    pub const fn limit(self) -> usize {
        match self {
            // The namespace consists of both and a separator.
            Self::Domain | Self::Operation => 127,
            Self::User | Self::Entity | Self::Version => 255,
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Domain => "domain",
            Self::User => "user",
            Self::Entity => "entity",
            Self::Operation => "operation",
            Self::Version => "version",
        })
    }
}

fn check(field: Field, part: &str) -> Result<(), ConventionError> {
    if part.is_empty() {
        return Err(ConventionError::Empty { field });
    }
    if part.len() > field.limit() {
        return Err(ConventionError::TooLong { field, length: part.len(), limit: field.limit() });
    }
    match part.char_indices().find(|(_, c)| *c == SEPARATOR || c.is_control()) {
        None => Ok(()),
        Some((position, SEPARATOR)) => Err(ConventionError::Separator { field, position }),
        Some((position, _)) => Err(ConventionError::Control { field, position }),
    }
}

/// Why a text or a set of parts is not a business key. No variant contains any of its content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConventionError {
    /// A part was not set, or is empty.
    #[error("the {field} of the business key is missing or empty; every part must be given")]
    Empty {
        /// The part.
        field: Field,
    },
    /// A part contains the separator.
    #[error("the {field} of the business key has a ':' at byte {position}; use another character there")]
    Separator {
        /// The part.
        field: Field,
        /// The position, in bytes from its start.
        position: usize,
    },
    /// A part contains a control character.
    #[error("the {field} of the business key has a control character at byte {position}; remove it")]
    Control {
        /// The part.
        field: Field,
        /// The position, in bytes from its start.
        position: usize,
    },
    /// A part is longer than allowed.
    #[error(
        "the {field} of the business key has {length} bytes, but at most {limit} are allowed; shorten it"
    )]
    TooLong {
        /// The part.
        field: Field,
        /// Its length in bytes.
        length: usize,
        /// The longest allowed length in bytes.
        limit: usize,
    },
    /// The text has fewer than five parts.
    #[error(
        "a business key is <domain>:<user>:<entity>:<operation>:<version>, where the operation may have several parts, but this text has {found} part(s)"
    )]
    Parts {
        /// The number of parts.
        found: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    fn with(field: Field, part: &str) -> Result<BusinessKey, ConventionError> {
        let builder = BusinessKey::builder().domain("d").user("u").entity("e").version("v");
        match field {
            Field::Operation => builder.operation(part).build(),
            field => builder.operation("o").set(field, part.to_owned()).build(),
        }
    }

    #[test]
    fn an_operation_may_have_several_parts() {
        let texts = ["workflow:user_123:run_456:module:resume:v1", "event:user_123:evt_9:project:qscore:v1"];
        for text in texts {
            let key: BusinessKey = text.parse().unwrap();
            assert_eq!(key.to_string(), text);
        }
        let builder =
            BusinessKey::builder().domain("workflow").user("user_123").entity("run_456").version("v1");
        let built = builder.operation("module").operation("resume").build().unwrap();
        assert_eq!(built.to_string(), texts[0]);
        assert_eq!(texts[0].parse(), Ok(built.clone()));
        assert_eq!(built.part(Field::Operation), "module:resume");
        let field = Field::Operation;
        assert_eq!("d:u:e:a::v".parse::<BusinessKey>(), Err(ConventionError::Empty { field }));
        // The parts together have the limit of one.
        let long = format!("d:u:e:{}:{}:v", "a".repeat(100), "b".repeat(27));
        assert_eq!(
            long.parse::<BusinessKey>(),
            Err(ConventionError::TooLong { field, length: 128, limit: 127 })
        );
    }

    #[test]
    fn builder_and_parser_agree() {
        let key = with(Field::User, "jörg@example").unwrap();
        assert_eq!(key.to_string(), "d:jörg@example:e:o:v");
        assert_eq!(key.to_string().parse(), Ok(key.clone()));
        assert_eq!(key.part(Field::User), "jörg@example");
        assert_eq!(key.part(Field::Version), "v");
        assert_eq!(format!("{key:?}"), "BusinessKey(e:v…)");
    }

    #[test]
    fn every_part_is_held_to_the_rules() {
        for field in Field::ALL {
            assert_eq!(with(field, ""), Err(ConventionError::Empty { field }));
            assert_eq!(with(field, "a:b"), Err(ConventionError::Separator { field, position: 1 }));
            assert_eq!(with(field, "é\n"), Err(ConventionError::Control { field, position: 2 }));
            assert_eq!(with(field, "a\u{85}"), Err(ConventionError::Control { field, position: 1 }));
            let limit = field.limit();
            assert!(with(field, &"x".repeat(limit)).is_ok());
            let length = limit + 1;
            assert_eq!(
                with(field, &"x".repeat(length)),
                Err(ConventionError::TooLong { field, length, limit })
            );
        }
        assert_eq!(BusinessKey::builder().build(), Err(ConventionError::Empty { field: Field::Domain }));
    }

    #[test]
    fn the_parser_refuses_other_shapes() {
        let parse = |text: &str| text.parse::<BusinessKey>().unwrap_err();
        assert_eq!(parse(""), ConventionError::Parts { found: 1 });
        assert_eq!(parse("a:b:c:d"), ConventionError::Parts { found: 4 });
        assert_eq!(parse("a:b:c:d:e:f:"), ConventionError::Empty { field: Field::Version });
        assert_eq!(parse("a::c:d:e"), ConventionError::Empty { field: Field::User });
        assert_eq!(parse("a:b:c:d:"), ConventionError::Empty { field: Field::Version });
        assert_eq!(parse("a:b:c:d:e\0"), ConventionError::Control { field: Field::Version, position: 1 });
    }

    #[test]
    fn every_business_key_is_a_key_of_its_own() {
        let secret = Secret::from_bytes([1; 32]);
        let longest = Field::ALL.map(|field| "x".repeat(field.limit()));
        let operation = [longest[Field::Operation as usize].clone()];
        assert_eq!(Key::from(BusinessKey::checked(longest, &operation).unwrap()).check(), Ok(()));
        let ids = Field::ALL.map(|field| Key::from(with(field, "other").unwrap()).id(&secret).unwrap());
        for (i, id) in ids.iter().enumerate() {
            assert!(!ids[i + 1..].contains(id));
        }
    }
}
