//! Reads JSON and writes its canonical form in one pass.
//!
//! No tree is built. Parts of the input that are already canonical are copied in one piece, however many values they
//! contain; white space and non-canonical escapes or numbers end such a part. The members of an object are recorded
//! while they are written. If they are not in order, their texts are sorted when the object ends. Depth costs no
//! stack, only an entry in a vector.

use super::error::{CanonicalError, InputRefusal};
use super::exclusions::{Exclusions, Spot};
use super::member::{Member, Name};
use super::number::{self, Number};
use super::{CanonicalLimits, string};

/// Writes canonical JSON and reuses its scratch space.
///
/// ```
/// use semel::canonical::{Canonicalizer, Exclusions, CanonicalLimits};
///
/// let mut canonicalizer = Canonicalizer::new();
/// let mut out = Vec::new();
/// for body in [br#"{"b":1,"a":2}"#, br#"{"a":2,"b":1}"#] {
///     out.clear();
///     canonicalizer.write(body, CanonicalLimits::DEFAULT, &Exclusions::none(), &mut out)?;
///     assert_eq!(out, br#"{"a":2,"b":1}"#);
/// }
/// # Ok::<(), semel::canonical::CanonicalError>(())
/// ```
#[derive(Debug, Default)]
pub struct Canonicalizer {
    /// The open arrays and objects.
    frames: Vec<Frame>,
    /// The members of all open objects, those of the innermost last.
    members: Vec<Member>,
    /// The unescaped names of members with escapes.
    names: Vec<u8>,
    /// Members while they are moved; the digits of a number.
    scratch: Vec<u8>,
}

impl Canonicalizer {
    /// A writer without scratch space; it grows with use.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the canonical form of `input` without the excluded parts to `out`.
    ///
    /// # Errors
    /// The first part of `input` that has no canonical form; `out` is then unchanged.
    pub fn write(
        &mut self,
        input: &[u8],
        limits: CanonicalLimits,
        exclusions: &Exclusions,
        out: &mut Vec<u8>,
    ) -> Result<(), CanonicalError> {
        if input.len() > limits.size {
            let refusal = InputRefusal::TooLarge { size: input.len(), limit: limits.size };
            return Err(CanonicalError::new(refusal, limits.size));
        }
        if input.starts_with(b"\xef\xbb\xbf") {
            return Err(CanonicalError::new(InputRefusal::ByteOrderMark, 0));
        }
        if let Err(error) = std::str::from_utf8(input) {
            return Err(CanonicalError::new(InputRefusal::InvalidUtf8, error.valid_up_to()));
        }
        self.frames.clear();
        self.members.clear();
        self.names.clear();
        let before = out.len();
        out.reserve(input.len());
        let mut run = CharRun { own: self, depth: limits.depth, exclusions, input, at: 0, copied: 0, out };
        let result = run.document();
        if result.is_err() {
            out.truncate(before);
        }
        result
    }
}

/// An open array or object.
#[derive(Debug)]
struct Frame {
    kind: ContainerKind,
    spot: Spot,
    /// Where its members start in `members`. An array has entries only if an exclusion may be in it.
    members: usize,
    /// Where the unescaped names of its members start in `names`.
    names: usize,
    order: MemberOrder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContainerKind {
    Array,
    Object,
}

/// What must be done with the members when their object ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberOrder {
    /// They are in order and none is excluded.
    Done,
    /// Some must be moved or removed.
    Rearrange,
}

struct CharRun<'a> {
    own: &'a mut Canonicalizer,
    depth: usize,
    exclusions: &'a Exclusions,
    input: &'a [u8],
    /// The next position to read.
    at: usize,
    /// The input before this position is in `out`, without excluded parts. From here to `at` the input is canonical.
    copied: usize,
    out: &'a mut Vec<u8>,
}

