//! The contract suite for stores, one case per promise.
//!
//! To check your own store, write a function that creates a fresh one, and let
//! [`contract_tests!`](crate::contract_tests) generate one test per case:
//!
//! ```
//! use std::sync::Arc;
//!
//! use semel::store::MemoryStore;
//! use semel::testkit::contract::Context;
//! use semel::time::ManualClock;
//!
//! async fn fresh() -> Context {
//!     let clock = ManualClock::default();
//!     Context::new(Arc::new(MemoryStore::with_clock(clock.clone()))).clock(clock)
//! }
//!
//! semel::contract_tests!(fresh);
//! # fn main() {}
//! ```
//!
//! A case panics with a message if a promise is broken. No case is skipped: if a store lacks a capability (its clock
//! cannot be moved, it cannot be opened again) the case checks the rest, and a store that claims to survive a crash
//! but cannot be opened again fails.
//!
//! The cases compare a store with [`crate::record`]; [`agrees_with_the_rules`] does so with random commands.

mod agreement;
mod cancelling;
mod claiming;
mod context;
mod expecting;
mod keeping;
mod leasing;
mod listing;
mod operating;
mod ordering;
mod racing;
mod sweeping;
mod table;
mod waking;

use std::fmt;
use std::time::Duration;

pub use self::agreement::agrees_with_the_rules;
pub use self::context::Context;
use crate::store::BoxFuture;

/// Lists every case once, group by group, and passes the list to another macro.
#[doc(hidden)]
#[macro_export]
macro_rules! __contract_cases {
    ($then:path $(, $with:tt)*) => {
        $then! {
            $($with)*
            table {
                claims_follow_the_table,
                writes_of_the_owner_follow_the_table,
                writes_of_others_change_nothing,
                operators_follow_the_table,
                unknown_keys_follow_the_table,
            }
            claiming {
                claim_wins_once,
                claim_is_kept_as_it_was_made,
                repeated_claim_knows_itself,
                repeated_claim_can_begin,
                conflict_changes_nothing,
                released_key_is_free_for_any_payload,
                bound_key_is_free_for_its_payload,
                bound_key_is_free_for_all_after_retention,
                keyed_release_stays_bound,
                late_claim_of_a_released_owner_is_refused,
                fence_never_goes_back,
                fence_survives_a_clock_that_steps_back,
            }
            racing {
                racing_claims_have_one_winner,
                racing_repeats_of_one_claim_all_win,
                racing_takers_have_one_winner,
                racing_completes_leave_one_outcome,
                racing_release_and_complete_leave_one,
                racing_settle_and_complete_leave_one,
                many_keys_in_parallel,
                one_key_through_many_lives,
            }
            leasing {
                claim_is_never_stolen_early,
                lapsed_claim_goes_to_the_next,
                begun_and_lost_is_in_doubt,
                begun_and_lost_is_taken_over_where_the_mode_allows,
                renew_extends_the_lease,
                renew_ends_at_in_flight_max,
                owner_may_come_back_while_nobody_claimed,
                owner_may_come_back_from_doubt,
                late_owner_is_refused_after_a_takeover,
                second_owner_lost_too,
                abandoned_claim_ends_now,
                lapsed_claim_expires_from_its_claim,
                doubt_never_expires,
                lease_is_not_retention,
            }
            keeping {
                outcome_is_replayed_byte_for_byte,
                tombstone_is_replayed,
                complete_is_repeatable,
                outcome_never_changes,
                refused_owner_sees_the_winner_of_its_payload_only,
                retention_counts_from_complete,
                retention_of_the_effect_wins,
                expired_is_remembered_then_vacant,
                expired_says_nothing_of_payloads,
                secret_is_kept_by_the_first_writer,
                acknowledged_writes_survive,
                swept_fences_survive,
            }
            operating {
                forget_takes_the_outcome_away,
                forget_keeps_the_fence,
                forced_forget_fences_the_owner_out,
                settle_done_is_replayed,
                settle_run_is_run_again,
                operators_change_only_the_attempt_they_name,
                reexecute_opens_a_new_epoch,
                forget_cleans_caches_before_it_answers,
                reexecute_cleans_caches_before_it_answers,
                gone_cache_is_no_trouble,
            }
            waking {
                complete_wakes,
                release_wakes,
                bind_wakes,
                abandon_wakes,
                settle_wakes,
                forget_wakes,
                change_between_look_and_wait_is_seen,
                every_watch_wakes,
                dropped_watch_takes_no_other_along,
                watch_survives_a_dropped_wait,
                no_wakeup_is_lost_in_a_race,
            }
            listing {
                get_applies_time,
                scan_pages_in_order,
                scan_filters_by_phase,
                scan_applies_time,
                scan_misses_nothing_while_others_write,
            }
            sweeping {
                sweep_drops_the_outcome_then_the_key,
                sweep_keeps_what_still_speaks,
                sweep_never_takes_doubt,
                sweep_keeps_stubs_for_late_packets,
                sweep_keeps_fences_up,
                sweep_is_bounded,
                sweep_comes_to_rest,
                sweeps_and_claims_in_parallel,
            }
            cancelling {
                dropped_claim_can_be_repeated,
                dropped_calls_leave_no_lock_behind,
                dropped_calls_leave_no_reply_behind,
            }
            ordering {
                concurrent_commands_have_an_order,
            }
            agreement {
                random_commands_agree_with_the_rules,
            }
        }
    };
}

