//! Numbers against an exact reading of their text, and against ECMAScript's text of every double.

use super::generate::{Decimal, Random};
use super::{canon, rounds};

/// A random JSON number, most of them of a shape that some reader rounds.
fn random_number(random: &mut Random) -> String {
    let mut text = String::new();
    Decimal::random(random).spell(random, &mut text);
    text
}

// The form preserves the exact value, and equal values have equal forms.
#[test]
fn a_number_keeps_its_exact_value() {
    let mut random = Random(53);
    let mut equal = 0;
    for _ in 0..rounds(30_000, 2_000_000) {
        let (one, other) = (random_number(&mut random), random_number(&mut random));
        let (one_form, other_form) = (canon(&one), canon(&other));
        assert_eq!(Decimal::read(&one_form), Decimal::read(&one), "{one}");
        let same = Decimal::read(&one) == Decimal::read(&other);
        assert_eq!(one_form == other_form, same, "{one} and {other}");
        assert_eq!(canon(&one_form), one_form);
        equal += usize::from(same);
    }
    assert!(equal > 100, "the pairs never met");
}

// The RFC's text is used exactly if it has the same value.
#[test]
fn the_rfc_form_is_taken_if_it_is_exact() {
    let mut random = Random(754);
    let (mut exact, mut folded) = (0, 0);
    for _ in 0..rounds(30_000, 2_000_000) {
        let text = random_number(&mut random);
        let double: f64 = text.parse().unwrap();
        if !double.is_finite() {
            continue;
        }
        let rfc = serde_json_canonicalizer::to_string(&double).unwrap();
        if Decimal::read(&rfc) == Decimal::read(&text) {
            exact += 1;
            assert_eq!(canon(&text), rfc, "{text}");
        } else {
            folded += 1;
            assert_ne!(canon(&text), rfc, "{text}");
        }
    }
    assert!(exact > 1000 && folded > 1000, "{exact} exact, {folded} folded");
}

#[test]
fn every_double_has_its_ecmascript_text() {
    let mut random = Random(262);
    for _ in 0..rounds(30_000, 2_000_000) {
        let double = f64::from_bits(random.next());
        if double.is_finite() {
            let expected = serde_json_canonicalizer::to_string(&double).unwrap();
            // Rust's own `{:e}` is not suitable: of two equally short and near texts it picks the odd one.
            let mut text = String::new();
            Decimal::read(&expected).spell(&mut random, &mut text);
            assert_eq!(canon(&text), expected, "{text}");
            assert_eq!(canon(&expected), expected);
            assert_eq!(canon(serde_json::to_string(&double).unwrap()), expected);
        }
    }
}

// The reference reader itself is exact.
#[test]
fn the_slow_reading_is_right() {
    let same =
        [["100", "1e2"], ["0.50", "5E-1"], ["-0.0e9", "0"], ["0012e-1".trim_start_matches('0'), "1.2"]];
    for [one, other] in same {
        assert_eq!(Decimal::read(one), Decimal::read(other));
    }
    for [one, other] in
        [["9007199254740992", "9007199254740993"], ["1", "-1"], ["1e400", "1e401"], ["0", "1e-400"]]
    {
        assert_ne!(Decimal::read(one), Decimal::read(other));
    }
}
