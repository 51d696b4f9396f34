//! The known failures of canonical JSON, by name.

use super::super::{CanonicalLimits, Canonicalizer, Exclusions, InputRefusal, canonicalize, to_canonical};
use super::canon;
use crate::fingerprint::Payload;

fn refusal(text: impl AsRef<[u8]>) -> (InputRefusal, usize) {
    let text = text.as_ref();
    let error = to_canonical(text).expect_err(&String::from_utf8_lossy(text));
    let mut out = b"kept".to_vec();
    canonicalize(text, CanonicalLimits::DEFAULT, &Exclusions::none(), &mut out).unwrap_err();
    assert_eq!(out, b"kept", "a refused input leaves the output as it was");
    (error.refusal(), error.position())
}

/// Exact payloads accept any bytes and distinguish all of them.
fn exact_differ(texts: &[&[u8]]) {
    for (i, one) in texts.iter().enumerate() {
        for other in &texts[i + 1..] {
            assert_ne!(Payload::exact(&[one]), Payload::exact(&[other]));
        }
    }
}

#[test]
fn dup_members() {
    assert_eq!(refusal(r#"{"a":1,"a":2}"#), (InputRefusal::DuplicateMember, 7));
    assert_eq!(refusal(r#"{"a":1,"a":1}"#), (InputRefusal::DuplicateMember, 7));
    assert_eq!(refusal(r#"{"a":1,"b":2,"\u0061":3}"#), (InputRefusal::DuplicateMember, 13));
    assert_eq!(refusal(r#"{"\n":1,"\u000a":2}"#), (InputRefusal::DuplicateMember, 8));
    assert_eq!(refusal(r#"{"é":1,"\u00e9":2}"#).0, InputRefusal::DuplicateMember);
    assert_eq!(refusal(r#"{"\ud83d\ude02":1,"😂":2}"#).0, InputRefusal::DuplicateMember);
    assert_eq!(refusal(r#"{"\/":1,"/":2}"#).0, InputRefusal::DuplicateMember);
    assert_eq!(refusal(r#"[{"x":{"":1,"b":0,"":2}}]"#).0, InputRefusal::DuplicateMember);
    assert_eq!(
        refusal(r#"{"a very long name, one":1,"b":2,"a very long name, one":3}"#).0,
        InputRefusal::DuplicateMember
    );
    // Similar names are not duplicates.
    assert_eq!(canon(r#"{"a\u0000":1,"a":2,"aa":3}"#), r#"{"a":2,"a\u0000":1,"aa":3}"#);
    assert_eq!(canon(r#"{"\\u0061":1,"a":2}"#), r#"{"\\u0061":1,"a":2}"#);
    assert_eq!(canon(r#"{"a":{"a":{"a":1}}}"#), r#"{"a":{"a":{"a":1}}}"#);
    assert_eq!(canon(r#"[{"a":1},{"a":1}]"#), r#"[{"a":1},{"a":1}]"#);
}

#[test]
fn number_forms() {
    let ones = ["1", "1.0", "1e0", "1E+0", "1.000e-0", "10e-1", "0.1e1", "0.01E2", "100e-00002"];
    assert!(ones.iter().all(|one| canon(one) == "1"));
    let zeros = [
        "0",
        "-0",
        "0.0",
        "-0.0",
        "0e5",
        "-0e-99999999999999999999999999",
        "0.000E+99999999999999999999999999",
    ];
    assert!(zeros.iter().all(|zero| canon(zero) == "0"));
    exact_differ(&ones.map(str::as_bytes));
    exact_differ(&zeros.map(str::as_bytes));
    for (input, expected) in [
        ("-1.50", "-1.5"),
        ("100", "100"),
        ("1e20", "100000000000000000000"),
        ("1e21", "1e+21"),
        ("123e21", "1.23e+23"),
        ("100000000000000000000000", "1e+23"),
        ("0.000001", "0.000001"),
        ("0.0000001", "1e-7"),
        ("-0.00000012300", "-1.23e-7"),
        ("12e-8", "1.2e-7"),
        ("12e-7", "0.0000012"),
    ] {
        assert_eq!(canon(input), expected);
    }
    for wrong in [
        "01", "-01", "00", "1.", "-", ".5", "+1", "1e", "1e+", "1.e1", "0x1", "1_0", "- 1", "--1", "1.2.3",
        "00.5",
    ] {
        to_canonical(wrong.as_bytes()).expect_err(wrong);
        to_canonical(format!("[{wrong}]").as_bytes()).expect_err(wrong);
    }
    assert_eq!(refusal("[01]"), (InputRefusal::Number, 1));
    assert_eq!(refusal("1."), (InputRefusal::End, 2));
    for word in ["NaN", "Infinity", "-Infinity", "nan", "inf", "True", "nul", "nulll", "undefined"] {
        to_canonical(word.as_bytes()).expect_err(word);
    }
}

// A fingerprint that reads numbers as doubles confuses two amounts.
#[test]
fn big_numbers() {
    // All different values, many of them the same double.
    let numbers = [
        "9007199254740991",
        "9007199254740992",
        "9007199254740993",
        "9007199254740994",
        "18446744073709551615",
        "18446744073709551616",
        "18446744073709551617",
        "18446744073709552000",
        "100000000000000000000000000000000000000000000000001",
        "1e50",
        "1e308",
        "1e309",
        "1e400",
        "1e401",
        "1e999999999999",
        "1e999999999999999999",
        "1e-999999999999999999",
        "1e-400",
        "0",
        "5e-324",
        "4.9e-324",
        "2e-324",
        "0.1",
        "0.1000000000000000055",
        "0.1000000000000000055511151231257827",
        "1.000000000000001466",
        "1.0000000000000015",
        "0.30000000000000004",
        "0.3",
    ];
    let texts = numbers.map(canon);
    for (i, one) in texts.iter().enumerate() {
        for (j, other) in texts.iter().enumerate().skip(i + 1) {
            assert_ne!(one, other, "{} and {}", numbers[i], numbers[j]);
        }
    }
    for (input, expected) in [
        ("9007199254740993", "9007199254740993"),
        ("9007199254740993.0", "9007199254740993"),
        ("9.007199254740993e15", "9007199254740993"),
        ("18446744073709551617", "18446744073709551617"),
        ("1e400", "1e+400"),
        ("10.0e399", "1e+400"),
        ("1e999999999999999999", "1e+999999999999999999"),
        ("0.1e1000000000000000000", "REFUSED"),
        ("0.10000000000000000550", "0.1000000000000000055"),
        ("12345678901234567890123", "1.2345678901234567890123e+22"),
    ] {
        if expected == "REFUSED" {
            assert_eq!(refusal(input), (InputRefusal::Exponent, 0));
        } else {
            assert_eq!(canon(input), expected);
        }
    }
    assert_eq!(refusal("[1, 1e99999999999999999999]"), (InputRefusal::Exponent, 4));
    assert_eq!(refusal("[1e-1000000000000000000]"), (InputRefusal::Exponent, 1));
    assert_eq!(canon("1e0000000000000000000000000000000000007"), "10000000");
    // A zero in front of every digit, and a million digits.
    let long = format!("0.{}1e1000001", "0".repeat(1_000_000));
    assert_eq!(canon(long), "1");
}

#[test]
fn escapes_vs_normalisation() {
    assert_eq!(canon(r#""\u00e9""#), canon("\"é\""));
    assert_eq!(canon(r#""\u00E9\ud83d\uDE02\/\u0041""#), "\"é😂/A\"");
    assert_ne!(canon("\"é\""), canon("\"e\u{301}\""));
    assert_ne!(canon("\"Å\""), canon("\"\u{212b}\""));
    let controls = r#""\u0000\u0001\u0008\u0009\u000A\u000b\u000C\u000d\u001F\u0022\u005C\u007f\u2028""#;
    let expected = "\"\\u0000\\u0001\\b\\t\\n\\u000b\\f\\r\\u001f\\\"\\\\\u{7f}\u{2028}\"";
    assert_eq!(canon(controls), expected);
    assert_eq!(canon(r#""\b\t\n\f\r\"\\""#), r#""\b\t\n\f\r\"\\""#);
    assert_eq!(canon(r#"{"\"\\\u0001\/":"\u0022"}"#), r#"{"\"\\\u0001/":"\""}"#);
    for wrong in
        [r#""\x41""#, r#""\u12""#, r#""\u12g4""#, r#""\U0041""#, r#""\u+041""#, r#""\""#, r#""\"#, r#""\'""#]
    {
        to_canonical(wrong.as_bytes()).expect_err(wrong);
    }
    assert_eq!(refusal(r#"["\q"]"#), (InputRefusal::Escape, 2));
    assert_eq!(refusal("[\"abcdefgh\tijk\"]"), (InputRefusal::ControlCharacter, 10));
    assert_eq!(refusal("\"a\0\""), (InputRefusal::ControlCharacter, 2));
}

#[test]
fn lone_surrogate() {
    for text in [
        r#""\ud800""#,
        r#""\udc00""#,
        r#""\ud800x""#,
        r#""\ud800\u0041""#,
        r#""\ud800\ud800""#,
        r#""\udc00\ud800""#,
        r#""\ud800\n""#,
        r#""\udfff\udfff""#,
    ] {
        assert_eq!(refusal(text), (InputRefusal::LoneSurrogate, 1), "{text}");
    }
    assert_eq!(refusal(r#"{"\ud83d":1}"#), (InputRefusal::LoneSurrogate, 2));
    // As bytes (CESU-8) it is not UTF-8 either.
    assert_eq!(refusal(b"\"\xed\xa0\x80\""), (InputRefusal::InvalidUtf8, 1));
    exact_differ(&[br#""\ud800""#, br#""\udc00""#]);
}

#[test]
fn bom() {
    assert_eq!(refusal(b"\xef\xbb\xbf{}"), (InputRefusal::ByteOrderMark, 0));
    assert_eq!(refusal(b"\xff\xfe{\0}\0"), (InputRefusal::InvalidUtf8, 0));
    assert_eq!(refusal("{}\u{feff}").0, InputRefusal::TrailingData);
    // Inside a string it is a character like others.
    assert_eq!(canon("\"\u{feff}\""), "\"\u{feff}\"");
    exact_differ(&[b"\xef\xbb\xbf{}", b"{}"]);
}

#[test]
fn invalid_utf8() {
    assert_eq!(refusal(b"{\"a\":\"\xff\"}"), (InputRefusal::InvalidUtf8, 6));
    assert_eq!(refusal(b"\"\xc0\xaf\"").0, InputRefusal::InvalidUtf8);
    assert_eq!(refusal(b"\"\xe2\x82\"").0, InputRefusal::InvalidUtf8);
    assert_eq!(refusal(b"\"\xf5\x80\x80\x80\"").0, InputRefusal::InvalidUtf8);
    assert_eq!(refusal(b"[1]\x80").0, InputRefusal::InvalidUtf8);
    exact_differ(&[b"\"\xff\"", b"\"\xfe\""]);
}

#[test]
fn trailing_data() {
    assert_eq!(refusal("{}{}"), (InputRefusal::TrailingData, 2));
    assert_eq!(refusal("1 2"), (InputRefusal::TrailingData, 2));
    assert_eq!(refusal("null,"), (InputRefusal::TrailingData, 4));
    assert_eq!(refusal("[]]"), (InputRefusal::TrailingData, 2));
    assert_eq!(refusal("\"a\"\0"), (InputRefusal::TrailingData, 3));
    assert_eq!(refusal("1\u{a0}").0, InputRefusal::TrailingData);
    assert_eq!(refusal("{} // comment"), (InputRefusal::TrailingData, 3));
    assert_eq!(canon("\t[ ]\r\n "), "[]");
    exact_differ(&[b"{}", b"{}{}", b"{} "]);
}

#[test]
fn syntax_is_strict() {
    for (text, wanted, position) in [
        ("[1,]", InputRefusal::Expected("a value"), 3),
        ("[,1]", InputRefusal::Expected("a value"), 1),
        ("[1 2]", InputRefusal::Expected("',' or ']'"), 3),
        ("{\"a\":1,}", InputRefusal::Expected("a member name"), 7),
        ("{,}", InputRefusal::Expected("a member name"), 1),
        ("{a:1}", InputRefusal::Expected("a member name"), 1),
        ("{'a':1}", InputRefusal::Expected("a member name"), 1),
        ("{\"a\" 1}", InputRefusal::Expected("':'"), 5),
        ("{\"a\":}", InputRefusal::Expected("a value"), 5),
        ("{\"a\":1 \"b\":2}", InputRefusal::Expected("',' or '}'"), 7),
        ("[1}", InputRefusal::Expected("',' or ']'"), 2),
        ("{\"a\":1]", InputRefusal::Expected("',' or '}'"), 6),
        ("]", InputRefusal::Expected("a value"), 0),
        ("tru!", InputRefusal::Expected("a value"), 0),
        ("\0", InputRefusal::Expected("a value"), 0),
        ("\u{b}1", InputRefusal::Expected("a value"), 0),
        ("", InputRefusal::End, 0),
        ("  ", InputRefusal::End, 2),
        ("[", InputRefusal::End, 1),
        ("[1", InputRefusal::End, 2),
        ("{\"a\"", InputRefusal::End, 4),
        ("{\"a\":", InputRefusal::End, 5),
        ("\"abc", InputRefusal::End, 4),
    ] {
        assert_eq!(refusal(text), (wanted, position), "{text:?}");
    }
}

#[test]
fn depth_size() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(canon(nested(128)), nested(128));
    assert_eq!(refusal(nested(129)), (InputRefusal::TooDeep { limit: 128 }, 128));
    assert_eq!(refusal("{\"a\":".repeat(1_000_000)), (InputRefusal::TooDeep { limit: 128 }, 5 * 128));
    // Width is not depth.
    assert_eq!(canon(format!("[{}[]]", "[],".repeat(1000))).len(), 3004);
    let within = |text: &str, limits: CanonicalLimits| {
        let mut out = Vec::new();
        canonicalize(text.as_bytes(), limits, &Exclusions::none(), &mut out).map_err(|error| error.refusal())
    };
    // No limit makes it use the stack.
    assert_eq!(within(&nested(200_000), CanonicalLimits::DEFAULT.depth(200_000)), Ok(()));
    assert_eq!(within("1", CanonicalLimits::DEFAULT.depth(0)), Ok(()));
    assert_eq!(within("[]", CanonicalLimits::DEFAULT.depth(0)), Err(InputRefusal::TooDeep { limit: 0 }));
    assert_eq!(within("[12]", CanonicalLimits::DEFAULT.size(4)), Ok(()));
    // The size is checked before anything else.
    let too_large = Err(InputRefusal::TooLarge { size: 5, limit: 4 });
    assert_eq!(within("[12] ", CanonicalLimits::DEFAULT.size(4)), too_large);
    assert_eq!(within("\0\0\0\0\0", CanonicalLimits::DEFAULT.size(4)), too_large);
    assert_eq!(
        refusal(" ".repeat((16 << 20) + 1)).0,
        InputRefusal::TooLarge { size: (16 << 20) + 1, limit: 16 << 20 }
    );
}

#[test]
fn key_order() {
    let one = r#"{"b":[{"y":1,"x":2}],"a":{"d":1,"c":{"f":"","e":0}},"":null}"#;
    let other = r#"{"":null,"a":{"c":{"e":0,"f":""},"d":1},"b":[{"x":2,"y":1}]}"#;
    assert_eq!(canon(one), other);
    assert_eq!(canon(other), other);
    // Arrays keep their order, and a value moves with its name.
    assert_ne!(canon("[1,2]"), canon("[2,1]"));
    assert_ne!(canon(r#"{"a":1,"b":2}"#), canon(r#"{"a":2,"b":1}"#));
    // Names that agree in their first eight bytes, that are one another's beginning, and that UTF-16 sorts unlike
    // UTF-8.
    let input = r#"{"account_b":1,"account_a":2,"account_":3,"account":4,"":5,"a😂":6,"aﬀ":7,"a\u0000":8,"a\"":9,"a!":0}"#;
    let expected = r#"{"":5,"a\u0000":8,"a!":0,"a\"":9,"account":4,"account_":3,"account_a":2,"account_b":1,"a😂":6,"aﬀ":7}"#;
    assert_eq!(canon(input), expected);
    exact_differ(&[one.as_bytes(), other.as_bytes()]);
}

#[test]
fn whitespace() {
    let loose = "\n{ \"a\" :\t[ 1 ,\r\n 2 , { } ] , \"b b\" : \" x  y \" , \"c\" : [ ] }\n ";
    let tight = r#"{"a":[1,2,{}],"b b":" x  y ","c":[]}"#;
    assert_eq!(canon(loose), tight);
    assert_eq!(canon(tight), tight);
    assert_ne!(canon("\"a b\""), canon("\"ab\""));
    exact_differ(&[loose.as_bytes(), tight.as_bytes()]);
}

// Null and absent differ.
#[test]
fn null_is_a_value() {
    assert_ne!(canon(r#"{"a":null}"#), canon("{}"));
    assert_ne!(canon("[null]"), canon("[]"));
    let texts = ["null", "false", "0", "\"\"", "[]", "{}", "\"null\"", "\"0\""].map(canon);
    for (i, one) in texts.iter().enumerate() {
        assert!(!texts[i + 1..].contains(one));
    }
}

#[test]
fn a_refusal_leaves_nothing_behind() {
    let mut canonicalizer = Canonicalizer::new();
    for broken in [r#"{"\u0061":[{"b":1,"a":"#, r#"{"b":1,"a":{"a":1,"a":2}}"#, "[[[["] {
        let mut out = Vec::new();
        let mut write = |text: &str, out: &mut Vec<u8>| {
            canonicalizer.write(text.as_bytes(), CanonicalLimits::DEFAULT, &Exclusions::none(), out)
        };
        write(broken, &mut out).unwrap_err();
        write(r#"{"b":{},"a":[]}"#, &mut out).unwrap();
        assert_eq!(out, br#"{"a":[],"b":{}}"#);
    }
}
