//! Why an input has no canonical form.

/// An input has no canonical form.
///
/// Names the problem and its position, and no content, so that it can be shown to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the JSON can not be compared: {refusal}, at byte {position}")]
pub struct CanonicalError {
    refusal: InputRefusal,
    position: usize,
}

impl CanonicalError {
    pub(super) const fn new(refusal: InputRefusal, position: usize) -> Self {
        Self { refusal, position }
    }

    /// The problem.
    #[must_use]
    pub const fn refusal(&self) -> InputRefusal {
        self.refusal
    }

    /// The position, in bytes from the start of the input.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.position
    }
}

/// The problem of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputRefusal {
    /// The input is larger than the limit.
    #[error("it has {size} bytes, but at most {limit} are read")]
    TooLarge {
        /// The size of the input.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// Arrays and objects are nested too deeply.
    #[error("more than {limit} arrays and objects stand inside each other")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// The input starts with a byte order mark.
    #[error("it starts with a byte order mark; send UTF-8 without one")]
    ByteOrderMark,
    /// The input is not UTF-8.
    #[error("it is not UTF-8")]
    InvalidUtf8,
    /// The input ends inside a value.
    #[error("it ends too early")]
    End,
    /// Another token is expected here.
    #[error("here should be {0}")]
    Expected(&'static str),
    /// Data follows the value.
    #[error("something follows the value")]
    TrailingData,
    /// A string contains a raw control character.
    #[error("a string holds a control character; escape it")]
    ControlCharacter,
    /// A string contains an escape that JSON does not know.
    #[error("a string holds an escape that JSON does not know")]
    Escape,
    /// A string contains half of a surrogate pair.
    #[error("a string holds half of a surrogate pair")]
    LoneSurrogate,
    /// A member name occurs twice in one object.
    #[error("a member name occurs twice in one object; send every name once")]
    DuplicateMember,
    /// A number is not valid JSON.
    #[error("a number is not spelled as JSON spells numbers")]
    Number,
    /// A number's exponent has more than 18 digits.
    #[error("the exponent of a number has more than 18 digits")]
    Exponent,
}
