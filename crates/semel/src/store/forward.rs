//! Methods that wrappers forward to their field `inner`.

/// The methods of `Store` that neither read nor change a record.
macro_rules! forward_upkeep {
    () => {
        fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, Error>> {
            self.inner.sweep(limit)
        }

        fn watch(&self, id: KeyId) -> Watch {
            self.inner.watch(id)
        }

        fn attach(&self, cache: Weak<dyn Invalidate>) {
            self.inner.attach(cache);
        }

        fn secret(&self, candidate: Secret) -> BoxFuture<'_, Result<Secret, Error>> {
            self.inner.secret(candidate)
        }

        fn used_bytes(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
            self.inner.used_bytes()
        }

        fn durability(&self) -> Durability {
            self.inner.durability()
        }
    };
}

/// The whole of `MarkStore`.
macro_rules! forward_marks {
    ($wrapper:ident) => {
        impl<S: Store + MarkStore + ?Sized> MarkStore for $wrapper<S> {
            fn read_mark(&self, mark: MarkId) -> BoxFuture<'_, Result<Option<u64>, Error>> {
                self.inner.read_mark(mark)
            }

            fn raise_mark(&self, mark: MarkId, value: u64) -> BoxFuture<'_, Result<u64, Error>> {
                self.inner.raise_mark(mark, value)
            }
        }
    };
}

pub(super) use {forward_marks, forward_upkeep};
