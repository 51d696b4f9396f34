//! One connection through the proxy: two directions, each with a reader that adds timestamps and a writer that delays.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::mode::{BytePace, ConnectionAdmission, HeldBytes, ProxyMode, TrafficCounters};

/// Maximum number of buffered pieces per direction. At the limit, the sender has to wait.
const PIECES: usize = 64;
const PIECE: usize = 16 * 1024;

/// What was read, and when: a piece, an empty piece for the end of the stream, or the error of the connection. All take the same path,
/// so that a held direction also holds the end of the connection.
type Piece = (Instant, io::Result<Vec<u8>>);

pub(super) struct ProxiedConnection {
    client: TcpStream,
    mode: watch::Receiver<ProxyMode>,
    counters: Arc<TrafficCounters>,
    cut_before: u64,
    half_open_before: u64,
}

/// Why a connection ends.
enum ConnectionEnd {
    /// Both sides have finished.
    Done,
    /// Both sides must see a reset.
    Reset,
    /// The server drops it, and the client does not notice.
    HalfOpen,
}

impl ProxiedConnection {
    pub(super) fn new(
        client: TcpStream,
        mode: watch::Receiver<ProxyMode>,
        counters: Arc<TrafficCounters>,
    ) -> Self {
        counters.open.fetch_add(1, Ordering::Relaxed);
        let (cut_before, half_open_before) = {
            let mode = mode.borrow();
            (mode.cut_before, mode.half_open_before)
        };
        Self { client, mode, counters, cut_before, half_open_before }
    }

    pub(super) async fn serve(mut self) {
        let (target, admission) = {
            let mode = self.mode.borrow();
            (mode.target, mode.admission)
        };
        if admission == ConnectionAdmission::HalfOpen {
            return self.swallow().await;
        }
        let mut mode = self.mode.clone();
        let connected = tokio::select! {
            connected = TcpStream::connect(target) => connected,
            end = fault(&mut mode, self.cut_before, self.half_open_before) => match end {
                ConnectionEnd::HalfOpen => return self.swallow().await,
                ConnectionEnd::Done | ConnectionEnd::Reset => return reset(&self.client),
            },
        };
        let Ok(mut server) = connected else { return reset(&self.client) };
        // Pieces must be forwarded as they arrive.
        let _ = (server.set_nodelay(true), self.client.set_nodelay(true));
        match self.pass(&mut server).await {
            ConnectionEnd::Done => {}
            ConnectionEnd::Reset => {
                reset(&server);
                reset(&self.client);
            }
            ConnectionEnd::HalfOpen => {
                reset(&server);
                drop(server);
                self.swallow().await;
            }
        }
    }

    async fn pass(&mut self, server: &mut TcpStream) -> ConnectionEnd {
        let (client_in, client_out) = self.client.split();
        let (server_in, server_out) = server.split();
        // Set when the trap has caught a request of this client: the next reply is dropped.
        let caught = AtomicBool::new(false);
        let (counters, mut mode) = (&self.counters, self.mode.clone());
        let trap_mode = self.mode.clone();
        let ask = |piece: &[u8]| {
            if trap_mode.borrow().trap.catches(piece) {
                caught.store(true, Ordering::Relaxed);
            }
            PieceVerdict::Pass
        };
        let answer = |_: &[u8]| {
            if caught.load(Ordering::Relaxed) {
                counters.dropped_replies.fetch_add(1, Ordering::Relaxed);
                return PieceVerdict::Swallow;
            }
            PieceVerdict::Pass
        };
        let up = direction(
            client_in,
            server_out,
            self.mode.clone(),
            |mode| mode.to_server,
            &counters.to_server,
            ask,
        );
        let down = direction(
            server_in,
            client_out,
            self.mode.clone(),
            |mode| mode.to_client,
            &counters.to_client,
            answer,
        );
        let (cut_before, half_open_before) = (self.cut_before, self.half_open_before);
        tokio::select! {
            biased;
            end = fault(&mut mode, cut_before, half_open_before) => end,
            both = async { tokio::try_join!(up, down) } => if both.is_ok() { ConnectionEnd::Done } else { ConnectionEnd::Reset },
        }
    }

