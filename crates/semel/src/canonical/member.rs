//! Members of an object that is being written, and their order.

use std::cmp::Ordering;

/// One member (or, under an exclusion, one element) whose text is already in the output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    /// The start of the name in sort order, eight bytes; it decides almost every comparison.
    prefix: u64,
    name: Name,
    /// The position of the text in the output.
    pub(super) start: usize,
    pub(super) end: usize,
    /// The position of the name in the input, for errors.
    pub(super) position: usize,
    pub(super) excluded: bool,
}

/// Where the unescaped bytes of a name are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Name {
    /// In the input, if the name has no escapes.
    Input { at: usize, length: usize },
    /// In the buffer of unescaped names.
    Unescaped { at: usize, length: usize },
}

impl Name {
    pub(super) fn bytes<'a>(&self, input: &'a [u8], unescaped: &'a [u8]) -> &'a [u8] {
        match *self {
            Self::Input { at, length } => &input[at..at + length],
            Self::Unescaped { at, length } => &unescaped[at..at + length],
        }
    }
}

impl Member {
    pub(super) fn new(name: Name, bytes: &[u8], start: usize, position: usize) -> Self {
        Self { prefix: prefix(bytes), name, start, end: start, position, excluded: false }
    }

    /// An element of an array; it has no name and keeps its place.
    pub(super) fn element(start: usize) -> Self {
        Self::new(Name::Input { at: 0, length: 0 }, b"", start, 0)
    }

    /// The order of RFC 8785: by UTF-16 code units of the names.
    pub(super) fn order(&self, other: &Self, input: &[u8], unescaped: &[u8]) -> Ordering {
        self.prefix.cmp(&other.prefix).then_with(|| {
            let bytes = |member: &Self| member.name.bytes(input, unescaped);
            bytes(self).iter().copied().map(rank).cmp(bytes(other).iter().copied().map(rank))
        })
    }
}

/// The place of a UTF-8 byte in UTF-16 order.
///
/// UTF-8 sorts as code points do. UTF-16 sorts the same, except for the characters above U+FFFF (lead bytes F0 to
/// F4): their surrogates sort before U+E000 to U+FFFF (lead bytes EE and EF). Those two lead bytes therefore sort
/// after all others.
fn rank(byte: u8) -> u8 {
    if byte == 0xee || byte == 0xef { byte + 0x10 } else { byte }
}

/// The ranks of the first eight bytes as a number that sorts like them. Zero padding sorts a shorter name before
/// longer ones; if that is undecided (a name may contain U+0000) the prefixes are equal.
fn prefix(name: &[u8]) -> u64 {
    let mut head = [0; 8];
    let length = name.len().min(8);
    head[..length].copy_from_slice(&name[..length]);
    if !head.is_ascii() {
        head = head.map(rank);
    }
    u64::from_be_bytes(head)
}
