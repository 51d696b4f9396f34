//! The bytes of one connection, inspected before hyper sees them.
//!
//! hyper repairs its input: for example it drops a `Content-Length` beside a `Transfer-Encoding`, and accepts bare line feeds as line
//! ends. A gateway must refuse such requests, and cannot recognise them after parsing. So the wire reads HTTP/1 itself, strictly:
//! [`head`](super::head) reads every head before hyper gets a byte of it, and the wire follows each body to its end. Valid bytes are
//! passed on in place, without a copy; only a head that arrives in pieces is collected first.
//!
//! A refused head is replaced by a plain stand-in, so that hyper answers it in order, after earlier requests. The [`ConnectionLink`] tells the
//! call above that this request was refused. Nothing is read after it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::chunks::{ChunkProgress, Chunks};
use super::head::{self, Framing, Head};
use super::link::{ConnectionLink, RequestPart, Upgraded};
use super::options::ClientTimeouts;
use super::refusal::Refusal;
use super::rules::ListenerRules;
use super::shortcut::{Seen, Shortcut, Taken};
use super::timer::Timer;

/// The first bytes of every HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";
/// The first byte of every TLS connection.
const HANDSHAKE: u8 = 0x16;
/// Size of a read that is not done in place.
const PIECE: usize = 8 * 1024;
/// Number of bytes that are discarded after a refusal before the connection is closed.
const LINGER_BYTES: usize = 1024 * 1024;

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WireProtocol {
    Http1,
    Http2,
}

pub(super) struct Wire<IO> {
    io: IO,
    link: Arc<ConnectionLink>,
    rules: Arc<ListenerRules>,
    timeouts: ClientTimeouts,
    place: WirePlace,
    /// Number of HTTP/1 heads that were passed up.
    heads: u64,
    /// Bytes that were read and not yet passed on. Empty while heads arrive in one piece.
    held: Vec<u8>,
    /// Number of held bytes that may be passed up.
    cleared: usize,
    /// Number of held bytes that were searched for the end of a head.
    searched: usize,
    reading: Timer,
    /// The body that is being received: its start time, and its size so far.
    body: Option<(Instant, u64)>,
    writing: Timer,
    closing: CloseState,
    shortcut: Option<Arc<dyn Shortcut>>,
    /// A head that was already read: its end and its content.
    known: Option<(usize, Head)>,
    /// The answer of a shortcut, not yet written completely.
    answer: Vec<u8>,
    written: usize,
    /// Number of calls at the moment when all their answers had been written.
    flushed: u64,
}

/// The meaning of the next byte.
#[derive(Debug)]
enum WirePlace {
    Head,
    Length(u64),
    Chunks(Chunks),
    /// Undecided: the answer to the upgrade request decides whether HTTP follows.
    Upgrade,
    /// Another protocol; only the idle timeout applies.
    Http2,
    Tunnel,
    /// The stand-in was passed up; nothing follows.
    Refused,
    /// The body is malformed.
    Broken(Refusal),
}

