//! Changes of buffered runs, and their bytes: each change is JSON, with its length before it.

use semel::store::{Effect, Error};
use semel_pipeline::id::EventId;
use semel_pipeline::ledger::Patch;

use super::{Buffer, PatchOutcome, answer};

impl Buffer {
    /// Adds a change to a buffered run, also while a drainer has leased it. `version` is the version that the caller
    /// expects, if any. A change that must not come too late (a cancellation, another delay) does not belong here: it
    /// moves the run into the ledger.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn patch(
        &self,
        tenant: &str,
        id: EventId,
        patch: &Patch,
        version: Option<u64>,
    ) -> Result<PatchOutcome, Error> {
        let id = id.to_string();
        let patch_bytes = encode_change(patch);
        let version = version.map_or_else(|| "-1".to_owned(), |version| version.to_string());
        let arguments: [&[u8]; 3] = [id.as_bytes(), &patch_bytes, version.as_bytes()];
        let answer = self.call(&self.scripts.patch, tenant, &arguments, Effect::WritesDurably).await?;
        let (word, version) = answer::read_word(&answer)?;
        match word.as_str() {
            "applied" => Ok(PatchOutcome::Applied(version.parse().map_err(|_| answer::unexpected_answer())?)),
            "stale" => Ok(PatchOutcome::Stale),
            "missing" => Ok(PatchOutcome::Missing),
            _ => Err(answer::unexpected_answer()),
        }
    }
}

pub(super) fn encode_change(change: &Patch) -> Vec<u8> {
    let text = serde_json::to_vec(change).expect("a change is plain data");
    let length = u32::try_from(text.len()).expect("a change is far below 4 GiB").to_le_bytes();
    [&length[..], &text].concat()
}

pub(super) fn decode_changes(mut bytes: &[u8]) -> Result<Vec<Patch>, String> {
    let mut changes = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or("a change is cut off")?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| "a change is too long")?;
        let (text, rest) = rest.split_at_checked(length).ok_or("a change is cut off")?;
        changes.push(serde_json::from_slice(text).map_err(|error| format!("a change: {error}"))?);
        bytes = rest;
    }
    Ok(changes)
}
