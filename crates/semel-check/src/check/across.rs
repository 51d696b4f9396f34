//! Checks on several answers.

use serde_json::{Value, json};

use super::{Check, CheckKind, CheckVerdict};
use crate::answer::TargetAnswer;
use crate::path::{Path, same};

/// Checks all answers of one step together. By turns, they answer `variants` different requests.
pub(crate) fn across(check: &Check, answers: &[&TargetAnswer], variants: usize) -> CheckVerdict {
    if answers.len() < 2 {
        return CheckVerdict::NotApplicable("compares several answers; this step has one".to_owned());
    }
    let path_text = check.path.as_deref().unwrap_or_default();
    let path = Path::parse(path_text);
    // The status is not part of a payload, but a check may compare it across answers.
    let read = |answer: &&TargetAnswer| match path_text {
        "http_status" => Some(Value::from(answer.status)),
        _ => path.get(&answer.payload).filter(|value| !value.is_null()),
    };
    let found: Vec<Option<Value>> = answers.iter().map(read).collect();
    let mut distinct: Vec<&Value> = Vec::new();
    for value in found.iter().flatten() {
        if !distinct.iter().any(|known| same(known, value)) {
            distinct.push(value);
        }
    }
    let resolved = found.iter().flatten().count();
    match check.kind {
        CheckKind::CrossEqual => {
            let held = resolved >= 2 && resolved == found.len() && distinct.len() == 1;
            let mut observed: Vec<Value> = distinct.iter().map(|value| (*value).clone()).collect();
            observed.truncate(10);
            let actual = || json!({"observed_values": observed, "missing": found.len() - resolved});
            CheckVerdict::judge(held, || json!({"path": path_text, "equal_on": found.len()}), actual)
        }
        CheckKind::CrossOneRequest => one_request(&found, variants),
        _ => {
            let count = distinct.len();
            let allowed = check.allowed.clone().unwrap_or_default();
            let held = resolved > 0
                && allowed
                    .iter()
                    .any(|allowed| allowed.as_u64().and_then(|one| usize::try_from(one).ok()) == Some(count));
            let observed: Vec<&Value> = distinct.iter().copied().take(10).collect();
            let actual = || json!({"observed_cardinality": count, "observed_values": observed});
            CheckVerdict::judge(held, || json!({"path": path_text, "allowed_values": allowed}), actual)
        }
    }
}

/// True if the answers with a value are all the answers to one of the requests, and to no other.
fn one_request(found: &[Option<Value>], variants: usize) -> CheckVerdict {
    let counts: Vec<(usize, usize)> = (0..variants.max(1))
        .map(|variant| {
            let of = || found.iter().skip(variant).step_by(variants.max(1));
            (of().flatten().count(), of().count())
        })
        .collect();
    let answered = counts.iter().filter(|(resolved, _)| *resolved > 0).count();
    let held = answered == 1 && counts.iter().all(|(resolved, sent)| *resolved == 0 || resolved == sent);
    let actual = || Value::from(counts.iter().map(|(resolved, _)| *resolved).collect::<Vec<_>>());
    let expected = || json!("every answer to one of the requests, and none to the others");
    CheckVerdict::judge(held, expected, || json!({"answers_with_the_effect": actual()}))
}

/// Compares the rate-limited answer with the answer to the same key after the wait.
pub(crate) fn rate_limit(tripped: &TargetAnswer, replayed: &TargetAnswer) -> CheckVerdict {
    let both = tripped.is_rate_limited() && replayed.is_rate_limited();
    let expected = || json!("an answer of its own after the limit was lifted");
    CheckVerdict::judge(!both, expected, || json!("rate_limit_response_cached_as_replay"))
}
