//! The built-in suites.

use crate::storyboard::Storyboard;

/// A built-in suite.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// Its name.
    pub name: &'static str,
    /// Its storyboard, readable as documentation.
    pub text: &'static str,
}

/// All built-in suites.
pub const SUITES: [Suite; 7] = [
    Suite { name: "ietf", text: include_str!("../suites/ietf.yaml") },
    Suite { name: "stripe", text: include_str!("../suites/stripe.yaml") },
    Suite { name: "stripe-v2", text: include_str!("../suites/stripe-v2.yaml") },
    Suite { name: "ucp", text: include_str!("../suites/ucp.yaml") },
    Suite { name: "adcp", text: include_str!("../suites/adcp.yaml") },
    Suite { name: "adcp-idempotency", text: include_str!("../suites/adcp-idempotency.yaml") },
    Suite { name: "runs", text: include_str!("../suites/runs.yaml") },
];

/// A built-in suite by its name.
#[must_use]
pub fn suite(name: &str) -> Option<Storyboard> {
    let suite = SUITES.iter().find(|suite| suite.name == name)?;
    Some(Storyboard::parse(&format!("{name}.yaml"), suite.text).expect("a test reads every built-in suite"))
}

/// A storyboard to start from.
#[must_use]
pub fn template(name: &str) -> String {
    include_str!("../suites/template.yaml").replace("NAME", name)
}
