//! The principal of a request: the caller that a key belongs to.
//!
//! The same key of two principals names two effects, so the scope is part of every key. The principal is the hash of a credential; the
//! credential itself is not stored.
//!
//! If one credential acts for several accounts, the scope has several parts: the credential, and the headers that select the account.

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
    /// A claim of a verified bearer token.
    Jwt(Arc<Verifier>),
    /// All callers are one principal.
    SingleTenant,
    /// Several parts, at least two, none of them [`SingleTenant`](Self::SingleTenant) or a list. The first part is required in every
    /// request. Other header parts may be absent, which counts as an account of its own.
    Parts(Arc<[Scope]>),
    /// Several headers, of which every request has at least one. All that are present count.
    AnyOf(Arc<[Scope]>),
}

/// The principal of a request: a hash, never the credential. Two parts, so that principals of different schemes never collide.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Principal([u8; 32]);

impl Default for Scope {
    /// The hash of `authorization`.
    fn default() -> Self {
        Self::Header(AUTHORIZATION)
    }
}

impl Scope {
    /// Parses a scope of the configuration: `authorization`, `header:NAME`, `jwt:CLAIM`, `single-tenant`.
    ///
    /// # Errors
    /// An unknown scope, or `jwt:` without a `verifier`.
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

    /// Parses a scope of one or several parts, each as in [`parse`](Self::parse). A single part equals that scope.
    ///
    /// # Errors
    /// As [`parse`](Self::parse); also no part, a part twice, or `single-tenant` with others.
    pub fn parse_parts<T: AsRef<str>>(
        parts: &[T],
        mut verifier: Option<VerifierBuilder>,
    ) -> Result<Self, PolicyError> {
        let mut read: Vec<Self> = Vec::with_capacity(parts.len());
        for part in parts {
            let text = part.as_ref();
            // One verifier reads one claim.
            let verifier = if text.starts_with("jwt:") { verifier.take() } else { None };
            let part = Self::parse(text, verifier)?;
            let alone = parts.len() > 1 && matches!(part, Self::SingleTenant);
            if alone || read.iter().any(|known| known.to_string() == part.to_string()) {
                return Err(PolicyError::ScopePart { part: text.to_owned() });
            }
            read.push(part);
        }
        match read.pop() {
            None => Err(PolicyError::Scope { scope: String::new() }),
            Some(only) if read.is_empty() => Ok(only),
            Some(last) => {
                read.push(last);
                Ok(Self::Parts(read.into()))
            }
        }
    }

    /// The parts; a scope without a list is one part.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::Parts(parts) | Self::AnyOf(parts) => parts,
            one => std::slice::from_ref(one),
        }
    }

    /// The headers that it is read from, except that of a token.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.parts().iter().filter_map(|part| match part {
            Self::Header(name) => Some(name),
            _ => None,
        })
    }

    /// True if a client can choose its principal freely: all parts are unverified headers, and none of them is a secret.
    pub fn is_freely_chosen(&self) -> bool {
        let free = |part: &Self| matches!(part, Self::Header(name) if !is_credential(name));
        match self {
            // The credential may be absent.
            Self::AnyOf(parts) => parts.iter().any(free),
            _ => self.parts().iter().all(free),
        }
    }

    /// True if it accepts tokens for any audience: its verifier checks neither audience nor issuer.
    pub fn takes_any_token(&self) -> bool {
        self.parts().iter().any(|part| matches!(part, Self::Jwt(verifier) if !verifier.is_bound()))
    }

    /// The principal of a request.
    pub(crate) fn principal(&self, headers: &HeaderMap) -> Result<Option<Principal>, Problem> {
        match self {
            Self::SingleTenant => Ok(None),
            Self::Header(name) => match only_value(name, headers)? {
                Some(value) if !value.is_empty() => Ok(Some(Principal::of_header(name, value))),
                _ => Err(nobody(name.as_str())),
            },
            Self::Jwt(verifier) => verifier.principal(headers).map(Some),
            Self::Parts(parts) => {
                let mut found = Vec::with_capacity(parts.len());
                for (number, part) in parts.iter().enumerate() {
                    match part {
                        Self::Header(name) if number > 0 => {
                            let value = only_value(name, headers)?;
                            found.extend(value.map(|value| Principal::of_header(name, value)));
                        }
                        part => found.extend(part.principal(headers)?),
                    }
                }
                Ok(Principal::of_parts(&found))
            }
            Self::AnyOf(parts) => {
                let present = |name: &HeaderName| headers.get(name).is_some_and(|value| !value.is_empty());
                let mut found = Vec::with_capacity(parts.len());
                for part in parts.iter() {
                    if !matches!(part, Self::Header(name) if !present(name)) {
                        found.extend(part.principal(headers)?);
                    }
                }
                if found.is_empty() {
                    let names: Vec<&str> = self.headers().map(HeaderName::as_str).collect();
                    return Err(nobody(&names.join(" or ")));
                }
                Ok(Principal::of_parts(&found))
            }
        }
    }
}

