//! Reads mappings of a file member by member. Members that are not read are reported once per name.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use serde_json::Value;

use crate::error::{Mistake, Place};
use crate::yaml::{Kind, Member, Node};

/// The findings while reading.
#[derive(Debug, Default)]
pub(crate) struct Log {
    mistakes: RefCell<Vec<Mistake>>,
    notices: RefCell<Vec<String>>,
    ignored: RefCell<BTreeMap<String, (Place, usize)>>,
}

impl Log {
    pub(crate) fn mistake(&self, at: Place, expected: impl Into<String>) {
        self.mistakes.borrow_mut().push(Mistake::new(at, expected));
    }

    pub(crate) fn notice(&self, at: Place, text: &str) {
        self.notices.borrow_mut().push(format!("line {}: {text}", at.line));
    }

    fn ignored(&self, at: Place, name: String) {
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
pub(crate) struct Table<'a> {
    what: String,
    at: Place,
    members: &'a [Member],
    asked: BTreeSet<&'static str>,
    log: &'a Log,
}

impl<'a> Table<'a> {
    /// The node as a mapping; otherwise a mistake.
    pub(crate) fn of(node: &'a Node, what: impl Into<String>, log: &'a Log) -> Option<Self> {
        let what = what.into();
        match &node.kind {
            Kind::Table(members) => Some(Self { what, at: node.at, members, asked: BTreeSet::new(), log }),
            Kind::Scalar(_) | Kind::List(_) => {
                log.mistake(node.at, format!("{what} as a mapping, not {}", node.what()));
                None
            }
        }
    }

    pub(crate) fn at(&self) -> Place {
        self.at
    }

    pub(crate) fn node(&mut self, name: &'static str) -> Option<&'a Node> {
        self.asked.insert(name);
        let member = self.members.iter().find(|member| member.name == name)?;
        match member.node.kind {
            Kind::Scalar(Value::Null) => None,
            _ => Some(&member.node),
        }
    }

    pub(crate) fn has(&mut self, name: &'static str) -> bool {
        self.node(name).is_some()
    }

    pub(crate) fn json(&mut self, name: &'static str) -> Option<Value> {
        self.node(name).map(Node::json)
    }

    /// The same, with a written `null` as a value.
    pub(crate) fn explicit(&mut self, name: &'static str) -> Option<Value> {
        self.asked.insert(name);
        self.members.iter().find(|member| member.name == name).map(|member| member.node.json())
    }

    /// Reports a mistake at one member.
    pub(crate) fn wrong(&self, node: &Node, name: &str, expected: &str) {
        self.log.mistake(node.at, format!("`{name}` of {} to be {expected}, not {}", self.what, node.what()));
    }

    pub(crate) fn text(&mut self, name: &'static str) -> Option<String> {
        let node = self.node(name)?;
        match &node.kind {
            Kind::Scalar(Value::String(text)) => Some(text.clone()),
            Kind::Scalar(value) => Some(value.to_string()),
            Kind::List(_) | Kind::Table(_) => {
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
            Kind::Scalar(Value::Bool(flag)) => Some(*flag),
            _ => {
                self.wrong(node, name, "true or false");
                None
            }
        }
    }

    pub(crate) fn number(&mut self, name: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let node = self.node(name)?;
        let number = match &node.kind {
            Kind::Scalar(value) => value.as_u64(),
            Kind::List(_) | Kind::Table(_) => None,
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
        let text = |node: &Node| match &node.kind {
            Kind::Scalar(Value::String(text)) => Some(text.clone()),
            Kind::Scalar(value) if !value.is_null() => Some(value.to_string()),
            _ => {
                self.wrong(node, name, "a list of strings");
                None
            }
        };
        Some(match &node.kind {
            Kind::List(items) => items.iter().filter_map(text).collect(),
            Kind::Scalar(_) | Kind::Table(_) => text(node).into_iter().collect(),
        })
    }

    pub(crate) fn table(&mut self, name: &'static str) -> Option<Table<'a>> {
        let node = self.node(name)?;
        Table::of(node, format!("`{name}` of {}", self.what), self.log)
    }

    /// The nodes of a list.
    pub(crate) fn items(&mut self, name: &'static str) -> &'a [Node] {
        let Some(node) = self.node(name) else { return &[] };
        match &node.kind {
            Kind::List(items) => items,
            _ => {
                self.wrong(node, name, "a list");
                &[]
            }
        }
    }

    /// The mappings of a list.
    pub(crate) fn tables(&mut self, name: &'static str) -> Vec<Table<'a>> {
        let items = self.items(name).iter();
        items.filter_map(|item| Table::of(item, format!("an entry of `{name}`"), self.log)).collect()
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
