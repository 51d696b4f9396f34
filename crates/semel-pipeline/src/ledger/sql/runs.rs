//! What only runs have, as far as it is looked up.

use semel::fingerprint::Fingerprint;
use semel::key::KeyId;

use super::{Database, Value, bigint};
use crate::event::Generation;
use crate::id::EventId;

pub(crate) async fn resolve<D: Database>(db: &mut D, ghost: EventId) -> Result<Option<EventId>, D::Fault> {
    let winner: Option<[u8; 16]> = db.first(D::SQL.resolve, &[ghost.to_bytes().into()]).await?;
    Ok(winner.map(|id| EventId::from_bytes(ghost.kind(), id)))
}

pub(crate) async fn find_keyless<D: Database>(
    db: &mut D,
    dedupe: KeyId,
    generation: Generation,
    fingerprint: Fingerprint,
) -> Result<Option<EventId>, D::Fault> {
    let fingerprint = Value::Bytes(Some(fingerprint.as_bytes().to_vec()));
    let with = [(*dedupe.as_bytes()).into(), bigint(generation.get()).into(), fingerprint];
    db.first(D::SQL.find_keyless, &with).await
}