/// The request does not say who asks.
fn nobody(header: &str) -> Problem {
    Problem::new(
        Situation::ScopeMissing,
        format!(
            "a request with an idempotency key must say who asks, in the header {header}; where there is only one tenant, the gateway can be run with --scope single-tenant"
        ),
    )
}

/// The value of a header that may occur once.
fn only_value<'a>(name: &HeaderName, headers: &'a HeaderMap) -> Result<Option<&'a [u8]>, Problem> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (_, Some(_)) => Err(Problem::new(
            Situation::ScopeMissing,
            format!("the header {name} says who asks and was sent more than once; send it once"),
        )),
        (value, None) => Ok(value.map(http::HeaderValue::as_bytes)),
    }
}

/// True if a header's name shows that it contains a secret, so that clients cannot send each other's values.
fn is_credential(name: &HeaderName) -> bool {
    let endings = ["authorization", "cookie", "api-key", "apikey", "token", "secret", "signature"];
    endings.iter().any(|ending| name.as_str().ends_with(ending))
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
            Self::Parts(parts) | Self::AnyOf(parts) => {
                let separator = if matches!(self, Self::Parts(_)) { "," } else { " or " };
                for (number, part) in parts.iter().enumerate() {
                    write!(f, "{}{part}", if number > 0 { separator } else { "" })?;
                }
                Ok(())
            }
        }
    }
}

impl Principal {
    pub(crate) fn new(scheme: &[&str], value: &[u8]) -> Self {
        // Concatenated first: hashing a short text in one call is faster than part by part.
        let mut text = Vec::with_capacity(64 + value.len());
        for part in scheme.iter().map(|part| part.as_bytes()).chain([value]) {
            text.extend_from_slice(&(part.len() as u64).to_le_bytes());
            text.extend_from_slice(part);
        }
        Self(blake3::hash(&text).into())
    }

    /// The principal that a header names.
    pub(crate) fn of_header(name: &HeaderName, value: &[u8]) -> Self {
        Self::new(&["header", name.as_str()], value)
    }

    /// The principal of several parts. Absent parts are skipped, so adding a part to a scope keeps the keys of requests without it.
    pub(crate) fn of_parts(parts: &[Self]) -> Option<Self> {
        match parts {
            [] => None,
            [only] => Some(*only),
            several => Some(Self::new(
                &["parts"],
                several.iter().map(|part| part.0).collect::<Vec<_>>().as_flattened(),
            )),
        }
    }

    /// How an upstream identifies the sender of these headers: the principal if the scope finds one, else the credential, which may be
    /// absent.
    #[cfg(feature = "mcp")]
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

    /// The key of this principal in `namespace`, for the account that it acts for, where calls name one.
    pub(crate) fn key(principal: Option<&Self>, account: Option<&Self>, namespace: &str, value: &str) -> Key {
        let mut key = Key::new(namespace).value(value);
        for part in [principal, account].into_iter().flatten() {
            key = key.scope(blake3::Hash::from_bytes(part.0).to_hex().as_bytes());
        }
        key
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        lines.iter().map(line).collect()
    }

