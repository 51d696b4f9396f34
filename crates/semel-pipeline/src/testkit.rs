//! For whoever writes a ledger: what every ledger must do, as cases that run over any [`Ledger`](crate::ledger::Ledger).

pub mod contract;
