//! Attacks on the process, the admin API and the command line.

mod audit;
mod certificates;
mod descriptors;
mod logins;
mod production;
mod reload;
mod servers;
mod waiting;
