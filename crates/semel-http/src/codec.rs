//! How a request carries a call: plain HTTP, or a message within it.
//!
//! A plain request *is* the call: its key stands in a header or in its body, its status says how it ended, and its
//! answer is replayed byte for byte. Where messages are carried over HTTP, all of that is in the message instead. The
//! codec is the seam: it reads the call from a request, judges an answer, and shapes replays and refusals.

use std::sync::Arc;

use http::Response;

use crate::body::Body;
use crate::mcp;
use crate::policy::PolicyError;
use crate::problem::Problem;
use crate::profile::Profile;
use crate::{KeySource, policy};

/// How calls are carried, as a part of a [`Profile`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Codec {
    /// A request is a call.
    #[default]
    Http,
    /// Calls of tools, as JSON-RPC messages of the Model Context Protocol over streamable HTTP.
    Mcp {
        /// Which tools need a key. A call with a key is guarded whatever tool it calls.
        tools: KeyedTools,
    },
}

/// Which tools need a key: a call of one of them without a key is refused.
///
/// It does not say which calls are guarded: every call with a key is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeyedTools {
    /// AdCP's mutating tools ([`ADCP_MUTATING_TOOLS`](crate::profile::ADCP_MUTATING_TOOLS)), and those whose input schema
    /// requires `idempotency_key`, as the upstream's `tools/list` tells the caller.
    #[default]
    Listed,
    /// These and no others.
    Named(Vec<String>),
}

impl Codec {
    /// Where the key of a call is, if a route does not say otherwise.
    pub(crate) fn key_source(&self, profile: &Profile) -> KeySource {
        match self {
            Self::Http => KeySource::Header(profile.key_header.clone()),
            Self::Mcp { .. } => KeySource::json(mcp::KEY_POINTER).expect("a pointer of our own"),
        }
    }

    /// Whether a route's own settings can hold for calls that are carried so.
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

/// What an answer depends on, beside the profile: nothing, or the message it is an answer to.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Request,
    Message(Arc<mcp::Call>),
}

impl Asked {
    /// A problem, told to whoever asked.
    pub(crate) fn tell(&self, profile: &Profile, problem: &Problem) -> Response<Body> {
        match self {
            Self::Request => profile.tell(problem),
            Self::Message(call) => call.tell(profile, problem),
        }
    }

    /// A kept answer for whoever asks now; none where it is not an answer to such a question.
    pub(crate) fn replay(&self, kept: Response<Body>) -> Option<Response<Body>> {
        match self {
            Self::Request => Some(kept),
            Self::Message(call) => call.replay(kept),
        }
    }
}
