//! Damaged JSON, compared with a second reader.

use semel_testbed::fuzz::Fuzz;
use serde_json::Value;

use super::super::to_canonical;

/// True if two values are equal, up to the last digit of a number that binary floating point cannot represent.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => (a - b).abs() <= a.abs() * 1e-12,
            _ => false,
        },
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

#[test]
fn fuzz_canonical_json() {
    let tokens = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"a\":",
        "1e5",
        "-0",
        "0.1",
        "1E400",
        "null",
        "true",
        "\\u0000",
        "\\ud83d\\ude00",
        "\\ud800",
        "\u{feff}",
        "\u{e9}",
        "9007199254740993",
    ];
    let fuzz =
        Fuzz::new("canonical_json", include_str!("../../../fuzz/canonical_json.seeds")).tokens(&tokens);
    fuzz.run(|input| {
        let canonical = match to_canonical(input) {
            Ok(canonical) => canonical,
            // Without the position of the error: only the kind of error is compared.
            Err(error) => return Err(error.to_string().split(" at ").next().unwrap_or_default().to_owned()),
        };
        assert_eq!(to_canonical(&canonical).as_ref(), Ok(&canonical), "the canonical form is its own");
        if let Ok(value) = serde_json::from_slice::<Value>(input) {
            let read: Value = serde_json::from_slice(&canonical).expect("the canonical form is JSON");
            assert!(same(&value, &read), "another value");
        }
        Ok((canonical[0], canonical.len().ilog2(), canonical.len() == input.len()))
    });
}
