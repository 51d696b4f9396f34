//! A proxy between a server and Redis that a drill can hold or cut at an exact moment: when a given text passes.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::environment::until;

/// In a claim on a key: with a script, or without one.
pub(super) const CLAIM: &[&str] = &["$5\r\nclaim\r\n", "$2\r\nNX\r\n$3\r\nGET\r\n"];
/// In the publication of a run's id: alone, or with others.
pub(super) const COMPLETE: &str = "\"buffered\":";
/// In the request to the gate, after the claim was won and before the run is stored.
pub(super) const GATE: &str = ":admitted";

/// The sender of the text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WireEnd {
    /// The server, to Redis.
    Asked,
    /// Redis, to the server.
    Answered,
}

/// What happens when the text passes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WireAction {
    /// The text is held, with everything on this connection, until it is released.
    Hold,
    /// The text is dropped, and every connection is closed.
    Cut,
    /// The text arrives, its answer is dropped, and every connection is closed.
    CutTheAnswer,
}

/// Waits for a text.
struct WireTrap {
    says: Vec<Vec<u8>>,
    side: WireEnd,
    then: WireAction,
}

/// The state of the wire.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wired {
    Open,
    /// One connection is held.
    Held,
    /// All connections are refused.
    Down,
}

struct WireShared {
    to: SocketAddr,
    trap: Mutex<Option<WireTrap>>,
    wired: watch::Sender<Wired>,
}

/// A wire. Dropping it closes all connections.
pub(super) struct DrillWire {
    /// The Redis URL for the server.
    pub(super) url: String,
    shared: Arc<WireShared>,
    listening: tokio::task::JoinHandle<()>,
}

impl Drop for DrillWire {
    fn drop(&mut self) {
        self.listening.abort();
        self.shared.wired.send_replace(Wired::Down);
    }
}

impl DrillWire {
    /// A wire to the Redis server at this port.
    pub(super) async fn to(port: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await.context("a port")?;
        let url = format!("redis://{}", listener.local_addr()?);
        let to = SocketAddr::from(([127, 0, 0, 1], port));
        let shared =
            Arc::new(WireShared { to, trap: Mutex::default(), wired: watch::Sender::new(Wired::Open) });
        let of_all = Arc::clone(&shared);
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // A connection that is not accepted here is closed.
                if *of_all.wired.borrow() != Wired::Down {
                    tokio::spawn(carry(client, Arc::clone(&of_all)));
                }
            }
        });
        Ok(Self { url, shared, listening })
    }

    /// Waits once for `says`, from now on.
    pub(super) fn trap(&self, says: &str, side: WireEnd, then: WireAction) {
        self.trap_any(&[says], side, then);
    }

    /// Waits once for any of these, from now on.
    pub(super) fn trap_any(&self, says: &[&str], side: WireEnd, then: WireAction) {
        let says = says.iter().map(|says| says.as_bytes().to_vec()).collect();
        *self.shared.trap.lock() = Some(WireTrap { says, side, then });
    }

    /// Waits until the text has passed.
    pub(super) async fn sprung(&self, what: &str) -> anyhow::Result<()> {
        until(what, || async { Ok(self.shared.trap.lock().is_none()) }).await
    }

    /// Opens the wire: held bytes continue, and new connections are accepted.
    pub(super) fn open(&self) {
        self.shared.wired.send_replace(Wired::Open);
    }

    /// Closes all connections and refuses new ones.
    pub(super) fn cut(&self) {
        self.shared.wired.send_replace(Wired::Down);
    }
}

/// The last bytes of one side: a text may arrive in two pieces.
#[derive(Default)]
struct RecentBytes(Vec<u8>);

impl RecentBytes {
    /// Adds bytes. Returns the action if the expected text was found.
    fn receive(&mut self, chunk: &[u8], side: WireEnd, shared: &WireShared) -> Option<WireAction> {
        self.0.extend_from_slice(chunk);
        let mut trap = shared.trap.lock();
        let says = trap.as_ref().filter(|trap| trap.side == side).map(|trap| trap.says.as_slice());
        let is_said = |says: &Vec<u8>| self.0.windows(says.len()).any(|window| window == says.as_slice());
        let heard = says.unwrap_or_default().iter().any(is_said);
        // Longer than any expected text.
        let keep = self.0.len().saturating_sub(64);
        self.0.drain(..keep);
        let then = if heard { trap.take()?.then } else { return None };
        // Before anyone can observe that the text has passed.
        match then {
            WireAction::Hold => drop(shared.wired.send_replace(Wired::Held)),
            WireAction::Cut => drop(shared.wired.send_replace(Wired::Down)),
            WireAction::CutTheAnswer => {}
        }
        Some(then)
    }
}

/// Copies one connection until an end closes it or the wire is cut. An error counts as the end.
async fn carry(client: TcpStream, shared: Arc<WireShared>) {
    let Ok(server) = TcpStream::connect(shared.to).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (mut asked, mut answered) = (RecentBytes::default(), RecentBytes::default());
    let (mut one, mut other) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    let mut wired = shared.wired.subscribe();
    loop {
        if *wired.borrow_and_update() == Wired::Down {
            return;
        }
        let (side, length) = tokio::select! {
            read = from_client.read(&mut one) => (WireEnd::Asked, read.unwrap_or(0)),
            read = from_server.read(&mut other) => (WireEnd::Answered, read.unwrap_or(0)),
            _ = wired.changed() => continue,
        };
        if length == 0 {
            return;
        }
        let (said, chunk) = match side {
            WireEnd::Asked => (&mut asked, &one[..length]),
            WireEnd::Answered => (&mut answered, &other[..length]),
        };
        match said.receive(chunk, side, &shared) {
            None => {}
            Some(WireAction::Hold) => {
                if wired.wait_for(|wired| *wired != Wired::Held).await.is_err() {
                    return;
                }
                if *wired.borrow_and_update() == Wired::Down {
                    return;
                }
            }
            Some(WireAction::Cut) => return,
            Some(WireAction::CutTheAnswer) => {
                // Redis acts before it answers: after the answer, the action is done.
                if to_server.write_all(chunk).await.is_ok() {
                    let _ = from_server.read(&mut other).await;
                }
                shared.wired.send_replace(Wired::Down);
                return;
            }
        }
        let written = match side {
            WireEnd::Asked => to_server.write_all(chunk).await,
            WireEnd::Answered => to_client.write_all(chunk).await,
        };
        if written.is_err() {
            return;
        }
    }
}
