//! `adcp-mcp`: tools of an advertising agent, called over the Model Context Protocol. Errors are tool results.

use std::time::Duration;

use http::Method;

use super::{KeyLength, Profile, StoreLoss};
use crate::codec::{Codec, KeyedTools};
use crate::policy::{InsertLimits, OnDoubt, Pin, Rate};
use crate::problem::{Shape, Situation};

/// The mutating tools of AdCP 3.0. Each needs an `idempotency_key`, whatever an agent's own schemas say.
///
/// These are the tools whose request schema requires the key. `si_terminate_session` is not among them, because ending a session is
/// idempotent.
pub const ADCP_MUTATING_TOOLS: [&str; 28] = [
    "acquire_rights",
    "activate_signal",
    "build_creative",
    "calibrate_content",
    "create_collection_list",
    "create_content_standards",
    "create_media_buy",
    "create_property_list",
    "delete_collection_list",
    "delete_property_list",
    "log_event",
    "provide_performance_feedback",
    "report_plan_outcome",
    "report_usage",
    "si_initiate_session",
    "si_send_message",
    "sync_accounts",
    "sync_audiences",
    "sync_catalogs",
    "sync_creatives",
    "sync_event_sources",
    "sync_governance",
    "sync_plans",
    "update_collection_list",
    "update_content_standards",
    "update_media_buy",
    "update_property_list",
    "update_rights",
];

/// The code of a situation in this protocol, and the advice for the client.
fn code(situation: Situation) -> (&'static str, &'static str) {
    match situation {
        Situation::KeyMissing
        | Situation::KeyMalformed
        | Situation::ScopeMissing
        | Situation::BodyMalformed
        | Situation::Ambiguous
        | Situation::NoRoute
        | Situation::BodyTooLarge => ("INVALID_REQUEST", "correctable"),
        Situation::CredentialRefused => ("AUTH_REQUIRED", "correctable"),
        Situation::Conflict => ("IDEMPOTENCY_CONFLICT", "correctable"),
        Situation::InFlight => ("IDEMPOTENCY_IN_FLIGHT", "transient"),
        Situation::Expired => ("IDEMPOTENCY_EXPIRED", "correctable"),
        Situation::OutcomeNotKept => ("OUTCOME_NOT_KEPT", "terminal"),
        Situation::RateLimited => ("RATE_LIMITED", "transient"),
        Situation::BodyTimeout
        | Situation::InDoubt
        | Situation::StoreUnavailable
        | Situation::Overloaded
        | Situation::UpstreamUnreachable
        | Situation::UpstreamUnknown
        | Situation::VerifyUnavailable => ("SERVICE_UNAVAILABLE", "transient"),
    }
}

impl Profile {
    /// Tool calls. The key is the argument `idempotency_key`, and a call with a key is guarded whatever tool it calls. Success is
    /// judged by the content of the answer. A call whose effect is unknown is looked up by the route's probe, or else executed again at
    /// `in_flight_max`, which means at least once.
    #[must_use]
    pub fn adcp_mcp() -> Self {
        let rate = |per_second, burst| Rate { per_second, burst };
        let mut profile = Self {
            name: "adcp-mcp",
            shape: Shape::JsonRpc,
            key_length: KeyLength { min: 16, max: 255 },
            methods: vec![Method::POST],
            pin: Pin::Success,
            on_doubt: OnDoubt::Release,
            retention_bounds: Some((Duration::from_secs(3_600), Duration::from_secs(604_800))),
            limits: Some(InsertLimits { writes: rate(60, 300), reads: rate(600, 3_000) }),
            store_loss: StoreLoss::Refuse,
            codec: Codec::Mcp { tools: KeyedTools::Listed },
            ..Self::ietf()
        };
        for situation in Situation::ALL {
            let text = profile.text_mut(situation);
            (text.kind, text.recovery) = code(situation);
        }
        // Early enough to notice the end of a short call, and seldom enough to cause no load.
        profile.text_mut(Situation::InFlight).hint_within = Some((1, 3));
        profile
    }
}
