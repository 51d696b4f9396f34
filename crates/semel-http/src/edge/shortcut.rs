//! The short way for requests whose answer is at hand.
//!
//! A replay needs neither a parsed request nor a task: its bytes say which it is, and the answer is bytes too. So the
//! wire may offer a whole request to a [`Shortcut`] before hyper sees it, where nothing else is under way on the
//! connection, and write what it is given. Whatever a shortcut does not answer goes the usual way, which must give the
//! same answer.

use std::fmt;

use super::head::Line;

/// How many headers a request may have to be offered.
const MOST: usize = 32;

/// Answers some requests from their bytes alone.
pub trait Shortcut: fmt::Debug + Send + Sync + 'static {
    /// Writes the whole answer, head and body, to `answer`; or writes nothing and returns [`Taken::No`].
    ///
    /// Called on the thread that serves the connection: it must not block.
    fn answer(&self, request: &Plain<'_>, answer: &mut Vec<u8>) -> Taken;
}

/// Whether a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It was.
    Yes,
    /// It was not, and goes the usual way.
    No,
}

/// A whole HTTP/1.1 request that asks nothing of its connection: it is kept, and no other protocol is wanted.
#[derive(Debug)]
pub struct Plain<'a> {
    /// In capital letters.
    pub method: &'a str,
    /// Begins with a slash.
    pub target: &'a str,
    /// All of it.
    pub body: &'a [u8],
    pub(super) fields: &'a Seen<'a>,
}

impl<'a> Plain<'a> {
    /// The values of a header, in their order, without the white space around them.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let fields = &self.fields.fields[..self.fields.count];
        fields.iter().filter(move |field| field.0.eq_ignore_ascii_case(name.as_bytes())).map(|field| field.1)
    }

    /// The value of a header that stands there once.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&'a [u8]> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }
}

/// The header lines of a request, as they are read.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    fields: [(&'a [u8], &'a [u8]); MOST],
    count: usize,
    plain: bool,
    /// The request line, once it was read.
    pub(super) line: Option<Line<'a>>,
}

impl<'a> Seen<'a> {
    pub(super) fn new() -> Self {
        Self { fields: [(&[], &[]); MOST], count: 0, plain: true, line: None }
    }

    pub(super) fn note(&mut self, name: &'a [u8], value: &'a [u8]) {
        let about_connection = match name.len() {
            2 => name.eq_ignore_ascii_case(b"te"),
            6 => name.eq_ignore_ascii_case(b"expect"),
            7 => name.eq_ignore_ascii_case(b"upgrade"),
            10 => name.eq_ignore_ascii_case(b"connection") && !value.eq_ignore_ascii_case(b"keep-alive"),
            17 => name.eq_ignore_ascii_case(b"transfer-encoding"),
            _ => false,
        };
        self.plain &= !about_connection && self.count < MOST;
        if self.plain {
            self.fields[self.count] = (name, value);
            self.count += 1;
        }
    }

    /// The request, where it is one that can be offered.
    pub(super) fn whole(&'a self, body: &'a [u8]) -> Option<Plain<'a>> {
        let line = self.line.filter(|line| self.plain && line.is_plain())?;
        let (method, target) =
            (std::str::from_utf8(line.method).ok()?, std::str::from_utf8(line.target).ok()?);
        Some(Plain { method, target, body, fields: self })
    }
}