#[derive(Debug, Default)]
enum CloseState {
    #[default]
    Open,
    /// The write side is closed; this number of received bytes was discarded.
    Lingering(usize),
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Wire<IO> {
    pub(super) fn new(
        io: IO,
        link: Arc<ConnectionLink>,
        rules: Arc<ListenerRules>,
        timeouts: ClientTimeouts,
        shortcut: Option<Arc<dyn Shortcut>>,
    ) -> Self {
        Self {
            io,
            link,
            rules,
            timeouts,
            place: WirePlace::Head,
            heads: 0,
            held: Vec::new(),
            cleared: 0,
            searched: 0,
            reading: Timer::default(),
            body: None,
            writing: Timer::default(),
            closing: CloseState::default(),
            shortcut,
            known: None,
            answer: Vec::new(),
            written: 0,
            flushed: 0,
        }
    }

    /// Switches to HTTP/2.
    pub(super) fn speak_http2(&mut self) {
        self.place = WirePlace::Http2;
    }

    /// Reads until the first bytes identify the protocol. `None` if the client disconnected or sent nothing in time.
    pub(super) async fn sniff(&mut self) -> Option<WireProtocol> {
        let limit = self.timeouts.head;
        self.link.wait_since(Instant::now(), RequestPart::Head);
        let read = std::future::poll_fn(|context| {
            loop {
                let common = self.held.len().min(PREFACE.len());
                if self.held[..common] != PREFACE[..common] {
                    return Poll::Ready(Some(WireProtocol::Http1));
                }
                if common == PREFACE.len() {
                    return Poll::Ready(Some(WireProtocol::Http2));
                }
                if !matches!(ready!(self.poll_hold(context)), Ok(1..)) {
                    return Poll::Ready(None);
                }
            }
        });
        let protocol = tokio::time::timeout(limit, read).await.ok().flatten()?;
        if protocol == WireProtocol::Http2 {
            self.speak_http2();
        }
        Some(protocol)
    }

    /// Reads a piece and appends it to the held bytes.
    fn poll_hold(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut piece = [0; PIECE];
        let mut piece = ReadBuf::new(&mut piece);
        ready!(Pin::new(&mut self.io).poll_read(context, &mut piece))?;
        self.held.extend_from_slice(piece.filled());
        Poll::Ready(Ok(piece.filled().len()))
    }

    /// The number of bytes that may be passed up. They follow the bytes that were inspected before. The rest is inspected again when
    /// more bytes have arrived.
    fn inspect(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            match &mut self.place {
                WirePlace::Head => match self.inspect_head(rest) {
                    0 => return at,
                    length => at += length,
                },
                WirePlace::Length(left) => {
                    let step = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    at += step;
                    *left -= step as u64;
                    if *left == 0 {
                        self.place = WirePlace::Head;
                    }
                }
                WirePlace::Chunks(chunks) => match chunks.walk(rest, &self.rules) {
                    ChunkProgress::On => return bytes.len(),
                    ChunkProgress::Ended(step) => {
                        at += step;
                        self.place = WirePlace::Head;
                    }
                    ChunkProgress::Wrong(step, refusal) => {
                        self.place = WirePlace::Broken(refusal);
                        return at + step;
                    }
                },
                WirePlace::Http2 | WirePlace::Tunnel => return bytes.len(),
                WirePlace::Upgrade | WirePlace::Refused | WirePlace::Broken(_) => return at,
            }
        }
        at
    }

    /// The length of the head at the start of these bytes; 0 if it is incomplete or refused.
    fn inspect_head(&mut self, bytes: &[u8]) -> usize {
        if let Some((end, head)) = self.known.take() {
            return self.pass(end, head);
        }
        let Some(end) = head::end(bytes, self.searched) else {
            // Two bytes back, because the end mark may be split.
            self.searched = bytes.len().saturating_sub(2);
            if bytes.len() > self.rules.limits.head_bytes {
                self.refuse(head::too_large(bytes, &self.rules));
            } else if bytes.first() == Some(&HANDSHAKE) {
                // The end of the head would never arrive.
                self.refuse(Refusal::Malformed(
                    "this port speaks plain HTTP: write http:// instead of https://",
                ));
            }
            return 0;
        };
        self.searched = 0;
        match head::read(&bytes[..end], &self.rules, None) {
            Ok(head) => self.pass(end, head),
            Err(refusal) => {
                self.refuse(refusal);
                0
            }
        }
    }

    /// Passes a valid head up.
    fn pass(&mut self, end: usize, head: Head) -> usize {
        self.body = None;
        self.place = match head.framing {
            _ if head.upgrade => {
                self.link.ask_upgrade(self.heads);
                WirePlace::Upgrade
            }
            Framing::None => WirePlace::Head,
            Framing::Length(length) => WirePlace::Length(length),
            Framing::Chunked => WirePlace::Chunks(Chunks::default()),
        };
        self.heads += 1;
        end
    }

