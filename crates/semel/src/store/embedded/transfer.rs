//! Reading an embedded store that another process uses, and filling one.

use std::fmt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode};

use super::schema::{APPLICATION_ID, ConnectionRole, VERSION};
use super::table::{self, RowError, fact};
use super::{EmbeddedStore, reader, schema};
use crate::key::KeyId;
use crate::record::{Fence, Record};
use crate::secret::Secret;
use crate::store::transfer::{
    BATCH, RecordWalk, ScanWalk, TransferRun, TransferSource, TransferState, TransferStore, is_ahead,
    not_filled,
};
use crate::store::{BoxFuture, Error, ErrorKind, MarkId, Scan};
use crate::sync::Mutex;
use crate::time::{Clock as _, SystemClock, Timestamp, instant};

/// Reads an embedded store without its lock, while the process that has it open writes.
///
/// Drop it before the same process opens the store: closing a second handle of the file would end the locks of the
/// first.
pub struct EmbeddedReader {
    connection: Mutex<Connection>,
    path: PathBuf,
}

impl EmbeddedReader {
    /// Opens the store in the folder `path`, which must exist.
    ///
    /// # Errors
    /// `Setup` if there is no store, `Incompatible` if a newer version wrote it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let (name, database) = (path.display(), path.join("semel.db"));
        if !database.is_file() {
            return Err(Error::new(ErrorKind::Setup, format!("there is no embedded store in {name}")));
        }
        let opened = schema::connect(&database, ConnectionRole::Reader).and_then(|connection| {
            let number =
                |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, u32>(0));
            let found = (number("application_id")?, number("user_version")?);
            Ok((connection, found))
        });
        let (connection, found) = opened.map_err(|error| explain(&path, &error.into()))?;
        if found != (APPLICATION_ID, VERSION) {
            let (_, format) = found;
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!("{name} is not a store of format {VERSION}, or of another program (format {format})"),
            ));
        }
        Ok(Self { connection: Mutex::new(connection), path })
    }

    fn read<T>(&self, read: impl FnOnce(&Connection) -> Result<T, RowError>) -> Result<T, Error> {
        read(&self.connection.lock()).map_err(|error| explain(&self.path, &error))
    }
}

impl TransferSource for EmbeddedReader {
    fn address(&self) -> String {
        address(&self.path)
    }

    /// The process that writes uses the clock of this machine too.
    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(async { Ok(SystemClock.now()) })
    }

    fn state(&self) -> BoxFuture<'_, Result<TransferState, Error>> {
        Box::pin(async move { self.read(read_state)? })
    }

    fn stored_secret(&self) -> BoxFuture<'_, Result<Option<Secret>, Error>> {
        Box::pin(async move { self.read(super::read_secret) })
    }

    fn fence_floor(&self) -> BoxFuture<'_, Result<Fence, Error>> {
        Box::pin(async move { self.read(table::read_floor) })
    }

    fn marks(&self) -> BoxFuture<'_, Result<Vec<(MarkId, u64)>, Error>> {
        Box::pin(async move { self.read(read_marks) })
    }

    fn records(&self) -> Box<dyn RecordWalk + '_> {
        Box::new(PageWalk { reader: self, after: None, is_over: false })
    }
}

impl fmt::Debug for EmbeddedReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedReader").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Reads page by page, each in a transaction of its own: a long one would keep the writer from shortening its log.
struct PageWalk<'a> {
    reader: &'a EmbeddedReader,
    after: Option<KeyId>,
    is_over: bool,
}

impl RecordWalk for PageWalk<'_> {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Vec<(KeyId, Record)>>, Error>> {
        Box::pin(async move {
            if self.is_over {
                return Ok(None);
            }
            let query = Scan { phase: None, after: self.after, limit: BATCH };
            let page = self.reader.read(|connection| reader::page(connection, query, &SystemClock))?;
            self.after = page.next;
            self.is_over = page.next.is_none();
            Ok(Some(page.items.into_iter().map(|item| (item.id, item.record)).collect()))
        })
    }
}

impl TransferSource for EmbeddedStore {
    fn address(&self) -> String {
        address(&self.path)
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(async move { Ok(self.shared.clock.now()) })
    }

