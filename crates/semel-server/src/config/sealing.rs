//! `[store.encryption]`: the keys that encrypt stored outcomes.

use semel::store::{Keyring, Plain, SealingKey};

use super::reader::Table;
use super::secrets::{self, Environment};
use super::values::{choice, text};

/// A shorter key could be guessed.
const SHORTEST: usize = 32;

/// Settings of the encryption.
#[derive(Clone, Debug)]
pub(crate) struct Sealing {
    /// The first key encrypts, all of them decrypt.
    pub(crate) ring: Keyring,
    /// Handling of outcomes that are not encrypted.
    pub(crate) plain: Plain,
    /// Whether the operator accepts that events and buffered runs are not encrypted.
    pub(crate) ledger: PlainLedger,
}

/// Whether an unencrypted ledger and buffer may be used with encrypted outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PlainLedger {
    #[default]
    Refuse,
    Accept,
}

impl Sealing {
    pub(super) fn read(store: &mut Table<'_>, environment: &Environment<'_>) -> Option<Self> {
        let problems = store.problems();
        let mut table = store.table("encryption")?;
        let plain = table.get("plain", choice(&[("read", Plain::Read), ("refuse", Plain::Refuse)]));
        let ledgers = [("refuse", PlainLedger::Refuse), ("plain", PlainLedger::Accept)];
        let ledger = table.get("ledger", choice(&ledgers));
        let mut ring: Option<Keyring> = None;
        let keys = table.tables("key");
        if keys.is_empty() {
            problems.at(
                &table.span(),
                "[store.encryption] needs keys: [[store.encryption.key]] with id and value",
            );
        }
        for mut key in keys {
            let id = key.need("id", text);
            if !key.has("value") {
                problems.at(&key.span(), "[[key]] needs `value`, as in { env = \"NAME\" }");
            }
            let value = secrets::read(&mut key, "value", environment);
            let whole = key.span();
            key.done();
            let (Some(id), Some((value, span))) = (id, value) else { continue };
            if value.len() < SHORTEST {
                problems
                    .at(&span, format!("value: is shorter than {SHORTEST} characters and could be guessed"));
                continue;
            }
            let value = SealingKey::from_passphrase(value.as_bytes());
            let added = match ring.take() {
                None => Keyring::new(&id, &value),
                Some(ring) => ring.also_opens(&id, &value),
            };
            match added {
                Ok(added) => ring = Some(added),
                Err(error) => problems.at(&whole, error.to_string()),
            }
        }
        table.done();
        Some(Self { ring: ring?, plain: plain.unwrap_or_default(), ledger: ledger.unwrap_or_default() })
    }
}