/// Declares the cases of a suite: `CASES`, and the function of each.
#[doc(hidden)]
#[macro_export]
macro_rules! __declare_cases {
    (($context:ty) $($group:ident { $($name:ident,)* })*) => {
        $(pub use self::$group::{$($name),*};)*

        const CASES: &[$crate::testkit::contract::Case<$context>] = &[
            $($($crate::testkit::contract::Case::new(
                stringify!($group),
                stringify!($name),
                |context| Box::pin($group::$name(context)),
            ),)*)*
        ];
    };
}

__contract_cases!(__declare_cases, (Context));

/// One promise, and the function that checks it in a context: of a store, or of what another suite is for.
#[derive(Debug)]
pub struct Case<C: 'static = Context> {
    group: &'static str,
    name: &'static str,
    run: for<'a> fn(&'a C) -> BoxFuture<'a, ()>,
}

impl<C: fmt::Debug> Case<C> {
    #[doc(hidden)]
    pub const fn new(
        group: &'static str,
        name: &'static str,
        run: for<'a> fn(&'a C) -> BoxFuture<'a, ()>,
    ) -> Self {
        Self { group, name, run }
    }

    /// The group of the case: claiming, leasing, sweeping…
    pub const fn group(&self) -> &'static str {
        self.group
    }

    /// The case's name, which is also the name of its function and of its test.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the case.
    ///
    /// # Panics
    /// The promise is broken, or there is no answer within two minutes.
    pub async fn run(&self, context: &C) {
        let ended = tokio::time::timeout(PATIENCE, (self.run)(context)).await;
        assert!(ended.is_ok(), "{} did not end within {PATIENCE:?} on {context:?}", self.name);
    }
}

const PATIENCE: Duration = Duration::from_secs(120);

/// Every case.
pub fn cases() -> &'static [Case] {
    CASES
}

/// The name of every case, for a table of stores and cases.
pub fn case_names() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(Case::name)
}

/// There is no case of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no contract case `{name}`; semel::testkit::contract::case_names() lists them")]
pub struct UnknownCase {
    name: String,
}

/// Runs the case of that name.
///
/// # Errors
/// There is no such case.
///
/// # Panics
/// As [`Case::run`].
pub async fn run_case(name: &str, context: &Context) -> Result<(), UnknownCase> {
    let case = CASES.iter().find(|case| case.name == name);
    case.ok_or_else(|| UnknownCase { name: name.to_owned() })?.run(context).await;
    Ok(())
}

/// The body of a test generated by [`contract_tests!`](crate::contract_tests): a runtime with two threads, a fresh
/// context, one case.
#[doc(hidden)]
pub fn run_test<C: fmt::Debug, F: Future<Output = C>>(
    cases: &[Case<C>],
    name: &str,
    fresh: impl FnOnce() -> F,
) {
    let case = cases.iter().find(|case| case.name == name).expect("the list of tests is the list of cases");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be started").block_on(async { case.run(&fresh().await).await });
}

/// Generates one test per contract case, each with the case's own name.
///
/// Takes the path of an async function that creates a fresh [`Context`]. Put it into its own module: the tests are
/// then named `that_module::the_case`.
#[macro_export]
macro_rules! contract_tests {
    ($fresh:path) => {
        $crate::__contract_cases!($crate::__contract_tests, ($fresh, $crate::testkit::contract::cases));
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __contract_tests {
    (($fresh:path, $cases:path) $($group:ident { $($name:ident,)* })*) => {
        $crate::__contract_tests! { @flat $fresh, $cases; $($($name)*)* }
    };
    (@flat $fresh:path, $cases:path; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::testkit::contract::run_test($cases(), stringify!($name), $fresh);
            }
        )*
    };
}
