//! A claim of a verified bearer token as the principal.
//!
//! HS256 with a secret; RS256 and ES256 with a key set (JWKS) that is given as data. The key determines the algorithm, never the token.
//! `none` is refused like any other algorithm.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, HeaderMap};
use ring::{hmac, signature};
use semel::time::{Clock, SystemClock};
use serde::Deserialize;

use super::Principal;
use crate::policy::PolicyError;
use crate::problem::{Problem, Situation};

/// Maximum size of a token, in bytes.
const LONGEST: usize = 16 << 10;

const FORM: &str = "the bearer token is not a signed JWT";

/// Verifies bearer tokens and reads one of their claims.
pub struct Verifier {
    claim: String,
    keys: Vec<JwtKey>,
    issuer: Option<String>,
    audience: Option<String>,
    leeway: Duration,
    clock: Arc<dyn Clock>,
}

/// Settings of a [`Verifier`].
#[must_use = "nothing is built until build is called"]
pub struct VerifierBuilder {
    claim: String,
    keys: Result<Vec<JwtKey>, PolicyError>,
    issuer: Option<String>,
    audience: Option<String>,
    leeway: Duration,
    clock: Arc<dyn Clock>,
}

struct JwtKey {
    id: Option<String>,
    material: Material,
}

enum Material {
    Secret(hmac::Key),
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// An uncompressed point of P-256.
    Point(Vec<u8>),
}

impl Default for VerifierBuilder {
    fn default() -> Self {
        Self {
            claim: "sub".to_owned(),
            keys: Ok(Vec::new()),
            issuer: None,
            audience: None,
            leeway: Duration::from_secs(60),
            clock: Arc::new(SystemClock),
        }
    }
}

impl VerifierBuilder {
    /// A builder without keys: add a secret or a key set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The claim that names the principal. Default: `sub`.
    pub fn claim(mut self, claim: &str) -> Self {
        claim.clone_into(&mut self.claim);
        self
    }

    /// Accepts HS256 tokens with this secret of at least 32 bytes.
    pub fn secret(mut self, secret: &[u8]) -> Self {
        if secret.len() < 32 {
            let reason = "an HS256 secret must have at least 32 bytes".to_owned();
            self.keys = Err(PolicyError::KeySet { reason });
        } else if let Ok(keys) = &mut self.keys {
            keys.push(JwtKey {
                id: None,
                material: Material::Secret(hmac::Key::new(hmac::HMAC_SHA256, secret)),
            });
        }
        self
    }

    /// Accepts RS256 and ES256 tokens with the keys of this set. Keys of other types are ignored.
    pub fn jwks(mut self, json: &[u8]) -> Self {
        if let Ok(keys) = &mut self.keys {
            match read_set(json) {
                Ok(read) => keys.extend(read),
                Err(reason) => self.keys = Err(PolicyError::KeySet { reason }),
            }
        }
        self
    }

    /// Accepts only tokens of this issuer.
    pub fn issuer(mut self, issuer: &str) -> Self {
        self.issuer = Some(issuer.to_owned());
        self
    }

    /// Accepts only tokens for this audience.
    pub fn audience(mut self, audience: &str) -> Self {
        self.audience = Some(audience.to_owned());
        self
    }

    /// The clock for `exp` and `nbf`.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Builds the verifier.
    ///
    /// # Errors
    /// No key, or a key set that cannot be used.
    pub fn build(self) -> Result<Verifier, PolicyError> {
        let Self { claim, keys, issuer, audience, leeway, clock } = self;
        let keys = keys?;
        if keys.is_empty() {
            return Err(PolicyError::Unverified { claim });
        }
        Ok(Verifier { claim, keys, issuer, audience, leeway, clock })
    }
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct SetKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    r#use: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

fn read_set(json: &[u8]) -> Result<Vec<JwtKey>, String> {
    let set: Set = serde_json::from_slice(json)
        .map_err(|_| "it is not a JSON object with an array \"keys\"".to_owned())?;
    let mut keys = Vec::new();
    for (index, key) in set.keys.into_iter().enumerate() {
        let number = index + 1;
        let key: SetKey = serde_json::from_value(key).map_err(|_| format!("key {number} has no \"kty\""))?;
        let for_others = key.r#use.as_deref().is_some_and(|word| word != "sig");
        let signs_only = key.key_ops.as_ref().is_some_and(|all| !all.iter().any(|one| one == "verify"));
        if for_others || signs_only {
            continue;
        }
        let part = |part: &Option<String>, name: &str| {
            let text = part.as_deref().ok_or(format!("key {number} has no \"{name}\""))?;
            decode(text.as_bytes()).ok_or(format!("\"{name}\" of key {number} is not base64url"))
        };
        let material = match (key.kty.as_str(), key.alg.as_deref(), key.crv.as_deref()) {
            ("RSA", None | Some("RS256"), _) => {
                let modulus = part(&key.n, "n")?;
                if modulus.len() < 256 {
                    return Err(format!("key {number} has less than 2048 bits"));
                }
                Material::Rsa { modulus, exponent: part(&key.e, "e")? }
            }
            ("EC", None | Some("ES256"), Some("P-256")) => {
                let (x, y) = (part(&key.x, "x")?, part(&key.y, "y")?);
                if (x.len(), y.len()) != (32, 32) {
                    return Err(format!("key {number} is not a point of P-256"));
                }
                Material::Point([&[4], x.as_slice(), y.as_slice()].concat())
            }
            _ => continue,
        };
        keys.push(JwtKey { id: key.kid, material });
    }
    if keys.is_empty() {
        return Err("it has no RSA key for RS256 and no P-256 key for ES256".to_owned());
    }
    Ok(keys)
}

#[derive(Deserialize)]
struct JwtHeader {
    alg: String,
    kid: Option<String>,
    crit: Option<serde_json::Value>,
}

impl Verifier {
    /// The claim that names the principal.
    pub fn claim(&self) -> &str {
        &self.claim
    }

