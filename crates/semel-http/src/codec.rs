//! How a request carries a call: as plain HTTP, or as a message in its body.
//!
//! A plain request is the call: the key is in a header or in the body, the status says how the call ended, and the stored answer is
//! given byte for byte. Where HTTP carries messages, the message contains all of that. The codec separates the two: it reads the call
//! from a request, classifies an answer, and formats stored answers and refusals.

use std::sync::Arc;

use http::Response;
use semel::record::Terms;

use crate::KeySource;
use crate::body::Body;
#[cfg(feature = "mcp")]
use crate::mcp;
use crate::policy::{PolicyError, RoutePolicy};
use crate::problem::Problem;
use crate::profile::Profile;

/// How requests carry calls, as a part of a [`Profile`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Codec {
    /// A request is a call.
    #[default]
    Http,
    /// Tool calls, as JSON-RPC messages of the Model Context Protocol over streamable HTTP.
    #[cfg(feature = "mcp")]
    Mcp {
        /// The tools that need a key. A call with a key is guarded, whatever tool it calls.
        tools: KeyedTools,
    },
}

/// The tools that need a key: a call of one of them without a key is refused.
///
/// This does not restrict which calls are guarded: every call with a key is.
#[cfg(feature = "mcp")]
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
            #[cfg(feature = "mcp")]
            Self::Mcp { .. } => KeySource::json(mcp::KEY_POINTER).expect("a pointer of our own"),
        }
    }

    /// Rejects settings of a route that do not apply to this codec.
    #[cfg_attr(
        not(feature = "mcp"),
        expect(unused_variables, reason = "every setting applies to plain requests")
    )]
    pub(crate) fn check(&self, policy: &RoutePolicy) -> Result<(), PolicyError> {
        match self {
            Self::Http => Ok(()),
            #[cfg(feature = "mcp")]
            Self::Mcp { .. } => mcp::check(policy),
        }
    }
}

/// What an answer depends on besides the profile: nothing, or the message that it answers.
#[derive(Clone, Debug)]
pub(crate) enum CallForm {
    Request,
    #[cfg(feature = "mcp")]
    Message(Arc<mcp::McpCall>),
}

impl CallForm {
    /// A problem, in the caller's format.
    pub(crate) fn tell(&self, profile: &Profile, problem: &Problem) -> Response<Body> {
        match self {
            Self::Request => profile.answer(problem),
            #[cfg(feature = "mcp")]
            Self::Message(call) => call.tell(profile, problem),
        }
    }

    /// The terms of the call, where they differ from those of its route.
    pub(crate) fn terms(&self) -> Option<&Arc<Terms>> {
        match self {
            Self::Request => None,
            #[cfg(feature = "mcp")]
            Self::Message(call) => call.terms.as_ref(),
        }
    }

    /// A stored answer, in the caller's format; `None` if it does not answer this kind of request.
    pub(crate) fn replay(&self, kept: Response<Body>) -> Option<Response<Body>> {
        match self {
            Self::Request => Some(kept),
            #[cfg(feature = "mcp")]
            Self::Message(call) => call.replay(kept),
        }
    }
}
