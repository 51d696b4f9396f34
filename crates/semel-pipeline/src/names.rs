//! Names of values in the API, the tables and the metrics.

/// Gives every value of a plain enum its name: `ALL`, `as_str`, `from_name`.
macro_rules! names {
    ($type:ident { $($value:ident = $name:literal,)* }) => {
        impl $type {
            /// Every value.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$value),*];

            /// Its name in the API and the tables.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }

            /// The value with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.as_str() == name)
            }
        }
    };
}

pub(crate) use names;