    fn state(&self) -> BoxFuture<'_, Result<TransferState, Error>> {
        Box::pin(async move { self.read_rows(read_state).await? })
    }

    fn stored_secret(&self) -> BoxFuture<'_, Result<Option<Secret>, Error>> {
        Box::pin(self.read_rows(super::read_secret))
    }

    fn fence_floor(&self) -> BoxFuture<'_, Result<Fence, Error>> {
        Box::pin(self.read_rows(table::read_floor))
    }

    fn marks(&self) -> BoxFuture<'_, Result<Vec<(MarkId, u64)>, Error>> {
        Box::pin(self.read_rows(read_marks))
    }

    fn records(&self) -> Box<dyn RecordWalk + '_> {
        Box::new(ScanWalk::new(self))
    }
}

impl EmbeddedStore {
    async fn read_rows<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, RowError> + Send + 'static,
    ) -> Result<T, Error> {
        self.write(move |writing| read(writing.transaction()).map_err(|error| writing.explain(&error))).await
    }
}

impl TransferStore for EmbeddedStore {
    fn import(
        &self,
        run: TransferRun,
        records: Vec<(KeyId, Record)>,
    ) -> BoxFuture<'_, Result<Vec<KeyId>, Error>> {
        let name = self.address();
        Box::pin(self.write(move |writing| {
            let transaction = writing.transaction();
            let explain = |error: RowError| writing.explain(&error);
            if !read_state(transaction).map_err(explain)??.is_filled_by(run) {
                return Err(not_filled(&name));
            }
            let mut ahead = Vec::new();
            for (id, record) in records {
                let stored = table::get_stored(transaction, id).map_err(explain)?;
                if stored.as_ref().is_some_and(|stored| is_ahead(&stored.record, &record)) {
                    ahead.push(id);
                    continue;
                }
                table::put(transaction, id, stored.as_ref(), &record)
                    .map_err(|error| explain(error.into()))?;
            }
            Ok(ahead)
        }))
    }

    fn raise_fence_floor(&self, floor: Fence) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(
            self.write(move |writing| writing.raise_floor(floor).map_err(|error| writing.explain(&error))),
        )
    }

    fn change_state<'a>(
        &'a self,
        seen: &'a TransferState,
        next: &'a TransferState,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let (seen, text) = (seen.clone(), next.to_stored());
            let stored = text.clone();
            let changed = self
                .write(move |writing| {
                    let transaction = writing.transaction();
                    let explain = |error: RowError| writing.explain(&error);
                    if read_state(transaction).map_err(explain)?? != seen {
                        return Ok(false);
                    }
                    table::write_meta(transaction, fact::TRANSFER, stored.as_bytes())
                        .map_err(|error| explain(error.into()))?;
                    Ok(true)
                })
                .await?;
            if changed {
                self.shared.transfer.saw(Some(text.as_bytes()), instant(), self)?;
            }
            Ok(changed)
        })
    }
}

/// Whether the store grants claims. The inner error is a state that this version does not know.
fn read_state(connection: &Connection) -> Result<Result<TransferState, Error>, RowError> {
    Ok(TransferState::from_stored(table::read_meta(connection, fact::TRANSFER)?.as_deref()))
}

fn read_marks(connection: &Connection) -> Result<Vec<(MarkId, u64)>, RowError> {
    let mut marks: Vec<(MarkId, u64)> = Vec::new();
    loop {
        let after = marks.last().map(|(mark, _)| mark.as_bytes().to_vec()).unwrap_or_default();
        let more = table::marks(connection, &after, BATCH)?;
        if more.is_empty() {
            return Ok(marks);
        }
        marks.extend(more);
    }
}

/// The same name for every way to write the path.
fn address(path: &Path) -> String {
    let whole = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    format!("embedded:{}", whole.display())
}

fn explain(path: &Path, error: &RowError) -> Error {
    let name = path.display();
    match error {
        RowError::Damaged(bad) => Error::new(ErrorKind::Corrupt, format!("{name}: {bad}; restore a backup")),
        RowError::Sql(error) => {
            let kind = match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => ErrorKind::Unavailable,
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => ErrorKind::Corrupt,
                _ => ErrorKind::Setup,
            };
            Error::new(kind, format!("{name} cannot be read ({error}): check owner and permissions"))
        }
    }
}
