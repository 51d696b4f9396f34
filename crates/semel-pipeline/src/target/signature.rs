//! Signatures by the Standard Webhooks scheme: HMAC-SHA256 over `id.timestamp.body`.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

const PREFIX: &str = "whsec_";

/// The secret that a target shares with Semel, to verify a delivery. Never printed.
#[derive(Clone)]
pub struct SigningSecret(Zeroizing<Vec<u8>>);

/// Why a text is not such a secret. It does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The format is wrong.
    #[error("expected `whsec_` and the secret in base64")]
    Form,
    /// Too short, or too long.
    #[error("expected a secret of 24 to 64 bytes, found {0}")]
    Length(usize),
}

impl SigningSecret {
    /// Parses a secret in its usual form: `whsec_` and 24 to 64 bytes in base64.
    ///
    /// # Errors
    /// The text is not such a secret.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(SecretError::Form)?;
        let bytes = Zeroizing::new(BASE64.decode(encoded).map_err(|_| SecretError::Form)?);
        if !(24..=64).contains(&bytes.len()) {
            return Err(SecretError::Length(bytes.len()));
        }
        Ok(Self(bytes))
    }

    /// The secret in its usual form and in hex, to find it in answers.
    #[cfg(feature = "http")]
    pub(crate) fn texts(&self) -> [String; 2] {
        let hex = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        [BASE64.encode(&*self.0), hex]
    }

    /// The value of `webhook-signature` for a message with this id, time in seconds and body.
    pub fn sign(&self, id: &str, seconds: u64, body: &[u8]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(id.as_bytes());
        mac.update(b".");
        mac.update(seconds.to_string().as_bytes());
        mac.update(b".");
        mac.update(body);
        format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The example of the scheme's own specification.
    #[test]
    fn signatures_are_those_of_the_scheme() {
        let secret = SigningSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        assert_eq!(SigningSecret::parse("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap_err(), SecretError::Form);
        assert_eq!(SigningSecret::parse("whsec_not base64").unwrap_err(), SecretError::Form);
        assert_eq!(SigningSecret::parse("whsec_c2hvcnQ=").unwrap_err(), SecretError::Length(5));
        let secret = SigningSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        assert_eq!(format!("{secret:?}"), "SigningSecret(redacted)");
    }
}
