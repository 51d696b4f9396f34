//! Checks a write-ahead log before SQLite reads it.
//!
//! After a crash SQLite reads the log up to the first frame with a wrong checksum and silently drops the rest. That
//! is right for a torn tail: every commit is synced before the next one begins, so at most the last one can be
//! incomplete. It is wrong for a damaged log, in which acknowledged commits follow the bad frame. Therefore two or
//! more commits at or after the first bad frame mean damage; one may be a torn tail.
//!
//! Frames of an earlier use of the file carry other salts and do not count. Every open that finds a log empties it,
//! so a torn tail is never counted twice.
//!
//! The format: a header of 32 bytes (magic, version, page size, sequence, two salts, two checksums), then frames of
//! 24 bytes (page number, size of the database after a commit or 0, two salts, two checksums) and a page. Numbers are
//! big-endian; a checksum continues from the previous one.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

const HEADER: usize = 32;
const FRAME: usize = 24;

/// The state of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wal {
    /// Intact, or with a tail that was never acknowledged.
    Sound {
        /// The start of the newest committed first page, if the log has one.
        first_page: Option<Vec<u8>>,
    },
    /// Acknowledged commits cannot be read.
    Damaged {
        /// The position of the first bad frame (or the header).
        at: u64,
        /// The number of commits at or after it.
        lost: usize,
    },
}

/// Reads the log at `path`; `None` if it is missing or empty. `page_size` is the database's.
pub(super) fn inspect(path: &Path, page_size: usize) -> io::Result<Option<Wal>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() == 0 {
        return Ok(None);
    }
    read(BufReader::with_capacity(1 << 16, file), page_size).map(Some)
}

fn read(mut input: impl Read, page_size: usize) -> io::Result<Wal> {
    let mut header = [0; HEADER];
    if !fill(&mut input, &mut header)? {
        // The header is synced before the first frame: nothing was committed yet.
        return Ok(Wal::Sound { first_page: None });
    }
    let mut scan = WalScan::new(&header, page_size);
    let mut frame = vec![0; FRAME + page_size];
    while fill(&mut input, &mut frame)? {
        scan.frame(&frame);
    }
    Ok(scan.finish())
}

/// Fills `buffer`; false if too few bytes are left.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match input.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

struct WalScan {
    order: ByteOrder,
    /// Those of the header, or of the first frame if the header is bad.
    salts: Option<[u8; 8]>,
    /// The base of the next frame's checksum.
    sum: Sum,
    at: u64,
    bad: Option<u64>,
    /// Number of frames since the first bad one.
    since_bad: usize,
    lost: usize,
    /// Of a transaction that is not committed yet.
    pending: Option<Vec<u8>>,
    first_page: Option<Vec<u8>>,
}

impl WalScan {
    fn new(header: &[u8; HEADER], page_size: usize) -> Self {
        let order = if header[3] & 1 == 1 { ByteOrder::Big } else { ByteOrder::Little };
        let sum = order.sum(Sum::default(), &header[..24]);
        let sound = be(&header[..4]) & !1 == 0x377f_0682
            && be(&header[4..8]) == 3_007_000
            && usize::try_from(be(&header[8..12])) == Ok(page_size)
            && sum == Sum::stored(&header[24..]);
        Self {
            order,
            salts: sound.then(|| header[16..24].try_into().expect("eight bytes")),
            sum,
            at: HEADER as u64,
            bad: (!sound).then_some(0),
            since_bad: 0,
            lost: 0,
            pending: None,
            first_page: None,
        }
    }

    fn frame(&mut self, frame: &[u8]) {
        let (head, page) = frame.split_at(FRAME);
        let salts = *self.salts.get_or_insert(head[8..16].try_into().expect("eight bytes"));
        let sum = self.order.sum(self.order.sum(self.sum, &head[..8]), page);
        let stored = Sum::stored(&head[16..]);
        let is_ours = head[8..16] == salts && be(&head[..4]) != 0;
        let is_commit = be(&head[4..8]) != 0;
        let is_whole = sum == stored;
        if self.bad.is_none() && !(is_ours && is_whole) {
            self.bad = Some(self.at);
        }
        if self.bad.is_some() {
            // After the bad frame the chain restarts from each frame's own checksum. The bad frame and the one after
            // it cannot be checked. Salts are not part of the checksum: if only they are damaged, the bad frame
            // itself still fits into the chain.
            let counts = match self.since_bad {
                0 => is_ours || is_whole,
                1 => is_ours,
                _ => is_ours && is_whole,
            };
            if is_commit && counts {
                self.lost += 1;
            }
            self.since_bad += 1;
        } else {
            if be(&head[..4]) == 1 {
                self.pending = Some(page[..page.len().min(100)].to_vec());
            }
            if is_commit {
                self.first_page = self.pending.take().or(self.first_page.take());
            }
        }
        self.sum = stored;
        self.at += frame.len() as u64;
    }

    fn finish(self) -> Wal {
        match self.bad {
            Some(at) if self.lost >= 2 => Wal::Damaged { at, lost: self.lost },
            _ => Wal::Sound { first_page: self.first_page },
        }
    }
}

/// The byte order of the words of a checksum; the machine that wrote the log chose it.
#[derive(Clone, Copy)]
enum ByteOrder {
    Big,
    Little,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Sum(u32, u32);

impl Sum {
    fn stored(bytes: &[u8]) -> Self {
        Self(be(&bytes[..4]), be(&bytes[4..8]))
    }
}

impl ByteOrder {
    fn sum(self, Sum(mut one, mut two): Sum, bytes: &[u8]) -> Sum {
        let word = |bytes: &[u8]| {
            let bytes = bytes.try_into().expect("four bytes");
            match self {
                Self::Big => u32::from_be_bytes(bytes),
                Self::Little => u32::from_le_bytes(bytes),
            }
        };
        for pair in bytes.chunks_exact(8) {
            one = one.wrapping_add(word(&pair[..4])).wrapping_add(two);
            two = two.wrapping_add(word(&pair[4..])).wrapping_add(one);
        }
        Sum(one, two)
    }
}

fn be(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("four bytes"))
}
