//! Bounded duplicate detection for numbered operations.
//!
//! Two layers stand in front of an apply function. The [`Window`] remembers the last keys it recorded and
//! answers in constant time and bounded memory. The [`Marks`] keep one number per session, the highest that
//! was applied, and refuse what the window has forgotten.
//!
//! | part | what it is for |
//! |---|---|
//! | [`WindowKey`] | names one operation of one session in 128 bits |
//! | [`Window`] | has this key been recorded among the last N? |
//! | [`Marks`], [`Gaps`] | is this sequence number still to be applied? |
//! | [`Receiver`] | both, in front of any apply function, with marks that survive a restart |

mod dedup;
mod marks;
mod receiver;
mod seed;
mod session_key;
mod table;

pub use dedup::{DEFAULT_CAPACITY, Forget, MAX_CAPACITY, Window, WindowError};
pub use marks::{Accepted, Advance, Gaps, Marks};
pub use receiver::{Builder, Joined, ReceiveError, Received, Receiver, RefusedBy};
pub use session_key::WindowKey;

/// A boxed slice of `count` fresh values; a size that memory cannot hold is an error, not an abort.
fn allocate<T: Default>(count: usize, capacity: usize) -> Result<Box<[T]>, WindowError> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| WindowError::TooLarge { capacity })?;
    values.resize_with(count, T::default);
    Ok(values.into_boxed_slice())
}
