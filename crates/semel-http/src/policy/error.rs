//! Invalid settings of a route, each with a hint how to fix it.

use std::time::Duration;

use semel::canonical::ExclusionError;
use semel::record::TermsError;

/// Why a route, a scope or a guard cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The pattern is not a method and a path.
    #[error("the route {pattern:?} is not a method and a path: write it as \"POST /v1/payments\"")]
    Pattern {
        /// As given.
        pattern: String,
    },
    /// A segment of the pattern is invalid.
    #[error(
        "the segment {segment:?} of the route {pattern:?} cannot be: `*` and `{{x}}` stand for one whole segment, `/**` for all that is left at the end"
    )]
    Segment {
        /// The route.
        pattern: String,
        /// The segment.
        segment: String,
    },
    /// A safe method cannot be guarded.
    #[error(
        "{method} is a safe method and needs no key: take the route out, or let it pass with pass_through() if it only names an upstream"
    )]
    SafeMethod {
        /// The method.
        method: String,
    },
    /// The text is not a header name.
    #[error("{name:?} is not a header name")]
    HeaderName {
        /// The name.
        name: String,
    },
    /// The pointer is not a JSON pointer.
    #[error("{pointer:?} is not a JSON pointer (RFC 6901): write it as \"/params/idempotency_key\"")]
    Pointer {
        /// The pointer.
        pointer: String,
    },
    /// An exclusion is not a JSON pointer.
    #[error(transparent)]
    Exclusion(#[from] ExclusionError),
    /// A template names a segment that the route does not have.
    #[error("the key template {template:?} names {{{name}}}, which the route {pattern:?} does not have")]
    TemplateName {
        /// The template.
        template: String,
        /// The name.
        name: String,
        /// The route.
        pattern: String,
    },
    /// A template without a name would give every request the same key.
    #[error("the key template {template:?} names no segment of the route: every request would have one key")]
    TemplateConstant {
        /// The template.
        template: String,
    },
    /// A probe or verify call that is not a method and a path.
    #[error("the call {call:?} is not a method and a path: write it as \"GET /v1/payments/by-key/{{key}}\"")]
    Call {
        /// The call.
        call: String,
    },
    /// A probe that changes something is not a probe.
    #[error("the call {call:?} must be a GET or HEAD: the gateway makes it without a request of a client")]
    CallMethod {
        /// The call.
        call: String,
    },
    /// `on_doubt = probe` without a probe.
    #[error("on_doubt = probe needs a probe, such as \"GET /v1/payments/by-key/{{key}}\"")]
    NoProbe,
    /// A probe without `{key}` in its path.
    #[error("the probe {call:?} does not name the key: put {{key}} into its path")]
    ProbeWithoutKey {
        /// The probe.
        call: String,
    },
    /// Calls of the guard without a client to make them.
    #[error(
        "the route {pattern:?} has a probe or a verify call, but the guard has no caller to make it: give caller()"
    )]
    NoCaller {
        /// The route.
        pattern: String,
    },
    /// The durations do not fit together.
    #[error("the route {pattern:?}: {error}")]
    Terms {
        /// The route.
        pattern: String,
        /// The reason.
        error: TermsError,
    },
    /// The mode needs the store's own transaction.
    #[error(
        "mode atomic needs the store's own transaction, which a call over HTTP cannot join: choose marked, keyed or rerun"
    )]
    Atomic,
    /// Retention outside the bounds of the profile.
    #[error("the profile {profile} promises a retention of {least:?} to {most:?}, and {given:?} is outside")]
    Retention {
        /// The profile.
        profile: &'static str,
        /// The shortest it allows.
        least: Duration,
        /// The longest it allows.
        most: Duration,
        /// The configured retention.
        given: Duration,
    },
    /// A profile that publishes bounds cannot let a call run longer than its answer is kept.
    #[error(
        "in_flight_max ({in_flight_max:?}) is above the retention ({retention:?}), which the profile {profile} does not allow: shorten it"
    )]
    InFlightAboveRetention {
        /// The profile.
        profile: &'static str,
        /// The configured `in_flight_max`.
        in_flight_max: Duration,
        /// The configured retention.
        retention: Duration,
    },
    /// A profile that publishes `in_flight_max` publishes it in whole seconds.
    #[error(
        "in_flight_max ({in_flight_max:?}) is below the second that the profile {profile} publishes at least"
    )]
    InFlightTooShort {
        /// The profile.
        profile: &'static str,
        /// The configured `in_flight_max`.
        in_flight_max: Duration,
    },
    /// An invalid `in_flight_max` of a tool.
    #[error("in_flight_max_tools: {tool}: {error}")]
    Tool {
        /// The tool.
        tool: String,
        /// The reason.
        error: Box<PolicyError>,
    },
    /// Settings of tools where calls are plain requests.
    #[error(
        "the route {pattern:?} sets in_flight_max_tools, but calls of this profile are requests, not tool calls: set in_flight_max on a route of their own"
    )]
    NoTools {
        /// The route.
        pattern: String,
    },
    /// A setting for plain requests on a route of messages.
    #[error(
        "the route {pattern:?} sets {setting}, which the profile decides: its calls are messages that contain the key and the result"
    )]
    NotOfMessages {
        /// The route.
        pattern: String,
        /// The setting.
        setting: &'static str,
    },
    /// The namespace has an invalid length.
    #[error("the namespace must have 1 to 255 bytes, and has {length}")]
    Namespace {
        /// Its length.
        length: usize,
    },
    /// A limit of zero.
    #[error("{setting} is zero, which would refuse every request")]
    Zero {
        /// The setting.
        setting: &'static str,
    },
    /// A limit above the maximum size of a record.
    #[error("{setting} ({bytes} bytes) is above 1 GiB: larger answers leave a tombstone")]
    TooLarge {
        /// The setting.
        setting: &'static str,
        /// The configured size.
        bytes: usize,
    },
    /// An invalid length of keys.
    #[error("invalid key length {min} to {max}: a key has at least 1 and at most 1024 characters")]
    KeyLength {
        /// The configured minimum.
        min: usize,
        /// The configured maximum.
        max: usize,
    },
    /// A status that cannot mean "expired".
    #[error("the status of an expired key is 410 or 412, not {status}")]
    Expired {
        /// The configured status.
        status: u16,
    },
    /// The scope is unknown.
    #[error(
        "unknown scope {scope:?}: expected \"authorization\", \"header:NAME\", \"jwt:CLAIM\" or \"single-tenant\""
    )]
    Scope {
        /// The scope.
        scope: String,
    },
    /// A part of a scope that cannot be combined with the others.
    #[error(
        "the part {part:?} of the scope cannot be: every part stands there once, and \"single-tenant\" stands alone"
    )]
    ScopePart {
        /// The part.
        part: String,
    },
    /// A claim of a token without a key to verify it.
    #[error("the scope jwt:{claim} needs a secret or a key set (jwks): an unverified claim can be forged")]
    Unverified {
        /// The claim.
        claim: String,
    },
    /// The key set cannot be used.
    #[error("cannot use the key set (jwks): {reason}")]
    KeySet {
        /// The reason.
        reason: String,
    },
}
