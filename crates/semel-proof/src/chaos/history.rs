//! The history of a run: rows of fixed size, appended by every process to a file of its own.
//!
//! A row is one write, so a process that is killed leaves whole rows. A row that says what will be done is written before it is done, and
//! a row that says what was answered after the answer: a missing row leaves only the doubt that a caller would have too.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read as _, Write as _};
use std::path::Path;

use super::micros;

/// Bytes of a row.
const ROW: usize = 48;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HistoryEvent {
    /// The process asks every key again, after the run.
    Audits = 1,
    /// A call is sent.
    Asked = 2,
    /// An effect starts, under this fence.
    Began = 3,
    /// An effect is over, with this entry in the ledger; its outcome is stored next.
    Ended = 4,
    /// An effect reports that nothing happened.
    Failed = 5,
    /// The caller got a stored outcome.
    Value = 6,
    /// The caller got an outcome with the note that it is not stored.
    Unstored = 7,
    /// The caller was told that nobody knows whether the effect happened.
    InDoubt = 8,
    /// The caller was told that another one is at work.
    InFlight = 9,
    /// The caller was told that the store failed, or its connection broke.
    StoreFailed = 10,
    /// The caller stopped waiting.
    Dropped = 11,
    /// The caller was told something else; nothing happened.
    Refused = 12,
    /// The caller was told something that no call here can be told.
    Unexpected = 16,
    /// The process ended in order.
    Left = 13,
    /// The schedule killed the process.
    Killed = 14,
    /// The schedule stopped the process.
    Stopped = 15,
}

impl HistoryEvent {
    const ALL: [Self; 16] = [
        Self::Audits,
        Self::Asked,
        Self::Began,
        Self::Ended,
        Self::Failed,
        Self::Value,
        Self::Unstored,
        Self::InDoubt,
        Self::InFlight,
        Self::StoreFailed,
        Self::Dropped,
        Self::Refused,
        Self::Unexpected,
        Self::Left,
        Self::Killed,
        Self::Stopped,
    ];
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryRow {
    /// When, in microseconds of the machine's monotonic clock.
    pub at: u64,
    /// The key.
    pub key: u64,
    /// The number of the call in its process.
    pub call: u64,
    /// The entry in the ledger.
    pub entry: u64,
    /// The fence of the attempt.
    pub fence: u64,
    /// The process: each start has its own number.
    pub process: u32,
    /// What happened.
    pub event: HistoryEvent,
}

impl HistoryRow {
    /// A row of this moment.
    pub fn new(process: u32, event: HistoryEvent) -> Self {
        Self { at: micros(), key: 0, call: 0, entry: 0, fence: 0, process, event }
    }

    fn encode(&self) -> [u8; ROW] {
        let mut bytes = [0; ROW];
        for (place, number) in [self.at, self.key, self.call, self.entry, self.fence].into_iter().enumerate()
        {
            bytes[place * 8..place * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[40..44].copy_from_slice(&self.process.to_le_bytes());
        bytes[44] = self.event as u8;
        bytes
    }

    fn decode(bytes: &[u8; ROW]) -> io::Result<Self> {
        let number = |place: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[place * 8..place * 8 + 8]);
            u64::from_le_bytes(number)
        };
        let event = HistoryEvent::ALL.into_iter().find(|event| *event as u8 == bytes[44]);
        let event = event.ok_or_else(|| io::Error::other("a history with an unknown event"))?;
        let process = u32::from_le_bytes([bytes[40], bytes[41], bytes[42], bytes[43]]);
        let (at, key, call, entry, fence) = (number(0), number(1), number(2), number(3), number(4));
        Ok(Self { at, key, call, entry, fence, process, event })
    }
}

/// Appends to a history.
#[derive(Debug)]
pub struct HistoryWriter {
    file: File,
}

impl HistoryWriter {
    /// Opens a file; creates it if it is missing.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: OpenOptions::new().append(true).create(true).open(path)? })
    }

    /// Appends a row.
    ///
    /// # Panics
    /// The row cannot be written: a history with gaps proves nothing.
    pub fn add(&self, row: &HistoryRow) {
        (&self.file).write_all(&row.encode()).expect("the history can be written");
    }
}

/// Reads a history, row by row. A row that its process did not finish is ignored.
///
/// # Errors
/// The error of the file system, or an unknown event.
pub fn read(path: &Path, mut each: impl FnMut(HistoryRow)) -> io::Result<()> {
    let mut file = BufReader::with_capacity(1 << 18, File::open(path)?);
    let mut bytes = [0; ROW];
    loop {
        match file.read_exact(&mut bytes) {
            Ok(()) => each(HistoryRow::decode(&bytes)?),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written_and_half_a_row_is_ignored() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let writer = HistoryWriter::open(file.path()).expect("it can be written");
        let rows = HistoryEvent::ALL.map(|event| HistoryRow {
            key: 1 << 48 | 7,
            call: 2,
            entry: 3,
            fence: u64::MAX,
            ..HistoryRow::new(9, event)
        });
        rows.iter().for_each(|row| writer.add(row));
        (&writer.file).write_all(&rows[0].encode()[..ROW - 1]).expect("it can be written");
        let mut found = Vec::new();
        read(file.path(), |row| found.push(row)).expect("it can be read");
        assert_eq!(found, rows);
    }
}
