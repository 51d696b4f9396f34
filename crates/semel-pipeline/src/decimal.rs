//! Sums of decimal numbers of any size, digit by digit: nothing is rounded.
//!
//! The crate `bigdecimal` also reads numbers that JSON refuses (`+1`, `.5`), and has no limit on the digits of an exponent.

/// The most digits of a sum: a limit on the work.
const LONGEST: usize = 1_000;

/// `one + other`, both JSON numbers; `None` if one of them is not, or is too long.
///
/// The sum has as many digits after the point as the longer of the two: `1.50 + 0.5` is `2.00`.
pub(crate) fn sum(one: &str, other: &str) -> Option<String> {
    let (mut one, mut other) = (Decimal::read(one)?, Decimal::read(other)?);
    let scale = one.scale.max(other.scale);
    one.widen(scale);
    other.widen(scale);
    let total = if one.negative == other.negative {
        Decimal { negative: one.negative, digits: add(&one.digits, &other.digits), scale }
    } else if one.is_at_least(&other) {
        Decimal { negative: one.negative, digits: subtract(&one.digits, &other.digits), scale }
    } else {
        Decimal { negative: other.negative, digits: subtract(&other.digits, &one.digits), scale }
    };
    Some(total.write())
}

struct Decimal {
    negative: bool,
    /// The last one first.
    digits: Vec<u8>,
    /// How many of them are after the decimal point.
    scale: usize,
}

impl Decimal {
    fn read(text: &str) -> Option<Self> {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((_, "")) => return None,
            Some((whole, fraction)) => (whole, fraction),
            None => (mantissa, ""),
        };
        let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        // As in JSON: no leading zeros.
        let proper = !whole.is_empty() && (whole == "0" || !whole.starts_with('0'));
        let shift = usize::try_from(exponent.unsigned_abs()).ok()?;
        if !proper || !plain(whole) || !plain(fraction) || mantissa.len().saturating_add(shift) > LONGEST {
            return None;
        }
        let mut digits: Vec<u8> =
            fraction.bytes().rev().chain(whole.bytes().rev()).map(|b| b - b'0').collect();
        let mut scale = fraction.len();
        if exponent < 0 {
            scale += shift;
        } else if shift <= scale {
            scale -= shift;
        } else {
            digits.splice(0..0, std::iter::repeat_n(0, shift - scale));
            scale = 0;
        }
        Some(Self { negative, digits, scale })
    }

    fn widen(&mut self, scale: usize) {
        self.digits.splice(0..0, std::iter::repeat_n(0, scale - self.scale));
        self.scale = scale;
    }

    fn is_at_least(&self, other: &Self) -> bool {
        let length = self.digits.len().max(other.digits.len());
        let at = |number: &Self, place: usize| number.digits.get(place).copied().unwrap_or(0);
        for place in (0..length).rev() {
            let (one, other) = (at(self, place), at(other, place));
            if one != other {
                return one > other;
            }
        }
        true
    }

    fn write(mut self) -> String {
        self.digits.resize(self.digits.len().max(self.scale + 1), 0);
        while self.digits.len() > self.scale + 1 && self.digits.last() == Some(&0) {
            self.digits.pop();
        }
        let mut text = String::with_capacity(self.digits.len() + 2);
        if self.negative && self.digits.iter().any(|digit| *digit != 0) {
            text.push('-');
        }
        for (place, digit) in self.digits.iter().enumerate().rev() {
            text.push(char::from(b'0' + digit));
            if place == self.scale && place > 0 {
                text.push('.');
            }
        }
        text
    }
}

fn add(one: &[u8], other: &[u8]) -> Vec<u8> {
    let mut sum = Vec::with_capacity(one.len().max(other.len()) + 1);
    let mut carry = 0;
    for place in 0..one.len().max(other.len()) {
        let digit = one.get(place).unwrap_or(&0) + other.get(place).unwrap_or(&0) + carry;
        sum.push(digit % 10);
        carry = digit / 10;
    }
    sum.push(carry);
    sum
}

/// `larger - smaller`, digit by digit.
fn subtract(larger: &[u8], smaller: &[u8]) -> Vec<u8> {
    let length = larger.len().max(smaller.len());
    let mut difference = Vec::with_capacity(length);
    let mut borrow = 0;
    for place in 0..length {
        let take = smaller.get(place).unwrap_or(&0) + borrow;
        let from = *larger.get(place).unwrap_or(&0);
        borrow = u8::from(from < take);
        difference.push(from + 10 * borrow - take);
    }
    difference
}

#[cfg(test)]
mod tests {
    use super::sum;

    #[test]
    fn sums_are_exact() {
        for (one, other, expected) in [
            ("0", "0", "0"),
            ("9007199254740993", "1", "9007199254740994"),
            ("9223372036854775807", "9223372036854775807", "18446744073709551614"),
            ("0.1", "0.2", "0.3"),
            ("1.50", "0.5", "2.00"),
            ("-1", "1", "0"),
            ("1", "-1.25", "-0.25"),
            ("-5", "7", "2"),
            ("99.99", "0.01", "100.00"),
            ("1e3", "1", "1001"),
            ("1.5e1", "0", "15"),
            ("1E+2", "-1e-2", "99.99"),
            ("-0", "0", "0"),
        ] {
            assert_eq!(sum(one, other).as_deref(), Some(expected), "{one} + {other}");
            assert_eq!(sum(other, one).as_deref(), Some(expected), "{other} + {one}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for wrong in
            ["", "-", "+1", "01", "1.", ".5", "1e", "1e99999", "0x1", "NaN", "\"1\"", "[]", " 1", "--1"]
        {
            assert_eq!(sum(wrong, "1"), None, "{wrong}");
        }
    }

    #[test]
    fn agrees_with_wide_integers() {
        let mut seed = 7_u64;
        for _ in 0..2_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (one, other) = (
                i128::from(seed.cast_signed()),
                i128::from(seed.rotate_left(29).cast_signed()) >> (seed % 60),
            );
            assert_eq!(sum(&one.to_string(), &other.to_string()), Some((one + other).to_string()));
        }
    }
}
