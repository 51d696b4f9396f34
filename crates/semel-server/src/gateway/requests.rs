//! Recent requests by their id and by their key, for the history of an action.
//!
//! A record shows the request that claimed it ([`semel::record::Owner::is_of_request`]). Requests that were answered from it later, or
//! refused, leave no trace in the store; they are found here for as long as the process remembers them.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use semel::key::KeyId;
use semel::time::{Clock as _, SystemClock, Timestamp};
use semel_http::observe::AnswerOutcome;

/// Number of remembered requests: about ten MB.
const KEPT: usize = 1 << 16;

/// The requests that were answered last.
pub(crate) struct Requests {
    started: Timestamp,
    kept: Mutex<KeptRequests>,
}

#[derive(Default)]
struct KeptRequests {
    /// The key of the last request with this id, and how many entries of `order` have the id.
    keys: HashMap<RequestHash, (KeyId, u32)>,
    /// The oldest first.
    order: VecDeque<KeptRequest>,
    /// When the last request was answered that is no longer known.
    forgotten_to: Option<Timestamp>,
}

/// The requests that came with a key, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct KeyRequests {
    /// The newest ones, the oldest first.
    pub(crate) newest: Vec<AnsweredRequest>,
    /// Number of earlier ones.
    pub(crate) left_out: usize,
}

struct KeptRequest {
    hash: RequestHash,
    key: KeyId,
    /// `None` for a further id of the same request.
    answered: Option<AnsweredRequest>,
}

/// A request as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnsweredRequest {
    pub(crate) arrived: Timestamp,
    pub(crate) at: Timestamp,
    pub(crate) request_id: Box<str>,
    pub(crate) outcome: AnswerOutcome,
    pub(crate) status: u16,
    /// `None` if the effect did not run for this request.
    pub(crate) run: Option<EffectRun>,
}

/// The run of an effect for a request, which held the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EffectRun {
    /// Why the result is unknown.
    pub(crate) doubt: Option<Box<str>>,
}

/// A hash, because the caller chooses the length of a request id.
type RequestHash = [u8; 16];

fn hash(request_id: &[u8]) -> RequestHash {
    let mut hash = [0; 16];
    blake3::Hasher::new().update(request_id).finalize_xof().fill(&mut hash);
    hash
}

impl Requests {
    /// Remembers requests from now on.
    pub(crate) fn new() -> Self {
        Self { started: SystemClock.now(), kept: Mutex::default() }
    }

    /// The answers before this time are not known: the server started then, or has given too many since.
    pub(crate) fn since(&self) -> Timestamp {
        self.kept.lock().forgotten_to.unwrap_or(self.started)
    }

    /// True if every answer since the start is known.
    pub(crate) fn are_complete(&self) -> bool {
        self.kept.lock().forgotten_to.is_none()
    }

    /// Records that a request with this id was answered under this key. A later request with the same id replaces it. `arrived`
    /// is `None` if the answer took no time.
    pub(super) fn note(
        &self,
        request_id: &[u8],
        key: KeyId,
        (outcome, status): (AnswerOutcome, u16),
        arrived: Option<Timestamp>,
        run: Option<EffectRun>,
    ) {
        let (id, at) = (String::from_utf8_lossy(request_id).into(), SystemClock.now());
        let arrived = arrived.unwrap_or(at);
        let answered = AnsweredRequest { arrived, at, request_id: id, outcome, status, run };
        self.keep(KeptRequest { hash: hash(request_id), key, answered: Some(answered) });
    }

    /// Records a further id of the request that was recorded last.
    pub(super) fn note_alias(&self, request_id: &[u8], key: KeyId) {
        self.keep(KeptRequest { hash: hash(request_id), key, answered: None });
    }

