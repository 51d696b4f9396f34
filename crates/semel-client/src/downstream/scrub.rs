//! Takes keys out of what others say.
//!
//! An error of a provider often quotes the request: its headers, its URL, its body, each in the encoding of its place. So the
//! text is read in layers. The first is the text itself; each further one undoes the escapes of one family (percent, backslash,
//! entity) in another, and remembers where every byte came from. One family at a time: a backslash of the key's own beside an
//! entity is no escape. In each layer the key is looked for as it is, in hex and in
//! base64 at all three alignments. What is found is cut out of the text that it came from.

use std::fmt;
use std::ops::Range;

/// How often an escape within an escape is undone.
const DEPTH: usize = 3;
/// What stands where a key stood.
const PLACE: &str = "[key]";
/// Shorter runs of base64 would be found in ordinary words.
const LEAST_CORE: usize = 4;

/// Scrubs texts of keys and of everything that can be turned back into them.
#[derive(Clone, Default)]
pub struct Scrubber {
    needles: Vec<Needle>,
}

/// One thing to look for.
#[derive(Clone)]
struct Needle {
    bytes: Vec<u8>,
    case: EscapeCase,
    /// Taken out together with what surrounds it, as far as that is of the same alphabet.
    run: fn(u8) -> bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EscapeCase {
    Ignored,
    Counts,
}

impl Scrubber {
    /// A scrubber of one key.
    #[must_use]
    pub fn new(key: &str) -> Self {
        Self::default().and(key)
    }

    /// Of another one besides.
    #[must_use]
    pub fn and(mut self, key: &str) -> Self {
        let key = key.as_bytes();
        if key.is_empty() {
            return self;
        }
        self.needles.push(Needle { bytes: key.to_vec(), case: EscapeCase::Ignored, run: |_| false });
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.needles.push(Needle {
            bytes: hex.into_bytes(),
            case: EscapeCase::Ignored,
            run: |byte| byte.is_ascii_hexdigit(),
        });
        for offset in 0..3 {
            let core = base64_core(key, offset);
            if core.len() < LEAST_CORE {
                continue;
            }
            let url: Vec<u8> = core
                .iter()
                .map(|byte| match byte {
                    b'+' => b'-',
                    b'/' => b'_',
                    other => *other,
                })
                .collect();
            if url != core {
                self.needles.push(Needle { bytes: url, case: EscapeCase::Counts, run: is_base64 });
            }
            self.needles.push(Needle { bytes: core, case: EscapeCase::Counts, run: is_base64 });
        }
        self
    }

    /// The text without any of them.
    #[must_use]
    pub fn scrub(&self, text: &str) -> String {
        let mut found: Vec<Range<usize>> = Vec::new();
        let mut layers = vec![Layer::of(text)];
        for depth in 0..=DEPTH {
            for (layer, needle) in
                layers.iter().flat_map(|layer| self.needles.iter().map(move |needle| (layer, needle)))
            {
                needle.find_all(layer, &mut found);
            }
            if depth < DEPTH {
                layers = layers.iter().flat_map(Layer::below).collect();
            }
        }
        cut(text, found)
    }
}

impl fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrubber(redacted)")
    }
}

/// A text with its escapes undone so and so often, and for every byte the range of the text that it came from.
struct Layer {
    bytes: Vec<u8>,
    from: Vec<(usize, usize)>,
}

impl Layer {
    fn of(text: &str) -> Self {
        Self { bytes: text.as_bytes().to_vec(), from: (0..text.len()).map(|at| (at, at + 1)).collect() }
    }

    /// The layers below: with the escapes of one family undone, for each that has any here.
    fn below(&self) -> impl Iterator<Item = Self> {
        FAMILIES.into_iter().filter_map(|family| self.undone(family))
    }

    fn undone(&self, escape: EscapeReader) -> Option<Self> {
        let mut next = Self { bytes: Vec::new(), from: Vec::new() };
        let mut at = 0;
        while at < self.bytes.len() {
            let (length, plain) = match escape(&self.bytes[at..]) {
                Some((length, plain)) => (length, plain),
                None => (1, vec![self.bytes[at]]),
            };
            let from = (self.from[at].0, self.from[at + length - 1].1);
            next.from.extend(plain.iter().map(|_| from));
            next.bytes.extend(plain);
            at += length;
        }
        (next.bytes != self.bytes).then_some(next)
    }
}

/// Reads the escape at the start: its length, and what it stands for.
type EscapeReader = fn(&[u8]) -> Option<(usize, Vec<u8>)>;

const FAMILIES: [EscapeReader; 3] = [percent, backslash, entity];

fn percent(bytes: &[u8]) -> Option<(usize, Vec<u8>)> {
    match bytes {
        [b'%', high, low, ..] => Some((3, vec![byte(*high, *low)?])),
        _ => None,
    }
}

