//! Values, and many spellings of each: a generator that is fast enough for millions of pairs.

use std::collections::BTreeMap;

/// SplitMix64: small, fast, and the same on every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A JSON value in the mathematical sense. Two are equal if and only if they are the same value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Number(Decimal),
    Text(String),
    Array(Vec<Value>),
    Object(BTreeMap<String, Value>),
}

/// `±digits × 10^exponent`; the digits neither start nor end with 0, and zero has none, no sign and no exponent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// Normalises any digits to the one form of their value.
    pub(super) fn new(negative: bool, digits: &str, exponent: i64) -> Self {
        let short = digits.trim_end_matches('0');
        let exponent = exponent + (digits.len() - short.len()) as i64;
        match short.trim_start_matches('0') {
            "" => Self { negative: false, digits: String::new(), exponent: 0 },
            digits => Self { negative, digits: digits.to_owned(), exponent },
        }
    }

    /// Reads a JSON number, slowly and simply, as the reference for the fast reader.
    pub(super) fn read(text: &str) -> Self {
        let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let exponent: i64 = exponent.parse().unwrap();
        Self::new(negative, &format!("{whole}{fraction}"), exponent - fraction.len() as i64)
    }

    pub(super) fn random(random: &mut Random) -> Self {
        let negative = random.one_in(3);
        match random.below(8) {
            0..=2 => Self::new(negative, &random.below(12).to_string(), 0),
            3 => {
                let near = random.pick(&[
                    1 << 53,
                    1 << 54,
                    u64::MAX as u128,
                    1 << 64,
                    1_000_000_000_000_000_000_000,
                ]);
                Self::new(negative, &(near + random.below(5) as u128 - 2).to_string(), 0)
            }
            4 => Self::new(negative, &random.next().to_string(), -(random.below(25) as i64)),
            5 => Self::new(
                negative,
                &format!("{}{}", random.next(), random.next()),
                random.below(9) as i64 - 30,
            ),
            6 => Self::new(negative, &random.below(1000).to_string(), random.below(1000) as i64 - 500),
            _ => Self::new(
                negative,
                &random.below(100).to_string(),
                random.pick(&[-9, -7, -6, 19, 20, 21, 22, 999_999_999_999]),
            ),
        }
    }

    /// A similar value.
    fn neighbour(&self, random: &mut Random) -> Self {
        match random.below(4) {
            0 if !self.digits.is_empty() => Self { negative: !self.negative, ..self.clone() },
            1 if !self.digits.is_empty() => {
                Self { exponent: self.exponent + random.pick(&[-1, 1]), ..self.clone() }
            }
            // One more digit, far after the others or just after them.
            2 => {
                let zeros = "0".repeat(random.below(20));
                let digits = format!("{}{zeros}1", self.digits);
                Self::new(self.negative, &digits, self.exponent - zeros.len() as i64 - 1)
            }
            // The last digit changed; 1 to 9, so that it stays the last.
            _ => {
                let mut digits = self.digits.clone();
                let last = digits.pop().map_or(0, |digit| digit as usize - '0' as usize);
                let other = (last + random.below(8)) % 9 + 1;
                Self::new(self.negative, &format!("{digits}{other}"), self.exponent)
            }
        }
    }

    /// Appends one of the many spellings of this value.
    pub(super) fn spell(&self, random: &mut Random, out: &mut String) {
        let mut digits = self.digits.clone();
        let mut exponent = self.exponent;
        if self.negative || (digits.is_empty() && random.one_in(2)) {
            out.push('-');
        }
        if digits.is_empty() {
            exponent = random.below(60) as i64 - 30;
        }
        if random.one_in(3) {
            let zeros = random.below(4);
            digits.push_str(&"0".repeat(zeros));
            exponent -= zeros as i64;
        }
        // Plain if that is not too long, and mostly without an exponent.
        if exponent.unsigned_abs() < 40 && !random.one_in(3) {
            if exponent >= 0 {
                digits.push_str(&"0".repeat(exponent as usize));
                exponent = 0;
            }
            let fraction = exponent.unsigned_abs() as usize;
            let digits = format!("{}{digits}", "0".repeat((fraction + 1).saturating_sub(digits.len())));
            let (whole, fraction) = digits.split_at(digits.len() - fraction);
            let whole = whole.trim_start_matches('0');
            out.push_str(if whole.is_empty() { "0" } else { whole });
            if !fraction.is_empty() {
                out.push('.');
                out.push_str(fraction);
            }
            return;
        }
        // With the point anywhere among the digits.
        let point = random.below(digits.len() + 1);
        let (whole, fraction) = digits.split_at(point);
        let whole = whole.trim_start_matches('0');
        out.push_str(if whole.is_empty() { "0" } else { whole });
        if !fraction.is_empty() {
            out.push('.');
            out.push_str(fraction);
        }
        exponent += fraction.len() as i64;
        out.push(random.pick(&['e', 'E']));
        out.push_str(if exponent < 0 { "-" } else { random.pick(&["", "+"]) });
        out.push_str(random.pick(&["", "", "0", "000"]));
        out.push_str(&exponent.unsigned_abs().to_string());
    }
}