    /// Offers exactly one whole request to the shortcut, only if no other request is in progress. Then nothing else writes to the
    /// connection, and all earlier requests are answered.
    fn offer(&mut self, bytes: &[u8]) -> Taken {
        let Some(shortcut) = &self.shortcut else { return Taken::No };
        let quiet = self.link.calls() == self.heads && self.flushed == self.heads && self.link.is_idle();
        if !quiet || !matches!(self.place, WirePlace::Head) || self.searched != 0 {
            return Taken::No;
        }
        let Some(end) = head::end(bytes, 0) else { return Taken::No };
        let mut seen = Seen::new();
        let Ok(head) = head::read(&bytes[..end], &self.rules, Some(&mut seen)) else { return Taken::No };
        self.known = Some((end, head));
        let body = &bytes[end..];
        let whole = match head.framing {
            Framing::None => body.is_empty(),
            Framing::Length(length) => length == body.len() as u64 && length <= self.rules.limits.body_bytes,
            Framing::Chunked => false,
        };
        let taken = match seen.whole(body).filter(|_| whole) {
            Some(request) => shortcut.answer(&request, &mut self.answer),
            None => Taken::No,
        };
        if taken == Taken::Yes {
            self.known = None;
        }
        taken
    }

    /// Writes the answer of a shortcut.
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.answer.len() {
            let poll = Pin::new(&mut self.io).poll_write(context, &self.answer[self.written..]);
            match ready!(self.hurry(context, poll))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        // Frees the memory: waiting connections should be small.
        (self.answer, self.written) = (Vec::new(), 0);
        let poll = Pin::new(&mut self.io).poll_flush(context);
        self.hurry(context, poll)
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.link.refuse(self.heads, refusal);
        self.place = WirePlace::Refused;
    }

    /// Holds bytes that may not be passed up yet. After a refusal only the stand-in follows.
    fn hold(&mut self, rest: &[u8]) {
        debug_assert!(self.held.is_empty(), "held bytes go first");
        match self.place {
            WirePlace::Refused => {
                self.held.extend_from_slice(STAND_IN);
                self.cleared = STAND_IN.len();
            }
            WirePlace::Broken(_) => {}
            _ => self.held.extend_from_slice(rest),
        }
    }

