//! The contract suite for ledgers, one case per promise.
//!
//! To check a ledger, write a function that creates a fresh one, and let [`ledger_tests!`](crate::ledger_tests)
//! generate one test per case:
//!
//! ```
//! use std::sync::Arc;
//!
//! use semel::store::EmbeddedStore;
//! use semel::time::ManualClock;
//! use semel_pipeline::ledger::EmbeddedLedger;
//! use semel_pipeline::testkit::contract::LedgerContext;
//!
//! async fn fresh() -> LedgerContext {
//!     let folder = tempfile::tempdir().expect("a folder for the test");
//!     let clock = ManualClock::default();
//!     let store = EmbeddedStore::builder(folder.path()).clock(clock.clone()).open().expect("it can be opened");
//!     let ledger = EmbeddedLedger::open(Arc::new(store)).await.expect("it can be opened");
//!     LedgerContext::new(Arc::new(ledger)).clock(clock).keep(folder)
//! }
//!
//! semel_pipeline::ledger_tests!(fresh);
//! # fn main() {}
//! ```
//!
//! A case panics with a message if a promise is broken. If the ledger's clock cannot be moved, cases wait.

mod context;
mod controlling;
mod draining;
mod intake;
mod letters;
mod model;
mod reading;
mod releasing;
mod replaying;
mod runs;
mod settling;
mod sweeping;
mod taking;

#[doc(hidden)]
pub use semel::__contract_tests;
use semel::testkit::contract::Case;

pub use self::context::LedgerContext;
pub use self::model::agrees_with_the_model;

/// Lists every case once, group by group, and passes the list to another macro.
#[doc(hidden)]
#[macro_export]
macro_rules! __ledger_cases {
    ($then:path $(, $with:tt)*) => {
        $then! {
            $($with)*
            intake {
                an_event_is_kept_as_it_was_accepted,
                a_batch_is_answered_in_order,
                the_same_key_is_accepted_once,
                another_payload_under_the_key_is_a_conflict,
                a_repeated_call_writes_nothing,
                a_key_is_free_after_its_lifetime,
                racing_accepts_have_one_first,
                each_target_has_one_delivery,
                news_end_a_wait,
                accepted_events_survive,
            }
            draining {
                a_drained_run_holds_its_key_and_its_changes,
                changes_are_applied_once_by_their_number,
                a_cancelled_run_arrives_cancelled,
                a_run_is_cancelled_as_it_arrives,
                a_run_of_an_older_generation_holds_no_key,
                a_run_that_lost_its_key_can_be_replayed,
                a_drained_key_expires_when_the_buffer_said,
                a_stale_generation_is_refused,
                an_expired_generation_ends_once,
                racing_drains_accept_a_run_once,
            }
            taking {
                taken_work_says_everything,
                a_taken_delivery_is_nobody_elses,
                limits_are_kept,
                a_delay_is_waited_for,
                only_named_targets_are_taken,
                racing_takers_share_nothing,
                tenants_take_turns,
                a_newcomer_waits_one_round,
                order_keys_go_one_by_one,
                order_holds_within_a_target_only,
                a_blocked_one_holds_its_order,
                a_replayed_one_goes_first_again,
                a_delivery_is_taken_again_by_its_id,
                a_lost_worker_is_noticed,
                a_renewed_lease_holds,
                a_lost_lease_can_be_renewed_until_noticed,
                next_due_says_when,
                expired_work_says_so,
            }
            controlling {
                nothing_is_taken_for_a_paused_target,
                a_pause_says_who_and_why,
                a_delivery_in_progress_ends_during_a_pause,
                a_pause_survives,
                racing_pauses_have_one_first,
                a_resumption_is_news,
                waiting_deliveries_are_retried_now,
            }
            settling {
                every_ending_leads_where_it_is_drawn,
                attempts_tell_their_story,
                a_late_worker_changes_nothing,
                a_word_can_be_repeated,
                work_given_back_does_not_count,
                no_retry_is_due_after_its_time_ends,
                what_is_set_aside_unsent_is_no_attempt,
                only_drawn_steps_are_possible,
                batches_are_answered_one_by_one,
                racing_settlers_have_one_word,
            }
            reading {
                pages_have_no_gaps_and_no_doubles,
                events_are_found_by_what_they_are,
                deliveries_are_found_by_what_they_are,
                events_are_found_by_their_ids,
                totals_count_everything,
                states_of_events_are_counted,
                the_audit_log_keeps_every_line,
                a_wrong_cursor_is_refused,
            }
            sweeping {
                what_is_over_is_swept,
                what_waits_is_never_swept,
                swept_keys_are_free,
                old_lines_of_the_audit_log_are_swept,
                a_sweep_is_bounded,
            }
            letters {
                a_burial_writes_a_letter,
                a_message_is_put_once,
                letters_are_found_by_what_they_are,
                groups_gather_what_failed_alike,
                discarded_and_restored,
                a_letter_in_flight_stays,
                an_edited_copy_is_linked_both_ways,
                letters_are_mirrored_once,
            }
            replaying {
                a_plan_says_what_would_happen,
                a_selection_means_what_it_says,
                a_job_names_the_targets_it_still_sends_to,
                a_job_is_made_once,
                re_execute_needs_a_reason,
                resume_delivers_under_the_same_epoch,
                resume_skips_what_was_completed,
                re_execute_raises_the_epoch,
                re_execute_repeats_what_was_done,
                as_new_is_an_event_of_its_own,
                as_new_that_fails_carries_the_letter_on,
                a_replay_counts_its_own_attempts,
                failed_replays_park_a_letter,
                a_replay_of_an_expired_one_is_not_expired,
            }
            releasing {
                concurrency_is_never_exceeded,
                racing_releases_keep_the_limit,
                of_those_that_saw_the_same_one_releases,
                two_jobs_share_no_item,
                a_job_is_paused_resumed_and_cancelled,
                the_pace_can_be_changed,
                a_job_goes_on_after_a_restart,
                a_cancelled_delivery_ends_its_item,
                items_come_in_order,
            }
            runs {
                changes_add_up,
                a_stale_version_is_refused,
                increments_are_exact,
                metadata_is_never_rewritten,
                racing_increments_all_land,
                a_run_is_put_off,
                a_run_is_cancelled,
                a_key_is_reset,
                unknown_ids_are_not_found,
            }
            model {
                random_commands_agree_with_the_model,
            }
        }
    };
}

__ledger_cases!(semel::__declare_cases, (LedgerContext));

/// One promise, and the function that checks it.
pub type LedgerCase = Case<LedgerContext>;

/// Every case.
pub fn cases() -> &'static [LedgerCase] {
    CASES
}

/// Generates one test per contract case, each with the case's own name.
///
/// Takes the path of an async function that creates a fresh [`LedgerContext`]. Put it into its own module: the tests are
/// then named `that_module::the_case`.
#[macro_export]
macro_rules! ledger_tests {
    ($fresh:path) => {
        $crate::__ledger_cases!(
            $crate::testkit::contract::__contract_tests,
            ($fresh, $crate::testkit::contract::cases)
        );
    };
}
