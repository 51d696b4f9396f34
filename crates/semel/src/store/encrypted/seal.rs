//! Outcomes as sealed bytes.
//!
//! The table is a contract with stored data: a change needs a new format byte.
//!
//! | bytes | field |
//! |---|---|
//! | 1 | format (1) |
//! | 1 | origin: 0 completed by an owner, 1 settled by a probe or a person |
//! | 1 | length of the key's id |
//! | | the key's id, ASCII |
//! | 4 | check: whether a key of that id is the one that sealed |
//! | 24 | owner (16) and fence (8, little endian) of the completion; zero where settled |
//! | 24 | nonce |
//! | | the outcome (as [`crate::record`]'s table has it: kind, metadata, body), XChaCha20, and 16 bytes of Poly1305 |
//!
//! The associated data are a constant for the purpose, the record's id and everything before the nonce: a sealed
//! outcome that is moved to another record, or whose head is changed, does not open.

use std::sync::Arc;

use chacha20poly1305::XNonce;
use chacha20poly1305::aead::AeadInOut;

use super::keyring::{Keyring, LONGEST_ID, RingKey};
use crate::key::KeyId;
use crate::outcome::{Outcome, OutcomeBody};
use crate::record::{Fence, Grant, Owner};
use crate::store::{Error, ErrorKind};

/// The kind of an outcome that contains a sealed one. Reserved: a plain outcome of this kind cannot be distinguished
/// from damage.
pub(super) const SEALED: &str = "semel.sealed";

const FORMAT: u8 = 1;
const PURPOSE: &[u8] = b"semel sealed outcome\0";
const NONCE: usize = 24;
const GRANT: usize = 24;

/// Who wrote an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutcomeOrigin {
    /// The owner of a claim.
    Completed(Grant),
    /// A probe or a person, who has no claim.
    Settled,
}

/// The parts of an outcome that can be read without a key: whether it is sealed, and with which key.
pub(super) enum Cover<'a> {
    Plain,
    Sealed(SealHead<'a>),
}

/// The bytes before the nonce.
pub(super) struct SealHead<'a> {
    bytes: &'a [u8],
    pub(super) key_id: &'a str,
    check: [u8; 4],
    origin: OutcomeOrigin,
    rest: &'a [u8],
}

/// Seals an outcome for one record. The same outcome of the same origin under the same key gives the same bytes.
pub(super) fn seal(key: &RingKey, id: KeyId, origin: OutcomeOrigin, outcome: &Outcome) -> Arc<Outcome> {
    let mut plain = outcome.encode();
    let head = head(key, origin);
    let nonce = nonce(key, id, &head, &plain);
    key.cipher
        .encrypt_in_place(&nonce, &associated(id, &head), &mut plain)
        .expect("an outcome is far below the cipher's limit of 256 GiB");
    let mut sealed = head;
    sealed.reserve_exact(NONCE + plain.len());
    sealed.extend_from_slice(&nonce);
    sealed.append(&mut plain);
    Arc::new(Outcome::new(SEALED, sealed))
}

/// Opens an outcome that was sealed for this record.
///
/// # Errors
/// `Setup` if the ring lacks its key, `Corrupt` if it was damaged or moved here, `Incompatible` if a newer version
/// sealed it.
pub(super) fn open(
    ring: &Keyring,
    id: KeyId,
    head: &SealHead<'_>,
) -> Result<(Outcome, OutcomeOrigin), Error> {
    let Some(key) = ring.find(head.key_id) else { return Err(missing(ring, id, head.key_id)) };
    if key.check != head.check {
        return Err(other_key(id, head.key_id));
    }
    let (nonce, sealed) = head.rest.split_first_chunk::<NONCE>().ok_or_else(|| damaged(id))?;
    let mut plain = sealed.to_vec();
    key.cipher
        .decrypt_in_place(&XNonce::from(*nonce), &associated(id, head.bytes), &mut plain)
        .map_err(|_| damaged(id))?;
    let outcome = Outcome::decode(&plain).map_err(|error| damaged(id).with_source(error))?;
    Ok((outcome, head.origin))
}

