//! The parts of a payload that are ignored, by JSON pointer.

/// A set of JSON pointers (RFC 6901) to members and elements that are ignored.
///
/// Use it for values that change with every retry of the same request: timestamps, correlation ids, retry counts. A
/// pointer without a match has no effect. Excluded parts must still be valid JSON, and an excluded member name must
/// still occur only once. An excluded element is removed from its array, so the following ones move up.
///
/// ```
/// use semel::canonical::{Exclusions, CanonicalLimits, canonicalize};
///
/// let exclusions = Exclusions::new(["/meta/sent_at"])?;
/// let mut out = Vec::new();
/// canonicalize(br#"{"meta": {"sent_at": 17, "to": "x"}}"#, CanonicalLimits::DEFAULT, &exclusions, &mut out)?;
/// assert_eq!(out, br#"{"meta":{"to":"x"}}"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exclusions {
    /// A tree of tokens; the root is first. Empty if nothing is excluded.
    nodes: Vec<ExclusionNode>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct ExclusionNode {
    excluded: bool,
    children: Vec<Child>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Child {
    token: String,
    /// The token as an array index, if it is one.
    index: Option<usize>,
    node: Spot,
}

/// A place in the tree of exclusions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot(u32);

impl Spot {
    /// Nothing at or below this place is excluded.
    pub(super) const NOWHERE: Self = Self(u32::MAX);

    pub(super) fn is_nowhere(self) -> bool {
        self == Self::NOWHERE
    }
}

impl Exclusions {
    /// Excludes nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self { nodes: Vec::new() }
    }

    /// Excludes the parts that the pointers name.
    ///
    /// # Errors
    /// The first pointer that is invalid, or that names the whole payload.
    pub fn new<P: AsRef<str>>(pointers: impl IntoIterator<Item = P>) -> Result<Self, ExclusionError> {
        let mut exclusions = Self::none();
        for (index, pointer) in pointers.into_iter().enumerate() {
            exclusions.add(index + 1, pointer.as_ref())?;
        }
        Ok(exclusions)
    }

    fn add(&mut self, number: usize, pointer: &str) -> Result<(), ExclusionError> {
        if pointer.is_empty() {
            return Err(ExclusionError::Everything { number });
        }
        let tokens = pointer.strip_prefix('/').ok_or(ExclusionError::NoSlash { number })?;
        if self.nodes.is_empty() {
            self.nodes.push(ExclusionNode::default());
        }
        let mut at = 0;
        for token in tokens.split('/') {
            let token = unescape(token).ok_or(ExclusionError::Tilde { number })?;
            at = self.child_or_new(at, token);
        }
        self.nodes[at].excluded = true;
        Ok(())
    }

    fn child_or_new(&mut self, at: usize, token: String) -> usize {
        if let Some(child) = self.nodes[at].children.iter().find(|child| child.token == token) {
            return child.node.0 as usize;
        }
        let new = self.nodes.len();
        let node = Spot(u32::try_from(new).expect("there are fewer pointers than 2^32"));
        self.nodes.push(ExclusionNode::default());
        self.nodes[at].children.push(Child { index: array_index(&token), token, node });
        new
    }

    /// The place of the whole payload.
    pub(super) fn root(&self) -> Spot {
        if self.nodes.is_empty() { Spot::NOWHERE } else { Spot(0) }
    }

    /// The place of the member `name` of the object at `spot`.
    pub(super) fn member(&self, spot: Spot, name: &[u8]) -> Spot {
        self.find(spot, |child| child.token.as_bytes() == name)
    }

    /// The place of the element `index` of the array at `spot`.
    pub(super) fn element(&self, spot: Spot, index: usize) -> Spot {
        self.find(spot, |child| child.index == Some(index))
    }

    /// True if the part at `spot` is ignored.
    pub(super) fn excludes(&self, spot: Spot) -> bool {
        self.nodes.get(spot.0 as usize).is_some_and(|node| node.excluded)
    }

    fn find(&self, spot: Spot, wanted: impl Fn(&Child) -> bool) -> Spot {
        let Some(node) = self.nodes.get(spot.0 as usize) else { return Spot::NOWHERE };
        node.children.iter().find(|child| wanted(child)).map_or(Spot::NOWHERE, |child| child.node)
    }
}

impl Default for Exclusions {
    fn default() -> Self {
        Self::none()
    }
}

/// Undoes `~0` and `~1`; nothing else may follow a tilde.
fn unescape(token: &str) -> Option<String> {
    let mut pieces = token.split('~');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (sign, rest) = match piece.as_bytes().first()? {
            b'0' => ('~', &piece[1..]),
            b'1' => ('/', &piece[1..]),
            _ => return None,
        };
        text.push(sign);
        text.push_str(rest);
    }
    Some(text)
}

/// RFC 6901 indices have no sign and no leading zeros.
fn array_index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    let plain = token == "0" || !token.starts_with('0');
    if digits && plain { token.parse().ok() } else { None }
}

/// A pointer is invalid. Pointers are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExclusionError {
    /// The pointer is empty, which is the whole payload.
    #[error(
        "exclusion {number} is empty and would exclude everything; use Payload::none() to compare nothing"
    )]
    Everything {
        /// The number of the pointer.
        number: usize,
    },
    /// The pointer does not start with a slash.
    #[error("exclusion {number} does not start with '/'; write a JSON pointer, as in /meta/sent_at")]
    NoSlash {
        /// The number of the pointer.
        number: usize,
    },
    /// A tilde without 0 or 1.
    #[error("exclusion {number} has a '~' that is not followed by 0 or 1; write ~0 for '~' and ~1 for '/'")]
    Tilde {
        /// The number of the pointer.
        number: usize,
    },
}
