//! A TCP proxy that stops a connection at an exact moment: when certain bytes pass over it.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use semel_testbed::wait;

use super::PATIENCE;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

/// What happens to the bytes that were waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// They wait in the proxy, and so does everything after them in their direction, until [`HoldingProxy::release`].
    Hold,
    /// They pass, and whatever the server sends after them over the same connection waits. They are caught when it has answered.
    HoldReply,
    /// They pass, and the test learns of it.
    Pass,
}

/// Waits for bytes.
struct Trap {
    /// Any of these, within one connection. An empty one is in every piece.
    words: Vec<Vec<u8>>,
    direction: Direction,
    action: Action,
}

#[derive(Default)]
struct State {
    trap: Option<Trap>,
    /// The reply to something that was caught is still to come.
    awaits_reply: bool,
    /// How often [`HoldingProxy::release`] was called.
    releases: u64,
    closed: bool,
    connections: Vec<TcpStream>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    /// Waits until there were more releases than this. False where the proxy has ended.
    fn wait_for_release(&self, after: u64) -> bool {
        let mut state = self.state.lock();
        while state.releases <= after && !state.closed {
            self.changed.wait(&mut state);
        }
        !state.closed
    }
}

/// A TCP proxy before one server. Dropping it closes all its connections.
pub(crate) struct HoldingProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl HoldingProxy {
    /// Starts a proxy before the server at `target`.
    pub(crate) fn before(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if of_thread.state.lock().closed {
                    return;
                }
                // A server that is down: the client sees its connection closed.
                let Ok(server) = TcpStream::connect(target) else { continue };
                connect(&client, &server, &of_thread);
            }
        });
        Self { addr, shared, thread: Some(thread) }
    }

    /// Where clients connect to.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Waits for `word` from now on, once.
    pub(crate) fn trap(&self, word: &str, direction: Direction, action: Action) {
        self.trap_any(&[word], direction, action);
    }

    /// Waits for any of these words from now on, once.
    pub(crate) fn trap_any(&self, words: &[&str], direction: Direction, action: Action) {
        let words = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        let mut state = self.shared.state.lock();
        (state.trap, state.awaits_reply) = (Some(Trap { words, direction, action }), false);
    }

    /// True if what was waited for has passed, or is held.
    pub(crate) fn is_caught(&self) -> bool {
        let state = self.shared.state.lock();
        state.trap.is_none() && !state.awaits_reply
    }

    /// Blocks until what was waited for has passed, or is held.
    #[track_caller]
    pub(crate) fn caught(&self, what: &str) {
        wait::until(what, PATIENCE, || self.is_caught()).unwrap();
    }

    /// Closes every connection, with what is held on it. New ones can be opened.
    pub(crate) fn cut(&self) {
        for connection in std::mem::take(&mut self.shared.state.lock().connections) {
            let _ = connection.shutdown(Shutdown::Both);
        }
        self.release();
    }

    /// Lets everything that is held go on.
    pub(crate) fn release(&self) {
        self.shared.state.lock().releases += 1;
        self.shared.changed.notify_all();
    }
}

impl Drop for HoldingProxy {
    fn drop(&mut self) {
        let connections = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            std::mem::take(&mut state.connections)
        };
        self.shared.changed.notify_all();
        for connection in connections {
            let _ = connection.shutdown(Shutdown::Both);
        }
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.addr));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn connect(client: &TcpStream, server: &TcpStream, shared: &Arc<Shared>) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let copy = |stream: &TcpStream| stream.try_clone().expect("a second handle");
    shared.state.lock().connections.extend([copy(client), copy(server)]);
    let reply_held_since = Arc::new(Mutex::new(None));
    for (from, to, direction) in
        [(copy(client), copy(server), Direction::ToServer), (copy(server), copy(client), Direction::ToClient)]
    {
        let pump = Pump {
            direction,
            shared: Arc::clone(shared),
            reply_held_since: Arc::clone(&reply_held_since),
            recent: VecDeque::new(),
        };
        std::thread::spawn(move || pump.run(from, to));
    }
}

/// The longest word that is found where it comes in two pieces.
const LONGEST_WORD: usize = 128;

/// Carries one direction of a connection.
struct Pump {
    direction: Direction,
    shared: Arc<Shared>,
    /// How many releases there had been when this connection's replies were held.
    reply_held_since: Arc<Mutex<Option<u64>>>,
    /// The end of what was carried before: a word may come in two pieces.
    recent: VecDeque<u8>,
}

impl Pump {
    fn run(mut self, mut from: TcpStream, mut to: TcpStream) {
        let mut piece = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            if !self.pass(&piece[..length]) || to.write_all(&piece[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }

    /// Waits for as long as a piece is held. False where it is not to be carried at all.
    fn pass(&mut self, piece: &[u8]) -> bool {
        match self.caught(piece) {
            Some((Action::Hold, releases)) => {
                if !self.shared.wait_for_release(releases) {
                    return false;
                }
            }
            Some((Action::HoldReply, releases)) => *self.reply_held_since.lock() = Some(releases),
            Some((Action::Pass, _)) | None => {}
        }
        if self.direction == Direction::ToClient {
            let held = *self.reply_held_since.lock();
            if let Some(releases) = held {
                self.shared.state.lock().awaits_reply = false;
                if !self.shared.wait_for_release(releases) {
                    return false;
                }
                *self.reply_held_since.lock() = None;
            }
        }
        true
    }

    /// What is to be done with a piece that was waited for, and how many releases there had been.
    fn caught(&mut self, piece: &[u8]) -> Option<(Action, u64)> {
        let before = self.recent.len();
        self.recent.extend(piece);
        let recent = self.recent.make_contiguous();
        let mut state = self.shared.state.lock();
        let found = state.trap.as_ref().is_some_and(|trap| {
            let ends_in_piece = |word: &Vec<u8>| {
                if word.is_empty() {
                    return true;
                }
                let start = before.saturating_sub(word.len() - 1);
                recent[start..].windows(word.len()).any(|window| window == word.as_slice())
            };
            trap.direction == self.direction && trap.words.iter().any(ends_in_piece)
        });
        let caught = if found { state.trap.take().map(|trap| (trap.action, state.releases)) } else { None };
        state.awaits_reply |= matches!(caught, Some((Action::HoldReply, _)));
        drop(state);
        let surplus = self.recent.len().saturating_sub(LONGEST_WORD);
        self.recent.drain(..surplus);
        caught
    }
}