    /// Inspects the held bytes again.
    fn inspect_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        let cleared = self.inspect(&held);
        self.held = held;
        match self.place {
            WirePlace::Refused => {
                self.held.truncate(cleared);
                self.held.extend_from_slice(STAND_IN);
                self.cleared = self.held.len();
            }
            WirePlace::Broken(_) => {
                self.held.truncate(cleared);
                self.cleared = cleared;
            }
            _ => self.cleared = cleared,
        }
    }

    /// Passes on the cleared bytes.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) {
        let length = self.cleared.min(buffer.remaining());
        buffer.put_slice(&self.held[..length]);
        self.cleared -= length;
        if length == self.held.len() {
            // Frees the memory: waiting connections should be small.
            self.held = Vec::new();
        } else {
            self.held.drain(..length);
        }
    }

    /// No bytes arrived. True if the client has exceeded its timeout.
    fn has_timed_out(&mut self, context: &mut Context<'_>) -> bool {
        let out = self.is_overdue(context);
        match (&self.place, self.reading.since()) {
            (WirePlace::Head | WirePlace::Http2, Some(since)) => {
                self.link.wait_since(since, RequestPart::Head);
            }
            (WirePlace::Length(_) | WirePlace::Chunks(_), _) => {
                // Like the time limit of a body: every `body_rate` bytes allow one more second.
                let (started, received) = *self.body.get_or_insert_with(|| (Instant::now(), 0));
                let earned = Duration::from_secs(received / u64::from(self.timeouts.body_rate.max(1)));
                self.link.wait_since(started + earned, RequestPart::Body);
            }
            _ => {}
        }
        out
    }

    fn is_overdue(&mut self, context: &mut Context<'_>) -> bool {
        match self.place {
            WirePlace::Head if !self.held.is_empty() => self.reading.overdue(context, self.timeouts.head),
            WirePlace::Head | WirePlace::Http2 => {
                while self.reading.overdue(context, self.timeouts.idle) {
                    if self.link.is_idle() {
                        return true;
                    }
                    self.reading.clear();
                }
                false
            }
            _ => false,
        }
    }

    /// Reads and appends to the held bytes until they are complete.
    fn poll_read_held(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.poll_hold(context) {
            Poll::Ready(Ok(0)) => self.refuse_held(Refusal::Malformed("the head ends early")),
            Poll::Ready(Ok(_)) => self.inspect_held(),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending if self.has_timed_out(context) => self.refuse_held(Refusal::TooSlow),
            Poll::Pending => return Poll::Pending,
        }
        Poll::Ready(Ok(()))
    }

    fn refuse_held(&mut self, refusal: Refusal) {
        self.refuse(refusal);
        self.held.clear();
        self.hold(&[]);
    }

    /// Reads in place. True if bytes, or the end, can be passed on.
    fn poll_read_through(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<bool>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.io).poll_read(context, buffer) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            // An idle connection ends as if the client had closed it.
            Poll::Pending if self.has_timed_out(context) => return Poll::Ready(Ok(true)),
            Poll::Pending => return Poll::Pending,
        }
        self.reading.clear();
        self.link.end_wait();
        let filled = buffer.filled().len();
        if filled == before {
            return Poll::Ready(Ok(true));
        }
        if let Some((_, received)) = &mut self.body {
            *received += (filled - before) as u64;
        }
        if self.offer(&buffer.filled()[before..]) == Taken::Yes {
            buffer.set_filled(before);
            return Poll::Ready(Ok(false));
        }
        let cleared = self.inspect(&buffer.filled()[before..]);
        if before + cleared < filled {
            self.hold(&buffer.filled()[before + cleared..]);
            buffer.set_filled(before + cleared);
        }
        Poll::Ready(Ok(cleared > 0))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Wire<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if !this.answer.is_empty() {
                ready!(this.poll_answer(context))?;
            }
            if this.cleared > 0 {
                this.reading.clear();
                this.link.end_wait();
                this.give(buffer);
                return Poll::Ready(Ok(()));
            }
            match this.place {
                WirePlace::Upgrade => {
                    this.place = match ready!(this.link.poll_upgrade(context)) {
                        Upgraded::Yes => WirePlace::Tunnel,
                        Upgraded::No => WirePlace::Head,
                    };
                    this.inspect_held();
                }
                // hyper writes the answer and then closes the connection.
                WirePlace::Refused => return Poll::Pending,
                WirePlace::Broken(refusal) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, refusal)));
                }
                _ if this.held.is_empty() => {
                    if ready!(this.poll_read_through(context, buffer))? {
                        return Poll::Ready(Ok(()));
                    }
                }
                // The bytes read by `sniff` were not inspected.
                _ if this.searched == 0 => {
                    this.inspect_held();
                    if this.cleared == 0 {
                        ready!(this.poll_read_held(context))?;
                    }
                }
                _ => ready!(this.poll_read_held(context))?,
            }
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Wire<IO> {
    /// Ends the connection if a write makes no progress for too long.
    fn hurry<T>(&mut self, context: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.writing.clear();
        } else if self.writing.overdue(context, self.timeouts.write) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        poll
    }

    /// True if the client may still be sending bytes that nobody reads. Closing then would reset the connection and destroy the answer.
    fn leaves_unread(&self) -> bool {
        !matches!(self.place, WirePlace::Head | WirePlace::Http2 | WirePlace::Tunnel)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write(context, bytes);
        self.hurry(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.hurry(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_flush(context);
        if poll.is_ready() && self.link.is_idle() {
            // Only after all answers were written.
            self.flushed = self.link.calls();
        }
        self.hurry(context, poll)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.answer.is_empty() {
            ready!(this.poll_answer(context))?;
        }
        loop {
            match &mut this.closing {
                CloseState::Open => {
                    ready!(Pin::new(&mut this.io).poll_shutdown(context))?;
                    if !this.leaves_unread() {
                        return Poll::Ready(Ok(()));
                    }
                    this.reading.clear();
                    this.closing = CloseState::Lingering(0);
                }
                CloseState::Lingering(bytes) => {
                    let mut piece = [0; PIECE];
                    let mut piece = ReadBuf::new(&mut piece);
                    match Pin::new(&mut this.io).poll_read(context, &mut piece) {
                        Poll::Ready(Ok(())) if !piece.filled().is_empty() && *bytes < LINGER_BYTES => {
                            *bytes += piece.filled().len();
                        }
                        Poll::Ready(_) => return Poll::Ready(Ok(())),
                        Poll::Pending if this.reading.overdue(context, this.timeouts.linger) => {
                            return Poll::Ready(Ok(()));
                        }
                        Poll::Pending => return Poll::Pending,
                    }
                }
            }
        }
    }
}
