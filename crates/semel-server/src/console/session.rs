//! Sessions of people who logged in with a token. They are in memory: a restart of the server ends them.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A session ends after this time without a request.
const IDLE: Duration = Duration::from_secs(60 * 60);
/// A session ends after this time in any case.
pub(super) const LONGEST: Duration = Duration::from_secs(8 * 60 * 60);
/// Sessions that are kept. The one that was used longest ago makes room.
const MOST: usize = 1_000;

/// All sessions of this process.
pub(crate) struct ConsoleSessions {
    open: Mutex<HashMap<SessionHash, ConsoleSession>>,
    /// The form token where nobody is logged in: of the login form, and of everything without tokens on loopback. A page of
    /// another origin cannot read it.
    pub(super) form_token: String,
}

/// The cookie's value is not kept, so that a memory dump shows no usable session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionHash([u8; 32]);

impl SessionHash {
    pub(super) fn new(cookie: &str) -> Self {
        Self(*blake3::hash(cookie.as_bytes()).as_bytes())
    }
}

#[derive(Clone)]
struct ConsoleSession {
    /// The hash of the token that logged in: a token that is removed from the config ends its sessions.
    token: blake3::Hash,
    form_token: String,
    began: Instant,
    used: Instant,
}

impl Default for ConsoleSessions {
    fn default() -> Self {
        Self { open: Mutex::default(), form_token: random() }
    }
}

impl ConsoleSessions {
    /// Opens a session and answers the value of its cookie.
    pub(super) fn open(&self, token: blake3::Hash) -> String {
        self.open_at(token, Instant::now())
    }

    fn open_at(&self, token: blake3::Hash, now: Instant) -> String {
        let cookie = random();
        let mut open = self.open.lock();
        open.retain(|_, session| session.lives_at(now));
        if open.len() >= MOST
            && let Some(oldest) = open.iter().min_by_key(|(_, session)| session.used).map(|(hash, _)| *hash)
        {
            open.remove(&oldest);
        }
        open.insert(
            SessionHash::new(&cookie),
            ConsoleSession { token, form_token: random(), began: now, used: now },
        );
        cookie
    }

    /// The token of a session, and the token of its forms.
    pub(super) fn find(&self, session: SessionHash, by: RequestedBy) -> Option<(blake3::Hash, String)> {
        self.find_at(session, by, Instant::now())
    }

    fn find_at(&self, hash: SessionHash, by: RequestedBy, now: Instant) -> Option<(blake3::Hash, String)> {
        let mut open = self.open.lock();
        let session = open.get_mut(&hash)?;
        if !session.lives_at(now) {
            open.remove(&hash);
            return None;
        }
        if by == RequestedBy::Person {
            session.used = now;
        }
        Some((session.token, session.form_token.clone()))
    }

    /// Ends a session.
    pub(super) fn close(&self, session: SessionHash) {
        self.open.lock().remove(&session);
    }
}

/// Who causes a request. A page that refreshes itself does not keep a session open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedBy {
    Person,
    Script,
}

impl ConsoleSession {
    fn lives_at(&self, now: Instant) -> bool {
        now.duration_since(self.used) < IDLE && now.duration_since(self.began) < LONGEST
    }
}

/// 256 random bits in hexadecimal.
fn random() -> String {
    format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_by_itself() {
        let (sessions, token, mut now) = (ConsoleSessions::default(), blake3::hash(b"token"), Instant::now());
        let find = |cookie: &str, now| {
            sessions.find_at(SessionHash::new(cookie), RequestedBy::Person, now).map(|(token, _)| token)
        };
        let began = now;
        let cookie = sessions.open_at(token, now);
        assert_eq!(find(&cookie, now), Some(token));
        assert!(find("another", now).is_none());
        while now.duration_since(began) + IDLE < LONGEST {
            now += IDLE - Duration::from_secs(1);
            assert!(find(&cookie, now).is_some(), "a request keeps it");
        }
        assert!(find(&cookie, began + LONGEST).is_none(), "eight hours are the most");
        let idle = sessions.open_at(token, now);
        assert!(find(&idle, now + IDLE).is_none());
        let closed = sessions.open_at(token, now);
        sessions.close(SessionHash::new(&closed));
        assert!(find(&closed, now).is_none());
    }

    // A page that is left open does not keep its session for ever.
    #[test]
    fn a_script_does_not_keep_a_session() {
        let (sessions, began) = (ConsoleSessions::default(), Instant::now());
        let session = SessionHash::new(&sessions.open_at(blake3::hash(b"token"), began));
        let minute = Duration::from_secs(60);
        for minutes in 1..60 {
            assert!(sessions.find_at(session, RequestedBy::Script, began + minute * minutes).is_some());
        }
        assert!(sessions.find_at(session, RequestedBy::Script, began + IDLE).is_none());
    }

    #[test]
    fn memory_is_bounded() {
        let (sessions, now) = (ConsoleSessions::default(), Instant::now());
        for _ in 0..MOST + 10 {
            sessions.open_at(blake3::hash(b"token"), now);
        }
        assert_eq!(sessions.open.lock().len(), MOST);
    }
}
