//! `stripe` and `stripe-v2`: the behaviour that clients of that API expect, for any API.

use std::time::Duration;

use http::{HeaderName, Method, StatusCode};

use super::Profile;
use crate::policy::{OnServerError, Pin};
use crate::problem::{Shape, Situation};

/// A header for these clients, which otherwise retry every 409.
const DO_NOT_RETRY: Option<(&str, &str)> = Some(("stripe-should-retry", "false"));

/// A platform acts for its connected accounts with one credential, and names the account in one of these.
const ACCOUNT_HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("stripe-account"), HeaderName::from_static("stripe-context")];

impl Profile {
    /// Stores every answer of a call that began, including 500. An expired key can run again. Errors are `{"error": …}`.
    #[must_use]
    pub fn stripe() -> Self {
        let mut profile = Self {
            name: "stripe",
            shape: Shape::Stripe,
            pin: Pin::All,
            on_5xx: OnServerError::Pin,
            memory: Duration::ZERO,
            account_headers: ACCOUNT_HEADERS.to_vec(),
            ..Self::ietf()
        };
        for situation in Situation::ALL {
            profile.text_mut(situation).kind = match situation {
                Situation::Conflict
                | Situation::InFlight
                | Situation::InDoubt
                | Situation::OutcomeNotKept
                | Situation::Expired => "idempotency_error",
                Situation::StoreUnavailable
                | Situation::VerifyUnavailable
                | Situation::Overloaded
                | Situation::UpstreamUnreachable
                | Situation::UpstreamUnknown => "api_error",
                Situation::KeyMissing
                | Situation::KeyMalformed
                | Situation::ScopeMissing
                | Situation::CredentialRefused
                | Situation::BodyMalformed
                | Situation::Ambiguous
                | Situation::NoRoute
                | Situation::BodyTooLarge
                | Situation::BodyTimeout
                | Situation::RateLimited => "invalid_request_error",
            };
        }
        profile.text_mut(Situation::Conflict).status = StatusCode::BAD_REQUEST;
        profile.text_mut(Situation::InDoubt).hint = DO_NOT_RETRY;
        profile.text_mut(Situation::OutcomeNotKept).hint = DO_NOT_RETRY;
        profile
    }

    /// Stores only successes, for 30 days.
    #[must_use]
    pub fn stripe_v2() -> Self {
        Self {
            name: "stripe-v2",
            pin: Pin::Success,
            on_5xx: OnServerError::Release,
            retention: Duration::from_secs(30 * 24 * 60 * 60),
            methods: vec![Method::POST, Method::PATCH, Method::DELETE],
            ..Self::stripe()
        }
    }
}
