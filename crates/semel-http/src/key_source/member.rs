//! Finds the position of a JSON member, so that its value can be replaced without changing another byte.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::value::RawValue;

/// Position of the value that `pointer` (RFC 6901) points to. `None` if it does not exist, or if the text is not JSON.
///
/// If a name occurs twice, the last one counts. Callers that must refuse duplicates check before.
pub(super) fn locate(text: &[u8], pointer: &str) -> Option<Range<usize>> {
    let mut value: &RawValue = serde_json::from_slice(text).ok()?;
    for token in pointer.strip_prefix('/')?.split('/') {
        let token = token.replace("~1", "/").replace("~0", "~");
        value = match value.get().as_bytes().first()? {
            b'{' => serde_json::from_str::<BTreeMap<String, &RawValue>>(value.get()).ok()?.remove(&token)?,
            b'[' => {
                let elements = serde_json::from_str::<Vec<&RawValue>>(value.get()).ok()?;
                elements.get(index(&token)?).copied()?
            }
            _ => return None,
        };
    }
    // A raw value is a slice of the text that it was parsed from.
    let start = value.get().as_ptr().addr().checked_sub(text.as_ptr().addr())?;
    let place = start..start.checked_add(value.get().len())?;
    (text.get(place.clone())? == value.get().as_bytes()).then_some(place)
}

/// An array index of a pointer: digits without leading zeros.
fn index(token: &str) -> Option<usize> {
    let is_plain = token == "0" || !token.starts_with(['0', '+']);
    is_plain.then(|| token.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_where_they_stand() {
        let text = br#" { "a" : {"b/c":[10, {"~":"x\"y"} , 30]},"":{"":null}, "\u0061a": 1.0 } "#;
        for (pointer, found) in [
            ("/a/b~1c/1/~0", Some(r#""x\"y""#)),
            ("/a/b~1c/0", Some("10")),
            ("/a/b~1c/2", Some("30")),
            ("/a/b~1c", Some(r#"[10, {"~":"x\"y"} , 30]"#)),
            ("/aa", Some("1.0")),
            ("//", Some("null")),
            ("/a/b~1c/3", None),
            ("/a/b~1c/01", None),
            ("/a/b~1c/+1", None),
            ("/a/b~1c/-", None),
            ("/a/b", None),
            ("/aa/x", None),
            ("/x", None),
        ] {
            let place = locate(text, pointer);
            let shown = place.map(|place| std::str::from_utf8(&text[place]).unwrap());
            assert_eq!(shown, found, "{pointer}");
        }
        for broken in [&b"{"[..], b"", b"{\"aa\":1}x", b"\xff"] {
            assert_eq!(locate(broken, "/aa"), None);
        }
    }
}
