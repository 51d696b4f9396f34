//! A TCP proxy that simulates network faults.
//!
//! It has its own thread and runtime: it works even if a test starves its own runtime.

mod connection;
mod mode;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    net::TcpListener,
    runtime,
    sync::{mpsc, watch},
};

use self::{
    connection::ProxiedConnection,
    mode::{BytePace, ConnectionAdmission, ProxyMode, TrafficCounters, Trap},
};
use crate::{Error, Result, error::Doing, ports::Port};

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
    /// Both directions.
    Both,
}

/// Counters of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProxyCounts {
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// Bytes sent to the server.
    pub to_server: u64,
    /// Bytes sent to clients.
    pub to_client: u64,
    /// Replies dropped by [`FaultProxy::drop_reply_once`] and similar methods.
    pub dropped_replies: u64,
}

/// A TCP proxy in front of one server. Dropping it cuts all its connections.
///
/// Every method takes effect before it returns, for open and new connections. Faults accumulate until [`heal`](Self::heal).
#[derive(Debug)]
pub struct FaultProxy {
    port: Port,
    counters: Arc<TrafficCounters>,
    orders: mpsc::UnboundedSender<ProxyOrder>,
    thread: Option<JoinHandle<()>>,
}

type ModeChange = Box<dyn FnOnce(&mut ProxyMode) + Send>;

struct ProxyOrder {
    change: ModeChange,
    done: std::sync::mpsc::Sender<()>,
}

impl FaultProxy {
    /// Starts a proxy on a free port that forwards everything to `target`.
    ///
    /// # Errors
    /// [`Error::Io`] if the system provides no port or thread.
    pub fn before(target: SocketAddr) -> Result<Self> {
        let doing = || "starting the fault proxy".to_owned();
        let runtime = runtime::Builder::new_current_thread().enable_all().build().doing(doing)?;
        // Listens before the thread runs, and without the runtime: the caller may be inside another one.
        let (port, listener) = listen()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).doing(doing)?
        };
        let counters = Arc::new(TrafficCounters::default());
        let (orders, inbox) = mpsc::unbounded_channel();
        let proxy = ProxyThread {
            addr: (Ipv4Addr::LOCALHOST, port.number()).into(),
            listener: Some(listener),
            mode: watch::Sender::new(ProxyMode::new(target)),
            counters: Arc::clone(&counters),
        };
        let thread = thread::Builder::new()
            .name("fault-proxy".to_owned())
            .spawn(move || runtime.block_on(proxy.run(inbox)))
            .doing(doing)?;
        Ok(Self { port, counters, orders, thread: Some(thread) })
    }

    /// The address for clients.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.number()).into()
    }

    /// The current counters.
    pub fn counts(&self) -> ProxyCounts {
        self.counters.read()
    }

    /// Holds all bytes of this direction, and the end of connections. They are buffered up to a few hundred KiB, then the sender has to
    /// wait.
    pub fn hold(&self, direction: Direction) {
        self.change_pace(direction, |pace| pace.held = mode::HeldBytes::Yes);
    }

    /// Ends [`hold`](Self::hold) in both directions and delivers the held bytes in order.
    pub fn release(&self) {
        self.change_pace(Direction::Both, |pace| pace.held = mode::HeldBytes::No);
    }

    /// Delays all bytes of this direction. Bytes that already wait keep their time.
    pub fn delay(&self, direction: Direction, by: Duration) {
        self.change_pace(direction, move |pace| pace.delay = by);
    }

    /// Delivers this number of bytes at a time in this direction, with pauses.
    pub fn trickle(&self, direction: Direction, bytes: usize, every: Duration) {
        self.change_pace(direction, move |pace| pace.trickle = Some((bytes.max(1), every)));
    }

    /// Resets (RST) all connections on both sides. Held bytes are lost. New connections are accepted.
    pub fn cut(&self) {
        self.order(|mode| mode.cut_before += 1);
    }

    /// Refuses new connections (no listener). Open ones stay: [`cut`](Self::cut) ends them.
    pub fn refuse(&self) {
        self.order(|mode| mode.admission = ConnectionAdmission::Refuse);
    }

    /// Simulates half-open connections: clients stay connected, also new ones, but the server does not know them. Bytes from clients
    /// are dropped, and nothing answers. [`heal`](Self::heal) affects new connections only.
    pub fn half_open(&self) {
        self.order(|mode| {
            mode.admission = ConnectionAdmission::HalfOpen;
            mode.half_open_before += 1;
        });
    }

    /// Drops the server's next reply to a request that a client sends from now on, and resets that connection. The server has executed
    /// the request, but the client cannot know.
    pub fn drop_reply_once(&self) {
        self.drop_reply_to(b"");
    }

    /// As [`drop_reply_once`](Self::drop_reply_once), for the next request that contains these bytes.
    pub fn drop_reply_to(&self, needle: &[u8]) {
        let trap = Trap::new(needle);
        self.order(move |mode| mode.trap = trap);
    }

    /// Connects new clients to another server from now on. Open connections stay.
    pub fn retarget(&self, target: SocketAddr) {
        self.order(move |mode| mode.target = target);
    }

    /// Ends all faults and delivers held bytes. Connections that were cut or half-open stay so.
    pub fn heal(&self) {
        self.order(|mode| *mode = mode.healed());
    }

    fn change_pace(&self, direction: Direction, change: impl Fn(&mut BytePace) + Send + 'static) {
        self.order(move |mode| {
            if direction != Direction::ToClient {
                change(&mut mode.to_server);
            }
            if direction != Direction::ToServer {
                change(&mut mode.to_client);
            }
        });
    }

    /// Returns when the thread has executed it.
    fn order(&self, change: impl FnOnce(&mut ProxyMode) + Send + 'static) {
        let (done, wait) = std::sync::mpsc::channel();
        let sent = self.orders.send(ProxyOrder { change: Box::new(change), done });
        // The thread answers every order unless it panicked; then the test must not continue without its fault.
        assert!(sent.is_ok() && wait.recv().is_ok(), "the thread of the fault proxy is gone");
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        // Closing the channel ends the thread.
        self.orders = mpsc::unbounded_channel().0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A port from the server range: `refuse` frees the port, and no outgoing connection may take it meanwhile.
fn listen() -> Result<(Port, std::net::TcpListener)> {
    let doing = || "starting the fault proxy".to_owned();
    for _ in 0..8 {
        let port = Port::pick()?;
        if let Ok(listener) = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())) {
            listener.set_nonblocking(true).doing(doing)?;
            return Ok((port, listener));
        }
    }
    Err(Error::Io { doing: doing(), source: std::io::ErrorKind::AddrInUse.into() })
}

