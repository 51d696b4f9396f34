//! The faults of `crate::mutant` in the scripts.

use crate::mutant::{self, Mutant};

/// What a fault replaces in the rules, or in the script for completions.
const CHANGES: [(Mutant, &str, &str); 8] = [
    (Mutant::FenceOff, "local mine = known and sub(value, 37, 60) == ARGV[2]", "local mine = known"),
    (Mutant::FenceOff, "if mine and standing then return finish", "if mine then return finish"),
    (Mutant::FenceOff, "and sub(value, 37, 60) == mine then", "then"),
    (Mutant::BeginMarkOff, "redis.call('SETRANGE', key, 1, char(BEGUN))", "redis.call('TIME')"),
    (Mutant::BeginMarkOff, "char(max(state, byte(asked, 2)))", "char(state)"),
    (
        Mutant::BeginMarkOff,
        "redis.call('SET', key, sub(asked, 1, 52)",
        "redis.call('SET', key, char(1, CLAIMED) .. sub(asked, 3, 52)",
    ),
    (
        Mutant::ReleaseUnguarded,
        "if not (mine and standing) then return { 'lost' } end\n  if command == 'abandon'",
        "if not (standing and (mine or command == 'release')) then return { 'lost' } end\n  if command == 'abandon'",
    ),
    (
        Mutant::SettleKeepsFence,
        "fence = next_fence()\n  if command == 'settle_done'",
        "if command == 'settle_done'",
    ),
];

/// The script with the fault of this process, if it has one.
pub(super) fn change(mut script: String) -> String {
    for (mutant, right, wrong) in CHANGES {
        if mutant::is(mutant) {
            script = script.replace(right, wrong);
        }
    }
    script
}

#[cfg(test)]
mod tests {
    use super::super::script::{COMPLETE, RULES};
    use super::*;

    // A fault whose text is not found any more would change nothing, and then the proof would search for a fault that is not there.
    #[test]
    fn every_replaced_text_is_in_one_of_the_scripts_once() {
        for (mutant, right, _) in CHANGES {
            let found = RULES.matches(right).count() + COMPLETE.matches(right).count();
            assert_eq!(found, 1, "{mutant:?}: {right}");
        }
    }
}
