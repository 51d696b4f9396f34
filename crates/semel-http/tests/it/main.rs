//! The guard, from outside: one binary.

mod conflict;
mod disconnect;
mod doubt;
mod embedded;
mod keys;
mod kit;
mod layer;
mod limits;
mod pinning;
mod policy;
mod profiles;
mod replay;
mod scope;
mod store;
mod tenants;
mod tombstone;
mod waiters;
mod well_known;
mod edge;
mod edge_kit;
