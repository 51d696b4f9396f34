//! Follows a chunked body to its end, without changing it.

use super::head::is_token;
use super::refusal::Refusal;
use super::rules::Rules;

/// Maximum length of a chunk-size line, including extensions.
const LINE: u32 = 256;

/// Maximum size of the trailer section. hyper accepts twice that, and gives no reason when it stops.
const TRAILERS: u32 = 8 * 1024;

/// The position in a chunked body after the last byte.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    place: Place,
    /// Bytes left of the current chunk.
    left: u64,
    /// Length of the current size line, or of all trailers.
    seen: u32,
    /// Trailers so far.
    trailers: usize,
    /// The name of the current trailer.
    name: Vec<u8>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    End,
}

/// The result of reading a piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Walk {
    /// All bytes belong to the body, which continues.
    On,
    /// The body ended after this number of bytes.
    Ended(usize),
    /// This number of bytes was valid, the next one was not.
    Wrong(usize, Refusal),
}

impl Chunks {
    pub(super) fn walk(&mut self, bytes: &[u8], rules: &Rules) -> Walk {
        let mut at = 0;
        while at < bytes.len() {
            if self.place == Place::Data {
                let left = usize::try_from(self.left).unwrap_or(usize::MAX);
                let step = left.min(bytes.len() - at);
                at += step;
                self.left -= step as u64;
                if self.left == 0 {
                    self.place = Place::DataCr;
                }
                continue;
            }
            match self.step(bytes[at], rules) {
                Ok(place) => self.place = place,
                Err(refusal) => return Walk::Wrong(at, refusal),
            }
            at += 1;
            if self.place == Place::End {
                return Walk::Ended(at);
            }
        }
        Walk::On
    }

    fn step(&mut self, byte: u8, rules: &Rules) -> Result<Place, Refusal> {
        const WRONG: Refusal = Refusal::Malformed("the chunks of the body are not well formed");
        self.seen += 1;
        Ok(match (self.place, byte) {
            (Place::Size | Place::Extension, _) if self.seen > LINE => return Err(WRONG),
            (Place::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                // 15 digits never overflow, and no chunk is that long.
                if self.seen > 15 {
                    return Err(WRONG);
                }
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                self.left = self.left << 4 | u64::from(digit);
                Place::Size
            }
            (Place::Size, b';') if self.seen > 1 => Place::Extension,
            (Place::Size, b'\r') if self.seen > 1 => Place::SizeLf,
            (Place::Extension, b'\t' | b' '..=b'~') => Place::Extension,
            (Place::Extension, b'\r') => Place::SizeLf,
            (Place::SizeLf, b'\n') => {
                self.seen = 0;
                if self.left == 0 { Place::TrailerName } else { Place::Data }
            }
            (Place::DataCr, b'\r') => Place::DataLf,
            (Place::DataLf, b'\n') => {
                self.seen = 0;
                Place::Size
            }
            (Place::TrailerName | Place::TrailerValue, _)
                if self.seen > TRAILERS || self.trailers >= rules.limits.headers =>
            {
                return Err(Refusal::HeadTooLarge);
            }
            (Place::TrailerName, b'\r') if self.name.is_empty() => Place::EndLf,
            (Place::TrailerName, b':') if !self.name.is_empty() => {
                rules.trailer_name(&self.name)?;
                Place::TrailerValue
            }
            (Place::TrailerName, _) if is_token(byte) => {
                self.name.push(byte);
                Place::TrailerName
            }
            (Place::TrailerValue, b'\t' | b' '..=b'~' | 0x80..) => Place::TrailerValue,
            (Place::TrailerValue, b'\r') => Place::TrailerLf,
            (Place::TrailerLf, b'\n') => {
                self.trailers += 1;
                self.name.clear();
                Place::TrailerName
            }
            (Place::EndLf, b'\n') => Place::End,
            _ => return Err(WRONG),
        })
    }
}
