//! `ucp`: the dialect of the commerce protocol. Another payload is a 409, and PUT is guarded.

use http::{Method, StatusCode};

use super::Profile;
use crate::problem::Situation;

impl Profile {
    /// As `ietf`, but another payload is a 409 and PUT is guarded.
    #[must_use]
    pub fn ucp() -> Self {
        let mut profile =
            Self { name: "ucp", methods: vec![Method::POST, Method::PUT, Method::PATCH], ..Self::ietf() };
        profile.telling_mut(Situation::Conflict).status = StatusCode::CONFLICT;
        profile
    }
}
