//! The outside world as a process of its own: it writes every effect to an append-only ledger before it confirms it.
//!
//! It never sees the store. For effects in `keyed` it is the receiver that honours keys: it acts once for each name, and then answers
//! with the entry of that time.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};

use super::micros;
use crate::victim::VictimReport;

const REQUEST: usize = 40;
const REPLY: usize = 16;
const ENTRY: usize = 48;

/// The job of a witness.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WitnessProcess {
    /// The socket that it listens on.
    pub socket: PathBuf,
    /// The file of its ledger.
    pub ledger: PathBuf,
}

/// What happens when an effect is repeated under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    /// It happens again.
    Act,
    /// It is answered with the first entry.
    AreRecognised,
}

/// A request to act.
#[derive(Clone, Copy, Debug)]
pub struct Deed {
    /// The key.
    pub key: u64,
    /// The name that the effect uses.
    pub name: u128,
    /// The fence of the attempt.
    pub fence: u64,
    /// What a repetition does.
    pub repeats: Repeats,
}

/// One effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// When, in microseconds of the machine's monotonic clock.
    pub at: u64,
    /// Its number, counted from 1.
    pub number: u64,
    /// The key.
    pub key: u64,
    /// The fence of the attempt that caused it.
    pub fence: u64,
    /// The name that the effect used.
    pub name: u128,
}

/// The ledger of a witness. Gateways call one over HTTP, workers over a socket.
#[derive(Debug)]
pub struct EffectLedger {
    file: File,
    next: u64,
    names: HashMap<u128, LedgerEntry>,
}

impl EffectLedger {
    /// Opens an empty ledger.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create_new(true).open(path)?;
        Ok(Self { file, next: 1, names: HashMap::new() })
    }

    /// Acts, and returns the entry that is valid.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn act(&mut self, deed: &Deed) -> io::Result<LedgerEntry> {
        if deed.repeats == Repeats::AreRecognised
            && let Some(entry) = self.names.get(&deed.name)
        {
            return Ok(*entry);
        }
        let Deed { key, name, fence, .. } = *deed;
        let entry = LedgerEntry { at: micros(), number: self.next, key, fence, name };
        let mut bytes = [0; ENTRY];
        for (place, number) in [entry.at, entry.number, key, fence].into_iter().enumerate() {
            bytes[place * 8..place * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[32..].copy_from_slice(&name.to_le_bytes());
        self.file.write_all(&bytes)?;
        self.next += 1;
        if deed.repeats == Repeats::AreRecognised {
            self.names.insert(name, entry);
        }
        Ok(entry)
    }
}

/// Reads a ledger, entry by entry.
///
/// # Errors
/// The error of the file system.
pub fn read(path: &Path, mut each: impl FnMut(LedgerEntry)) -> io::Result<()> {
    let mut file = BufReader::with_capacity(1 << 18, File::open(path)?);
    let mut bytes = [0; ENTRY];
    loop {
        match file.read_exact(&mut bytes) {
            Ok(()) => {
                let (at, number, key, fence) =
                    (word(&bytes, 0), word(&bytes, 8), word(&bytes, 16), word(&bytes, 24));
                each(LedgerEntry { at, number, key, fence, name: name(&bytes, 32) });
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

fn name(bytes: &[u8], at: usize) -> u128 {
    let mut number = [0; 16];
    number.copy_from_slice(&bytes[at..at + 16]);
    u128::from_le_bytes(number)
}

impl WitnessProcess {
    pub(crate) fn run(self) -> ExitCode {
        let ledger = EffectLedger::create(&self.ledger).expect("the ledger can be created");
        let ledger = Arc::new(Mutex::new(ledger));
        let listener = UnixListener::bind(&self.socket).expect("the socket is free");
        VictimReport::Ready.send();
        for stream in listener.incoming().map_while(Result::ok) {
            let ledger = Arc::clone(&ledger);
            std::thread::spawn(move || serve(&stream, &ledger));
        }
        ExitCode::SUCCESS
    }
}

/// Serves a process until it closes its connection, or dies.
fn serve(stream: &UnixStream, ledger: &Mutex<EffectLedger>) -> io::Result<()> {
    let (mut requests, mut replies) = (BufReader::new(stream), BufWriter::new(stream));
    let mut bytes = [0; REQUEST];
    loop {
        requests.read_exact(&mut bytes)?;
        let repeats = if bytes[32] == 0 { Repeats::Act } else { Repeats::AreRecognised };
        let deed = Deed { key: word(&bytes, 0), name: name(&bytes, 8), fence: word(&bytes, 24), repeats };
        let entry = ledger.lock().unwrap_or_else(PoisonError::into_inner).act(&deed)?;
        replies.write_all(&entry.number.to_le_bytes())?;
        replies.write_all(&entry.fence.to_le_bytes())?;
        if requests.buffer().is_empty() {
            replies.flush()?;
        }
    }
}

/// The connection of a worker to the witness; all its effects share it.
#[derive(Clone, Debug)]
pub struct WitnessClient {
    deeds: mpsc::UnboundedSender<(Deed, oneshot::Sender<u64>)>,
}

impl WitnessClient {
    /// Connects to the witness.
    ///
    /// # Errors
    /// The error of the socket.
    pub async fn connect(socket: &Path) -> io::Result<Self> {
        let stream = tokio::net::UnixStream::connect(socket).await?;
        let (deeds, mut inbox) = mpsc::unbounded_channel::<(Deed, oneshot::Sender<u64>)>();
        tokio::spawn(async move {
            let mut stream = tokio::io::BufStream::new(stream);
            let mut batch = Vec::new();
            // Ends with the witness: waiting callers then learn that the result is unknown.
            while inbox.recv_many(&mut batch, 64).await > 0 {
                for (deed, _) in &batch {
                    let mut bytes = [0; REQUEST];
                    bytes[..8].copy_from_slice(&deed.key.to_le_bytes());
                    bytes[8..24].copy_from_slice(&deed.name.to_le_bytes());
                    bytes[24..32].copy_from_slice(&deed.fence.to_le_bytes());
                    bytes[32] = u8::from(deed.repeats == Repeats::AreRecognised);
                    stream.write_all(&bytes).await?;
                }
                stream.flush().await?;
                for (_, told) in batch.drain(..) {
                    let mut bytes = [0; REPLY];
                    stream.read_exact(&mut bytes).await?;
                    let _ = told.send(word(&bytes, 0));
                }
            }
            io::Result::Ok(())
        });
        Ok(Self { deeds })
    }

    /// Acts, and returns the number of the entry that is valid.
    ///
    /// # Errors
    /// The witness is gone.
    pub async fn act(&self, deed: Deed) -> io::Result<u64> {
        let (told, heard) = oneshot::channel();
        let gone = || io::Error::other("the witness is gone");
        self.deeds.send((deed, told)).map_err(|_| gone())?;
        heard.await.map_err(|_| gone())
    }
}
