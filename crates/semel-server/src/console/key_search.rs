//! The search for keys by their first characters. No index holds those, so it reads the store in parts: the address of the next
//! part has what the parts before it found, and an open page follows these addresses by itself.

use std::time::Duration;

use semel::key::KeyId;
use semel::record::Phase;
use semel::store::Snapshot;
use serde::Deserialize;

use super::html;
use crate::admin::keys::KeyQuery;
use crate::admin::{Admin, Refusal};

/// How long the first part takes: a page is shown soon.
const FIRST: Duration = Duration::from_millis(150);
/// How long each further part takes.
const FURTHER: Duration = Duration::from_secs(1);
/// The most keys that the address of the next part names. With more of them, the next part is a page of its own.
const CARRIED: usize = 100;

/// How far a search has come, as it is in an address.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct SearchProgress {
    cursor: String,
    /// Records that earlier parts have read.
    searched: String,
    /// The ids of keys that earlier parts have found.
    found: String,
}

/// What a search has found so far.
#[derive(Default)]
pub(super) struct FoundByHint {
    pub(super) items: Vec<Snapshot>,
    /// Where the next page or part begins.
    pub(super) next: Option<KeyId>,
    /// Records that all parts have read.
    searched: u64,
    /// True if the time was over before a page was full.
    is_cut_short: bool,
}

impl SearchProgress {
    pub(super) fn is_first(&self) -> bool {
        self.cursor.is_empty()
    }

    fn after(&self) -> Result<Option<KeyId>, Refusal> {
        let cursor = Some(self.cursor.as_str()).filter(|cursor| !cursor.is_empty());
        let after = cursor.map(str::parse).transpose();
        after.map_err(|_| Refusal::bad("cursor: expected the link of a page"))
    }

    /// The ids that earlier parts have found.
    fn found(&self, limit: usize) -> Vec<KeyId> {
        self.found.split(',').filter_map(|id| id.parse().ok()).take(limit).collect()
    }
}

/// Searches the next part. Keys in doubt come first: they are few, and the ones that people look for.
pub(super) async fn search(
    admin: &Admin,
    phase: Option<Phase>,
    hint: &str,
    limit: usize,
    progress: &SearchProgress,
) -> Result<FoundByHint, Refusal> {
    let after = progress.after()?;
    let time = if progress.is_first() { FIRST } else { FURTHER };
    let hint = Some(hint.to_owned()).filter(|hint| !hint.is_empty());
    let query = KeyQuery { phase, hint, key: None, after, limit };
    let mut items = Vec::new();
    for id in progress.found(limit) {
        items.extend(admin.engine.store().get(id).await?);
    }
    if progress.is_first() && phase.is_none() && query.hint.is_some() {
        let in_doubt =
            KeyQuery { phase: Some(Phase::InDoubt), hint: query.hint.clone(), limit, ..KeyQuery::default() };
        // Redis has no index of them. A search that takes too long is not worth waiting for: the rest finds them too.
        if let Ok(found) = tokio::time::timeout(FIRST, in_doubt.find_within(admin, FIRST)).await {
            items = found?.items;
        }
    }
    let is_known = |id: KeyId, items: &[Snapshot]| items.iter().any(|known| known.id == id);
    let mut found = query.find_within(admin, time).await?;
    let is_cut_short = found.is_cut_short();
    found.items.retain(|snapshot| !is_known(snapshot.id, &items));
    items.append(&mut found.items);
    let searched = progress.searched.parse::<u64>().unwrap_or(0).saturating_add(found.searched as u64);
    Ok(FoundByHint { items, next: found.next, searched, is_cut_short })
}

impl FoundByHint {
    /// True if the time was over before all was read.
    pub(super) const fn is_cut_short(&self) -> bool {
        self.is_cut_short
    }

    /// The address of the next part, if the search is not over.
    pub(super) fn next_part(&self, path: &str, filters: &[(&str, &str)]) -> Option<String> {
        let next = self.next.filter(|_| self.is_cut_short && self.items.len() <= CARRIED)?;
        let found: Vec<String> = self.items.iter().map(|snapshot| snapshot.id.to_string()).collect();
        let (cursor, searched, found) = (next.to_string(), self.searched.to_string(), found.join(","));
        let progress = [("cursor", cursor.as_str()), ("searched", &searched), ("found", &found)];
        let pairs: Vec<(&str, &str)> = filters.iter().copied().chain(progress).collect();
        Some(format!("{path}{}", html::query(&pairs)))
    }

    /// How many records were searched, in words.
    pub(super) fn progress(&self) -> String {
        let searched = html::count(self.searched);
        match self.next.and_then(|next| estimated_total(self.searched, next)) {
            Some(total) => format!("Searched {searched} of about {} keys", html::count(total)),
            None => format!("Searched {searched} keys"),
        }
    }
}

/// The number of keys in the store, from how many came before this id: stores list them in the order of their ids, and ids are
/// hashes, which lie evenly. `None` if too few were read to tell.
fn estimated_total(searched: u64, next: KeyId) -> Option<u64> {
    if searched < 200 {
        return None;
    }
    let first = next.as_bytes().first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    let share = (f64::from(first) + 1.0) / (f64::from(u32::MAX) + 1.0);
    let total = (searched as f64 / share).min(1e15);
    // Two or three digits are known.
    let step = 10_f64.powf((total.log10() - 2.0).floor()).max(1.0);
    Some(((total / step).round() * step) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_keys_follows_from_the_position() {
        let at =
            |share: f64| KeyId::from_bytes((((share * f64::from(u32::MAX)) as u128) << 96).to_be_bytes());
        assert_eq!(estimated_total(5_400, at(0.26)), Some(20_800));
        assert_eq!(estimated_total(1_000_000, at(0.999)), Some(1_000_000));
        assert_eq!(estimated_total(100, at(0.5)), None, "too few to tell");
        assert!(estimated_total(u64::MAX, at(0.0)).is_some());
    }
}