/// The state of the thread.
struct ProxyThread {
    addr: SocketAddr,
    listener: Option<TcpListener>,
    mode: watch::Sender<ProxyMode>,
    counters: Arc<TrafficCounters>,
}

impl ProxyThread {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<ProxyOrder>) {
        loop {
            tokio::select! {
                // Orders first: after `refuse` has returned, no new connection may be accepted.
                biased;
                order = inbox.recv() => match order {
                    Some(order) => self.obey(order).await,
                    None => break,
                },
                client = accept(self.listener.as_ref()) => {
                    self.counters.accepted.fetch_add(1, Ordering::Relaxed);
                    let connection = ProxiedConnection::new(client, self.mode.subscribe(), Arc::clone(&self.counters));
                    tokio::spawn(connection.serve());
                }
            }
        }
        self.mode.send_modify(|mode| mode.cut_before += 1);
        self.until_open(|open| open == 0).await;
    }

    async fn obey(&mut self, ProxyOrder { change, done }: ProxyOrder) {
        let cuts = self.mode.borrow().cut_before;
        self.mode.send_modify(change);
        let (admission, cut) = {
            let mode = self.mode.borrow();
            (mode.admission, mode.cut_before != cuts)
        };
        if admission == ConnectionAdmission::Refuse {
            self.listener = None;
        } else if self.listener.is_none() {
            // The port stays reserved; the kernel may need a moment to release it.
            while self.listener.is_none() {
                self.listener = TcpListener::bind(self.addr).await.ok();
                tokio::task::yield_now().await;
            }
        }
        if cut {
            self.until_open(|open| open == 0).await;
        }
        // An error means that the caller no longer waits.
        let _ = done.send(());
    }

    /// Runs the connections until the number of open ones is right. No new ones arrive, because this task accepts them.
    async fn until_open(&self, enough: impl Fn(u64) -> bool) {
        while !enough(self.counters.open.load(Ordering::Relaxed)) {
            tokio::task::yield_now().await;
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> tokio::net::TcpStream {
    loop {
        match listener {
            // A failed accept (client gone, or too many open files) is repeated.
            Some(listener) => match listener.accept().await {
                Ok((client, _)) => return client,
                Err(_) => tokio::task::yield_now().await,
            },
            None => std::future::pending().await,
        }
    }
}