/// Few characters, so that texts collide often; from every class that escaping and sorting treat differently.
const CHARACTERS: [char; 18] = [
    'a',
    'b',
    'b',
    '0',
    ' ',
    '/',
    '"',
    '\\',
    '\n',
    '\0',
    '\u{1f}',
    '\u{7f}',
    'é',
    'e',
    '\u{301}',
    '\u{ffff}',
    '😂',
    '\u{10ffff}',
];

fn random_text(random: &mut Random, longest: usize) -> String {
    (0..random.below(longest + 1)).map(|_| random.pick(&CHARACTERS)).collect()
}

impl Value {
    pub(super) fn random(random: &mut Random, depth: usize) -> Self {
        match random.below(if depth == 0 { 6 } else { 10 }) {
            0 => Self::Null,
            1 => Self::Bool(random.one_in(2)),
            2 | 3 => Self::Number(Decimal::random(random)),
            4 | 5 => Self::Text(random_text(random, 12)),
            _ => Self::nested(random, depth),
        }
    }

    /// An array or an object; `depth` is more than 0.
    pub(super) fn nested(random: &mut Random, depth: usize) -> Self {
        if random.one_in(3) {
            return Self::Array((0..random.below(5)).map(|_| Self::random(random, depth - 1)).collect());
        }
        let names = random.pick(&[1, 3, 12]);
        let members =
            (0..random.below(7)).map(|_| (random_text(random, names), Self::random(random, depth - 1)));
        Self::Object(members.collect())
    }

    /// A value that differs from this one in one place.
    pub(super) fn mutated(&self, random: &mut Random) -> Self {
        match self {
            Self::Array(elements) if !elements.is_empty() && !random.one_in(4) => {
                let mut elements = elements.clone();
                let at = random.below(elements.len());
                match random.below(4) {
                    0 => drop(elements.remove(at)),
                    1 => elements.insert(at, Self::Null),
                    2 => elements.swap(at, 0),
                    _ => elements[at] = elements[at].mutated(random),
                }
                Self::Array(elements)
            }
            Self::Object(members) if !members.is_empty() && !random.one_in(4) => {
                let mut members = members.clone();
                let name = members.keys().nth(random.below(members.len())).unwrap().clone();
                let value = members.remove(&name).unwrap();
                match random.below(4) {
                    0 => {}
                    1 => drop(members.insert(format!("{name}{}", random.pick(&CHARACTERS)), value)),
                    _ => drop(members.insert(name, value.mutated(random))),
                }
                Self::Object(members)
            }
            Self::Number(number) => Self::Number(number.neighbour(random)),
            Self::Text(text) => {
                let mut characters: Vec<_> = text.chars().collect();
                let at = random.below(characters.len() + 1);
                if at < characters.len() && random.one_in(2) {
                    characters.remove(at);
                } else {
                    characters.insert(at, random.pick(&CHARACTERS));
                }
                Self::Text(characters.into_iter().collect())
            }
            Self::Bool(value) => Self::Bool(!value),
            Self::Null | Self::Array(_) | Self::Object(_) => random.pick(&[0, 1, 2, 3, 4]).into(),
        }
    }

    /// Appends one of the many spellings of this value.
    pub(super) fn spell(&self, random: &mut Random, out: &mut String) {
        space(random, out);
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Number(number) => number.spell(random, out),
            Self::Text(text) => spell_text(text, random, out),
            Self::Array(elements) => {
                out.push('[');
                for (index, element) in elements.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    element.spell(random, out);
                }
                if elements.is_empty() {
                    space(random, out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                if random.one_in(2) {
                    for last in (1..members.len()).rev() {
                        members.swap(last, random.below(last + 1));
                    }
                }
                out.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    space(random, out);
                    spell_text(name, random, out);
                    space(random, out);
                    out.push(':');
                    value.spell(random, out);
                }
                if members.is_empty() {
                    space(random, out);
                }
                out.push('}');
            }
        }
        space(random, out);
    }
}

/// The small values that replace another one.
impl From<usize> for Value {
    fn from(which: usize) -> Self {
        match which {
            0 => Self::Text("null".to_owned()),
            1 => Self::Number(Decimal::new(false, "", 0)),
            2 => Self::Bool(false),
            3 => Self::Array(vec![Self::Null]),
            _ => Self::Object([(String::new(), Self::Null)].into()),
        }
    }
}

fn space(random: &mut Random, out: &mut String) {
    if random.one_in(4) {
        out.push_str(random.pick(&[" ", "\n", "\t", "\r\n", "  \n  "]));
    }
}

fn spell_text(text: &str, random: &mut Random, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        let must = matches!(c, '"' | '\\' | '\0'..='\x1f');
        if !must && !random.one_in(6) {
            out.push(c);
            continue;
        }
        match c {
            '"' | '\\' | '/' if random.one_in(2) => {
                out.push('\\');
                out.push(c);
            }
            '\n' if random.one_in(2) => out.push_str("\\n"),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let escape =
                        if random.one_in(2) { format!("\\u{unit:04x}") } else { format!("\\u{unit:04X}") };
                    out.push_str(&escape);
                }
            }
        }
    }
    out.push('"');
}
