//! Numbers: converts any spelling to the one text of its exact decimal value.
//!
//! A value other than zero is `0.D × 10^n`, where the digits D neither start nor end with 0. D and n are found in the
//! text without any arithmetic on the value, so nothing is rounded. They are formatted as ECMAScript formats the
//! shortest digits of a double: plain up to 21 digits before the point and up to 6 after it, with an exponent
//! otherwise. The text can be parsed back to D and n, so two values never share a text.

use std::io::Write as _;

use super::error::InputRefusal;

/// What must be done with a number.
pub(super) enum Number {
    /// It is already canonical.
    AsItStands,
    /// It must be rewritten, by [`Spelling::write`].
    Rewritten(Spelling),
}

/// The positions of the parts of a number in the input.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spelling {
    negative: bool,
    /// Digits before the point: start and end.
    whole: (usize, usize),
    /// Digits after the point: start and end.
    fraction: (usize, usize),
    exponent: Exponent,
}

#[derive(Debug, Clone, Copy)]
enum Exponent {
    Value(i64),
    /// More than 18 digits. Only a zero may have that.
    Absurd,
}

/// The most digits before the point in a plain layout.
const PLAIN_DIGITS: usize = 21;
/// The most zeros between the point and the first other digit in a plain layout.
const PLAIN_ZEROS: usize = 5;

/// Reads the number at `at` and returns what must be done and where it ends.
#[inline]
pub(super) fn scan(input: &[u8], at: usize) -> Result<(Number, usize), (InputRefusal, usize)> {
    let negative = byte(input, at) == b'-';
    let whole = at + usize::from(negative);
    let point = digits(input, whole);
    let zero = byte(input, whole) == b'0';
    if point == whole || (zero && point > whole + 1) {
        return Err((InputRefusal::Number, whole));
    }
    let plain = point - whole <= PLAIN_DIGITS;
    match byte(input, point) {
        b'.' => {
            let end = digits(input, point + 1);
            if end == point + 1 {
                return Err((InputRefusal::Number, end));
            }
            let fraction = (point + 1, end);
            if matches!(byte(input, end), b'e' | b'E') {
                return exponent(input, end, negative, (whole, point), fraction);
            }
            let zeros = || input[point + 1..end].iter().take_while(|digit| **digit == b'0').count();
            if plain && input[end - 1] != b'0' && !(zero && zeros() > PLAIN_ZEROS) {
                return Ok((Number::AsItStands, end));
            }
            let spelling =
                Spelling { negative, whole: (whole, point), fraction, exponent: Exponent::Value(0) };
            Ok((Number::Rewritten(spelling), end))
        }
        b'e' | b'E' => exponent(input, point, negative, (whole, point), (point, point)),
        _ if plain && !(negative && zero) => Ok((Number::AsItStands, point)),
        _ => {
            let exponent = Exponent::Value(0);
            let spelling = Spelling { negative, whole: (whole, point), fraction: (point, point), exponent };
            Ok((Number::Rewritten(spelling), point))
        }
    }
}

#[cold]
fn exponent(
    input: &[u8],
    e: usize,
    negative: bool,
    whole: (usize, usize),
    fraction: (usize, usize),
) -> Result<(Number, usize), (InputRefusal, usize)> {
    let sign = byte(input, e + 1);
    let start = e + 1 + usize::from(matches!(sign, b'+' | b'-'));
    let end = digits(input, start);
    if end == start {
        return Err((InputRefusal::Number, end));
    }
    let zeros = input[start..end].iter().take_while(|digit| **digit == b'0').count();
    let exponent = match &input[start + zeros..end] {
        absurd if absurd.len() > 18 => Exponent::Absurd,
        digits => {
            let size = digits.iter().fold(0, |size, digit| size * 10 + i64::from(digit - b'0'));
            Exponent::Value(if sign == b'-' { -size } else { size })
        }
    };
    Ok((Number::Rewritten(Spelling { negative, whole, fraction, exponent }), end))
}

impl Spelling {
    /// Appends the canonical text. `scratch` is overwritten.
    #[cold]
    pub(super) fn write(
        &self,
        input: &[u8],
        scratch: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), InputRefusal> {
        let digits = scratch;
        digits.clear();
        digits.extend_from_slice(&input[self.whole.0..self.whole.1]);
        digits.extend_from_slice(&input[self.fraction.0..self.fraction.1]);
        let Some(first) = digits.iter().position(|digit| *digit != b'0') else {
            out.push(b'0');
            return Ok(());
        };
        let last = digits.iter().rposition(|digit| *digit != b'0').expect("there is a digit other than 0");
        let Exponent::Value(exponent) = self.exponent else { return Err(InputRefusal::Exponent) };
        // No overflow: the exponent has at most 18 digits, and lengths of slices are far below 10^18.
        let n = exponent + (self.whole.1 - self.whole.0) as i64 - first as i64;
        if self.negative {
            out.push(b'-');
        }
        lay_out(&digits[first..=last], n, out);
        Ok(())
    }
}

/// Writes `0.digits × 10^n` as ECMAScript's Number::toString does.
fn lay_out(digits: &[u8], n: i64, out: &mut Vec<u8>) {
    match n {
        1..=21 => {
            let n = n as usize;
            if digits.len() <= n {
                out.extend_from_slice(digits);
                out.resize(out.len() + n - digits.len(), b'0');
            } else {
                out.extend_from_slice(&digits[..n]);
                out.push(b'.');
                out.extend_from_slice(&digits[n..]);
            }
        }
        -5..=0 => {
            out.extend_from_slice(b"0.");
            out.resize(out.len() + n.unsigned_abs() as usize, b'0');
            out.extend_from_slice(digits);
        }
        _ => {
            out.push(digits[0]);
            if digits.len() > 1 {
                out.push(b'.');
                out.extend_from_slice(&digits[1..]);
            }
            write!(out, "e{:+}", n - 1).expect("a vector takes every write");
        }
    }
}

/// The byte at `at`, or 0 after the end: no number contains a 0 byte.
#[inline(always)]
fn byte(input: &[u8], at: usize) -> u8 {
    input.get(at).copied().unwrap_or(0)
}

/// Where the digits that start at `at` end.
#[inline(always)]
fn digits(input: &[u8], mut at: usize) -> usize {
    while byte(input, at).is_ascii_digit() {
        at += 1;
    }
    at
}
