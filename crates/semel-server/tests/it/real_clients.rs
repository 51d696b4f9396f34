//! Real clients, unmodified, before a counting API: each retries by itself, with its own key, and every logical call is
//! one effect.
//!
//! ```text
//! client ──► stage ──► gateway ──► fake API
//! ```
//!
//! The stage and the fake do the harm; the fake counts. `scripts/clients` installs the clients. `SEMEL_PROVE=1` plays every
//! fault many times.

mod adcp;
mod driver;
mod fake;
mod gateway;
mod lines;
mod mcp;
mod play;
mod stage;
mod wire;
mod world;

use self::driver::Program;
pub(crate) use self::driver::installed;
use self::fake::Api;
use self::play::{Client, Retries, play};

#[test]
fn stripe_for_python() {
    play(&Client {
        program: Program::Python("stripe"),
        api: Api::Stripe,
        profile: "stripe",
        route: "POST /v1/payment_intents",
        // A bare UUID.
        own_key: "",
        half_an_answer: Retries::No,
        problem_in_json: Retries::Yes,
    });
}

#[test]
fn stripe_for_node() {
    play(&Client {
        program: Program::Node,
        api: Api::Stripe,
        profile: "stripe-v2",
        route: "POST /v1/payment_intents",
        own_key: "stripe-node-retry-",
        half_an_answer: Retries::No,
        problem_in_json: Retries::Yes,
    });
}

#[test]
fn svix_for_python() {
    play(&Client {
        program: Program::Python("svix"),
        api: Api::Svix,
        // This client cannot read a 422 of another shape than its API's; here a conflict is a 409.
        profile: "ucp",
        route: "POST /api/v1/app",
        own_key: "auto_",
        half_an_answer: Retries::Yes,
        problem_in_json: Retries::Yes,
    });
}

#[test]
fn increase_for_python() {
    play(&Client {
        program: Program::Python("increase"),
        api: Api::Increase,
        profile: "ietf",
        route: "POST /account_transfers",
        own_key: "stainless-python-retry-",
        half_an_answer: Retries::Yes,
        problem_in_json: Retries::Yes,
    });
}

#[test]
fn gocardless_pro_for_python() {
    play(&Client {
        program: Program::Python("gocardless_pro"),
        api: Api::GoCardless,
        profile: "ietf",
        route: "POST /payments",
        // A bare UUID.
        own_key: "",
        half_an_answer: Retries::No,
        // It retries a 5xx only where the body is not JSON.
        problem_in_json: Retries::No,
    });
}
