//! The file of `semel store export`: JSON lines. `docs/reference/cli.md` describes them.
//!
//! | line | members |
//! |---|---|
//! | the first | `semel_export` (the version), `from`, `state`, `store_time` and `exported_at` (µs), `secret` |
//! | a mark | `mark`, `value` |
//! | a record | `id`, `record` (its bytes in base64, as every store packs them) |
//! | the last | `records`, `marks`, `fence_floor`, `digest` (of all lines before) |

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use semel::key::KeyId;
use semel::record::{Fence, Record};
use semel::secret::Secret;
use semel::store::transfer::{RecordWalk, TransferSource, TransferState};
use semel::store::{BoxFuture, Error, ErrorKind, MarkId};
use semel::time::{Clock as _, SystemClock, Timestamp};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;
/// Records of one batch.
const BATCH: usize = 500;

#[derive(Serialize, Deserialize)]
struct Head {
    semel_export: u32,
    from: String,
    /// As the store had it.
    state: String,
    store_time: u64,
    /// By the clock of this machine: the file may be read much later.
    exported_at: u64,
    secret: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ExportLine {
    Mark { mark: String, value: u64 },
    Record { id: String, record: String },
    End(End),
}

/// The last line.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) records: u64,
    pub(super) marks: u64,
    fence_floor: u64,
    digest: String,
}

/// The name of a file as the target of a move.
pub(super) fn address(file: &Path) -> String {
    let whole = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    format!("file:{}", whole.display())
}

/// A file that is being written. It gets its name when it is complete; a part is removed.
pub(super) struct ExportFile {
    name: PathBuf,
    part: PathBuf,
    file: File,
}

impl ExportFile {
    /// Creates the part, for its owner only.
    pub(super) fn create(name: &Path) -> anyhow::Result<Self> {
        let refused = || format!("{} cannot be created", name.display());
        if name.symlink_metadata().is_ok() {
            return Err(anyhow::anyhow!("the file exists already").context(refused()));
        }
        let mut part = name.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        // Of a command that was killed.
        let _ = std::fs::remove_file(&part);
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&part).with_context(refused)?;
        Ok(Self { name: name.to_owned(), part, file })
    }

    /// Writes all of a store, with the secret of its servers, and names the file.
    pub(super) async fn write(
        self,
        from: &dyn TransferSource,
        secret: Option<Secret>,
    ) -> anyhow::Result<End> {
        let mut output = HashedLines { file: BufWriter::new(&self.file), hasher: blake3::Hasher::new() };
        output.write(&Head {
            semel_export: VERSION,
            from: from.address(),
            state: from.state().await?.to_stored(),
            store_time: from.now().await?.as_micros(),
            exported_at: SystemClock.now().as_micros(),
            secret: secret.map(|secret| format!("hex:{}", hex(secret.expose()))),
        })?;
        let mut records = 0;
        let mut walk = from.records();
        while let Some(batch) = walk.next().await? {
            for (id, record) in batch {
                records += 1;
                let (id, record) = (id.to_string(), BASE64.encode(record.encode()));
                output.write(&ExportLine::Record { id, record })?;
            }
        }
        let marks = from.marks().await?;
        for (mark, value) in &marks {
            output.write(&ExportLine::Mark { mark: hex(mark.as_bytes()), value: *value })?;
        }
        let end = End {
            records,
            marks: marks.len() as u64,
            fence_floor: from.fence_floor().await?.get(),
            digest: output.hasher.finalize().to_hex().to_string(),
        };
        output.write(&ExportLine::End(end.clone()))?;
        output.file.flush().context("the file cannot be written")?;
        self.file.sync_all().context("the file cannot be synced")?;
        std::fs::rename(&self.part, &self.name)
            .with_context(|| format!("{} cannot be created", self.name.display()))?;
        Ok(end)
    }
}

impl Drop for ExportFile {
    /// After the file got its name, there is no part.
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.part);
    }
}

struct HashedLines<'a> {
    file: BufWriter<&'a File>,
    hasher: blake3::Hasher,
}

impl HashedLines<'_> {
    fn write(&mut self, line: &impl Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        self.hasher.update(text.as_bytes());
        self.file.write_all(text.as_bytes()).context("the file cannot be written")
    }
}

/// A file of an exported store, checked from the first to the last line.
#[derive(Debug)]
pub(super) struct ExportedStore {
    file: PathBuf,
    /// The state of the store when it was exported.
    exported: TransferState,
    secret: Option<Secret>,
    marks: Vec<(MarkId, u64)>,
    floor: Fence,
    /// How far the store's clock was ahead of the clock of the machine that exported it.
    ahead: i64,
}

