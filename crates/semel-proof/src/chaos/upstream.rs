//! The witness as an API behind gateways: every request is an effect, written to the ledger before it is answered.
//!
//! `POST /marked` acts on every request. `POST /keyed` honours idempotency keys. The body is the number of the key.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::{TcpListener, TcpStream};

use super::KeyKind;
use super::witness::{Deed, EffectLedger, LedgerEntry, Repeats};
use crate::victim::VictimReport;

/// The job of an upstream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WitnessUpstream {
    /// The file of its ledger.
    pub ledger: PathBuf,
}

/// The kind of a key of the gateways: even numbers are called in `marked`.
pub fn kind(key: u64) -> KeyKind {
    if key.is_multiple_of(2) { KeyKind::Marked } else { KeyKind::Keyed }
}

impl WitnessUpstream {
    pub(crate) fn run(self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.expect("a runtime can be started").block_on(async {
            let ledger =
                Arc::new(Mutex::new(EffectLedger::create(&self.ledger).expect("the ledger can be created")));
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
            let port = listener.local_addr().expect("it is bound").port();
            VictimReport::Listens { port }.send();
            loop {
                // A failed accept is repeated: the machine may be out of descriptors for a moment.
                let Ok((stream, _)) = listener.accept().await else { continue };
                let ledger = Arc::clone(&ledger);
                tokio::spawn(async move { serve(stream, &ledger).await });
            }
        })
    }
}

/// Serves a connection until the gateway closes it, or dies.
async fn serve(stream: TcpStream, ledger: &Mutex<EffectLedger>) -> io::Result<()> {
    let _ = stream.set_nodelay(true);
    let mut stream = BufStream::new(stream);
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let repeats = if line.starts_with("POST /keyed") { Repeats::AreRecognised } else { Repeats::Act };
        let (mut length, mut name) = (0, String::new());
        loop {
            line.clear();
            stream.read_line(&mut line).await?;
            let Some((header, value)) = line.split_once(':') else { break };
            match header.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().map_err(|_| malformed())?,
                "idempotency-key" => value.trim().trim_matches('"').clone_into(&mut name),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let key = std::str::from_utf8(&body).ok().and_then(|body| body.parse().ok()).ok_or_else(malformed)?;
        // The first half of a derived key is long enough to be its own.
        let derived = || name.get(..32).and_then(|name| u128::from_str_radix(name, 16).ok());
        let name = match repeats {
            Repeats::Act => u128::from(key),
            Repeats::AreRecognised => derived().ok_or_else(malformed)?,
        };
        let entry = act(ledger, &Deed { key, name, fence: 0, repeats })?;
        let body = format!("{{\"entry\":{}}}", entry.number);
        let head = "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length";
        stream.write_all(format!("{head}: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
        stream.flush().await?;
    }
}

fn act(ledger: &Mutex<EffectLedger>, deed: &Deed) -> io::Result<LedgerEntry> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner).act(deed)
}
