//! Which downstream uses which pattern, for the person on call.

use std::fmt;

use serde::Serialize;

/// How duplicates are kept from a downstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DuplicatePattern {
    /// It honours a key: every attempt carries the same derived one.
    DerivedKey,
    /// It can be asked: the claim is written first, and on recovery it is asked before it is called.
    ClaimFirst,
}

impl DuplicatePattern {
    /// Every pattern by its name.
    pub const NAMES: [(&'static str, Self); 2] =
        [("derived-key", Self::DerivedKey), ("claim-first", Self::ClaimFirst)];

    /// Its name in the config file and in the runbook.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DerivedKey => "derived-key",
            Self::ClaimFirst => "claim-first",
        }
    }

    /// What happens after a crash in the middle of a call.
    #[must_use]
    pub const fn recovery(self) -> &'static str {
        match self {
            Self::DerivedKey => "called again with the same key; the provider answers with what it did",
            Self::ClaimFirst => {
                "asked for the reserved id: found, used; no record, called with it; no clear answer, nothing is sent"
            }
        }
    }

    /// What to do where an outcome stays unknown.
    #[must_use]
    pub const fn by_hand(self) -> &'static str {
        match self {
            Self::DerivedKey => {
                "send the request again with the same key, or look the derived key up at the provider"
            }
            Self::ClaimFirst => "look the reserved id up at the provider, then settle the key",
        }
    }
}

impl fmt::Display for DuplicatePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where the secret comes from that a provider's keys are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecretSource {
    /// Grown from the deployment's secret, for this provider alone.
    Derived,
    /// Given for this provider.
    Own,
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Derived => "derived",
            Self::Own => "own",
        })
    }
}

/// One downstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunbookEntry {
    /// Its name: the one that keys are derived for.
    pub name: String,
    /// Its pattern.
    pub pattern: DuplicatePattern,
    /// Where its secret comes from. The secret itself is not here.
    pub secret: SecretSource,
}

/// All downstreams, by name. Displays as text for people and serialises as JSON for programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runbook {
    entries: Vec<RunbookEntry>,
}

impl Runbook {
    /// A runbook of these.
    #[must_use]
    pub fn new(entries: impl IntoIterator<Item = RunbookEntry>) -> Self {
        let mut entries: Vec<RunbookEntry> = entries.into_iter().collect();
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Self { entries }
    }

    /// Its entries, by name.
    #[must_use]
    pub fn entries(&self) -> &[RunbookEntry] {
        &self.entries
    }
}

impl fmt::Display for Runbook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.entries.is_empty() {
            return writeln!(
                f,
                "No downstream is configured: add [[downstream]] entries to the config file."
            );
        }
        let width = self.entries.iter().map(|entry| entry.name.chars().count()).max().unwrap_or(0).max(10);
        writeln!(f, "{:width$}  {:11}  {:7}", "downstream", "pattern", "secret")?;
        for RunbookEntry { name, pattern, secret } in &self.entries {
            writeln!(f, "{name:width$}  {:11}  {secret}", pattern.name())?;
        }
        for (name, pattern) in DuplicatePattern::NAMES {
            if self.entries.iter().any(|entry| entry.pattern == pattern) {
                writeln!(
                    f,
                    "\n{name}\n  after a crash: {}\n  by hand:       {}",
                    pattern.recovery(),
                    pattern.by_hand()
                )?;
            }
        }
        Ok(())
    }
}

impl Serialize for Runbook {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Line<'a> {
            name: &'a str,
            pattern: DuplicatePattern,
            secret: SecretSource,
            recovery: &'static str,
            by_hand: &'static str,
        }
        #[derive(Serialize)]
        struct Book<'a> {
            downstreams: Vec<Line<'a>>,
        }
        let downstreams = self.entries.iter().map(|RunbookEntry { name, pattern, secret }| Line {
            name,
            pattern: *pattern,
            secret: *secret,
            recovery: pattern.recovery(),
            by_hand: pattern.by_hand(),
        });
        let downstreams = downstreams.collect();
        Book { downstreams }.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book() -> Runbook {
        let entry = |name: &str, pattern, secret| RunbookEntry { name: name.to_owned(), pattern, secret };
        Runbook::new([
            entry("ledger", DuplicatePattern::ClaimFirst, SecretSource::Derived),
            entry("acquirer", DuplicatePattern::DerivedKey, SecretSource::Own),
        ])
    }

    #[test]
    fn a_runbook_reads_by_people() {
        let text = book().to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["downstream", "pattern", "secret"]);
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["acquirer", "derived-key", "own"]);
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["ledger", "claim-first", "derived"]);
        assert!(text.contains("after a crash:"));
        assert!(Runbook::default().to_string().contains("[[downstream]]"));
    }

    #[test]
    fn a_runbook_reads_by_programs() {
        let json = serde_json::to_value(book()).unwrap();
        assert_eq!(json["downstreams"][0]["name"], "acquirer");
        assert_eq!(json["downstreams"][0]["pattern"], "derived-key");
        assert_eq!(json["downstreams"][1]["secret"], "derived");
        assert!(json["downstreams"][1]["recovery"].as_str().is_some_and(|text| text.contains("reserved id")));
    }
}