impl CharRun<'_> {
    fn document(&mut self) -> Result<(), CanonicalError> {
        let mut spot = self.exclusions.root();
        loop {
            self.space();
            match self.peek() {
                b'"' => {
                    self.string()?;
                }
                b'-' | b'0'..=b'9' => self.number()?,
                b'{' => {
                    self.open(ContainerKind::Object, spot)?;
                    if self.peek() != b'}' {
                        spot = self.name()?;
                        continue;
                    }
                    self.close();
                }
                b'[' => {
                    self.open(ContainerKind::Array, spot)?;
                    if self.peek() != b']' {
                        spot = self.element();
                        continue;
                    }
                    self.close();
                }
                b't' => self.literal(b"true")?,
                b'f' => self.literal(b"false")?,
                b'n' => self.literal(b"null")?,
                _ => return Err(self.expected("a value")),
            }
            match self.after_value()? {
                Some(next) => spot = next,
                None => return Ok(()),
            }
        }
    }

    /// Continues after a value: closes the containers that end here, and returns the place of the next value, if
    /// there is one.
    #[inline]
    fn after_value(&mut self) -> Result<Option<Spot>, CanonicalError> {
        loop {
            self.space();
            let Some(frame) = self.own.frames.last() else {
                if self.at < self.input.len() {
                    return Err(CanonicalError::new(InputRefusal::TrailingData, self.at));
                }
                self.flush(self.at);
                return Ok(None);
            };
            match (frame.kind, self.peek()) {
                (ContainerKind::Object, b',') => {
                    self.end_member();
                    self.at += 1;
                    self.space();
                    return self.name().map(Some);
                }
                (ContainerKind::Array, b',') => {
                    self.end_member();
                    self.at += 1;
                    self.space();
                    return Ok(Some(self.element()));
                }
                (ContainerKind::Object, b'}') | (ContainerKind::Array, b']') => {
                    self.end_member();
                    self.arrange()?;
                    self.close();
                }
                (ContainerKind::Object, _) => return Err(self.expected("',' or '}'")),
                (ContainerKind::Array, _) => return Err(self.expected("',' or ']'")),
            }
        }
    }

    fn open(&mut self, kind: ContainerKind, spot: Spot) -> Result<(), CanonicalError> {
        if self.own.frames.len() == self.depth {
            return Err(CanonicalError::new(InputRefusal::TooDeep { limit: self.depth }, self.at));
        }
        let (members, names) = (self.own.members.len(), self.own.names.len());
        self.own.frames.push(Frame { kind, spot, members, names, order: MemberOrder::Done });
        self.at += 1;
        self.space();
        Ok(())
    }

    /// Closes the innermost array or object at its last bracket.
    fn close(&mut self) {
        let frame = self.own.frames.pop().expect("what closes was opened");
        self.own.members.truncate(frame.members);
        self.own.names.truncate(frame.names);
        self.at += 1;
    }

    /// Reads a member's name and colon, records the member, and returns the place of its value.
    #[inline]
    fn name(&mut self) -> Result<Spot, CanonicalError> {
        let position = self.at;
        if self.peek() != b'"' {
            return Err(self.expected("a member name"));
        }
        let start = self.written();
        let name = match self.string()? {
            StringForm::Plain => Name::Input { at: position + 1, length: self.at - position - 2 },
            StringForm::Escaped => self.unescaped_name(start),
        };
        let bytes = name.bytes(self.input, &self.own.names);
        let mut member = Member::new(name, bytes, start, position);
        let frame = self.own.frames.last_mut().expect("a name stands in an object");
        let spot =
            if frame.spot.is_nowhere() { Spot::NOWHERE } else { self.exclusions.member(frame.spot, bytes) };
        if self.exclusions.excludes(spot) {
            member.excluded = true;
            frame.order = MemberOrder::Rearrange;
        }
        if let Some(previous) = self.own.members[frame.members..].last()
            && previous.order(&member, self.input, &self.own.names).is_ge()
        {
            // Duplicate names are found when the members are sorted.
            frame.order = MemberOrder::Rearrange;
        }
        self.own.members.push(member);
        self.space();
        if self.peek() != b':' {
            return Err(self.expected("':'"));
        }
        self.at += 1;
        Ok(spot)
    }

    #[cold]
    fn unescaped_name(&mut self, start: usize) -> Name {
        self.flush(self.at);
        let at = self.own.names.len();
        string::unescape_canonical(&self.out[start + 1..self.out.len() - 1], &mut self.own.names);
        Name::Unescaped { at, length: self.own.names.len() - at }
    }

    /// Returns the place of the array element that starts here, and records it if an exclusion may be in its array.
    #[inline]
    fn element(&mut self) -> Spot {
        let frame = self.own.frames.last_mut().expect("an element stands in an array");
        if frame.spot.is_nowhere() {
            return Spot::NOWHERE;
        }
        let spot = self.exclusions.element(frame.spot, self.own.members.len() - frame.members);
        let mut element = Member::element(self.out.len() + self.at - self.copied);
        if self.exclusions.excludes(spot) {
            element.excluded = true;
            frame.order = MemberOrder::Rearrange;
        }
        self.own.members.push(element);
        spot
    }

    #[inline]
    fn end_member(&mut self) {
        let end = self.written();
        let frame = self.own.frames.last().expect("a member stands in an object");
        if let Some(member) = self.own.members[frame.members..].last_mut() {
            member.end = end;
        }
    }

    /// Sorts the members of the innermost object and removes the excluded ones.
    #[inline]
    fn arrange(&mut self) -> Result<(), CanonicalError> {
        let frame = self.own.frames.last().expect("what is arranged is open");
        if frame.order == MemberOrder::Done {
            return Ok(());
        }
        self.flush(self.at);
        let Self { own, input, out, .. } = self;
        let Canonicalizer { frames, members, names, scratch } = &mut **own;
        let frame = frames.last().expect("what is arranged is open");
        let members = &mut members[frame.members..];
        let first = members[0].start;
        if frame.kind == ContainerKind::Object {
            members.sort_unstable_by(|a, b| a.order(b, input, names));
            for pair in members.windows(2) {
                if pair[0].order(&pair[1], input, names).is_eq() {
                    let position = pair[0].position.max(pair[1].position);
                    return Err(CanonicalError::new(InputRefusal::DuplicateMember, position));
                }
            }
        }
        scratch.clear();
        scratch.extend_from_slice(&out[first..]);
        out.truncate(first);
        for member in members.iter().filter(|member| !member.excluded) {
            if out.len() > first {
                out.push(b',');
            }
            out.extend_from_slice(&scratch[member.start - first..member.end - first]);
        }
        Ok(())
    }

    /// Reads the string at `at` and writes its canonical text.
    #[inline]
    fn string(&mut self) -> Result<StringForm, CanonicalError> {
        let mut text = StringForm::Plain;
        self.at += 1;
        loop {
            self.at = string::plain_until(self.input, self.at);
            match self.input.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => {
                    text = StringForm::Escaped;
                    self.escape()?;
                }
                Some(_) => return Err(CanonicalError::new(InputRefusal::ControlCharacter, self.at)),
                None => return Err(CanonicalError::new(InputRefusal::End, self.at)),
            }
        }
    }

    fn escape(&mut self) -> Result<(), CanonicalError> {
        match self.input.get(self.at + 1) {
            // Already canonical.
            Some(b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'/') => {
                self.flush(self.at);
                self.copied += 1;
                self.at += 2;
            }
            Some(b'u') => {
                self.flush(self.at);
                let (c, end) = string::unicode_escape(self.input, self.at)
                    .map_err(|(refusal, at)| self.refused(refusal, at))?;
                string::push_escaped(c, self.out);
                self.at = end;
                self.copied = end;
            }
            Some(_) => return Err(CanonicalError::new(InputRefusal::Escape, self.at)),
            None => return Err(CanonicalError::new(InputRefusal::End, self.at + 1)),
        }
        Ok(())
    }

    #[inline]
    fn number(&mut self) -> Result<(), CanonicalError> {
        let start = self.at;
        let (number, end) =
            number::scan(self.input, start).map_err(|(refusal, at)| self.refused(refusal, at))?;
        self.at = end;
        if let Number::Rewritten(spelling) = number {
            self.flush(start);
            self.copied = end;
            spelling
                .write(self.input, &mut self.own.scratch, self.out)
                .map_err(|refusal| CanonicalError::new(refusal, start))?;
        }
        Ok(())
    }

    #[inline]
    fn literal(&mut self, literal: &'static [u8]) -> Result<(), CanonicalError> {
        if !self.input[self.at..].starts_with(literal) {
            return Err(self.expected("a value"));
        }
        self.at += literal.len();
        Ok(())
    }

    /// The next byte; 0 at the end, which JSON does not allow outside of strings.
    #[inline(always)]
    fn peek(&self) -> u8 {
        self.input.get(self.at).copied().unwrap_or(0)
    }

    #[inline(always)]
    fn space(&mut self) {
        if self.peek() <= b' ' {
            self.skip_space();
        }
    }

    fn skip_space(&mut self) {
        let start = self.at;
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
        if self.at > start {
            self.flush(start);
            self.copied = self.at;
        }
    }

    /// Copies the input up to `until` to `out`.
    #[inline]
    fn flush(&mut self, until: usize) {
        self.out.extend_from_slice(&self.input[self.copied..until]);
        self.copied = until;
    }

    /// The length of `out` after it is flushed up to `at`.
    #[inline(always)]
    fn written(&self) -> usize {
        self.out.len() + self.at - self.copied
    }

    #[cold]
    fn expected(&self, what: &'static str) -> CanonicalError {
        self.refused(InputRefusal::Expected(what), self.at)
    }

    /// An error at the end of the input is always that it ends too early.
    #[cold]
    fn refused(&self, refusal: InputRefusal, at: usize) -> CanonicalError {
        if at >= self.input.len() {
            return CanonicalError::new(InputRefusal::End, self.input.len());
        }
        CanonicalError::new(refusal, at)
    }
}

/// The form of a string in the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StringForm {
    /// Without escapes.
    Plain,
    /// With escapes.
    Escaped,
}
