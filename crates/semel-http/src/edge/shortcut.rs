//! Answers requests from memory, before hyper parses them.
//!
//! An answer from the record needs neither a parsed request nor a task: the bytes identify the request, and the answer is bytes too. So
//! the wire offers a whole request to a [`Shortcut`] if no other request of the connection is in progress, and writes its answer. All
//! other requests take the regular path, which must give the same answer.

use std::fmt;

use super::head::RequestWords;

/// Maximum number of headers of a request that is offered.
const MOST: usize = 32;

/// Answers some requests from their bytes alone.
pub trait Shortcut: fmt::Debug + Send + Sync + 'static {
    /// Writes the whole answer, head and body, to `answer`; or writes nothing and returns [`Taken::No`].
    ///
    /// Called on the thread that serves the connection: it must not block.
    fn answer(&self, request: &PlainRequest<'_>, answer: &mut Vec<u8>) -> Taken;
}

/// Whether the shortcut answered a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It did.
    Yes,
    /// It did not; the request takes the regular path.
    No,
}

/// A whole HTTP/1.1 request that keeps its connection open and does not ask for another protocol.
#[derive(Debug)]
pub struct PlainRequest<'a> {
    /// In capital letters.
    pub method: &'a str,
    /// Begins with a slash.
    pub target: &'a str,
    /// The whole body.
    pub body: &'a [u8],
    pub(super) fields: &'a Seen<'a>,
}

impl<'a> PlainRequest<'a> {
    /// The values of a header in order, without surrounding white space.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let fields = &self.fields.fields[..self.fields.count];
        fields.iter().filter(move |field| field.0.eq_ignore_ascii_case(name.as_bytes())).map(|field| field.1)
    }

    /// The value of a header that occurs once.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&'a [u8]> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }
}

/// The header lines of a request.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    fields: [(&'a [u8], &'a [u8]); MOST],
    count: usize,
    plain: bool,
    /// The request line, after it was read.
    pub(super) line: Option<RequestWords<'a>>,
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

    /// The request, if it can be offered.
    pub(super) fn whole(&'a self, body: &'a [u8]) -> Option<PlainRequest<'a>> {
        let line = self.line.filter(|line| self.plain && line.is_plain())?;
        let (method, target) =
            (std::str::from_utf8(line.method).ok()?, std::str::from_utf8(line.target).ok()?);
        Some(PlainRequest { method, target, body, fields: self })
    }
}