/// Inspects an outcome of the inner store.
///
/// # Errors
/// `Corrupt` and `Incompatible`, as [`open`].
pub(super) fn cover(id: KeyId, outcome: &Outcome) -> Result<Cover<'_>, Error> {
    if outcome.kind() != SEALED {
        return Ok(Cover::Plain);
    }
    let OutcomeBody::Kept(bytes) = outcome.body() else { return Err(damaged(id)) };
    match bytes.first() {
        Some(&FORMAT) => {}
        Some(other) => return Err(newer(id, *other)),
        None => return Err(damaged(id)),
    }
    if !outcome.metadata().is_empty() {
        return Err(damaged(id));
    }
    read_head(bytes).map(Cover::Sealed).ok_or_else(|| damaged(id))
}

fn head(key: &RingKey, origin: OutcomeOrigin) -> Vec<u8> {
    let mut head = Vec::with_capacity(7 + key.id.len() + GRANT);
    let (tag, grant) = match origin {
        OutcomeOrigin::Completed(grant) => (0, grant),
        OutcomeOrigin::Settled => (1, Grant::from_parts(Owner::from_bytes([0; 16]), Fence::new(0))),
    };
    let length = u8::try_from(key.id.len()).expect("a ring takes no id longer than LONGEST_ID");
    head.extend([FORMAT, tag, length]);
    head.extend_from_slice(key.id.as_bytes());
    head.extend(key.check);
    head.extend(grant.owner().as_bytes());
    head.extend(grant.fence().get().to_le_bytes());
    head
}

fn read_head(bytes: &[u8]) -> Option<SealHead<'_>> {
    let (&[_, tag, length], rest) = bytes.split_first_chunk()?;
    let length = usize::from(length);
    if length > LONGEST_ID {
        return None;
    }
    let (key_id, rest) = rest.split_at_checked(length)?;
    let (&check, rest) = rest.split_first_chunk()?;
    let (&owner, rest) = rest.split_first_chunk()?;
    let (&fence, rest) = rest.split_first_chunk()?;
    let grant = Grant::from_parts(Owner::from_bytes(owner), Fence::new(u64::from_le_bytes(fence)));
    let origin = match tag {
        0 => OutcomeOrigin::Completed(grant),
        1 => OutcomeOrigin::Settled,
        _ => return None,
    };
    let key_id = str::from_utf8(key_id).ok().filter(|id| id.bytes().all(|byte| byte.is_ascii_graphic()))?;
    Some(SealHead { bytes: &bytes[..bytes.len() - rest.len()], key_id, check, origin, rest })
}

fn associated(id: KeyId, head: &[u8]) -> Vec<u8> {
    [PURPOSE, id.as_bytes(), head].concat()
}

/// The documentation of [`super`] explains this construction.
fn nonce(key: &RingKey, id: KeyId, head: &[u8], plain: &[u8]) -> XNonce {
    let mut hasher = blake3::Hasher::new_keyed(&key.nonce);
    // Each part has a fixed length or is preceded by its length, except the last: no two inputs give the same bytes.
    hasher.update(id.as_bytes()).update(head).update(plain);
    let mut nonce = [0; NONCE];
    hasher.finalize_xof().fill(&mut nonce);
    XNonce::from(nonce)
}

fn missing(ring: &Keyring, id: KeyId, key_id: &str) -> Error {
    let ids: Vec<&str> = ring.ids().collect();
    Error::new(
        ErrorKind::Setup,
        format!(
            "the outcome of record {id} is sealed with the key `{key_id}`, which is not in the keyring ({}): put it back; \
             the effect is not run again",
            ids.join(", ")
        ),
    )
}

fn other_key(id: KeyId, key_id: &str) -> Error {
    Error::new(
        ErrorKind::Setup,
        format!(
            "the outcome of record {id} is sealed with another key than the `{key_id}` of the keyring: put the one back \
             that had this id when it was sealed; the effect is not run again"
        ),
    )
}

pub(super) fn damaged(id: KeyId) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "the sealed outcome of record {id} does not open: it was damaged, or was moved there from another record or \
             another claim; it is not served, and the effect is not run again"
        ),
    )
}

fn newer(id: KeyId, format: u8) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "the outcome of record {id} is sealed in format {format}, this version of Semel reads format {FORMAT}: upgrade \
             Semel, or keep the data for the version that wrote it"
        ),
    )
}
