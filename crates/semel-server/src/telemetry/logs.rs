//! Logs: text on a terminal, JSON elsewhere, on standard error.
//!
//! A log line never blocks the caller: lines go to a thread over a bounded queue, and lines that do not fit are counted and dropped.

use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{LogConfig, LogFormat};

/// Maximum number of queued lines.
const QUEUE: usize = 8_192;

static DROPPED: AtomicU64 = AtomicU64::new(0);
static LINES: OnceLock<SyncSender<LogLine>> = OnceLock::new();

enum LogLine {
    Text(Vec<u8>),
    /// Acknowledged when everything before it is written.
    Flush(SyncSender<()>),
}

/// Starts logging. Later calls change nothing.
pub(crate) fn start(log: LogConfig) {
    let (lines, queue) = sync_channel(QUEUE);
    if LINES.set(lines).is_err() {
        return;
    }
    // Without the thread there are no logs, but the server can still run.
    let _ = std::thread::Builder::new().name("semel-logs".to_owned()).spawn(move || write(&queue));
    let json = match log.format {
        LogFormat::Auto => !io::stderr().is_terminal(),
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    // Other crates are logged only from level WARN. The driver of PostgreSQL would repeat on every try what Semel logs once.
    let targets = Targets::new()
        .with_target("semel", log.level)
        .with_target("sqlx", LevelFilter::OFF)
        .with_default(log.level.min(Level::WARN));
    let registry = tracing_subscriber::registry().with(targets);
    // The field `target` is the name of a delivery target, not of a module.
    let layer = tracing_subscriber::fmt::layer().with_writer(LogLines).with_ansi(false).with_target(false);
    let started = if json {
        let layer = layer.json().flatten_event(true).with_current_span(true).with_span_list(false);
        registry.with(layer).try_init()
    } else {
        registry.with(layer).try_init()
    };
    drop(started);
}

/// Number of dropped lines.
pub(crate) fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Waits until all queued lines are written, for a limited time.
pub(crate) fn flush() {
    let Some(lines) = LINES.get() else { return };
    let (done, written) = sync_channel(1);
    if lines.try_send(LogLine::Flush(done)).is_ok() {
        let _: Result<(), RecvTimeoutError> = written.recv_timeout(Duration::from_millis(500));
    }
}

fn write(queue: &Receiver<LogLine>) {
    let mut out = io::stderr();
    for line in queue {
        match line {
            // A write error cannot be reported anywhere.
            LogLine::Text(bytes) => drop(out.write_all(&bytes)),
            LogLine::Flush(done) => drop(done.send(())),
        }
    }
}

struct LogLines;

/// One line while it is being written.
struct PendingLine(Vec<u8>);

impl MakeWriter<'_> for LogLines {
    type Writer = PendingLine;

    fn make_writer(&self) -> PendingLine {
        PendingLine(Vec::with_capacity(256))
    }
}

impl Write for PendingLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for PendingLine {
    fn drop(&mut self) {
        let text = std::mem::take(&mut self.0);
        let taken = LINES.get().is_some_and(|lines| lines.try_send(LogLine::Text(text)).is_ok());
        if !taken {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
}
