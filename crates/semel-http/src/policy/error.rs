//! Settings that a route cannot have, each as a sentence that says what to do.

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
    /// A segment of the pattern cannot be.
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
        /// As given.
        method: String,
    },
    /// The word is not a header's name.
    #[error("{name:?} is not a header name")]
    HeaderName {
        /// As given.
        name: String,
    },
    /// The pointer is not a JSON pointer.
    #[error("{pointer:?} is not a JSON pointer (RFC 6901): write it as \"/params/idempotency_key\"")]
    Pointer {
        /// As given.
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
        /// As given.
        call: String,
    },
    /// A probe that changes something is not a probe.
    #[error("the call {call:?} must be a GET or HEAD: it is made without anybody having asked for it")]
    CallMethod {
        /// As given.
        call: String,
    },
    /// `on_doubt = probe` without a probe.
    #[error("on_doubt = probe needs a probe, such as \"GET /v1/payments/by-key/{{key}}\"")]
    NoProbe,
    /// A probe that does not say for which key it asks.
    #[error("the probe {call:?} does not say for which key it asks: put {{key}} into its path")]
    ProbeWithoutKey {
        /// As given.
        call: String,
    },
    /// Calls of the guard's own without anybody to make them.
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
        /// What does not fit.
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
        /// As given.
        given: Duration,
    },
    /// A profile that publishes bounds cannot let a call run longer than its answer is kept.
    #[error(
        "in_flight_max ({in_flight_max:?}) is above the retention ({retention:?}), which the profile {profile} does not allow: shorten it"
    )]
    InFlightAboveRetention {
        /// The profile.
        profile: &'static str,
        /// As given.
        in_flight_max: Duration,
        /// As given.
        retention: Duration,
    },
    /// A profile that publishes `in_flight_max` publishes it in whole seconds.
    #[error(
        "in_flight_max ({in_flight_max:?}) is below the second that the profile {profile} publishes at least"
    )]
    InFlightTooShort {
        /// The profile.
        profile: &'static str,
        /// As given.
        in_flight_max: Duration,
    },
    /// A setting for plain requests, where calls are messages.
    #[error(
        "the route {pattern:?} sets {setting}, which the profile decides: its calls are messages, each with its key, its fingerprint and its success in it"
    )]
    NotOfMessages {
        /// The route.
        pattern: String,
        /// Which.
        setting: &'static str,
    },
    /// The namespace cannot stand in a key.
    #[error("the namespace must have 1 to 255 bytes, and has {length}")]
    Namespace {
        /// Its length.
        length: usize,
    },
    /// A limit that lets nothing through.
    #[error("{setting} is zero, which would refuse every request")]
    Zero {
        /// Which.
        setting: &'static str,
    },
    /// A limit beyond what a record can hold.
    #[error("{setting} ({bytes} bytes) is above 1 GiB: larger answers leave a tombstone")]
    TooLarge {
        /// Which.
        setting: &'static str,
        /// As given.
        bytes: usize,
    },
    /// Keys that a record cannot name.
    #[error("keys of {min} to {max} characters cannot be: a key has at least 1 and at most 1024")]
    KeyLength {
        /// As given.
        min: usize,
        /// As given.
        max: usize,
    },
    /// A status that is not for this.
    #[error("expired can be told as 410 or 412, not as {status}")]
    Expired {
        /// As given.
        status: u16,
    },
    /// The scope is not one of those that are known.
    #[error(
        "the scope {scope:?} is not known: it is \"authorization\", \"header:NAME\", \"jwt:CLAIM\" or \"single-tenant\""
    )]
    Scope {
        /// As given.
        scope: String,
    },
    /// A part of a scope that cannot stand beside the others.
    #[error(
        "the part {part:?} of the scope cannot be: every part stands there once, and \"single-tenant\" stands alone"
    )]
    ScopePart {
        /// As given.
        part: String,
    },
    /// A claim of a token that nobody can check.
    #[error(
        "the scope jwt:{claim} needs a secret or a key set (jwks): an unverified claim is anybody's word"
    )]
    Unverified {
        /// Which claim.
        claim: String,
    },
    /// The key set cannot be used.
    #[error("the key set (jwks) cannot be used: {reason}")]
    KeySet {
        /// Why.
        reason: String,
    },
}
