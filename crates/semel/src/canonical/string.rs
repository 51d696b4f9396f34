//! Strings: their end, and the escapes of their characters.

use super::error::InputRefusal;
use crate::hex;

const ONES: u64 = u64::MAX / 255;
const HIGH: u64 = ONES * 0x80;

/// The position of the next byte of a string that cannot be copied: a quote, a backslash or a control character; or
/// the end of the input.
#[inline(always)]
pub(super) fn plain_until(input: &[u8], mut at: usize) -> usize {
    // Eight bytes at a time. A subtraction borrows into the bytes above the first hit only, so the lowest mark is right.
    while let Some(chunk) = input.get(at..).and_then(<[u8]>::first_chunk) {
        let word = u64::from_le_bytes(*chunk);
        let quote = word ^ (ONES * b'"' as u64);
        let backslash = word ^ (ONES * b'\\' as u64);
        let marks = (quote.wrapping_sub(ONES) & !quote)
            | (backslash.wrapping_sub(ONES) & !backslash)
            | (word.wrapping_sub(ONES * 0x20) & !word);
        let marks = marks & HIGH;
        if marks != 0 {
            return at + (marks.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while input.get(at).is_some_and(|byte| !matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
        at += 1;
    }
    at
}

/// Reads the `\u` escape at `at`, a pair of surrogates as one, and returns where it ends.
#[cold]
pub(super) fn unicode_escape(input: &[u8], at: usize) -> Result<(char, usize), (InputRefusal, usize)> {
    let unit = code_unit(input, at).ok_or((InputRefusal::Escape, at))?;
    if let Some(c) = char::from_u32(unit) {
        return Ok((c, at + 6));
    }
    let low = code_unit(input, at + 6);
    match (unit, low) {
        (0xd800..=0xdbff, Some(low @ 0xdc00..=0xdfff)) => {
            let c = char::from_u32(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00));
            Ok((c.expect("a pair of surrogates is a character"), at + 12))
        }
        _ => Err((InputRefusal::LoneSurrogate, at)),
    }
}

/// The number in `\uXXXX`.
fn code_unit(input: &[u8], at: usize) -> Option<u32> {
    let [b'\\', b'u', digits @ ..] = input.get(at..)?.first_chunk::<6>()? else { return None };
    digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | u32::from(hex::digit(*digit)?)))
}

/// Appends a character inside a string as RFC 8785 writes it.
pub(super) fn push_escaped(c: char, out: &mut Vec<u8>) {
    match c {
        '"' => out.extend_from_slice(b"\\\""),
        '\\' => out.extend_from_slice(b"\\\\"),
        '\u{8}' => out.extend_from_slice(b"\\b"),
        '\t' => out.extend_from_slice(b"\\t"),
        '\n' => out.extend_from_slice(b"\\n"),
        '\u{c}' => out.extend_from_slice(b"\\f"),
        '\r' => out.extend_from_slice(b"\\r"),
        '\0'..='\x1f' => {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            let code = c as usize;
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', DIGITS[code >> 4], DIGITS[code & 15]]);
        }
        _ => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

/// Appends the unescaped characters of a canonical string.
#[cold]
pub(super) fn unescape_canonical(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let (&sign, tail) = rest.split_first().expect("a canonical string does not end in a backslash");
        rest = tail;
        out.push(match sign {
            b'b' => 0x8,
            b't' => b'\t',
            b'n' => b'\n',
            b'f' => 0xc,
            b'r' => b'\r',
            b'u' => {
                let (digits, tail) = rest.split_at(4);
                rest = tail;
                let [_, code] = hex::read::<2>(digits).expect("a canonical escape has four hex digits");
                code
            }
            same => same,
        });
    }
}
