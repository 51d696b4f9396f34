//! What the gateway says about answered requests: what somebody on call would ask about, aloud; the rest at `debug`.

use semel_http::observe::{Exchange, Observer, Outcome};

/// Logs answers. Knows the routes' patterns, which are the operator's words, not a caller's.
pub(super) struct Log {
    patterns: Vec<String>,
}

impl Log {
    pub(super) fn new(patterns: Vec<String>) -> Self {
        Self { patterns }
    }
}

impl Observer for Log {
    fn answered(&self, exchange: &Exchange<'_>) {
        let operation = exchange.route.and_then(|route| self.patterns.get(route)).map_or("*", String::as_str);
        let outcome = exchange.outcome.name();
        let http_status = exchange.status.as_u16();
        let latency_ms = exchange.took.as_secs_f64() * 1e3;
        let key = exchange.key.map(tracing::field::display);
        macro_rules! say {
            ($level:ident) => {
                tracing::$level!(target: "semel::gateway", operation, outcome, http_status, latency_ms, key)
            };
        }
        match exchange.outcome {
            Outcome::Doubtful | Outcome::NotStored | Outcome::Unprotected => say!(warn),
            Outcome::Refused(_) | Outcome::VerifyRefused | Outcome::Tombstone => say!(info),
            _ => say!(debug),
        }
    }
}