    /// True if it checks the audience or the issuer.
    pub(super) fn is_bound(&self) -> bool {
        self.issuer.is_some() || self.audience.is_some()
    }

    /// The principal, from the claim of the request's bearer token.
    pub(crate) fn principal(&self, headers: &HeaderMap) -> Result<Principal, Problem> {
        let mut lines = headers.get_all(AUTHORIZATION).iter();
        let line = match (lines.next(), lines.next()) {
            (Some(line), None) => line.as_bytes(),
            _ => {
                let detail = "send one bearer token in the header authorization: it identifies the caller";
                return Err(Problem::new(Situation::ScopeMissing, detail));
            }
        };
        let value = match line.split_at_checked(7) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => {
                self.verify(token.trim_ascii())
            }
            _ => Err("the header authorization holds no bearer token"),
        };
        match value {
            Ok(value) => {
                let issuer = self.issuer.as_deref().unwrap_or_default();
                Ok(Principal::new(&["jwt", issuer, &self.claim], value.as_bytes()))
            }
            Err(reason) => Err(Problem::new(Situation::CredentialRefused, reason)),
        }
    }

    /// The payload of a token with a valid signature, or the reason why there is none. The reason never quotes the token.
    fn signed_payload(&self, token: &[u8]) -> Result<Vec<u8>, &'static str> {
        if token.len() > LONGEST {
            return Err("the bearer token is too long");
        }
        let mut parts = token.split(|byte| *byte == b'.');
        let (Some(head), Some(claims), Some(mark), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(FORM);
        };
        let signed = &token[..head.len() + 1 + claims.len()];
        let head: JwtHeader = decode(head).and_then(|json| serde_json::from_slice(&json).ok()).ok_or(FORM)?;
        if head.crit.is_some() {
            return Err("the bearer token requires an unknown extension");
        }
        let mark = decode(mark).ok_or(FORM)?;
        if !self.keys.iter().any(|key| key.fits(&head) && key.holds(signed, &mark)) {
            return Err("the bearer token is not signed by a known key");
        }
        decode(claims).ok_or(FORM)
    }

    /// The claim of a valid token, or the reason why it is invalid.
    fn verify(&self, token: &[u8]) -> Result<String, &'static str> {
        let claims = self.signed_payload(token)?;
        let claims: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&claims).map_err(|_| FORM)?;
        self.check_times(&claims)?;
        if let Some(issuer) = &self.issuer
            && claims.get("iss").and_then(|iss| iss.as_str()) != Some(issuer)
        {
            return Err("the bearer token is of another issuer");
        }
        if let Some(audience) = &self.audience {
            let is = |value: &serde_json::Value| value.as_str() == Some(audience);
            let meant = match claims.get("aud") {
                Some(serde_json::Value::Array(all)) => all.iter().any(is),
                Some(one) => is(one),
                None => false,
            };
            if !meant {
                return Err("the bearer token is for another audience");
            }
        }
        match claims.get(&self.claim) {
            Some(serde_json::Value::String(value)) if !value.is_empty() => Ok(value.clone()),
            Some(serde_json::Value::Number(value)) => Ok(value.to_string()),
            _ => Err("the bearer token lacks the claim that identifies the caller"),
        }
    }

    fn check_times(&self, claims: &serde_json::Map<String, serde_json::Value>) -> Result<(), &'static str> {
        #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 are far below 2^53")]
        let now = (self.clock.now().as_micros() / 1_000_000) as f64;
        let leeway = self.leeway.as_secs_f64();
        match claims.get("exp").map(serde_json::Value::as_f64) {
            Some(Some(exp)) if now < exp + leeway => {}
            Some(_) => return Err("the bearer token has expired"),
            None => return Err("the bearer token has no exp and would never expire"),
        }
        match claims.get("nbf").map(serde_json::Value::as_f64) {
            None => Ok(()),
            Some(Some(nbf)) if now + leeway >= nbf => Ok(()),
            Some(_) => Err("the bearer token is not valid yet"),
        }
    }
}

impl JwtKey {
    /// True if a token may be signed with this key.
    fn fits(&self, head: &JwtHeader) -> bool {
        let alg = match self.material {
            Material::Secret(_) => "HS256",
            Material::Rsa { .. } => "RS256",
            Material::Point(_) => "ES256",
        };
        let same_id = match (&self.id, &head.kid) {
            (Some(own), Some(asked)) => own == asked,
            _ => true,
        };
        head.alg == alg && same_id
    }

    fn holds(&self, signed: &[u8], mark: &[u8]) -> bool {
        match &self.material {
            Material::Secret(key) => hmac::verify(key, signed, mark).is_ok(),
            Material::Rsa { modulus, exponent } => {
                signature::RsaPublicKeyComponents { n: modulus, e: exponent }
                    .verify(&signature::RSA_PKCS1_2048_8192_SHA256, signed, mark)
                    .is_ok()
            }
            Material::Point(point) => {
                signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point)
                    .verify(signed, mark)
                    .is_ok()
            }
        }
    }
}

fn decode(text: &[u8]) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("claim", &self.claim)
            .field("keys", &self.keys.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for VerifierBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifierBuilder").field("claim", &self.claim).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