fn backslash(bytes: &[u8]) -> Option<(usize, Vec<u8>)> {
    match bytes {
        [b'\\', b'x', high, low, ..] => Some((4, vec![byte(*high, *low)?])),
        [b'\\', b'u', b'{', rest @ ..] => {
            let end = rest.iter().take(7).position(|byte| *byte == b'}')?;
            Some((end + 4, character(number(&rest[..end], 16)?)?))
        }
        [b'\\', b'u', rest @ ..] => {
            let unit = number(rest.get(..4)?, 16)?;
            // Beyond the first plane JSON writes a character as two.
            if (0xd800..0xdc00).contains(&unit)
                && let Some([b'\\', b'u', low @ ..]) = rest.get(4..10)
                && let Some(low) = number(low, 16)
                && (0xdc00..0xe000).contains(&low)
            {
                return Some((12, character(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00))?));
            }
            Some((6, character(unit)?))
        }
        [b'\\', letter, ..] => {
            let plain = match letter {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'b' => 8,
                b'f' => 12,
                b'0' => 0,
                other if other.is_ascii_punctuation() => *other,
                _ => return None,
            };
            Some((2, vec![plain]))
        }
        _ => None,
    }
}

fn entity(bytes: &[u8]) -> Option<(usize, Vec<u8>)> {
    match bytes {
        [b'&', b'#', b'x' | b'X', rest @ ..] => {
            let end = rest.iter().take(7).position(|byte| *byte == b';')?;
            Some((end + 4, character(number(&rest[..end], 16)?)?))
        }
        [b'&', b'#', rest @ ..] => {
            let end = rest.iter().take(8).position(|byte| *byte == b';')?;
            Some((end + 3, character(number(&rest[..end], 10)?)?))
        }
        [b'&', ..] => {
            let named: [(&[u8], u8); 5] =
                [(b"&amp;", b'&'), (b"&lt;", b'<'), (b"&gt;", b'>'), (b"&quot;", b'"'), (b"&apos;", b'\'')];
            let (name, plain) = named.into_iter().find(|(name, _)| bytes.starts_with(name))?;
            Some((name.len(), vec![plain]))
        }
        _ => None,
    }
}

fn byte(high: u8, low: u8) -> Option<u8> {
    u8::try_from(number(&[high, low], 16)?).ok()
}

fn number(digits: &[u8], radix: u32) -> Option<u32> {
    if digits.is_empty() || !digits.iter().all(|digit| char::from(*digit).is_digit(radix)) {
        return None;
    }
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

fn character(code: u32) -> Option<Vec<u8>> {
    char::from_u32(code).map(|character| character.to_string().into_bytes())
}

impl Needle {
    fn find_all(&self, layer: &Layer, found: &mut Vec<Range<usize>>) {
        let length = self.bytes.len();
        let mut at = 0;
        while at + length <= layer.bytes.len() {
            if !self.is_at(&layer.bytes[at..at + length]) {
                at += 1;
                continue;
            }
            let start =
                layer.bytes[..at].iter().rposition(|byte| !(self.run)(*byte)).map_or(0, |before| before + 1);
            let rest = &layer.bytes[at + length..];
            let end = at + length + rest.iter().position(|byte| !(self.run)(*byte)).unwrap_or(rest.len());
            found.push(layer.from[start].0..layer.from[end - 1].1);
            at = end;
        }
    }

    fn is_at(&self, bytes: &[u8]) -> bool {
        let same = |(own, other): (&u8, &u8)| match self.case {
            EscapeCase::Counts => own == other,
            // A form writes a space as a plus.
            EscapeCase::Ignored => own.eq_ignore_ascii_case(other) || (*own == b' ' && *other == b'+'),
        };
        self.bytes.iter().zip(bytes).all(same)
    }
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=')
}

/// The characters that the base64 of any text has that holds `key` at a position of `offset` modulo three: those that depend on
/// the key alone.
fn base64_core(key: &[u8], offset: usize) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bit = |at: usize| key[at / 8] >> (7 - at % 8) & 1;
    // The first whole group of six bits behind the start.
    let start = (6 - offset * 8 % 6) % 6;
    let groups = (key.len() * 8).saturating_sub(start) / 6;
    (0..groups)
        .map(|group| {
            let six = (0..6).fold(0, |six, at| six << 1 | bit(start + group * 6 + at));
            ALPHABET[usize::from(six)]
        })
        .collect()
}

/// The text without these ranges of it, each replaced by one mark.
fn cut(text: &str, mut found: Vec<Range<usize>>) -> String {
    found.sort_by_key(|range| range.start);
    let mut scrubbed = String::with_capacity(text.len());
    let mut at = 0;
    for range in found {
        if range.end <= at {
            continue;
        }
        if range.start >= at {
            scrubbed.push_str(text.get(at..range.start).unwrap_or_default());
            scrubbed.push_str(PLACE);
        }
        at = range.end;
    }
    scrubbed.push_str(text.get(at..).unwrap_or_default());
    scrubbed
}
