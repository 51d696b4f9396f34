//! Reads and writes event streams (`text/event-stream`).

use std::ops::Range;

/// Reads a stream piece by piece. A line ends with a line feed, a carriage return, or both.
#[derive(Debug, Default)]
pub(crate) struct SseReader {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was a carriage return: a line feed right after it belongs to the same line end.
    after_return: bool,
    /// Number of bytes that were read.
    read: usize,
    /// Start of the current event.
    began: usize,
}

/// A complete event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SseEvent {
    pub(crate) data: Vec<u8>,
    /// Its position in the stream, including its empty line.
    pub(crate) place: Range<usize>,
}

impl SseReader {
    /// Reads a piece and calls `each` for every event that ends in it. An event that the end of the stream cuts off is ignored.
    pub(crate) fn feed(&mut self, piece: &[u8], mut each: impl FnMut(SseEvent)) {
        for byte in piece {
            self.read += 1;
            match byte {
                b'\n' if self.after_return => {
                    self.after_return = false;
                    // A line feed after the empty line of an event belongs to that line.
                    if self.began + 1 == self.read {
                        self.began = self.read;
                    }
                }
                b'\n' | b'\r' => {
                    self.after_return = *byte == b'\r';
                    self.end_line(&mut each);
                }
                _ => {
                    self.after_return = false;
                    self.line.push(*byte);
                }
            }
        }
    }

    /// Number of bytes that belong to complete events.
    pub(crate) fn ended(&self) -> usize {
        self.began
    }

    fn end_line(&mut self, each: &mut impl FnMut(SseEvent)) {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let place = self.began..self.read;
            self.began = self.read;
            let data = std::mem::take(&mut self.data);
            if std::mem::take(&mut self.has_data) {
                each(SseEvent { data, place });
            }
            return;
        }
        // A byte order mark may precede the first line.
        let line = if self.read == line.len() + 1 {
            line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line)
        } else {
            &line
        };
        if let Some(value) = value_of(line, b"data") {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.has_data = true;
            self.data.extend_from_slice(value);
        }
    }
}

/// The value of a field, if the line has this field name.
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)? {
        [] => Some(&[]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

/// The lines of an event.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.is_empty())
}

/// A JSON text as one event. Line breaks in it are only white space.
pub(crate) fn event(json: &[u8]) -> Vec<u8> {
    let mut event = Vec::with_capacity(json.len() + 32);
    event.extend_from_slice(b"event: message\n");
    put_data(json, &mut event);
    event
}

/// The same event with other data; its other fields stay.
pub(crate) fn with_data(event: &[u8], json: &[u8]) -> Vec<u8> {
    let mut other = Vec::with_capacity(event.len() + json.len());
    for line in lines(event).filter(|line| value_of(line, b"data").is_none()) {
        other.extend_from_slice(line);
        other.push(b'\n');
    }
    put_data(json, &mut other);
    other
}

fn put_data(json: &[u8], out: &mut Vec<u8>) {
    for line in lines(json) {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stream: &[u8], pieces: usize) -> Vec<String> {
        let (mut events, mut found) = (SseReader::default(), Vec::new());
        for piece in stream.chunks(pieces) {
            events.feed(piece, |event| {
                let place = &stream[event.place];
                assert!(place.windows(1).any(|window| event.data.starts_with(window)));
                found.push(String::from_utf8(event.data).unwrap());
            });
        }
        found
    }

    #[test]
    fn events_end_with_an_empty_line_however_they_come() {
        for (stream, expected) in [
            ("data: a\n\n", vec!["a"]),
            ("data:a\r\n\r\ndata: b\r\n\r\n", vec!["a", "b"]),
            ("data: a\r\rdata: b\r\r", vec!["a", "b"]),
            ("event: message\nid: 1\ndata: {\ndata: }\n\n", vec!["{\n}"]),
            (": a comment\n\n\n\ndata: a\n\n", vec!["a"]),
            ("\u{feff}data: a\n\n", vec!["a"]),
            ("data: cut", vec![]),
            ("data: cut\n", vec![]),
            ("database: x\n\n", vec![]),
            ("data: a\n\ndata: cut", vec!["a"]),
        ] {
            for pieces in [1, 2, 3, 1000] {
                assert_eq!(read(stream.as_bytes(), pieces), expected, "{stream:?} in pieces of {pieces}");
            }
        }
    }

    #[test]
    fn an_event_stands_where_it_says() {
        let stream = b"data: a\r\n\r\nid: 7\r\ndata: b\r\n\r\ndata: c\r\n\r\n";
        let mut places = Vec::new();
        SseReader::default().feed(stream, |event| places.push(event.place));
        // The line feed after an empty line may belong to either event.
        assert!(
            stream[places[1].clone()].starts_with(b"id: 7")
                || stream[places[1].clone()].starts_with(b"\nid: 7")
        );
        let changed = with_data(&stream[places[1].clone()], b"{\n\"x\": 1}");
        assert_eq!(changed, b"id: 7\ndata: {\ndata: \"x\": 1}\n\n");
        assert_eq!(read(&event(b"{}"), 1000), ["{}"]);
    }
}
