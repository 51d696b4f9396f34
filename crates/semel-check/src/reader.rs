//! Reads mappings of a file member by member. Members that are not read are reported once per name.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use serde_json::Value;

use crate::error::{FilePlace, Mistake};
use crate::yaml::{MappingMember, YamlKind, YamlNode};

/// The findings while reading.
#[derive(Debug, Default)]
pub(crate) struct FoundProblems {
    mistakes: RefCell<Vec<Mistake>>,
    notices: RefCell<Vec<String>>,
    ignored: RefCell<BTreeMap<String, (FilePlace, usize)>>,
}

impl FoundProblems {
    pub(crate) fn mistake(&self, at: FilePlace, expected: impl Into<String>) {
        self.mistakes.borrow_mut().push(Mistake::new(at, expected));
    }

    pub(crate) fn notice(&self, at: FilePlace, text: &str) {
        self.notices.borrow_mut().push(format!("line {}: {text}", at.line));
    }

    fn ignored(&self, at: FilePlace, name: String) {
        self.ignored.borrow_mut().entry(name).or_insert((at, 0)).1 += 1;
    }

    /// The mistakes, or the notices.
    pub(crate) fn finish(self) -> Result<Vec<String>, Vec<Mistake>> {
        let mut mistakes = self.mistakes.into_inner();
        if !mistakes.is_empty() {
            mistakes.sort_by_key(|mistake| mistake.at);
            return Err(mistakes);
        }
        let mut notices = self.notices.into_inner();
        for (name, (at, times)) in self.ignored.into_inner() {
            let times = if times == 1 { String::new() } else { format!(" ({times} times)") };
            notices.push(format!("line {}: `{name}` is unknown here and ignored{times}", at.line));
        }
        Ok(notices)
    }
}

/// One mapping.
pub(crate) struct MappingReader<'a> {
    what: String,
    at: FilePlace,
    members: &'a [MappingMember],
    asked: BTreeSet<&'static str>,
    log: &'a FoundProblems,
}

impl<'a> MappingReader<'a> {
    /// The node as a mapping; otherwise a mistake.
    pub(crate) fn of(node: &'a YamlNode, what: impl Into<String>, log: &'a FoundProblems) -> Option<Self> {
        let what = what.into();
        match &node.kind {
            YamlKind::Table(members) => {
                Some(Self { what, at: node.at, members, asked: BTreeSet::new(), log })
            }
            YamlKind::Scalar(_) | YamlKind::List(_) => {
                log.mistake(node.at, format!("{what} as a mapping, not {}", node.what()));
                None
            }
        }
    }

    pub(crate) fn at(&self) -> FilePlace {
        self.at
    }

    pub(crate) fn node(&mut self, name: &'static str) -> Option<&'a YamlNode> {
        self.asked.insert(name);
        let member = self.members.iter().find(|member| member.name == name)?;
        match member.node.kind {
            YamlKind::Scalar(Value::Null) => None,
            _ => Some(&member.node),
        }
    }

    pub(crate) fn has(&mut self, name: &'static str) -> bool {
        self.node(name).is_some()
    }

    pub(crate) fn json(&mut self, name: &'static str) -> Option<Value> {
        self.node(name).map(YamlNode::json)
    }

    /// The same, with a written `null` as a value.
    pub(crate) fn explicit(&mut self, name: &'static str) -> Option<Value> {
        self.asked.insert(name);
        self.members.iter().find(|member| member.name == name).map(|member| member.node.json())
    }

    /// Reports a mistake at one member.
    pub(crate) fn wrong(&self, node: &YamlNode, name: &str, expected: &str) {
        self.log.mistake(node.at, format!("`{name}` of {} to be {expected}, not {}", self.what, node.what()));
    }

    pub(crate) fn text(&mut self, name: &'static str) -> Option<String> {
        let node = self.node(name)?;
        match &node.kind {
            YamlKind::Scalar(Value::String(text)) => Some(text.clone()),
            YamlKind::Scalar(value) => Some(value.to_string()),
            YamlKind::List(_) | YamlKind::Table(_) => {
                self.wrong(node, name, "text");
                None
            }
        }
    }

    pub(crate) fn needed_text(&mut self, name: &'static str) -> String {
        if !self.has(name) {
            self.log.mistake(self.at, format!("`{name}` in {}", self.what));
        }
        self.text(name).unwrap_or_default()
    }

    pub(crate) fn flag(&mut self, name: &'static str) -> Option<bool> {
        let node = self.node(name)?;
        match &node.kind {
            YamlKind::Scalar(Value::Bool(flag)) => Some(*flag),
            _ => {
                self.wrong(node, name, "true or false");
                None
            }
        }
    }

    pub(crate) fn number(&mut self, name: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let node = self.node(name)?;
        let number = match &node.kind {
            YamlKind::Scalar(value) => value.as_u64(),
            YamlKind::List(_) | YamlKind::Table(_) => None,
        };
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            self.wrong(node, name, &format!("a whole number from {} to {}", range.start(), range.end()));
        }
        number
    }

    /// A list of strings; a single string is a list of one.
    pub(crate) fn texts(&mut self, name: &'static str) -> Option<Vec<String>> {
        let node = self.node(name)?;
        let text = |node: &YamlNode| match &node.kind {
            YamlKind::Scalar(Value::String(text)) => Some(text.clone()),
            YamlKind::Scalar(value) if !value.is_null() => Some(value.to_string()),
            _ => {
                self.wrong(node, name, "a list of strings");
                None
            }
        };
        Some(match &node.kind {
            YamlKind::List(items) => items.iter().filter_map(text).collect(),
            YamlKind::Scalar(_) | YamlKind::Table(_) => text(node).into_iter().collect(),
        })
    }

    pub(crate) fn table(&mut self, name: &'static str) -> Option<MappingReader<'a>> {
        let node = self.node(name)?;
        MappingReader::of(node, format!("`{name}` of {}", self.what), self.log)
    }

    /// The nodes of a list.
    pub(crate) fn items(&mut self, name: &'static str) -> &'a [YamlNode] {
        let Some(node) = self.node(name) else { return &[] };
        match &node.kind {
            YamlKind::List(items) => items,
            _ => {
                self.wrong(node, name, "a list");
                &[]
            }
        }
    }

    /// The mappings of a list.
    pub(crate) fn tables(&mut self, name: &'static str) -> Vec<MappingReader<'a>> {
        let items = self.items(name).iter();
        items.filter_map(|item| MappingReader::of(item, format!("an entry of `{name}`"), self.log)).collect()
    }

    /// Reports members that were not read.
    pub(crate) fn finish(self, documentation: &[&str]) {
        for member in self.members {
            let name = member.name.as_str();
            if !self.asked.contains(name) && !documentation.contains(&name) {
                self.log.ignored(member.at, member.name.clone());
            }
        }
    }
}
