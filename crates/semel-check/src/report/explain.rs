//! What a failure means to a client, where the storyboard does not say it itself.

use super::{Outcome, StepReport};

/// Explanations by the kind of the check that failed: what a client suffers, how to fix it.
const BY_CHECK: [(&[&str], &str, &str); 7] = [
    (
        &["cross_response_field_equal", "cross_response_count_distinct"],
        "Requests that arrive together are executed more than once, or are told different outcomes.",
        "Claim the key with one atomic statement before the effect; losers wait, or are told to come back.",
    ),
    (
        &["replay_not_cached_rate_limit"],
        "A client that hit the limit once is refused for that key until the key expires.",
        "Keep only outcomes of the operation; a refusal before it began leaves no record. Say in seconds when to come back.",
    ),
    (
        &["idempotency.conflict_no_payload_leak", "body_excludes"],
        "Whoever learns or guesses a key can read what was done with it.",
        "Answer a conflict with a code and a sentence; never with the stored request or answer.",
    ),
    (
        &["context.no_secret_echo"],
        "Credentials end up in logs, caches and error trackers of everybody on the way.",
        "Never put a credential of the request into an answer.",
    ),
    (
        &["body_equals_step", "field_equals_context"],
        "A retry is answered differently from the first request: the client acts on a state that is not so.",
        "Keep the answer under the key with the effect, and give it to every retry, byte for byte.",
    ),
    (
        &["expect_error", "error_code"],
        "A request that must be refused is executed, or is refused in words that clients do not understand.",
        "Check key and payload before the effect, and answer with the codes of the protocol.",
    ),
    (
        &["capture_path_not_resolvable", "field_present", "unresolved_substitution"],
        "The answer lacks something that a client needs to go on.",
        "Add it to the answer; if it stands elsewhere, say where in the storyboard.",
    ),
];

/// The explanation of a failed step.
pub(super) fn explain(step: &StepReport) -> (&'static str, &'static str) {
    let failed = step.validations.iter().filter(|validation| validation.outcome == Outcome::Failed);
    let mut found = failed.filter_map(|validation| {
        let known = BY_CHECK.iter().find(|(checks, ..)| checks.contains(&validation.check.as_str()));
        known.map(|(_, suffers, fix)| (*suffers, *fix))
    });
    found.next().unwrap_or(match step.error {
        Some(_) => (
            "It gets no answer, and does not know what happened.",
            "See that the target answers every request.",
        ),
        None => {
            ("The answer is not what the protocol promises.", "Compare what was expected with what came.")
        }
    })
}