impl ExportedStore {
    /// Reads and checks the whole file.
    pub(super) fn open(file: &Path) -> anyhow::Result<Self> {
        let name = file.display();
        let mut lines = BufReader::new(File::open(file).with_context(|| name.to_string())?);
        let (mut hasher, mut text) = (blake3::Hasher::new(), String::new());
        lines.read_line(&mut text).with_context(|| name.to_string())?;
        let head: Head = serde_json::from_str(&text)
            .with_context(|| format!("{name} is not a file of `semel store export`"))?;
        if head.semel_export != VERSION {
            bail!(
                "{name} has version {}, this Semel reads version {VERSION}: upgrade Semel",
                head.semel_export
            );
        }
        let (mut records, mut marks) = (0, Vec::new());
        let end = loop {
            hasher.update(text.as_bytes());
            text.clear();
            let number = records + marks.len() as u64 + 2;
            let damaged = || format!("{name}:{number} is damaged, or the file was cut short: export again");
            lines.read_line(&mut text).with_context(damaged)?;
            match serde_json::from_str(&text).with_context(damaged)? {
                ExportLine::Record { .. } => records += 1,
                ExportLine::Mark { mark, value } => {
                    marks.push((MarkId::from_bytes(unhex(&mark).with_context(damaged)?), value));
                }
                ExportLine::End(end) => break end,
            }
        };
        let digest = hasher.finalize().to_hex();
        if (records, marks.len() as u64, digest.as_str()) != (end.records, end.marks, &end.digest) {
            bail!("{name} was changed after it was written: export again");
        }
        let secret = match &head.secret {
            Some(text) => Some(text.strip_prefix("hex:").and_then(unhex).context("the secret is damaged")?),
            None => None,
        };
        Ok(Self {
            file: file.to_owned(),
            exported: TransferState::from_stored(Some(head.state.as_bytes()))?,
            secret: secret.map(Secret::from_bytes),
            marks,
            floor: Fence::new(end.fence_floor),
            ahead: head.store_time.cast_signed().saturating_sub(head.exported_at.cast_signed()),
        })
    }
}

impl ExportedStore {
    /// True if servers could still claim keys when the file was written.
    pub(super) fn was_in_use(&self) -> bool {
        self.exported == TransferState::Open
    }
}

impl TransferSource for ExportedStore {
    fn address(&self) -> String {
        address(&self.file)
    }

    /// What the clock of the exported store shows now, if the clocks of the two machines agree.
    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        let now = SystemClock.now().as_micros().saturating_add_signed(self.ahead);
        Box::pin(std::future::ready(Ok(Timestamp::from_micros(now))))
    }

    /// A file can be read in any case.
    fn state(&self) -> BoxFuture<'_, Result<TransferState, Error>> {
        Box::pin(std::future::ready(Ok(TransferState::Open)))
    }

    fn stored_secret(&self) -> BoxFuture<'_, Result<Option<Secret>, Error>> {
        Box::pin(std::future::ready(Ok(self.secret.clone())))
    }

    fn fence_floor(&self) -> BoxFuture<'_, Result<Fence, Error>> {
        Box::pin(std::future::ready(Ok(self.floor)))
    }

    fn marks(&self) -> BoxFuture<'_, Result<Vec<(MarkId, u64)>, Error>> {
        Box::pin(std::future::ready(Ok(self.marks.clone())))
    }

    fn records(&self) -> Box<dyn RecordWalk + '_> {
        Box::new(LineWalk { store: self, lines: None })
    }
}

/// Reads the records of a file that was checked.
struct LineWalk<'a> {
    store: &'a ExportedStore,
    lines: Option<std::io::Lines<BufReader<File>>>,
}

impl LineWalk<'_> {
    fn read(&mut self) -> anyhow::Result<Vec<(KeyId, Record)>> {
        let lines = match &mut self.lines {
            Some(lines) => lines,
            None => {
                let mut lines = BufReader::new(File::open(&self.store.file)?).lines();
                lines.next();
                self.lines.insert(lines)
            }
        };
        let mut batch = Vec::new();
        for line in lines {
            let ExportLine::Record { id, record } = serde_json::from_str(&line?)? else { continue };
            let id = KeyId::from_bytes(unhex(&id).context("an id is damaged")?);
            let bytes =
                BASE64.decode(record).map_err(|error| anyhow::anyhow!("a record is damaged: {error}"))?;
            batch.push((id, Record::decode(&bytes)?));
            if batch.len() == BATCH {
                break;
            }
        }
        Ok(batch)
    }
}

impl RecordWalk for LineWalk<'_> {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Vec<(KeyId, Record)>>, Error>> {
        let batch = self.read().map_err(|error| {
            Error::new(ErrorKind::Corrupt, format!("{}: {error:#}", self.store.file.display()))
        });
        Box::pin(std::future::ready(batch.map(|batch| (!batch.is_empty()).then_some(batch))))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let bytes: Option<Vec<u8>> = text
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok().filter(|_| pair.len() == 2))
        .collect();
    bytes?.try_into().ok()
}
