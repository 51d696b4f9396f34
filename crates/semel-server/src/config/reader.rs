//! Reads tables of a TOML file key by key. A key that is never read is a mistake in the file.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Problems, meant};

/// One table of the file.
pub(crate) struct Table<'a> {
    /// Its name in messages: `[gateway]`.
    name: String,
    /// Its path for programs: `gateway.limits`.
    path: String,
    span: Range<usize>,
    entries: Cow<'a, DeTable<'a>>,
    asked: BTreeSet<&'static str>,
    problems: &'a Problems<'a>,
}

/// A value and its position.
#[derive(Clone, Debug)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) span: Range<usize>,
}

impl<'a> Table<'a> {
    /// The whole file.
    pub(super) fn root(table: &'a Spanned<DeTable<'a>>, problems: &'a Problems<'a>) -> Self {
        Self::new(
            "the file".to_owned(),
            String::new(),
            table.span(),
            Cow::Borrowed(table.get_ref()),
            problems,
        )
    }

    /// An absent table, so that its defaults are read in one place.
    pub(super) fn empty(name: &str, problems: &'a Problems<'a>) -> Self {
        let path = name.trim_matches(['[', ']']).to_owned();
        Self::new(name.to_owned(), path, 0..0, Cow::Owned(DeTable::new()), problems)
    }

    fn new(
        name: String,
        path: String,
        span: Range<usize>,
        entries: Cow<'a, DeTable<'a>>,
        problems: &'a Problems<'a>,
    ) -> Self {
        Self { name, path, span, entries, asked: BTreeSet::new(), problems }
    }

    /// Its position.
    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    pub(super) fn problems(&self) -> &'a Problems<'a> {
        self.problems
    }

    fn entry(&mut self, key: &'static str) -> Option<&Spanned<DeValue<'a>>> {
        self.asked.insert(key);
        #[cfg(test)]
        self.problems.note_asked(self.below(key));
        self.entries.iter().find(|(name, _)| name.get_ref().as_ref() == key).map(|(_, value)| value)
    }

    fn below(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// True if the key is present, without reading it.
    pub(super) fn has(&mut self, key: &'static str) -> bool {
        self.entry(key).is_some()
    }

    /// Reads a value; `read` returns the expected form on an error.
    pub(super) fn get<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<T> {
        self.located(key, read).map(|located| located.value)
    }

    /// Reads a value with its position.
    pub(super) fn located<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<Located<T>> {
        let problems = self.problems;
        let value = self.entry(key)?;
        match read(value.get_ref()) {
            Ok(read) => Some(Located { value: read, span: value.span() }),
            Err(expected) => {
                problems.at(&value.span(), format!("{key}: {expected}"));
                None
            }
        }
    }

    /// Reads a required value.
    pub(super) fn need<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<T> {
        self.need_located(key, read).map(|located| located.value)
    }

    /// Reads a required value with its position.
    pub(super) fn need_located<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<Located<T>> {
        if !self.has(key) {
            self.problems.at(&self.span, format!("{} needs `{key}`", self.name));
        }
        self.located(key, read)
    }

    /// A nested table: `[key]`, or `key = { … }`.
    pub(super) fn table(&mut self, key: &'static str) -> Option<Table<'a>> {
        let problems = self.problems;
        let path = self.below(key);
        let value = self.entry(key)?;
        let span = value.span();
        match value.get_ref() {
            DeValue::Table(table) => {
                Some(Self::new(format!("[{path}]"), path, span, Cow::Owned(table.clone()), problems))
            }
            other => {
                let found = other.type_str();
                problems.at(&span, format!("{key}: expected a table, as in [{key}], found {found}"));
                None
            }
        }
    }

    /// Nested tables: `[[key]]`.
    pub(super) fn tables(&mut self, key: &'static str) -> Vec<Table<'a>> {
        let problems = self.problems;
        let path = self.below(key);
        let Some(value) = self.entry(key) else { return Vec::new() };
        let DeValue::Array(array) = value.get_ref() else {
            let found = value.get_ref().type_str();
            problems.at(&value.span(), format!("{key}: expected tables, as in [[{key}]], found {found}"));
            return Vec::new();
        };
        array
            .iter()
            .filter_map(|item| match item.get_ref() {
                DeValue::Table(table) => Some(Self::new(
                    format!("[[{key}]]"),
                    path.clone(),
                    item.span(),
                    Cow::Owned(table.clone()),
                    problems,
                )),
                other => {
                    let found = other.type_str();
                    problems
                        .at(&item.span(), format!("{key}: expected a table, as in [[{key}]], found {found}"));
                    None
                }
            })
            .collect()
    }

    /// Reports every key that was not read.
    pub(super) fn done(self) {
        for (key, _) in self.entries.iter() {
            let typed = key.get_ref().as_ref();
            if self.asked.contains(typed) {
                continue;
            }
            let hint = match meant(typed, self.asked.iter().copied()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => {
                    format!("expected one of {}", self.asked.iter().copied().collect::<Vec<_>>().join(", "))
                }
            };
            self.problems.at(&key.span(), format!("unknown key `{typed}` in {}: {hint}", self.name));
        }
    }
}
