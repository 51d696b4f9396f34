//! A target on this machine, who delivers to it, and what that costs.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use semel_client::client::Client;
use semel_client::retry::Destinations;
use semel_pipeline::target::{EventTypes, HttpOptions, HttpTarget, Policy, TargetRegistry, Targets};
use semel_pipeline::worker::{AfterAttempt, Attempted, DeliveryObserver};

/// How one side did.
pub(crate) struct Turn {
    /// Operations per second.
    pub(crate) rate: f64,
    /// CPU of each, in microseconds.
    pub(crate) cpu: f64,
}

impl std::fmt::Display for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>6.0}/s {:>5.0} us", self.rate, self.cpu)
    }
}

/// Counts what is done.
#[derive(Default)]
pub(crate) struct Done(AtomicU64);

impl Done {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl DeliveryObserver for Done {
    fn attempted(&self, attempted: &Attempted<'_>) {
        assert_eq!(attempted.next, AfterAttempt::Done, "the target takes everything");
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The target `t`, which wants everything.
pub(crate) fn registry(at: SocketAddr, concurrency: u32) -> TargetRegistry {
    let http = HttpTarget::new(&format!("http://{at}/hook"), None, HttpOptions::default()).expect("a target");
    let policy = Policy { concurrency, ..Policy::default() };
    let targets = Targets::new();
    let targets = targets.with("t", Arc::new(http), EventTypes::all(), policy, &Destinations::default());
    TargetRegistry::new(targets.expect("a name"))
}

/// A bare client of the same target.
pub(crate) fn client(at: SocketAddr) -> Client {
    Client::builder(&format!("http://{at}")).expect("a URL").build().expect("a client")
}

/// The CPU time of this process so far.
pub(crate) fn cpu_of_this_process() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// A target that takes everything.
pub(crate) fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            stream.set_nodelay(true).expect("an option of every socket");
            std::thread::spawn(move || {
                let mut reader = BufReader::new(&stream);
                while answer(&mut reader, &stream).is_some() {}
            });
        }
    });
    at
}

fn answer(reader: &mut BufReader<&TcpStream>, mut stream: &TcpStream) -> Option<()> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()
}
