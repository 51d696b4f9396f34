//! Stores that an effect can share a transaction with: a store itself, or a wrapper that seals outcomes.

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "embedded")]
use super::Error;
use super::Store;
use crate::key::KeyId;
use crate::record::Command;
#[cfg(feature = "embedded")]
use crate::record::Ruling;

/// A store that is `S`, or that seals outcomes before they reach `S`. `run_in` and `run_in_transaction` take it.
///
/// Implemented by the stores that have transactions, by `EncryptedStore` over them, and by an `Arc` of either. No
/// other type can implement it: a wrapper that is bypassed would not see the outcome.
pub trait Wraps<S>: sealed::Reach<S> {}

impl<S, W: sealed::Reach<S> + ?Sized> Wraps<S> for W {}

/// The transformation between a caller and the inner store, inside a transaction.
#[derive(Clone)]
pub struct OutcomeTransform {
    #[cfg(feature = "encryption")]
    sealer: Option<Arc<super::encrypted::OutcomeSealer>>,
}

impl OutcomeTransform {
    pub(crate) const NONE: Self = Self {
        #[cfg(feature = "encryption")]
        sealer: None,
    };

    /// The command for the inner store.
    pub(crate) fn seal_command(&self, id: KeyId, command: Command) -> Command {
        #[cfg(feature = "encryption")]
        if let Some(sealer) = &self.sealer {
            return sealer.seal_command(id, command).0;
        }
        let _ = (self, id);
        command
    }

    /// The ruling for the caller.
    #[cfg(feature = "embedded")]
    pub(crate) fn open_ruling(&self, id: KeyId, ruling: Ruling) -> Result<Ruling, Error> {
        #[cfg(feature = "encryption")]
        if let Some(sealer) = &self.sealer {
            return sealer.open_ruling(id, ruling);
        }
        let _ = (self, id);
        Ok(ruling)
    }
}

impl fmt::Debug for OutcomeTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OutcomeTransform")
    }
}

pub(crate) mod sealed {
    use super::{OutcomeTransform, Store};

    /// Access through a wrapper.
    pub trait Reach<S>: Send + Sync {
        /// The store that the engine uses.
        fn outside(&self) -> &dyn Store;
        /// The store that has the transactions.
        fn inside(&self) -> &S;
        /// The transformation between the two.
        fn transform(&self) -> OutcomeTransform;
    }
}

impl<S, W: sealed::Reach<S> + ?Sized> sealed::Reach<S> for Arc<W> {
    fn outside(&self) -> &dyn Store {
        (**self).outside()
    }

    fn inside(&self) -> &S {
        (**self).inside()
    }

    fn transform(&self) -> OutcomeTransform {
        (**self).transform()
    }
}

macro_rules! reaches_itself {
    ($feature:literal, $store:ty) => {
        #[cfg(feature = $feature)]
        impl sealed::Reach<$store> for $store {
            fn outside(&self) -> &dyn Store {
                self
            }

            fn inside(&self) -> &$store {
                self
            }

            fn transform(&self) -> OutcomeTransform {
                OutcomeTransform::NONE
            }
        }

        #[cfg(all(feature = $feature, feature = "encryption"))]
        impl sealed::Reach<$store> for super::EncryptedStore<$store> {
            fn outside(&self) -> &dyn Store {
                self
            }

            fn inside(&self) -> &$store {
                self.inner()
            }

            fn transform(&self) -> OutcomeTransform {
                OutcomeTransform { sealer: Some(Arc::clone(self.sealer())) }
            }
        }
    };
}

reaches_itself!("embedded", super::EmbeddedStore);
reaches_itself!("postgres", super::PostgresStore);
