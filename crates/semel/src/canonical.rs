//! Canonical JSON: one text for all spellings of a value.
//!
//! The form is RFC 8785: members sorted by UTF-16 code units, shortest escapes, no white space, numbers as ECMAScript
//! writes them. With one difference that matters for money: RFC 8785 reads every number as a double, and so takes
//! 9007199254740993 for 9007199254740992. Here a number keeps its exact decimal value, whatever its size, and is
//! written by the layout rules of ECMAScript. If the RFC's text has the same value, this text equals it; otherwise it
//! differs. Equal texts therefore always mean equal values.
//!
//! Rejected, with the position in bytes: member names that occur twice (also in different escapes), lone surrogates,
//! a byte order mark, bytes that are not UTF-8, anything behind the value, too much depth, too much size, and
//! exponents of more than 18 digits. Strings are compared as they are: no Unicode normalisation.
//!
//! ```
//! use semel::canonical::to_canonical;
//!
//! let text = to_canonical(br#"{"b": 1.0, "a": "\u00e9", "n": 9007199254740993}"#)?;
//! assert_eq!(text, r#"{"a":"é","b":1,"n":9007199254740993}"#.as_bytes());
//! # Ok::<(), semel::canonical::CanonicalError>(())
//! ```

mod error;
mod exclusions;
mod member;
mod number;
mod string;
mod writer;

#[cfg(test)]
mod tests;

pub use self::error::{CanonicalError, InputRefusal};
pub use self::exclusions::{ExclusionError, Exclusions};
pub use self::writer::Canonicalizer;

/// How large an input may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CanonicalLimits {
    depth: usize,
    size: usize,
}

impl CanonicalLimits {
    /// 128 levels of arrays and objects, 16 MiB.
    pub const DEFAULT: Self = Self { depth: 128, size: 16 << 20 };

    /// Sets how deeply arrays and objects may be nested. In the worst case work grows with size times depth.
    #[must_use]
    pub const fn depth(self, depth: usize) -> Self {
        Self { depth, ..self }
    }

    /// Sets how many bytes are read. A larger input is rejected before it is read.
    #[must_use]
    pub const fn size(self, size: usize) -> Self {
        Self { size, ..self }
    }
}

impl Default for CanonicalLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Appends the canonical form of `input` without the excluded parts to `out`.
///
/// To do this often, keep a [`Canonicalizer`] and reuse its scratch space.
///
/// # Errors
/// The first part of `input` that has no canonical form; `out` is then unchanged.
pub fn canonicalize(
    input: &[u8],
    limits: CanonicalLimits,
    exclusions: &Exclusions,
    out: &mut Vec<u8>,
) -> Result<(), CanonicalError> {
    Canonicalizer::new().write(input, limits, exclusions, out)
}

/// The canonical form of `input`, within the default limits.
///
/// # Errors
/// The first part of `input` that has no canonical form.
pub fn to_canonical(input: &[u8]) -> Result<Vec<u8>, CanonicalError> {
    let mut out = Vec::new();
    canonicalize(input, CanonicalLimits::DEFAULT, &Exclusions::none(), &mut out)?;
    Ok(out)
}
