//! The keys of recent requests by request id, for the history of an action.
//!
//! A record shows the request that claimed it ([`semel::record::Owner::is_of_request`]). Requests that were answered from it later, or
//! refused, leave no trace in the store; they are found here for as long as the process remembers them.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use semel::key::KeyId;

/// Number of remembered requests: a few MB.
const KEPT: usize = 1 << 16;

/// The requests that were answered last.
#[derive(Default)]
pub(crate) struct Requests {
    kept: Mutex<KeptRequest>,
}

#[derive(Default)]
struct KeptRequest {
    keys: HashMap<RequestHash, KeyId>,
    /// The oldest first.
    order: VecDeque<RequestHash>,
}

/// A hash, because the caller chooses the length of a request id.
type RequestHash = [u8; 16];

fn hash(request_id: &[u8]) -> RequestHash {
    let mut hash = [0; 16];
    blake3::Hasher::new().update(request_id).finalize_xof().fill(&mut hash);
    hash
}

impl Requests {
    /// Records that a request with this id was answered under this key. A later request with the same id replaces it.
    pub(super) fn note(&self, request_id: &[u8], key: KeyId) {
        let hash = hash(request_id);
        let mut kept = self.kept.lock();
        if kept.keys.insert(hash, key).is_some() {
            return;
        }
        kept.order.push_back(hash);
        if kept.order.len() > KEPT
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.keys.remove(&oldest);
        }
    }

    /// The key of the last request with this id.
    pub(crate) fn key(&self, request_id: &str) -> Option<KeyId> {
        self.kept.lock().keys.get(&hash(request_id.as_bytes())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_requests_are_remembered_and_no_more() {
        let requests = Requests::default();
        let key = |number: usize| KeyId::from_bytes((number as u128).to_be_bytes());
        for number in 0..KEPT + 10 {
            requests.note(format!("r-{number}").as_bytes(), key(number));
        }
        assert_eq!(requests.key("r-9"), None);
        assert_eq!(requests.key("r-10"), Some(key(10)));
        assert_eq!(requests.key(&format!("r-{}", KEPT + 9)), Some(key(KEPT + 9)));
        requests.note(b"r-10", key(1));
        assert_eq!(requests.key("r-10"), Some(key(1)), "the last one counts");
        let kept = requests.kept.lock();
        assert_eq!((kept.keys.len(), kept.order.len()), (KEPT, KEPT));
    }
}
