//! Whose key it is: the principal of a request.
//!
//! The same key of two principals names two effects, so the scope is part of every key. It is read from a credential
//! and only its hash is used; nothing of it is stored.

mod jwt;

use std::fmt;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderMap, HeaderName};
use semel::Key;

pub use self::jwt::{Verifier, VerifierBuilder};
use crate::policy::PolicyError;
use crate::problem::{Problem, Situation};

/// How the principal of a request is found.
#[derive(Clone)]
#[non_exhaustive]
pub enum Scope {
    /// The hash of a header's value.
    Header(HeaderName),
    /// A claim of a bearer token that was verified.
    Jwt(Arc<Verifier>),
    /// Everybody is one principal.
    SingleTenant,
}

/// The principal of a request: a hash, never the credential. Two parts, so that no scheme can spell another's.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Principal([u8; 32]);

impl Default for Scope {
    /// The hash of `authorization`.
    fn default() -> Self {
        Self::Header(AUTHORIZATION)
    }
}

impl Scope {
    /// Reads a scope as it stands in a configuration: `authorization`, `header:NAME`, `jwt:CLAIM`, `single-tenant`.
    ///
    /// # Errors
    /// A word that is none of these, or `jwt:` without a `verifier`.
    pub fn parse(text: &str, verifier: Option<VerifierBuilder>) -> Result<Self, PolicyError> {
        match text.split_once(':') {
            None if text == "authorization" => Ok(Self::default()),
            None if text == "single-tenant" => Ok(Self::SingleTenant),
            Some(("header", name)) => match HeaderName::from_bytes(name.as_bytes()) {
                Ok(name) => Ok(Self::Header(name)),
                Err(_) => Err(PolicyError::HeaderName { name: name.to_owned() }),
            },
            Some(("jwt", claim)) if !claim.is_empty() => match verifier {
                Some(verifier) => Ok(Self::Jwt(Arc::new(verifier.claim(claim).build()?))),
                None => Err(PolicyError::Unverified { claim: claim.to_owned() }),
            },
            _ => Err(PolicyError::Scope { scope: text.to_owned() }),
        }
    }

    /// Who asks.
    pub(crate) fn principal(&self, headers: &HeaderMap) -> Result<Option<Principal>, Problem> {
        match self {
            Self::SingleTenant => Ok(None),
            Self::Header(name) => {
                let mut lines = headers.get_all(name).iter();
                match (lines.next(), lines.next()) {
                    (Some(value), None) if !value.is_empty() => {
                        Ok(Some(Principal::of_header(name, value.as_bytes())))
                    }
                    (Some(_), Some(_)) => Err(Problem::new(
                        Situation::ScopeMissing,
                        format!("the header {name} says who asks and was sent more than once; send it once"),
                    )),
                    _ => Err(Problem::new(
                        Situation::ScopeMissing,
                        format!(
                            "a request with an idempotency key must say who asks, in the header {name}; where there is only one tenant, the gateway can be run with --scope single-tenant"
                        ),
                    )),
                }
            }
            Self::Jwt(verifier) => verifier.principal(headers).map(Some),
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({self})")
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) if *name == AUTHORIZATION => f.write_str("authorization"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Jwt(verifier) => write!(f, "jwt:{}", verifier.claim()),
            Self::SingleTenant => f.write_str("single-tenant"),
        }
    }
}

impl Principal {
    pub(crate) fn new(scheme: &[&str], value: &[u8]) -> Self {
        // Written out first: a short text is hashed faster at once than part by part.
        let mut text = Vec::with_capacity(64 + value.len());
        for part in scheme.iter().map(|part| part.as_bytes()).chain([value]) {
            text.extend_from_slice(&(part.len() as u64).to_le_bytes());
            text.extend_from_slice(part);
        }
        Self(blake3::hash(&text).into())
    }

    /// The one whom a header names.
    pub(crate) fn of_header(name: &HeaderName, value: &[u8]) -> Self {
        Self::new(&["header", name.as_str()], value)
    }

    /// Whom an upstream takes the sender of these headers for: the principal where the scope tells one, or else the
    /// credential, which may be none.
    pub(crate) fn of_caller(scope: &Scope, headers: &HeaderMap) -> Self {
        match scope.principal(headers) {
            Ok(Some(principal)) => principal,
            _ => {
                let mut credentials = Vec::new();
                for line in headers.get_all(AUTHORIZATION) {
                    credentials.extend_from_slice(&(line.len() as u64).to_le_bytes());
                    credentials.extend_from_slice(line.as_bytes());
                }
                Self::new(&["credential"], &credentials)
            }
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key of this principal in `namespace`, for the account it acts for, where calls name one.
    pub(crate) fn key(principal: Option<&Self>, account: Option<&Self>, namespace: &str, value: &str) -> Key {
        let mut key = Key::new(namespace).value(value);
        for part in [principal, account].into_iter().flatten() {
            key = key.scope(blake3::Hash::from_bytes(part.0).to_hex().as_bytes());
        }
        key
    }
}
