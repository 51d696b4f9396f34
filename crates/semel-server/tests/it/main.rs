//! The binary, from outside: started as a user starts it, read by its ready line.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod abuse;
mod access;
mod admin_tls;
#[path = "../../../semel-http/examples/naive_agent/agent.rs"]
mod agent;
mod attacks_access;
mod attacks_edge;
mod attacks_storage;
mod bench;
mod check;
mod claims;
mod commands;
mod console;
mod demo;
mod deploy;
mod doubt;
mod drain;
mod drills;
mod events;
mod foreign_apis;
mod gateway;
mod guide;
mod init;
mod killed;
mod kit;
mod leftovers;
mod mcp;
mod monitoring;
mod moves;
mod other_languages;
mod outages;
mod packages;
mod probe_race;
mod real_clients;
mod records_upgrade;
mod reload;
mod runbook;
mod scarce;
mod sealed;
mod serve;
mod snapshots;
mod stores;
mod story;
mod tls;
mod trace;
