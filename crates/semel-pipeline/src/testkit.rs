//! For authors of ledgers: the contract of a ledger, as cases that run over any [`Ledger`](crate::ledger::Ledger).

pub mod contract;
