//! Other implementations as references: the form against serde_json_canonicalizer, acceptance against serde_json.

use serde_json::{Map, Number, Value};

use super::super::{InputRefusal, to_canonical};
use super::generate::{self, Random};
use super::{canon, rounds};

/// A document whose numbers are doubles or safe integers, for which RFC 8785 and Semel must agree.
fn document(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth == 0 { 6 } else { 10 }) {
        0 => Value::Null,
        1 => Value::Bool(random.one_in(2)),
        2 => Value::from((random.next() >> 11) as i64 - (1 << 52)),
        3 => Number::from_f64(f64::from_bits(random.next())).map_or(Value::Null, Value::Number),
        4 => Value::from(random.below(100_000) as f64 / 100.0),
        5 => Value::from(text(random)),
        6 | 7 => (0..random.below(5)).map(|_| document(random, depth - 1)).collect(),
        _ => {
            let members = (0..random.below(9)).map(|_| (text(random), document(random, depth - 1)));
            Value::Object(members.collect::<Map<_, _>>())
        }
    }
}

fn text(random: &mut Random) -> String {
    let character = |random: &mut Random| {
        let code = match random.below(6) {
            0 => random.below(0x20),
            1 => random.below(0x800),
            2 => 0xe000 + random.below(0x2000),
            3 => 0x10000 + random.below(0x100000),
            _ => 0x20 + random.below(0x60),
        };
        char::from_u32(code as u32).unwrap_or('x')
    };
    (0..random.below(14)).map(|_| character(random)).collect()
}

#[test]
fn agrees_with_another_implementation_of_rfc_8785() {
    let mut random = Random(1);
    for _ in 0..rounds(5_000, 500_000) {
        let document = document(&mut random, 4);
        let expected = serde_json_canonicalizer::to_string(&document).unwrap();
        assert_eq!(canon(serde_json::to_string(&document).unwrap()), expected);
        assert_eq!(canon(serde_json::to_string_pretty(&document).unwrap()), expected);
        assert_eq!(canon(&expected), expected);
    }
}

// Damaged documents: nothing panics, and every difference between the two readers has a known reason.
#[test]
fn accepts_what_another_reader_accepts() {
    let mut random = Random(2);
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..rounds(30_000, 3_000_000) {
        let mut text = String::new();
        generate::Value::random(&mut random, 3).spell(&mut random, &mut text);
        let mut bytes = text.into_bytes();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => drop(bytes.remove(at)),
                1 => bytes.insert(at, random.pick(b"{}[],:\"\\u0123eE+-. \n\x00\x7f\x80\xff")),
                2 => bytes[at] ^= 1 << random.below(8),
                _ => bytes.truncate(at + 1),
            }
            if bytes.is_empty() {
                bytes.push(b' ');
            }
        }
        let other = serde_json::from_slice::<Value>(&bytes);
        let shown = String::from_utf8_lossy(&bytes);
        match (to_canonical(&bytes), other) {
            (Ok(_), Ok(_)) => taken += 1,
            (Err(_), Err(_)) => refused += 1,
            // It reads numbers as doubles.
            (Ok(_), Err(error)) => {
                assert!(error.to_string().starts_with("number out of range"), "{error}: {shown}");
            }
            // It uses the last of two members, and rounds to zero.
            (Err(error), Ok(_)) => {
                let known = matches!(error.refusal(), InputRefusal::DuplicateMember | InputRefusal::Exponent);
                assert!(known, "{error}: {shown}");
            }
        }
    }
    assert!(taken > 1000 && refused > 1000, "{taken} taken, {refused} refused");
}
