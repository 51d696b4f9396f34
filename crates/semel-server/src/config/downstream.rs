//! `[[downstream]]`: services that the upstreams call, and how duplicates are kept from them.

use std::fmt;

use semel::secret::Secret;
use semel_client::downstream::{DuplicatePattern, Runbook, RunbookEntry, SecretSource};

use super::reader::Table;
use super::secrets::{self, Environment};
use super::values::{choice, text};

/// One downstream service.
pub(crate) struct Downstream {
    name: String,
    pattern: DuplicatePattern,
    /// `None` if its keys are made with a secret that is derived from the deployment's.
    secret: Option<String>,
}

impl fmt::Debug for Downstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Downstream")
            .field("name", &self.name)
            .field("pattern", &self.pattern)
            .finish_non_exhaustive()
    }
}

pub(super) fn read(root: &mut Table<'_>, environment: &Environment<'_>) -> Vec<Downstream> {
    let problems = root.problems();
    let mut all: Vec<Downstream> = Vec::new();
    for mut table in root.tables("downstream") {
        let name = table.located("name", text);
        if name.is_none() {
            table.need("name", text);
        }
        let pattern = table.need("pattern", choice(&DuplicatePattern::NAMES));
        let secret = secrets::read(&mut table, "secret", environment);
        table.done();
        if let Some((secret, span)) = &secret
            && secret.len() < 16
        {
            problems.at(span, "secret: is shorter than 16 characters and could be guessed");
        }
        let (Some(name), Some(pattern)) = (name, pattern) else { continue };
        if all.iter().any(|other| other.name == name.value) {
            problems.at(&name.span, format!("name: {:?} is taken by another downstream", name.value));
        }
        all.push(Downstream { name: name.value, pattern, secret: secret.map(|(secret, _)| secret) });
    }
    all
}

/// The runbook of these services.
pub(crate) fn runbook(all: &[Downstream]) -> Runbook {
    Runbook::new(all.iter().map(|Downstream { name, pattern, secret }| RunbookEntry {
        name: name.clone(),
        pattern: *pattern,
        secret: if secret.is_some() { SecretSource::Own } else { SecretSource::Derived },
    }))
}

/// The deployment's secret, with the secrets of individual providers.
pub(crate) fn with_secrets(secret: Secret, all: &[Downstream]) -> Secret {
    all.iter().fold(secret, |secret, Downstream { name, secret: own, .. }| match own {
        Some(own) => secret.with_provider(name, own.as_bytes()),
        None => secret,
    })
}
