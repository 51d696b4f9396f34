//! Follows a chunked body to its end, without changing it.

use super::head::is_token;
use super::refusal::Refusal;
use super::rules::ListenerRules;

/// Maximum length of a chunk-size line, including extensions.
const LINE: u32 = 256;

/// Maximum size of the trailer section. hyper accepts twice that, and gives no reason when it stops.
const TRAILERS: u32 = 8 * 1024;

/// The position in a chunked body after the last byte.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    place: ChunkPlace,
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
enum ChunkPlace {
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
pub(super) enum ChunkProgress {
    /// All bytes belong to the body, which continues.
    On,
    /// The body ended after this number of bytes.
    Ended(usize),
    /// This number of bytes was valid, the next one was not.
    Wrong(usize, Refusal),
}

impl Chunks {
    pub(super) fn walk(&mut self, bytes: &[u8], rules: &ListenerRules) -> ChunkProgress {
        let mut at = 0;
        while at < bytes.len() {
            if self.place == ChunkPlace::Data {
                let left = usize::try_from(self.left).unwrap_or(usize::MAX);
                let step = left.min(bytes.len() - at);
                at += step;
                self.left -= step as u64;
                if self.left == 0 {
                    self.place = ChunkPlace::DataCr;
                }
                continue;
            }
            match self.step(bytes[at], rules) {
                Ok(place) => self.place = place,
                Err(refusal) => return ChunkProgress::Wrong(at, refusal),
            }
            at += 1;
            if self.place == ChunkPlace::End {
                return ChunkProgress::Ended(at);
            }
        }
        ChunkProgress::On
    }

    fn step(&mut self, byte: u8, rules: &ListenerRules) -> Result<ChunkPlace, Refusal> {
        const WRONG: Refusal = Refusal::Malformed("the chunks of the body are not well formed");
        self.seen += 1;
        Ok(match (self.place, byte) {
            (ChunkPlace::Size | ChunkPlace::Extension, _) if self.seen > LINE => return Err(WRONG),
            (ChunkPlace::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                // 15 digits never overflow, and no chunk is that long.
                if self.seen > 15 {
                    return Err(WRONG);
                }
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                self.left = self.left << 4 | u64::from(digit);
                ChunkPlace::Size
            }
            (ChunkPlace::Size, b';') if self.seen > 1 => ChunkPlace::Extension,
            (ChunkPlace::Size, b'\r') if self.seen > 1 => ChunkPlace::SizeLf,
            (ChunkPlace::Extension, b'\t' | b' '..=b'~') => ChunkPlace::Extension,
            (ChunkPlace::Extension, b'\r') => ChunkPlace::SizeLf,
            (ChunkPlace::SizeLf, b'\n') => {
                self.seen = 0;
                if self.left == 0 { ChunkPlace::TrailerName } else { ChunkPlace::Data }
            }
            (ChunkPlace::DataCr, b'\r') => ChunkPlace::DataLf,
            (ChunkPlace::DataLf, b'\n') => {
                self.seen = 0;
                ChunkPlace::Size
            }
            (ChunkPlace::TrailerName | ChunkPlace::TrailerValue, _)
                if self.seen > TRAILERS || self.trailers >= rules.limits.headers =>
            {
                return Err(Refusal::HeadTooLarge);
            }
            (ChunkPlace::TrailerName, b'\r') if self.name.is_empty() => ChunkPlace::EndLf,
            (ChunkPlace::TrailerName, b':') if !self.name.is_empty() => {
                rules.trailer_name(&self.name)?;
                ChunkPlace::TrailerValue
            }
            (ChunkPlace::TrailerName, _) if is_token(byte) => {
                self.name.push(byte);
                ChunkPlace::TrailerName
            }
            (ChunkPlace::TrailerValue, b'\t' | b' '..=b'~' | 0x80..) => ChunkPlace::TrailerValue,
            (ChunkPlace::TrailerValue, b'\r') => ChunkPlace::TrailerLf,
            (ChunkPlace::TrailerLf, b'\n') => {
                self.trailers += 1;
                self.name.clear();
                ChunkPlace::TrailerName
            }
            (ChunkPlace::EndLf, b'\n') => ChunkPlace::End,
            _ => return Err(WRONG),
        })
    }
}