    fn principal(parts: &[&str], lines: &[(&'static str, &'static str)]) -> [u8; 32] {
        let scope = Scope::parse_parts(parts, None).unwrap();
        *scope.principal(&headers(lines)).unwrap().unwrap().as_bytes()
    }

    // Keys are stored under this value: a change would execute every key again.
    #[test]
    fn the_hash_of_one_part_never_changes() {
        let text = b"\x06\0\0\0\0\0\0\0header\x0d\0\0\0\0\0\0\0authorization\x08\0\0\0\0\0\0\0Bearer a";
        let lines = [("authorization", "Bearer a")];
        assert_eq!(principal(&["authorization"], &lines), *blake3::hash(text).as_bytes());
        // The same with absent further parts.
        let parts = ["authorization", "header:stripe-account", "header:stripe-context"];
        assert_eq!(principal(&parts, &lines), *blake3::hash(text).as_bytes());
    }

    #[test]
    fn every_part_that_is_there_counts() {
        let parts = ["authorization", "header:a", "header:b"];
        let mut seen = std::collections::BTreeSet::new();
        for lines in [
            vec![("authorization", "x")],
            vec![("authorization", "x"), ("a", "1")],
            vec![("authorization", "x"), ("b", "1")],
            vec![("authorization", "x"), ("a", "1"), ("b", "1")],
            vec![("authorization", "x"), ("a", "")],
            vec![("authorization", "y"), ("a", "1")],
        ] {
            assert!(seen.insert(principal(&parts, &lines)), "{lines:?}");
        }
        let scope = Scope::parse_parts(&parts, None).unwrap();
        assert!(scope.principal(&headers(&[("a", "1")])).is_err(), "the first part is required");
        let twice = headers(&[("authorization", "x"), ("a", "1"), ("a", "1")]);
        assert!(scope.principal(&twice).is_err());
        assert_eq!(scope.to_string(), "authorization,header:a,header:b");
    }

    // Clients of the profile `ucp` send UCP-Agent, a credential, or both.
    #[test]
    fn one_of_several_headers_is_enough() {
        let scope = crate::Profile::ucp().scope();
        let of = |lines: &[(&'static str, &'static str)]| {
            scope.principal(&headers(lines)).map(|found| *found.unwrap().as_bytes())
        };
        let (agent, credential) = (("ucp-agent", "profile=x"), ("authorization", "Bearer a"));
        let all = [of(&[agent]).unwrap(), of(&[credential]).unwrap(), of(&[agent, credential]).unwrap()];
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
        // The keys of clients that send only a credential stay the same.
        assert_eq!(all[1], principal(&["authorization"], &[credential]));
        let refused = of(&[("x", "y")]).unwrap_err().detail.unwrap();
        assert!(refused.contains("in the header ucp-agent or authorization; "), "{refused}");
        assert!(of(&[agent, agent]).is_err(), "sent twice");
        assert!(scope.is_freely_chosen(), "the credential may be absent");
        assert_eq!(scope.to_string(), "header:ucp-agent or authorization");
    }

    #[test]
    fn what_is_no_list_of_parts() {
        for parts in
            [&[][..], &["authorization", "authorization"], &["authorization", "single-tenant"], &["x"]]
        {
            assert!(Scope::parse_parts(parts, None).is_err(), "{parts:?}");
        }
    }

    #[test]
    fn names_that_anybody_can_write_are_no_credential() {
        for (scope, free) in [
            ("authorization", false),
            ("header:x-api-key", false),
            ("header:cookie", false),
            ("header:x-auth-token", false),
            ("header:x-tenant", true),
            ("single-tenant", false),
        ] {
            assert_eq!(Scope::parse(scope, None).unwrap().is_freely_chosen(), free, "{scope}");
        }
        let both = Scope::parse_parts(&["authorization", "header:x-tenant"], None).unwrap();
        assert!(!both.is_freely_chosen());
        let neither = Scope::parse_parts(&["header:x-tenant", "header:x-user"], None).unwrap();
        assert!(neither.is_freely_chosen());
    }
}
