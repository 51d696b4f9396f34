//! The examples of RFC 8785 and of its public test data.

use super::canon;

// RFC 8785, section 3.2.2; the third number is not the RFC's, see below.
#[test]
fn values() {
    let input = r#"{
      "numbers": [1E30, 4.50, 333333333.3333333, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"#;
    let expected = concat!(
        r#"{"literals":[null,true,false],"numbers":[1e+30,4.5,333333333.3333333,0.002,1e-27],"#,
        r#""string":"€$\u000f\nA'B\"\\\\\"/"}"#
    );
    assert_eq!(canon(input), expected);
    // The RFC's own third number is not the shortest form of a double. The RFC rounds it to 333333333.3333333; here
    // two different numbers stay different.
    assert_eq!(canon("333333333.33333329"), "333333333.33333329");
}

// RFC 8785, section 3.2.3
#[test]
fn sorting() {
    let input = r#"{
      "\u20ac": "Euro Sign",
      "\r": "Carriage Return",
      "\ufb33": "Hebrew Letter Dalet With Dagesh",
      "1": "One",
      "\ud83d\ude00": "Emoji: Grinning Face",
      "\u0080": "Control",
      "\u00f6": "Latin Small Letter O With Diaeresis"
    }"#;
    let expected = concat!(
        "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u{80}\":\"Control\",",
        "\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",",
        "\"\u{1f600}\":\"Emoji: Grinning Face\",\"\u{fb33}\":\"Hebrew Letter Dalet With Dagesh\"}"
    );
    assert_eq!(canon(input), expected);
}

#[test]
fn weird() {
    let input = r#"{
      "\u20ac": "Euro Sign",
      "\r": "Carriage Return",
      "\u000a": "Newline",
      "1": "One",
      "\u0080": "Control\u007f",
      "\ud83d\ude02": "Smiley",
      "\u00f6": "Latin Small Letter O With Diaeresis",
      "\ufb33": "Hebrew Letter Dalet With Dagesh",
      "</script>": "Browser Challenge"
    }"#;
    let expected = concat!(
        "{\"\\n\":\"Newline\",\"\\r\":\"Carriage Return\",\"1\":\"One\",\"</script>\":\"Browser Challenge\",",
        "\"\u{80}\":\"Control\u{7f}\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",",
        "\"\u{1f602}\":\"Smiley\",\"\u{fb33}\":\"Hebrew Letter Dalet With Dagesh\"}"
    );
    assert_eq!(canon(input), expected);
}

#[test]
fn unicode() {
    assert_eq!(canon("{\"Unnormalized Unicode\": \"A\u{30a}\"}"), "{\"Unnormalized Unicode\":\"A\u{30a}\"}");
}

#[test]
fn structures() {
    let input = r#"{
      "1": {"f": {"f": "hi","F": 5} ,"\n": 56.0},
      "10": { },
      "": "empty",
      "a": { },
      "111": [ {"e": "yes","E": "no" } ],
      "A": { }
    }"#;
    let expected = concat!(
        r#"{"":"empty","1":{"\n":56,"f":{"F":5,"f":"hi"}},"10":{},"111":[{"E":"no","e":"yes"}],"#,
        r#""A":{},"a":{}}"#
    );
    assert_eq!(canon(input), expected);
}

#[test]
fn french() {
    let input = r#"{
      "peach": "This sorting order",
      "péché": "is wrong according to French",
      "pêche": "but canonicalization MUST",
      "sin":   "ignore locale"
    }"#;
    let expected = concat!(
        r#"{"peach":"This sorting order","péché":"is wrong according to French","#,
        r#""pêche":"but canonicalization MUST","sin":"ignore locale"}"#
    );
    assert_eq!(canon(input), expected);
}

#[test]
fn arrays() {
    let input = r#"[ 56, { "d": true, "10": null, "1": [ ] } ]"#;
    assert_eq!(canon(input), r#"[56,{"1":[],"10":null,"d":true}]"#);
}

// RFC 8785, appendix B
#[test]
fn doubles() {
    let table = [
        (0x0000000000000000, "0"),
        (0x8000000000000000, "0"),
        (0x0000000000000001, "5e-324"),
        (0x8000000000000001, "-5e-324"),
        (0x7fefffffffffffff, "1.7976931348623157e+308"),
        (0xffefffffffffffff, "-1.7976931348623157e+308"),
        (0x4340000000000000, "9007199254740992"),
        (0xc340000000000000, "-9007199254740992"),
        (0x4430000000000000, "295147905179352830000"),
        (0x44b52d02c7e14af5, "9.999999999999997e+22"),
        (0x44b52d02c7e14af6, "1e+23"),
        (0x44b52d02c7e14af7, "1.0000000000000001e+23"),
        (0x444b1ae4d6e2ef4e, "999999999999999700000"),
        (0x444b1ae4d6e2ef4f, "999999999999999900000"),
        (0x444b1ae4d6e2ef50, "1e+21"),
        (0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"),
        (0x3eb0c6f7a0b5ed8d, "0.000001"),
        (0x41b3de4355555553, "333333333.3333332"),
        (0x41b3de4355555554, "333333333.33333325"),
        (0x41b3de4355555555, "333333333.3333333"),
        (0x41b3de4355555556, "333333333.3333334"),
        (0x41b3de4355555557, "333333333.33333343"),
        (0xbecbf647612f3696, "-0.0000033333333333333333"),
        (0x43143ff3c1cb0959, "1424953923781206.2"),
    ];
    for (bits, expected) in table {
        let double = f64::from_bits(bits);
        // The last one shows why: of two equally short and near texts the RFC picks the even one, like serde_json and
        // unlike Rust's own formatting. Here two texts are two values, whatever double is nearest to both.
        let shortest = serde_json::to_string(&double).unwrap();
        assert_eq!(canon(&shortest), expected, "{shortest}");
        assert_eq!(expected.parse(), Ok(double));
        assert_eq!(canon(expected), expected);
    }
}
