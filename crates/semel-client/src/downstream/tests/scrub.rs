//! What a provider says is scrubbed of the caller's key and of all that can be turned back into it.

use proptest::prelude::*;

use crate::downstream::Scrubber;

const KEY: &str = "Order/42 ü\"x\"+y=z&_~7";

fn percent(text: &str, all: bool) -> String {
    let plain = |byte: u8| !all && (byte.is_ascii_alphanumeric() || b"-._~".contains(&byte));
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn unicode(text: &str) -> String {
    text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect()
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes
        .chunks(3)
        .flat_map(|chunk| {
            let all = chunk
                .iter()
                .enumerate()
                .fold(0u32, |all, (at, byte)| all | u32::from(*byte) << (16 - 8 * at));
            (0..4).map(move |at| match at <= chunk.len() {
                true => char::from(ALPHABET[(all >> (18 - 6 * at) & 63) as usize]),
                false => '=',
            })
        })
        .collect()
}

/// Every form in which a key is met.
fn forms(key: &str) -> Vec<String> {
    let json = serde_json::to_string(key).unwrap();
    let url = |text: &str| text.replace('+', "-").replace('/', "_").trim_end_matches('=').to_owned();
    let in_basic = base64(format!("user:{key}").as_bytes());
    vec![
        key.to_owned(),
        key.to_ascii_uppercase(),
        format!("\"{key}\""),
        percent(key, false),
        percent(key, true).to_lowercase(),
        percent(key, false).replace("%20", "+"),
        percent(&percent(key, false), false),
        json.clone(),
        serde_json::to_string(&json).unwrap(),
        percent(&json, false),
        unicode(key),
        key.escape_default().to_string(),
        format!("{key:?}"),
        key.chars().map(|character| format!("&#{};", u32::from(character))).collect(),
        key.replace('&', "&amp;").replace('"', "&quot;"),
        hex(key),
        hex(key).to_uppercase(),
        base64(key.as_bytes()),
        url(&base64(key.as_bytes())),
        percent(&base64(key.as_bytes()), false),
        in_basic.clone(),
        url(&in_basic),
        base64(format!("x{key}y").as_bytes()),
        base64(format!("xy{key}").as_bytes()),
    ]
}

#[test]
fn every_form_of_a_key_is_taken_out() {
    let scrubber = Scrubber::new(KEY);
    for form in forms(KEY) {
        let said = format!("400 from acquirer: key \u{201c}{form}\u{201d} was used: retry");
        let scrubbed = scrubber.scrub(&said);
        assert!(!scrubbed.contains(&form), "{form}: {scrubbed}");
        assert_eq!(scrubbed.matches("[key]").count(), 1, "{form}: {scrubbed}");
        let (before, after) = scrubbed.split_once("[key]").unwrap();
        assert!(
            before.starts_with("400 from acquirer: key \u{201c}")
                && after.ends_with("\u{201d} was used: retry"),
            "{form}: {scrubbed}"
        );
    }
}

#[test]
fn what_is_no_key_stays() {
    let scrubber = Scrubber::new("order-42");
    for said in ["card declined", "100% \\o/ &c; %zz \\u12 &#; \\", "order-43", "", "ünïcödé %C3%BC"] {
        assert_eq!(scrubber.scrub(said), said);
    }
    assert_eq!(Scrubber::new("").scrub("anything"), "anything");
    assert_eq!(Scrubber::default().scrub("anything"), "anything");
}

#[test]
fn several_keys_and_several_places() {
    let scrubber = Scrubber::new("order-42").and("acct-7");
    let said = "order-42 of acct-7: ORDER-42, order%2D42 and order-42order-42";
    assert_eq!(scrubber.scrub(said), "[key] of [key]: [key], [key] and [key][key]");
    assert!(!format!("{scrubber:?}").contains("order"));
}

proptest! {
    // Whatever the key, whatever stands around it: no form of it is left.
    #[test]
    fn no_form_is_left(key in "\\PC{8,24}", before in "[ -~]{0,12}", after in "[ -~]{0,12}") {
        let scrubber = Scrubber::new(&key);
        for form in forms(&key) {
            let scrubbed = scrubber.scrub(&format!("{before} {form} {after}"));
            prop_assert!(!scrubbed.contains(&key), "{form:?} left {scrubbed:?}");
            prop_assert!(scrubbed.contains("[key]"), "{form:?} was not found in {scrubbed:?}");
        }
    }

    #[test]
    fn any_text_can_be_scrubbed(key in "\\PC{0,5}", text in "\\PC{0,80}") {
        let _ = Scrubber::new(&key).scrub(&text);
    }
}
