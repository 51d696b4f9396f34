//! YAML as a tree with the position of every node.
//!
//! Scalars follow the core schema of YAML 1.2: a bare `no` is a string. Aliases are expanded up to a limit. A name that occurs twice in
//! one mapping is a mistake, and so is a second document. `serde-saphyr` stops at the first mistake and reads a bare `no` as false, so
//! only the parser below it is used.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use serde_json::{Map, Number, Value};

use crate::error::{FilePlace, Mistake};

/// Maximum number of nodes: more than any storyboard has, and fewer than an alias bomb.
const MOST_NODES: usize = 200_000;
/// Maximum nesting depth.
const MOST_DEPTH: usize = 100;

/// A node and its position.
#[derive(Clone, Debug)]
pub(crate) struct YamlNode {
    pub(crate) at: FilePlace,
    pub(crate) kind: YamlKind,
}

#[derive(Clone, Debug)]
pub(crate) enum YamlKind {
    Scalar(Value),
    List(Vec<YamlNode>),
    Table(Vec<MappingMember>),
}

#[derive(Clone, Debug)]
pub(crate) struct MappingMember {
    pub(crate) at: FilePlace,
    pub(crate) name: String,
    pub(crate) node: YamlNode,
}

impl YamlNode {
    /// The value without positions.
    pub(crate) fn json(&self) -> Value {
        match &self.kind {
            YamlKind::Scalar(value) => value.clone(),
            YamlKind::List(items) => Value::Array(items.iter().map(Self::json).collect()),
            YamlKind::Table(members) => {
                let members = members.iter().map(|member| (member.name.clone(), member.node.json()));
                Value::Object(members.collect::<Map<_, _>>())
            }
        }
    }

    /// Its type, for messages.
    pub(crate) fn what(&self) -> String {
        match &self.kind {
            YamlKind::Scalar(Value::Null) => "nothing".to_owned(),
            YamlKind::Scalar(value) => value.to_string(),
            YamlKind::List(_) => "a list".to_owned(),
            YamlKind::Table(_) => "a mapping".to_owned(),
        }
    }
}

/// Parses one document.
pub(crate) fn parse(text: &str) -> Result<YamlNode, Mistake> {
    let mut tree = Tree { parser: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0 };
    let mut document = None;
    loop {
        let (event, at) = tree.next()?;
        match event {
            Event::StreamEnd => break,
            Event::DocumentStart(_) if document.is_some() => {
                return Err(Mistake::new(at, "one document in a file; a second one begins here"));
            }
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd => {}
            first => document = Some(tree.node(first, at, 0)?),
        }
    }
    document.ok_or_else(|| Mistake::new(FilePlace::START, "a mapping; the file is empty"))
}

struct Tree<'input> {
    parser: Parser<'input, saphyr_parser::StrInput<'input>>,
    anchors: HashMap<usize, YamlNode>,
    nodes: usize,
}

