//! The keys and channels of the store. A name contains no caller's data, only its hash.

use super::script::Dialect;
use crate::hex;
use crate::key::KeyId;
use crate::store::MarkId;

#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    /// Checks a prefix: with a brace in it, all records would be on one shard, or scripts on two.
    pub(super) fn new(prefix: &str) -> Result<Self, &'static str> {
        let fine =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'-' | b'_' | b'.' | b'/');
        if prefix.is_empty() || prefix.len() > 64 || !prefix.bytes().all(fine) {
            return Err("the prefix must be 1 to 64 letters, digits and : - _ . /, without braces");
        }
        Ok(Self { prefix: prefix.to_owned() })
    }

    /// A record's key, and the channel that wakes its waiters.
    pub(super) fn record(&self, id: KeyId) -> Vec<u8> {
        format!("{}:{{{id}}}", self.prefix).into_bytes()
    }

    pub(super) fn id(&self, key: &[u8]) -> Option<KeyId> {
        let tagged = key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b":{")?.strip_suffix(b"}")?;
        hex::read(tagged).map(KeyId::from_bytes)
    }

    /// The pattern for SCAN: it matches exactly the records.
    pub(super) fn records(&self) -> String {
        format!("{}:{{{}}}", self.prefix, "?".repeat(32))
    }

    /// The channel for forgotten and re-executed records.
    pub(super) fn forgotten(&self) -> Vec<u8> {
        format!("{}:forgotten", self.prefix).into_bytes()
    }

    /// Where processes count that they have received an invalidation.
    pub(super) fn receipt(&self, receipt: &[u8]) -> Vec<u8> {
        let hex: String = receipt.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("{}:receipt:{{{hex}}}", self.prefix).into_bytes()
    }

    /// The key with which a tiered store tests whether the server accepts writes.
    #[cfg(feature = "postgres")]
    pub(super) fn probe(&self) -> Vec<u8> {
        format!("{}:probe", self.prefix).into_bytes()
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether the store grants claims.
    pub(super) fn transfer(&self) -> Vec<u8> {
        format!("{}:transfer", self.prefix).into_bytes()
    }

    pub(super) fn secret(&self) -> Vec<u8> {
        format!("{}:secret", self.prefix).into_bytes()
    }

    pub(super) fn mark(&self, mark: MarkId) -> Vec<u8> {
        format!("{}:mark:{{{}}}", self.prefix, KeyId::from_bytes(*mark.as_bytes())).into_bytes()
    }

    /// The pattern for SCAN: it matches exactly the marks.
    pub(super) fn marks(&self) -> String {
        format!("{}:mark:{{{}}}", self.prefix, "?".repeat(32))
    }

    pub(super) fn mark_id(&self, key: &[u8]) -> Option<MarkId> {
        let tagged =
            key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b":mark:{")?.strip_suffix(b"}")?;
        hex::read(tagged).map(MarkId::from_bytes)
    }

    /// The markers that reveal a server that came back with less data. On a cluster there are enough that every shard
    /// is likely to hold one.
    pub(super) fn markers(&self, dialect: Dialect) -> Vec<Vec<u8>> {
        match dialect {
            Dialect::One => vec![format!("{}:marker", self.prefix).into_bytes()],
            Dialect::Cluster => {
                (0..32).map(|tag| format!("{}:marker:{{{tag}}}", self.prefix).into_bytes()).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One pair of braces, around nothing but the id.
    #[test]
    fn a_record_has_its_own_tag_and_reads_back() {
        let names = Names::new("semel").expect("a good prefix");
        let id = KeyId::from_bytes(*b"}{}{}{}{}{}{}{}{");
        let key = names.record(id);
        assert_eq!(key, b"semel:{7d7b7d7b7d7b7d7b7d7b7d7b7d7b7d7b}");
        assert_eq!(names.id(&key), Some(id));
        let mark = MarkId::from_bytes(*id.as_bytes());
        assert_eq!(names.mark_id(&names.mark(mark)), Some(mark));
        assert_eq!(names.mark_id(&key), None);
        for other in
            [names.secret(), names.transfer(), names.forgotten(), names.receipt(&[7; 16]), names.mark(mark)]
        {
            assert_eq!(names.id(&other), None);
        }
        for marker in names.markers(Dialect::Cluster) {
            assert_eq!(names.id(&marker), None);
        }
    }

    #[test]
    fn a_prefix_cannot_hold_a_tag_or_a_pattern() {
        for bad in ["", "a{b}", "a*", "a b", "ä", "?", "[x]"] {
            assert!(Names::new(bad).is_err(), "{bad}");
        }
    }
}
