//! Attacks on the process, the admin API and the command line.

mod descriptors;
mod reload;
mod waiting;
