//! What stage and fake know together: the harm that is planned, and what was seen.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::gateway::Gateway;

/// Harm that is done to the first attempt of a logical call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// None.
    None,
    /// The answer is lost between gateway and client: the connection ends.
    AnswerCut,
    /// Half of the answer arrives.
    AnswerHalved,
    /// The answer does not arrive before the client gives up.
    AnswerLate,
    /// A balancer before the gateway answers 503.
    BalancerUnavailable,
    /// The API acts, and answers when the client has come back.
    UpstreamLate,
    /// The API acts, and its connection ends without an answer.
    UpstreamCut,
    /// The API answers 503 and has not acted.
    UpstreamUnavailable,
    /// The answer is lost, and the gateway killed and restarted.
    GatewayRestarted,
    /// The gateway is killed and restarted when the API has acted and not answered yet.
    GatewayKilled,
}

/// The shared knowledge.
pub(super) struct World {
    pub(super) gateway: Gateway,
    faults: Mutex<HashMap<String, Fault>>,
    attempts: Mutex<HashMap<String, Vec<String>>>,
}

impl World {
    pub(super) fn new(gateway: Gateway) -> Self {
        Self { gateway, faults: Mutex::default(), attempts: Mutex::default() }
    }

    pub(super) fn plan(&self, order: &str, fault: Fault) {
        self.faults.lock().insert(order.to_owned(), fault);
    }

    /// Whether this harm is planned for the order. It is then done, once.
    pub(super) fn happens(&self, order: &str, one_of: &[Fault]) -> Option<Fault> {
        let mut faults = self.faults.lock();
        let planned = faults.get(order).copied().filter(|fault| one_of.contains(fault));
        if planned.is_some() {
            faults.remove(order);
        }
        planned
    }

    /// A request of the client, under this key.
    pub(super) fn attempted(&self, order: &str, key: &str) {
        self.attempts.lock().entry(order.to_owned()).or_default().push(key.to_owned());
    }

    /// The keys of the client's requests, in their order.
    pub(super) fn attempts(&self, order: &str) -> Vec<String> {
        self.attempts.lock().get(order).cloned().unwrap_or_default()
    }
}
