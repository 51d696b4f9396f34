//! JSON objects whose members keep their text, so that an answer from the record changes only the intended members.
//!
//! A number of nineteen digits keeps all of them, and members keep their order.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// An object, parsed one level deep: members are unparsed text.
#[derive(Debug, Default)]
pub(crate) struct Object<'a>(Vec<(Cow<'a, str>, Cow<'a, RawValue>)>);

impl<'a> Object<'a> {
    /// Parses an object; `None` if the text is anything else.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Parses an object from bytes.
    pub(crate) fn read_bytes(text: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_ref())
    }

    /// The member of this name, if the object has no other.
    pub(crate) fn only(&self, name: &str) -> Option<&RawValue> {
        if self.0.len() == 1 { self.get(name) } else { None }
    }

    /// The member of this name, as an object.
    pub(crate) fn object(&self, name: &str) -> Option<Object<'_>> {
        Object::read(self.get(name)?.get())
    }

    /// The member of this name, as a string.
    pub(crate) fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        self.get(name).and_then(text_of)
    }

    /// True if the member exists and is not `null`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.get() != "null")
    }

    /// Replaces the member of this name, or appends it.
    pub(crate) fn set(&mut self, name: &'static str, value: Box<RawValue>) {
        let value = Cow::Owned(value);
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, place)) => *place = value,
            None => self.0.push((Cow::Borrowed(name), value)),
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.retain(|(known, _)| known != name);
    }

    pub(crate) fn to_raw(&self) -> Box<RawValue> {
        raw(self)
    }
}

/// The content of a JSON string.
pub(crate) fn text_of(value: &RawValue) -> Option<Cow<'_, str>> {
    struct Text<'a>(Cow<'a, str>);
    impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Reader;
            impl<'de> Visitor<'de> for Reader {
                type Value = Text<'de>;
                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a text")
                }
                fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                    Ok(Text(Cow::Borrowed(text)))
                }
                fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                    Ok(Text(Cow::Owned(text.to_owned())))
                }
            }
            deserializer.deserialize_str(Reader)
        }
    }
    serde_json::from_str::<Text<'_>>(value.get()).ok().map(|text| text.0)
}

/// A value as JSON text.
pub(crate) fn raw(value: &(impl Serialize + ?Sized)) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("names, texts and numbers always have a JSON form")
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Vec<(Cow<'de, str>, Cow<'de, RawValue>)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut members = Vec::with_capacity(8);
                while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
                    members.push((Cow::Owned(name), Cow::Borrowed(value)));
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Members).map(Self)
    }
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value.as_ref())?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_changed_changes() {
        let text = r#"{"b": 12345678901234567890123, "a":{"x" : 1.0},"s":"é\n"}"#;
        let mut object = Object::read(text).unwrap();
        assert_eq!(object.text("s").unwrap(), "é\n");
        assert_eq!(object.object("a").unwrap().get("x").unwrap().get(), "1.0");
        object.set("new", raw(&true));
        object.set("a", raw("y"));
        object.remove("s");
        assert_eq!(object.to_raw().get(), r#"{"b":12345678901234567890123,"a":"y","new":true}"#);
        for other in ["[]", "1", "null", "{", "{}x", ""] {
            assert!(Object::read(other).is_none(), "{other}");
        }
    }
}
