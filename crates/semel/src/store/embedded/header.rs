//! Reads the first bytes of a file to check that it is Semel's. SQLite opens it only after that, so a foreign file or
//! one of a newer version stays untouched.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use super::folder::setup;
use super::schema::{APPLICATION_ID, VERSION};
use super::wal::{self, Wal};
use crate::store::{Error, ErrorKind};

/// SQLite's header.
const LENGTH: usize = 100;

/// Whether the last process left its log behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shutdown {
    Clean,
    /// There is a log, and it is intact.
    Unclean,
}

/// Checks the files without changing them.
pub(super) fn check(database: &Path, log: &Path) -> Result<Shutdown, Error> {
    let name = database.display();
    let mut start = [0; LENGTH];
    let read = File::open(database).and_then(|mut file| file.read_exact(&mut start));
    match read {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{name}: the file was cut short at byte 0; restore a backup, or move it away to start empty"
                ),
            ));
        }
        Err(error) => return Err(setup(database, "the file cannot be read", error)),
    }
    check_start(database, &start)?;
    let page_size = match u16::from_be_bytes([start[16], start[17]]) {
        1 => 65_536,
        size => usize::from(size),
    };
    if !page_size.is_power_of_two() || page_size < 512 {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("{name}: the page size at byte 16 is invalid; restore a backup"),
        ));
    }
    let wal = wal::inspect(log, page_size).map_err(|error| setup(log, "the log cannot be read", error))?;
    match wal {
        None => Ok(Shutdown::Clean),
        Some(Wal::Sound { first_page }) => {
            // A migration may still be in the log.
            if let Some(first_page) = first_page {
                check_start(database, &first_page)?;
            }
            Ok(Shutdown::Unclean)
        }
        Some(Wal::Damaged { at, lost }) => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "{}: the log is damaged at byte {at}, and {lost} commits behind it were acknowledged. Keep a copy of the folder, then restore a backup; moving the log away gives up those commits",
                log.display()
            ),
        )),
    }
}

fn check_start(database: &Path, start: &[u8]) -> Result<(), Error> {
    let name = database.display();
    let number = |at: usize| u32::from_be_bytes(start[at..at + 4].try_into().expect("four bytes"));
    if !start.starts_with(b"SQLite format 3\0") {
        return Err(Error::new(
            ErrorKind::Incompatible,
            format!("{name} is not a database: give Semel a folder of its own, or restore a backup"),
        ));
    }
    if number(68) != APPLICATION_ID {
        return Err(Error::new(
            ErrorKind::Incompatible,
            format!("{name} is a database of another program: give Semel a folder of its own"),
        ));
    }
    match number(60) {
        VERSION => Ok(()),
        version @ 0 => Err(Error::new(
            ErrorKind::Incompatible,
            format!("{name} has the unknown format {version}: restore a backup"),
        )),
        version => Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "{name} has format {version}, this version of Semel reads format {VERSION}: start the newer version again, or restore a backup from before the upgrade. The file was not touched"
            ),
        )),
    }
}
