//! Paths into JSON: dotted with `[n]`, `[*]` and `.length`, or a JSON pointer; empty or `$` is the whole document.

use serde_json::{Map, Value};

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PathStep {
    Name(String),
    Index(usize),
    Every,
}

/// A parsed path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    segments: Vec<PathStep>,
}

impl Path {
    /// Parses leniently: a part that is not an index is a name.
    pub(crate) fn parse(text: &str) -> Self {
        if let Some(pointer) = text.strip_prefix('/') {
            let names = pointer.split('/').map(|name| name.replace("~1", "/").replace("~0", "~"));
            let segment = |name: String| match name.parse() {
                Ok(index) => PathStep::Index(index),
                Err(_) => PathStep::Name(name),
            };
            return Self { segments: names.map(segment).collect() };
        }
        let text = text.strip_prefix("$.").or_else(|| text.strip_prefix('$')).unwrap_or(text);
        let mut segments = Vec::new();
        for part in text.split('.') {
            let (name, mut rest) = part.find('[').map_or((part, ""), |at| part.split_at(at));
            if !name.is_empty() {
                segments.push(PathStep::Name(name.to_owned()));
            }
            while let Some((inside, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                let inside = inside.trim_matches(['"', '\'']);
                segments.push(match inside {
                    "*" | "" => PathStep::Every,
                    index => index.parse().map_or_else(|_| PathStep::Name(index.to_owned()), PathStep::Index),
                });
                rest = after;
            }
        }
        Self { segments }
    }

    /// True if it can match several values.
    pub(crate) fn has_wildcard(&self) -> bool {
        self.segments.contains(&PathStep::Every)
    }

    /// All matching values.
    pub(crate) fn all(&self, root: &Value) -> Vec<Value> {
        let mut found = vec![root.clone()];
        for segment in &self.segments {
            found = found.iter().flat_map(|value| step(value, segment)).collect();
        }
        found
    }

    /// The first matching value.
    pub(crate) fn get(&self, root: &Value) -> Option<Value> {
        self.all(root).into_iter().next()
    }

    /// Sets a value and creates missing parents. False if a parent has another type.
    pub(crate) fn set(&self, root: &mut Value, value: Value) -> bool {
        let mut at = root;
        for segment in &self.segments {
            match segment {
                PathStep::Name(name) => {
                    if at.is_null() {
                        *at = Value::Object(Map::new());
                    }
                    let Some(members) = at.as_object_mut() else { return false };
                    at = members.entry(name.as_str()).or_insert(Value::Null);
                }
                PathStep::Index(index) => {
                    if at.is_null() {
                        *at = Value::Array(Vec::new());
                    }
                    let Some(items) = at.as_array_mut() else { return false };
                    if *index > items.len() + 64 {
                        return false;
                    }
                    while items.len() <= *index {
                        items.push(Value::Null);
                    }
                    at = &mut items[*index];
                }
                PathStep::Every => return false,
            }
        }
        *at = value;
        true
    }

    /// The path as a JSON pointer (RFC 6901); a wildcard stays `*`.
    pub(crate) fn pointer(&self) -> String {
        let part = |segment: &PathStep| match segment {
            PathStep::Name(name) => format!("/{}", name.replace('~', "~0").replace('/', "~1")),
            PathStep::Index(index) => format!("/{index}"),
            PathStep::Every => "/*".to_owned(),
        };
        self.segments.iter().map(part).collect()
    }
}

fn step(value: &Value, segment: &PathStep) -> Vec<Value> {
    match (value, segment) {
        (Value::Object(members), PathStep::Name(name)) => members.get(name).cloned().into_iter().collect(),
        (Value::Object(members), PathStep::Index(index)) => {
            members.get(&index.to_string()).cloned().into_iter().collect()
        }
        (Value::Array(items), PathStep::Name(name)) if name == "length" => vec![Value::from(items.len())],
        (Value::Array(items), PathStep::Index(index)) => items.get(*index).cloned().into_iter().collect(),
        (Value::Array(items), PathStep::Every) => items.clone(),
        (Value::Object(members), PathStep::Every) => members.values().cloned().collect(),
        _ => Vec::new(),
    }
}

/// True if two values are equal; 1 and 1.0 are.
pub(crate) fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || (one.as_f64() == other.as_f64() && (one.is_f64() || other.is_f64()))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, value)| other.get(name).is_some_and(|known| same(value, known)))
        }
        _ => one == other,
    }
}

/// True if `part` is contained in `whole`: equal, or every member and every item of it is contained.
pub(crate) fn subset(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            part.iter().all(|(name, value)| whole.get(name).is_some_and(|known| subset(value, known)))
        }
        (Value::Array(part), Value::Array(whole)) => {
            part.iter().all(|item| whole.iter().any(|known| subset(item, known)))
        }
        _ => same(part, whole),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Path, same, subset};

    #[test]
    fn paths_are_read_in_all_their_forms() {
        let root = json!({"a": {"b": [{"c": 1}, {"c": 2}]}, "x/y": 3, "n": null});
        for (path, expected) in [
            ("a.b[0].c", vec![json!(1)]),
            ("/a/b/1/c", vec![json!(2)]),
            ("a.b[*].c", vec![json!(1), json!(2)]),
            ("a.b.length", vec![json!(2)]),
            ("/x~1y", vec![json!(3)]),
            ("n", vec![Value::Null]),
            ("a.b[7].c", vec![]),
            ("a.z.c", vec![]),
            ("", vec![root.clone()]),
            ("$", vec![root.clone()]),
            ("$.a.b[1].c", vec![json!(2)]),
        ] {
            assert_eq!(Path::parse(path).all(&root), expected, "{path}");
        }
        assert_eq!(Path::parse("a.b[0].c").pointer(), "/a/b/0/c");
    }

    #[test]
    fn values_can_be_put_where_nothing_is() {
        let mut root = json!({});
        assert!(Path::parse("a.b[1].c").set(&mut root, json!(7)));
        assert_eq!(root, json!({"a": {"b": [null, {"c": 7}]}}));
        assert!(!Path::parse("a.b.c").set(&mut root, json!(7)));
        assert!(!Path::parse("a.b[900000000]").set(&mut root, json!(7)));
    }

    #[test]
    fn numbers_are_the_same_by_value_and_large_ones_are_not_folded() {
        assert!(same(&json!({"a": [1]}), &json!({"a": [1.0]})));
        assert!(!same(&json!(9_007_199_254_740_993_u64), &json!(9_007_199_254_740_992_u64)));
        assert!(!same(&json!("1"), &json!(1)));
        assert!(subset(&json!({"a": [{"b": 1}]}), &json!({"a": [{"c": 2}, {"b": 1, "d": 3}]})));
        assert!(!subset(&json!({"a": 1}), &json!({"b": 1})));
    }
}