    fn keep(&self, request: KeptRequest) {
        let mut guard = self.kept.lock();
        let kept = &mut *guard;
        let known = kept.keys.entry(request.hash).or_insert((request.key, 0));
        *known = (request.key, known.1 + 1);
        kept.order.push_back(request);
        if kept.order.len() > KEPT
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.forgotten_to = oldest.answered.map(|request| request.at).or(kept.forgotten_to);
            if let Some(known) = kept.keys.get_mut(&oldest.hash) {
                known.1 -= 1;
                if known.1 == 0 {
                    kept.keys.remove(&oldest.hash);
                }
            }
        }
    }

    /// The key of the last request with this id.
    pub(crate) fn key(&self, request_id: &str) -> Option<KeyId> {
        self.kept.lock().keys.get(&hash(request_id.as_bytes())).map(|(key, _)| *key)
    }

    /// The last requests with this key.
    pub(crate) fn of_key(&self, key: KeyId, most: usize) -> KeyRequests {
        let kept = self.kept.lock();
        let own = kept.order.iter().rev().filter(|request| request.key == key);
        let mut own = own.filter_map(|request| request.answered.as_ref());
        let mut newest: Vec<_> = own.by_ref().take(most).cloned().collect();
        newest.reverse();
        KeyRequests { newest, left_out: own.count() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_requests_are_remembered_and_no_more() {
        let requests = Requests::new();
        let key = |number: usize| KeyId::from_bytes((number as u128).to_be_bytes());
        for number in 0..KEPT + 10 {
            requests.note(
                format!("r-{number}").as_bytes(),
                key(number),
                (AnswerOutcome::Ran, 201),
                None,
                None,
            );
        }
        assert_eq!(requests.key("r-9"), None);
        assert_eq!(requests.key("r-10"), Some(key(10)));
        assert_eq!(requests.key(&format!("r-{}", KEPT + 9)), Some(key(KEPT + 9)));
        requests.note(b"r-11", key(1), (AnswerOutcome::Ran, 201), None, None);
        assert_eq!(requests.key("r-11"), Some(key(1)), "the last one counts");
        let kept = requests.kept.lock();
        assert_eq!((kept.keys.len(), kept.order.len()), (KEPT - 1, KEPT));
    }

    #[test]
    fn the_requests_of_a_key_are_told_in_their_order() {
        let requests = Requests::new();
        let (key, other) = (KeyId::from_bytes([1; 16]), KeyId::from_bytes([2; 16]));
        requests.note(b"r-1", key, (AnswerOutcome::Ran, 201), None, None);
        requests.note_alias(b"upstream-1", key);
        requests.note(b"r-2", other, (AnswerOutcome::Ran, 201), None, None);
        // A client that repeats its own request id is counted each time.
        for _ in 0..2 {
            requests.note(b"r-1", key, (AnswerOutcome::Replayed, 201), None, None);
        }
        let outcomes: Vec<_> =
            requests.of_key(key, 10).newest.iter().map(|request| request.outcome).collect();
        use AnswerOutcome::{Ran, Replayed};
        assert_eq!(outcomes, [Ran, Replayed, Replayed]);
        let found = requests.of_key(key, 1);
        assert_eq!((found.newest.len(), found.left_out), (1, 2));
        assert_eq!(requests.key("upstream-1"), Some(key));
    }
    // The list said that it went back to the start of the server, however many requests it had forgotten.
    #[test]
    fn the_list_begins_where_it_does() {
        let (requests, key) = (Requests::new(), KeyId::from_bytes([1; 16]));
        let note = || requests.note(b"r", key, (AnswerOutcome::Replayed, 201), None, None);
        for _ in 0..KEPT {
            note();
        }
        assert_eq!((requests.since(), requests.are_complete()), (requests.started, true));
        let fifth = requests.kept.lock().order[4].answered.as_ref().unwrap().at;
        for _ in 0..5 {
            note();
        }
        assert!(fifth > requests.started);
        assert_eq!((requests.since(), requests.are_complete()), (fifth, false));
        // A further id of a request has no time.
        requests.note_alias(b"alias", key);
        for _ in 0..KEPT {
            note();
        }
        let last = requests.since();
        assert!(last > fifth && !requests.are_complete());
    }
}
