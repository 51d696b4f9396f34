//! Attacks on the process, the admin API and the command line.

mod reload;
mod waiting;
