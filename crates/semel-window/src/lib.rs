#![doc = include_str!("../README.md")]

mod dedup;
mod marks;
mod receiver;
mod seed;
mod session_key;
mod table;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use dedup::{DEFAULT_CAPACITY, ForgetResult, MAX_CAPACITY, Window, WindowError};
pub use marks::{AcceptedMark, Advance, Gaps, Marks};
pub use receiver::{Joined, Operation, ReceiveError, Received, Receiver, ReceiverBuilder, RefusedBy};
pub use semel::store::{MarkId, MarkStore};
pub use session_key::{WindowKey, WindowKeyError};

/// Allocates `count` default values. Too little memory is an error, not an abort.
fn allocate<T: Default>(count: usize, capacity: usize) -> Result<Box<[T]>, WindowError> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| WindowError::TooLarge { capacity })?;
    values.resize_with(count, T::default);
    Ok(values.into_boxed_slice())
}
