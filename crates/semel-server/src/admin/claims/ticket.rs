//! A claim id: all that a later step of a claim needs, sealed, so that the server keeps nothing.

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use semel::fingerprint::Fingerprint;
use semel::key::KeyId;
use semel::record::{Fence, Grant, Owner};
use semel::secret::Secret;

use crate::admin::answer::Refusal;

/// id, owner, fence, fingerprint.
const BODY: usize = 16 + 16 + 8 + 32;
const TAG: usize = 16;

/// What a claim id holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) id: KeyId,
    pub(super) grant: Grant,
    pub(super) fingerprint: Fingerprint,
}

/// Seals tickets with a key that grows from the deployment's secret: all its servers can open them.
pub(super) struct Sealer([u8; 32]);

impl Sealer {
    pub(super) fn new(secret: &Secret) -> Self {
        Self(blake3::derive_key("semel 2026-01-01 claim ids v1", secret.expose()))
    }

    /// The claim id, for callers of this tenant only.
    pub(super) fn seal(&self, ticket: &Ticket, tenant: Option<&str>) -> String {
        let mut bytes = Vec::with_capacity(BODY + TAG);
        bytes.extend_from_slice(ticket.id.as_bytes());
        bytes.extend_from_slice(ticket.grant.owner().as_bytes());
        bytes.extend_from_slice(&ticket.grant.fence().get().to_le_bytes());
        bytes.extend_from_slice(ticket.fingerprint.as_bytes());
        let tag = self.tag(&bytes, tenant);
        bytes.extend_from_slice(&tag.as_bytes()[..TAG]);
        BASE64.encode(bytes)
    }

    /// What was sealed.
    ///
    /// # Errors
    /// 404 for anything that was not sealed here, or for another tenant.
    pub(super) fn open(&self, text: &str, tenant: Option<&str>) -> Result<Ticket, Refusal> {
        let unknown = || {
            let detail = "there is no such claim; use the claim_id that /v1/claims gave";
            Refusal::new(StatusCode::NOT_FOUND, "not_found", detail)
        };
        let bytes = BASE64.decode(text).map_err(|_| unknown())?;
        let (body, tag) = bytes.split_at_checked(BODY).ok_or_else(unknown)?;
        let expected = self.tag(body, tenant);
        // A comparison in constant time; both sides have one length.
        if !bool::from(subtle::ConstantTimeEq::ct_eq(tag, &expected.as_bytes()[..TAG])) {
            return Err(unknown());
        }
        let (id, rest) = body.split_first_chunk().ok_or_else(unknown)?;
        let (owner, rest) = rest.split_first_chunk().ok_or_else(unknown)?;
        let (fence, rest) = rest.split_first_chunk().ok_or_else(unknown)?;
        let (fingerprint, _) = rest.split_first_chunk().ok_or_else(unknown)?;
        let grant = Grant::from_parts(Owner::from_bytes(*owner), Fence::new(u64::from_le_bytes(*fence)));
        let (id, fingerprint) = (KeyId::from_bytes(*id), Fingerprint::from_bytes(*fingerprint));
        Ok(Ticket { id, grant, fingerprint })
    }

    fn tag(&self, body: &[u8], tenant: Option<&str>) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(body);
        // No tenant and an empty one differ.
        if let Some(tenant) = tenant {
            hasher.update(b"/");
            hasher.update(tenant.as_bytes());
        }
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // squatting, tenant_collision: a claim id works for its tenant only, and none can be made up.
    #[test]
    fn a_claim_id_opens_for_its_tenant_only() {
        let sealer = Sealer::new(&Secret::random());
        let ticket = Ticket {
            id: KeyId::from_bytes([1; 16]),
            grant: Grant::from_parts(Owner::from_bytes([2; 16]), Fence::new(u64::MAX - 3)),
            fingerprint: Fingerprint::from_bytes([4; 32]),
        };
        let sealed = sealer.seal(&ticket, Some("acme"));
        assert_eq!(sealer.open(&sealed, Some("acme")).unwrap(), ticket);
        for tenant in [None, Some(""), Some("acm"), Some("acme2")] {
            assert!(sealer.open(&sealed, tenant).is_err(), "{tenant:?}");
        }
        assert!(Sealer::new(&Secret::random()).open(&sealed, Some("acme")).is_err());
        for at in 0..sealed.len() - 1 {
            let mut forged = sealed.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            assert!(sealer.open(std::str::from_utf8(&forged).unwrap(), Some("acme")).is_err(), "{at}");
        }
        for wrong in ["", "x", "%%", &sealed[..40], &format!("{sealed}AA")] {
            assert!(sealer.open(wrong, Some("acme")).is_err());
        }
    }
}
