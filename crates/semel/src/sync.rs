//! The lock type of this crate, named in one place: the schedule tests replace it with their own.

pub(crate) use parking_lot::Mutex;