    /// Reads and drops what the client sends, until it disconnects or is cut.
    async fn swallow(&mut self) {
        let mut mode = self.mode.clone();
        let mut forgotten = vec![0; PIECE];
        loop {
            tokio::select! {
                // A half-open connection stays half-open.
                _ = fault(&mut mode, self.cut_before, u64::MAX) => return reset(&self.client),
                read = self.client.read(&mut forgotten) => if matches!(read, Ok(0) | Err(_)) { return },
            }
        }
    }
}

impl Drop for ProxiedConnection {
    fn drop(&mut self) {
        self.counters.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// From now on, closing it sends a reset.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

async fn fault(
    mode: &mut watch::Receiver<ProxyMode>,
    cut_before: u64,
    half_open_before: u64,
) -> ConnectionEnd {
    let hit = |mode: &ProxyMode| mode.cut_before > cut_before || mode.half_open_before > half_open_before;
    match mode.wait_for(hit).await {
        Ok(mode) if mode.cut_before <= cut_before => ConnectionEnd::HalfOpen,
        _ => ConnectionEnd::Reset,
    }
}

enum PieceVerdict {
    Pass,
    /// Dropped, and the connection is reset.
    Swallow,
}

/// Forwards one direction until its end. An error means that the connection must be reset.
async fn direction(
    mut from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    mode: watch::Receiver<ProxyMode>,
    pace: fn(&ProxyMode) -> BytePace,
    counter: &AtomicU64,
    judge: impl Fn(&[u8]) -> PieceVerdict,
) -> io::Result<()> {
    let (queue, pieces) = mpsc::channel::<Piece>(PIECES);
    let reader = async move {
        loop {
            let mut piece = vec![0; PIECE];
            let read = from.read(&mut piece).await.map(|length| {
                piece.truncate(length);
                piece
            });
            let last = read.as_ref().map_or(true, Vec::is_empty);
            // If the writer has failed, the reader stops too.
            if queue.send((Instant::now(), read)).await.is_err() || last {
                return io::Result::Ok(());
            }
        }
    };
    let writer = ConnectionWriter { to, mode, pace, counter };
    tokio::try_join!(reader, writer.run(pieces, judge)).map(drop)
}

struct ConnectionWriter<'a> {
    to: WriteHalf<'a>,
    mode: watch::Receiver<ProxyMode>,
    pace: fn(&ProxyMode) -> BytePace,
    counter: &'a AtomicU64,
}

impl ConnectionWriter<'_> {
    async fn run(
        mut self,
        mut pieces: mpsc::Receiver<Piece>,
        judge: impl Fn(&[u8]) -> PieceVerdict,
    ) -> io::Result<()> {
        while let Some((read_at, read)) = pieces.recv().await {
            sleep_until(read_at + self.pace().delay).await;
            self.until_released().await;
            let piece = read?;
            if piece.is_empty() {
                break;
            }
            if let PieceVerdict::Swallow = judge(&piece) {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            self.write(&piece).await?;
        }
        self.to.shutdown().await
    }

    async fn write(&mut self, mut rest: &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            self.until_released().await;
            let (most, gap) = self.pace().trickle.unwrap_or((rest.len(), Duration::ZERO));
            let (now, later) = rest.split_at(most.min(rest.len()));
            self.to.write_all(now).await?;
            self.counter.fetch_add(now.len() as u64, Ordering::Relaxed);
            rest = later;
            if !gap.is_zero() {
                tokio::time::sleep(gap).await;
            }
        }
        Ok(())
    }

    fn pace(&self) -> BytePace {
        (self.pace)(&self.mode.borrow())
    }

    async fn until_released(&mut self) {
        let pace = self.pace;
        // An error means that the proxy ends, and then this connection is cut.
        let _ = self.mode.wait_for(|mode| pace(mode).held == HeldBytes::No).await.map(drop);
    }
}
