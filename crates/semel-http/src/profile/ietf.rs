//! `ietf`: the header of the IETF HTTPAPI working group, with problem documents (RFC 9457) as errors.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderName, Method, StatusCode};

use super::{KeyLength, Profile, StoreLoss};
use crate::codec::Codec;
use crate::policy::{InFlight, InsertLimits, OnDoubt, OnServerError, Pin, Rate};
use crate::problem::{RetryAdvice, Shape, Situation, SituationText};
use crate::proxy::Host;
use crate::well_known;

/// More than one client needs, but still a limit: a client in a loop must not fill the store.
const LIMITS: InsertLimits = InsertLimits {
    writes: Rate { per_second: 5_000, burst: 20_000 },
    reads: Rate { per_second: 50_000, burst: 200_000 },
};

/// How this profile presents a situation.
fn text(situation: Situation) -> SituationText {
    let (status, retry) = match situation {
        Situation::KeyMissing
        | Situation::KeyMalformed
        | Situation::ScopeMissing
        | Situation::Ambiguous
        | Situation::BodyMalformed => (StatusCode::BAD_REQUEST, RetryAdvice::Useless),
        Situation::CredentialRefused => (StatusCode::UNAUTHORIZED, RetryAdvice::Useless),
        Situation::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, RetryAdvice::Useless),
        Situation::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, RetryAdvice::Useful),
        Situation::Conflict => (StatusCode::UNPROCESSABLE_ENTITY, RetryAdvice::Useless),
        Situation::InFlight => (StatusCode::CONFLICT, RetryAdvice::Useful),
        Situation::Expired => (StatusCode::GONE, RetryAdvice::Useless),
        Situation::InDoubt | Situation::OutcomeNotKept => (StatusCode::CONFLICT, RetryAdvice::Useless),
        Situation::NoRoute => (StatusCode::NOT_FOUND, RetryAdvice::Useless),
        Situation::StoreUnavailable | Situation::VerifyUnavailable | Situation::Overloaded => {
            (StatusCode::SERVICE_UNAVAILABLE, RetryAdvice::Useful)
        }
        Situation::RateLimited => (StatusCode::TOO_MANY_REQUESTS, RetryAdvice::Useful),
        Situation::UpstreamUnreachable => (StatusCode::BAD_GATEWAY, RetryAdvice::Useful),
        Situation::UpstreamUnknown => (StatusCode::BAD_GATEWAY, RetryAdvice::Useless),
    };
    let recovery = if retry == RetryAdvice::Useful { "transient" } else { "correctable" };
    SituationText { status, kind: "idempotency_error", retry, hint: None, recovery, hint_within: None }
}

impl Profile {
    /// The default profile.
    #[must_use]
    pub fn ietf() -> Self {
        Self {
            name: "ietf",
            shape: Shape::Problem,
            texts: Situation::ALL.map(text),
            key_header: HeaderName::from_static("idempotency-key"),
            agent_header: None,
            account_headers: Vec::new(),
            key_length: KeyLength { min: 1, max: 255 },
            methods: vec![Method::POST, Method::PATCH],
            pin: Pin::Deterministic,
            on_5xx: OnServerError::Release,
            on_doubt: OnDoubt::Hold,
            in_flight: InFlight::Wait,
            retention: Duration::from_secs(24 * 60 * 60),
            grace: Duration::from_secs(60),
            memory: Duration::from_secs(24 * 60 * 60),
            retention_bounds: None,
            limits: Some(LIMITS),
            store_loss: StoreLoss::Alarm,
            codec: Codec::Http,
            host: Host::Upstream,
            documentation: Some(Cow::Borrowed(well_known::PATH)),
        }
    }
}
