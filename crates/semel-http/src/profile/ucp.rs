//! `ucp`: the dialect of the commerce protocol. Another payload is a 409, and PUT is guarded.

use http::{HeaderName, Method, StatusCode};

use super::Profile;
use crate::problem::Situation;
use crate::proxy::Host;

impl Profile {
    /// As `ietf`, but another payload is a 409 and PUT is guarded. Callers say who they are in `UCP-Agent`, in `Authorization` or in
    /// both. The merchant sees the client's `Host`, so that the addresses in its discovery documents lead through the gateway.
    #[must_use]
    pub fn ucp() -> Self {
        let mut profile = Self {
            name: "ucp",
            methods: vec![Method::POST, Method::PUT, Method::PATCH],
            agent_header: Some(HeaderName::from_static("ucp-agent")),
            host: Host::Client,
            ..Self::ietf()
        };
        profile.text_mut(Situation::Conflict).status = StatusCode::CONFLICT;
        profile
    }
}
