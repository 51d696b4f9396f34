//! How a request carries a call: as plain HTTP, or as a message in its body.
//!
//! A plain request is the call: the key is in a header or in the body, the status says how the call ended, and the stored answer is
//! given byte for byte. Where HTTP carries messages, the message contains all of that. The codec separates the two: it reads the call
//! from a request, classifies an answer, and formats stored answers and refusals.

use std::sync::Arc;

use http::Response;

use crate::body::Body;
use crate::mcp;
use crate::policy::PolicyError;
use crate::problem::Problem;
use crate::profile::Profile;
use crate::{KeySource, policy};

/// How requests carry calls, as a part of a [`Profile`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Codec {
    /// A request is a call.
    #[default]
    Http,
    /// Tool calls, as JSON-RPC messages of the Model Context Protocol over streamable HTTP.
    Mcp {
        /// The tools that need a key. A call with a key is guarded, whatever tool it calls.
        tools: KeyedTools,
    },
}

/// The tools that need a key: a call of one of them without a key is refused.
///
/// This does not restrict which calls are guarded: every call with a key is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeyedTools {
    /// AdCP's mutating tools ([`ADCP_MUTATING_TOOLS`](crate::profile::ADCP_MUTATING_TOOLS)), and tools whose input schema requires
    /// `idempotency_key` in the `tools/list` that the upstream gives the caller.
    #[default]
    Listed,
    /// Only these.
    Named(Vec<String>),
}

impl Codec {
    /// The default place of a call's key.
    pub(crate) fn key_source(&self, profile: &Profile) -> KeySource {
        match self {
            Self::Http => KeySource::Header(profile.key_header.clone()),
            Self::Mcp { .. } => KeySource::json(mcp::KEY_POINTER).expect("a pointer of our own"),
        }
    }

    /// Rejects settings of a route that do not apply to this codec.
    pub(crate) fn check(&self, policy: &policy::RoutePolicy) -> Result<(), PolicyError> {
        let Self::Mcp { .. } = self else { return Ok(()) };
        let at_place =
            matches!(&policy.key, KeySource::Json(pointer) if pointer.to_string() == mcp::KEY_POINTER);
        let wrong = if !at_place {
            "key"
        } else if policy.fingerprint != policy::Fingerprinting::Exact {
            "fingerprint"
        } else if policy.pin != policy::Pin::Success {
            "pin"
        } else {
            return Ok(());
        };
        Err(PolicyError::NotOfMessages { pattern: policy.pattern.to_string(), setting: wrong })
    }
}

/// What an answer depends on besides the profile: nothing, or the message that it answers.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Request,
    Message(Arc<mcp::McpCall>),
}

impl Asked {
    /// A problem, in the caller's format.
    pub(crate) fn tell(&self, profile: &Profile, problem: &Problem) -> Response<Body> {
        match self {
            Self::Request => profile.tell(problem),
            Self::Message(call) => call.tell(profile, problem),
        }
    }

    /// A stored answer, in the caller's format; `None` if it does not answer this kind of request.
    pub(crate) fn replay(&self, kept: Response<Body>) -> Option<Response<Body>> {
        match self {
            Self::Request => Some(kept),
            Self::Message(call) => call.replay(kept),
        }
    }
}
