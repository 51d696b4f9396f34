//! Schemas of values that other crates define.

use std::borrow::Cow;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use semel::record::{Mode, Phase};
use semel_pipeline::delivery::{AttemptClass, DeliveryState};
use semel_pipeline::id::EventKind;
use semel_pipeline::letter::{Cause, Status};
use semel_pipeline::replay::{self, ItemState, JobState, ReplayAction};

/// A type whose values have names in JSON.
pub(super) trait Names {
    fn names() -> Vec<&'static str>;
}

/// The schema of a name of `T`.
pub(super) struct OneOf<T>(PhantomData<T>);

impl<T: Names> JsonSchema for OneOf<T> {
    fn schema_name() -> Cow<'static, str> {
        T::names().join("Or").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": T::names() })
    }
}

/// A name, or `unknown`.
impl<T: Names> Names for Option<T> {
    fn names() -> Vec<&'static str> {
        [T::names(), vec!["unknown"]].concat()
    }
}

macro_rules! names {
    ($($type:ty: $names:expr;)*) => {$(
        impl Names for $type {
            fn names() -> Vec<&'static str> {
                $names.to_vec()
            }
        }
    )*};
}

names! {
    Phase: super::records::PHASES.map(|(name, _)| name);
    Mode: ["marked", "keyed", "rerun", "atomic"];
    EventKind: ["event", "run"];
    DeliveryState: Self::ALL.map(Self::as_str);
    AttemptClass: Self::ALL.map(Self::as_str);
    Status: Self::ALL.map(Self::as_str);
    Cause: Self::ALL.map(Self::as_str);
    replay::ReplayMode: Self::ALL.map(Self::as_str);
    JobState: Self::ALL.map(Self::as_str);
    ItemState: Self::ALL.map(Self::as_str);
    ReplayAction: ["skip", "run", "conflict"];
    bool: ["true", "false"];
}