impl<'input> Tree<'input> {
    fn next(&mut self) -> Result<(Event<'input>, FilePlace), Mistake> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, place(&span))),
            Some(Err(error)) => {
                let mark = error.marker();
                let at = FilePlace { line: mark.line(), column: mark.col() + 1 };
                Err(Mistake::new(at, format!("valid YAML: {}", error.info())))
            }
            None => Ok((Event::StreamEnd, FilePlace::START)),
        }
    }

    fn count(&mut self, more: usize, at: FilePlace) -> Result<(), Mistake> {
        self.nodes = self.nodes.saturating_add(more);
        if self.nodes > MOST_NODES {
            return Err(Mistake::new(at, format!("at most {MOST_NODES} values, aliases expanded")));
        }
        Ok(())
    }

    fn node(&mut self, event: Event<'input>, at: FilePlace, depth: usize) -> Result<YamlNode, Mistake> {
        if depth > MOST_DEPTH {
            return Err(Mistake::new(at, format!("at most {MOST_DEPTH} levels")));
        }
        self.count(1, at)?;
        let (anchor, kind) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                let value = if plain { plain_scalar(&text) } else { Value::String(text.into_owned()) };
                (anchor, YamlKind::Scalar(value))
            }
            Event::SequenceStart(anchor, _) => (anchor, YamlKind::List(self.list(depth)?)),
            Event::MappingStart(anchor, _) => (anchor, YamlKind::Table(self.table(depth)?)),
            Event::Alias(anchor) => {
                let Some(known) = self.anchors.get(&anchor).cloned() else {
                    return Err(Mistake::new(at, "an alias of an earlier, complete anchor"));
                };
                self.count(size(&known), at)?;
                return Ok(YamlNode { at, ..known });
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => return Err(Mistake::new(at, "a value")),
        };
        let node = YamlNode { at, kind };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<YamlNode>, Mistake> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, at) => items.push(self.node(event, at, depth + 1)?),
            }
        }
    }

    fn table(&mut self, depth: usize) -> Result<Vec<MappingMember>, Mistake> {
        let mut members: Vec<MappingMember> = Vec::new();
        loop {
            let (event, at) = self.next()?;
            let name = match event {
                Event::MappingEnd => return Ok(members),
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err(Mistake::new(at, "a name, as text")),
            };
            if members.iter().any(|known| known.name == name) {
                return Err(Mistake::new(at, format!("each name once; `{name}` occurs twice")));
            }
            let (event, value_at) = self.next()?;
            let node = self.node(event, value_at, depth + 1)?;
            members.push(MappingMember { at, name, node });
        }
    }
}

fn place(span: &Span) -> FilePlace {
    FilePlace { line: span.start.line(), column: span.start.col() + 1 }
}

fn size(node: &YamlNode) -> usize {
    match &node.kind {
        YamlKind::Scalar(_) => 1,
        YamlKind::List(items) => 1 + items.iter().map(size).sum::<usize>(),
        YamlKind::Table(members) => 1 + members.iter().map(|member| size(&member.node)).sum::<usize>(),
    }
}

/// The core schema.
fn plain_scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let text = text.strip_prefix('+').unwrap_or(text);
        if let Ok(number) = text.parse::<i64>() {
            return Value::from(number);
        }
        if let Ok(number) = text.parse::<u64>() {
            return Value::from(number);
        }
    }
    if digits.starts_with(|first: char| first.is_ascii_digit() || first == '.')
        && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'))
        && let Ok(number) = text.parse::<f64>()
        && let Some(number) = Number::from_f64(number)
    {
        return Value::Number(number);
    }
    Value::String(text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::parse;

    #[test]
    fn scalars_follow_the_core_schema() {
        let node = parse("a: 1\nb: 1.5\nc: no\nd: 'true'\ne: true\nf: ~\ng: 2026-01-01\nh: 1e3\ni: 1.2.3\n")
            .unwrap();
        let expected = json!({
            "a": 1, "b": 1.5, "c": "no", "d": "true", "e": true, "f": null, "g": "2026-01-01", "h": 1000.0, "i": "1.2.3"
        });
        assert_eq!(node.json(), expected);
    }

    #[test]
    fn mistakes_have_their_place() {
        let twice = parse("a: 1\nb: 2\na: 3\n").unwrap_err();
        assert_eq!((twice.at.line, twice.at.column), (3, 1), "{twice:?}");
        for (text, line) in
            [("a: [1, 2", 1), ("a: 1\n b: 2\n", 2), ("--- 1\n--- 2\n", 2), ("", 1), ("a: *x", 1)]
        {
            let mistake = parse(text).unwrap_err();
            assert!(mistake.at.line >= line, "{text:?}: {mistake:?}");
        }
    }

    #[test]
    fn aliases_are_expanded_and_a_bomb_is_refused() {
        assert_eq!(parse("a: &x {b: 1}\nc: *x\n").unwrap().json(), json!({"a": {"b": 1}, "c": {"b": 1}}));
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let below = level - 1;
            let row = vec![format!("*a{below}"); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{row}]\n"));
        }
        assert!(parse(&bomb).unwrap_err().to_string().contains("at most"));
        let deep = format!("{}1{}", "[".repeat(400), "]".repeat(400));
        assert!(parse(&deep).is_err());
    }
}
