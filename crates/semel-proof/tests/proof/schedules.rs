//! Schedules: the wake-up registry under thousands of interleavings, by shuttle (row lost_wakeup).
//!
//! The very source of the registry is compiled here over shuttle's lock, which decides at every step who runs
//! next. A waiter that is never woken is a deadlock, and shuttle reports it with the schedule that led there.

mod registry;
mod scenarios;

use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, Runner};

use self::registry::{
    ForgetsTheWakers, FreesASlotTooEarly, KeepsTheFirstWaker, NeverFreesASlot, NoVersionCheck, Real,
    SubscribesAtTheWait,
};

/// What the registry's source finds as `crate::key`.
pub(crate) mod key {
    pub(crate) use semel::key::KeyId;
}

/// What the registry's source finds as `crate::sync`: shuttle's lock, without poisoning as ours.
pub(crate) mod sync {
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
            // A mutant panics under it, and what is dropped on the way out must not panic again.
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }
}

const SCHEDULES: usize = 10_000;

macro_rules! holds {
    ($($scenario:ident)*) => {$(
        mod $scenario {
            use super::{Real, SCHEDULES, scenarios};

            #[test]
            fn in_random_schedules() {
                shuttle::check_random(scenarios::$scenario::<Real>, SCHEDULES);
            }

            // Few well-placed switches instead of many random ones: finds what needs a rare order.
            #[test]
            fn with_few_switches() {
                shuttle::check_pct(scenarios::$scenario::<Real>, SCHEDULES, 3);
            }
        }
    )*};
}

holds! {
    a_change_after_the_look_wakes
    a_late_watch_sees_what_follows
    every_change_wakes_in_turn
    a_dropped_wait_loses_nothing
    a_wait_may_move_to_another_task
    waking_all_wakes_all
    leaving_frees_the_place
}

macro_rules! caught {
    ($($test:ident: $mutant:ident by $scenario:ident;)*) => {$(
        #[test]
        fn $test() {
            // Always the same schedules: in some a mutant panics while it panics, and that ends the process.
            let scheduler = RandomScheduler::new_from_seed(7, SCHEDULES);
            let run = || Runner::new(scheduler, Config::default()).run(scenarios::$scenario::<$mutant>);
            let caught = catch_unwind(AssertUnwindSafe(run));
            assert!(caught.is_err(), "the mutant survived {SCHEDULES} schedules: the scenario proves nothing");
        }
    )*};
}

// The same scenarios against the same source with one line made wrong (see build.rs).
caught! {
    mutant_without_version_check_is_caught: NoVersionCheck by a_change_after_the_look_wakes;
    mutant_that_subscribes_at_the_wait_is_caught: SubscribesAtTheWait by a_change_after_the_look_wakes;
    mutant_that_forgets_the_wakers_is_caught: ForgetsTheWakers by a_change_after_the_look_wakes;
    mutant_that_keeps_the_first_waker_is_caught: KeepsTheFirstWaker by a_wait_may_move_to_another_task;
    mutant_that_never_frees_a_slot_is_caught: NeverFreesASlot by leaving_frees_the_place;
    mutant_that_frees_a_slot_too_early_is_caught: FreesASlotTooEarly by leaving_frees_the_place;
}
