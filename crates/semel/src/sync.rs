//! The lock of this crate, named in one place: the schedule tests compile the same sources over theirs.

pub(crate) use parking_lot::Mutex;
