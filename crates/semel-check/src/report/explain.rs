//! The meaning of a failure for a client, if the storyboard does not explain it.

use super::{CheckOutcome, StepReport};

/// Explanations by the kind of the failed check: the harm to a client, and the fix.
const BY_CHECK: [(&[&str], &str, &str); 7] = [
    (
        &["cross_response_field_equal", "cross_response_count_distinct"],
        "Concurrent requests are executed more than once, or get different outcomes.",
        "Claim the key with one atomic statement before the effect; other requests wait, or are told to retry.",
    ),
    (
        &["replay_not_cached_rate_limit"],
        "A client that was rate-limited once is refused for that key until the key expires.",
        "Store only outcomes of the operation; a refusal before it began leaves no record. Send Retry-After in seconds.",
    ),
    (
        &["idempotency.conflict_no_payload_leak", "body_excludes"],
        "A caller that learns or guesses a key can read the request or the answer of another caller.",
        "Answer a conflict with a code and a sentence; never with the stored request or answer.",
    ),
    (
        &["context.no_secret_echo"],
        "Credentials end up in logs, caches and error trackers.",
        "Never put a credential of the request into an answer.",
    ),
    (
        &["body_equals_step", "field_equals_context"],
        "A retry is answered differently from the first request: the client acts on a wrong state.",
        "Store the answer under the key with the effect, and return it to every retry, byte for byte.",
    ),
    (
        &["expect_error", "error_code"],
        "A request that must be refused is executed, or is refused with a code that clients do not understand.",
        "Check key and payload before the effect, and answer with the codes of the protocol.",
    ),
    (
        &["capture_path_not_resolvable", "field_present", "unresolved_substitution"],
        "The answer lacks a value that a client needs.",
        "Add it to the answer; if it has another path, change the path in the storyboard.",
    ),
];

/// The explanation of a failed step.
pub(super) fn explain(step: &StepReport) -> (&'static str, &'static str) {
    let failed = step.validations.iter().filter(|validation| validation.outcome == CheckOutcome::Failed);
    let mut found = failed.filter_map(|validation| {
        let known = BY_CHECK.iter().find(|(checks, ..)| checks.contains(&validation.check.as_str()));
        known.map(|(_, suffers, fix)| (*suffers, *fix))
    });
    found.next().unwrap_or(match step.error {
        Some(_) => (
            "The client gets no answer, and does not know the result.",
            "Make the target answer every request.",
        ),
        None => {
            ("The answer is not what the protocol promises.", "Compare the expected with the actual value.")
        }
    })
}
