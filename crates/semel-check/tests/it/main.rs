//! The tester, tested: APIs with known flaws fail the cases they should and no others.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod agent;
mod api;
mod checks;
mod dispatch;
mod files;
mod flaws;
mod kit;
mod mcp;
mod reports;
mod rules;
mod runs;
mod target;
