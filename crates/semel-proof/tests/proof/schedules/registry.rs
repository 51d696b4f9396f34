//! The registry as it is, and its mutants, behind one trait.

use semel::key::KeyId;

/// What the scenarios need of a registry.
pub(super) trait Registry: Clone + Send + 'static {
    type Watch: Send + 'static;

    fn new() -> Self;
    fn watch(&self, id: KeyId) -> Self::Watch;
    fn wake(&self, id: KeyId);
    fn wake_all(&self);
    fn watched(&self) -> usize;
    fn changed(watch: &mut Self::Watch) -> impl Future<Output = ()> + Send;
}

macro_rules! registry {
    ($name:ident, $module:ident) => {
        pub(super) type $name = $module::Wakeups;

        impl Registry for $module::Wakeups {
            type Watch = $module::Watch;

            fn new() -> Self {
                Self::new()
            }

            fn watch(&self, id: KeyId) -> $module::Watch {
                self.watch(id)
            }

            fn wake(&self, id: KeyId) {
                self.wake(id);
            }

            fn wake_all(&self) {
                self.wake_all();
            }

            fn watched(&self) -> usize {
                self.watched()
            }

            fn changed(watch: &mut $module::Watch) -> impl Future<Output = ()> + Send {
                watch.changed()
            }
        }
    };
}

#[path = "../../../../semel/src/store/wakeups.rs"]
#[expect(unreachable_pub, dead_code, reason = "public in its own crate, where others use all of it")]
mod real;

registry!(Real, real);

macro_rules! mutant {
    ($name:ident, $module:ident) => {
        #[allow(
            unreachable_pub,
            dead_code,
            unused_variables,
            unused_assignments,
            unused_mut,
            clippy::all,
            reason = "wrong on purpose"
        )]
        mod $module {
            include!(concat!(env!("OUT_DIR"), "/wakeups_", stringify!($module), ".rs"));
        }

        registry!($name, $module);
    };
}

mutant!(NoVersionCheck, no_version_check);
mutant!(SubscribesAtTheWait, subscribes_at_the_wait);
mutant!(ForgetsTheWakers, forgets_the_wakers);
mutant!(KeepsTheFirstWaker, keeps_the_first_waker);
mutant!(NeverFreesASlot, never_frees_a_slot);
mutant!(FreesASlotTooEarly, frees_a_slot_too_early);
