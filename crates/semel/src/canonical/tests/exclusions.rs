//! Exclusions: what they remove, and what they leave.

use super::super::{CanonicalError, CanonicalLimits, ExclusionError, Exclusions, InputRefusal, canonicalize};
use super::generate::{Random, Value};
use super::rounds;

fn without(pointers: &[&str], text: &str) -> Result<String, CanonicalError> {
    let mut out = Vec::new();
    canonicalize(text.as_bytes(), CanonicalLimits::DEFAULT, &Exclusions::new(pointers).unwrap(), &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn pointers_take_out_members_and_elements() {
    let document = r#"{"b":{"ts":1,"x":[1,2,{"ts":3,"y":4}]},"a":[],"ts":5}"#;
    for (pointers, expected) in [
        (&["/ts"][..], r#"{"a":[],"b":{"ts":1,"x":[1,2,{"ts":3,"y":4}]}}"#),
        (&["/b/ts"], r#"{"a":[],"b":{"x":[1,2,{"ts":3,"y":4}]},"ts":5}"#),
        (&["/b/x/2/ts", "/ts"], r#"{"a":[],"b":{"ts":1,"x":[1,2,{"y":4}]}}"#),
        (&["/b/x/0"], r#"{"a":[],"b":{"ts":1,"x":[2,{"ts":3,"y":4}]},"ts":5}"#),
        (&["/b/x/2", "/b/x/1", "/b/x/0"], r#"{"a":[],"b":{"ts":1,"x":[]},"ts":5}"#),
        (&["/b", "/b/x/0"], r#"{"a":[],"ts":5}"#),
        (&["/a", "/b", "/ts"], "{}"),
    ] {
        assert_eq!(without(pointers, document).unwrap(), expected, "{pointers:?}");
    }
}

#[test]
fn pointers_that_point_nowhere_do_nothing() {
    let document = r#"{"a":[1,{"b":2}],"c":"d"}"#;
    for pointer in
        ["/x", "/a/2", "/a/-", "/a/01", "/a/+1", "/a/b", "/c/0", "/c/d", "/a/1/b/c", "/", "/A", "/a/"]
    {
        assert_eq!(without(&[pointer], document).unwrap(), document, "{pointer}");
    }
}

// RFC 6901, section 5
#[test]
fn tokens_are_unescaped() {
    let document = r#"{"":0,"a/b":1,"m~n":8,"~1":9,"k\"l":6,"é":7,"0":5,"-":4}"#;
    let all = ["/", "/a~1b", "/m~0n", "/~01", "/k\"l", "/é", "/0", "/-"];
    assert_eq!(without(&all, document).unwrap(), "{}");
    assert_eq!(without(&all[..7], document).unwrap(), r#"{"-":4}"#);
    assert_eq!(without(&["/a~1b"], r#"{"\u0061\/b":1,"c":2}"#).unwrap(), r#"{"c":2}"#);
}

#[test]
fn wrong_pointers_are_named() {
    let error = |pointers: &[&str]| Exclusions::new(pointers).unwrap_err();
    assert_eq!(error(&["/a", ""]), ExclusionError::Everything { number: 2 });
    assert_eq!(error(&["a/b"]), ExclusionError::NoSlash { number: 1 });
    assert_eq!(error(&["#/a"]), ExclusionError::NoSlash { number: 1 });
    for wrong in ["/a~", "/~2", "/~/a", "/a~~0"] {
        assert_eq!(error(&["/x", "/y", wrong]), ExclusionError::Tilde { number: 3 }, "{wrong}");
    }
    let sentence = "exclusion 1 does not start with '/'; write a JSON pointer, as in /meta/sent_at";
    assert_eq!(error(&["a"]).to_string(), sentence);
    assert_eq!(Exclusions::new([""; 0]).unwrap(), Exclusions::default());
}

#[test]
fn what_is_excluded_must_still_be_sound() {
    let refusal = |text: &str| without(&["/ts", "/l/0"], text).unwrap_err().refusal();
    assert_eq!(refusal(r#"{"ts":1,"ts":2}"#), InputRefusal::DuplicateMember);
    assert_eq!(refusal(r#"{"ts":1,"a":0,"\u0074s":2}"#), InputRefusal::DuplicateMember);
    assert_eq!(refusal(r#"{"ts":{"x":1,"x":2}}"#), InputRefusal::DuplicateMember);
    assert_eq!(refusal(r#"{"l":["\ud800"]}"#), InputRefusal::LoneSurrogate);
    assert_eq!(refusal(r#"{"l":[01]}"#), InputRefusal::Number);
}

// An exclusion hides one part, never its neighbours.
#[test]
fn what_is_not_excluded_still_counts() {
    let meta = |text: &str| without(&["/meta/sent_at", "/items/0/ts"], text).unwrap();
    assert_ne!(meta(r#"{"meta":{"sent_at":1},"sent_at":2}"#), meta(r#"{"meta":{"sent_at":1},"sent_at":3}"#));
    assert_ne!(meta(r#"{"items":[{},{"ts":1}]}"#), meta(r#"{"items":[{},{"ts":2}]}"#));
    assert_ne!(meta(r#"{"items":{"1":{"ts":1}}}"#), meta(r#"{"items":{"1":{"ts":2}}}"#));
    // A pointer does not distinguish arrays from objects: /items/0 is also the member "0".
    assert_eq!(meta(r#"{"items":{"0":{"ts":1}}}"#), meta(r#"{"items":{"0":{"ts":2}}}"#));
}

/// Removes one random member or element from `value` and appends its pointer.
fn take_out(value: &mut Value, random: &mut Random, pointer: &mut String) -> bool {
    let deeper = random.one_in(2);
    match value {
        Value::Array(elements) if !elements.is_empty() => {
            let at = random.below(elements.len());
            pointer.push_str(&format!("/{at}"));
            if !(deeper && take_out(&mut elements[at], random, pointer)) {
                elements.remove(at);
            }
            true
        }
        Value::Object(members) if !members.is_empty() => {
            let name = members.keys().nth(random.below(members.len())).unwrap().clone();
            pointer.push_str(&format!("/{}", name.replace('~', "~0").replace('/', "~1")));
            if !(deeper && take_out(members.get_mut(&name).unwrap(), random, pointer)) {
                members.remove(&name);
            }
            true
        }
        _ => false,
    }
}

// Excluding a part has the same result as not sending it.
#[test]
fn excluding_is_leaving_out() {
    let mut random = Random(6901);
    let mut done = 0;
    while done < rounds(5_000, 500_000) {
        let whole = Value::nested(&mut random, 3);
        let (mut rest, mut pointer) = (whole.clone(), String::new());
        if take_out(&mut rest, &mut random, &mut pointer) {
            let [mut whole_text, mut rest_text] = [String::new(), String::new()];
            whole.spell(&mut random, &mut whole_text);
            rest.spell(&mut random, &mut rest_text);
            assert_eq!(
                without(&[&pointer], &whole_text),
                without(&[], &rest_text),
                "{pointer} of {whole_text}"
            );
            done += 1;
        }
    }
}
