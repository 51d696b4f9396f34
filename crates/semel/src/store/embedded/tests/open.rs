//! Opening: refusals with their messages, and a refused file stays unchanged.

use std::fs;
use std::path::Path;
use std::process::Command as Process;

use rusqlite::Connection;

use super::*;
use crate::store::ErrorKind;

#[track_caller]
fn refused(opened: Result<EmbeddedStore, Error>, kind: ErrorKind, words: &str) {
    match opened {
        Ok(_) => panic!("opened"),
        Err(error) => {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}

/// The folder's files with their content, without SQLite's shared memory and the lock, which contain no data.
fn content(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .filter(|(name, content)| name != "lock" && !name.ends_with("-shm") && !content.is_empty())
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn two_openers() {
    let place = Place::new();
    let store = place.open();
    refused(place.try_open(), ErrorKind::Locked, &format!("process {}", std::process::id()));
    finish(&store, id(1), "still works").await;
    drop(store);
    let store = place.open();
    let _ = replayed(store.apply(id(1), claim()).await.unwrap());
}

#[test]
fn a_path_that_is_a_file() {
    let place = Place::new();
    fs::write(place.path(), "hello").unwrap();
    refused(place.try_open(), ErrorKind::Setup, "give the embedded store a folder of its own");
    assert_eq!(fs::read(place.path()).unwrap(), b"hello");
}

#[test]
fn a_path_below_a_file() {
    let place = Place::new();
    fs::write(place.path(), "hello").unwrap();
    refused(EmbeddedStore::open(place.path().join("below")), ErrorKind::Setup, "folder cannot be created");
}

/// A file system in memory, unmounted on drop.
struct Mounted(tempfile::TempDir);

impl Mounted {
    /// Needs the permission to mount. `None` without it.
    fn new(options: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let status =
            Process::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(folder.path()).output();
        status.is_ok_and(|output| output.status.success()).then_some(Self(folder))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Process::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[tokio::test]
async fn readonly_fs() {
    let Some(mounted) = Mounted::new("size=8m") else {
        // Without the permission to mount, use permissions of the folder: they apply to every user but root.
        let place = Place::new();
        drop(place.open());
        let mut rights = fs::metadata(place.path()).unwrap().permissions();
        rights.set_readonly(true);
        fs::set_permissions(place.path(), rights).unwrap();
        fs::remove_file(place.path().join("lock")).unwrap_err();
        refused(place.try_open(), ErrorKind::Setup, "check");
        return;
    };
    let path = mounted.0.path().join("data");
    let store = EmbeddedStore::open(&path).unwrap();
    finish(&store, id(1), "kept").await;
    drop(store);
    let before = content(&path);
    let remount = |how: &str| {
        let done = Process::new("mount").args(["-o", how]).arg(mounted.0.path()).status().unwrap();
        assert!(done.success());
    };
    remount("remount,ro");
    refused(EmbeddedStore::open(&path), ErrorKind::Setup, "mounted read-only");
    refused(EmbeddedStore::open(mounted.0.path().join("new")), ErrorKind::Setup, "mounted read-only");
    assert_eq!(content(&path), before);
    remount("remount,rw");
    let _ = replayed(EmbeddedStore::open(&path).unwrap().apply(id(1), claim()).await.unwrap());
}

/// A tmpfs of 1 MB fills up, stored outcomes are still given, and with space again everything works.
#[tokio::test]
async fn disk_full() {
    let Some(mounted) = Mounted::new("size=1m") else {
        eprintln!("no right to mount: disk_full_of_pages shows the same with a limit of SQLite's own");
        return;
    };
    let ballast = mounted.0.path().join("ballast");
    fs::write(&ballast, vec![1; 200_000]).unwrap();
    let store = EmbeddedStore::open(mounted.0.path().join("data")).unwrap();
    let (mut kept, mut full) = (Vec::new(), None);
    for number in 0..2000 {
        let key = id(number);
        let pair = async {
            let grant = won(store.apply(key, claim()).await?);
            store.apply(key, complete(grant, &"x".repeat(2000))).await
        };
        match pair.await {
            Ok(_) => kept.push(key),
            Err(error) => {
                full = Some(error);
                break;
            }
        }
    }
    let full = full.expect("a megabyte is not endless");
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    assert!(full.is_retryable());
    for key in &kept {
        let _ = replayed(store.apply(*key, claim()).await.unwrap());
    }
    fs::remove_file(&ballast).unwrap();
    finish(&store, id(5000), "there is room again").await;
    drop(store);
    let store = EmbeddedStore::open(mounted.0.path().join("data")).unwrap();
    for key in kept.iter().chain([&id(5000)]) {
        let _ = replayed(store.apply(*key, claim()).await.unwrap());
    }
}

#[test]
fn a_file_that_is_no_database() {
    let place = Place::new();
    fs::create_dir(place.path()).unwrap();
    fs::write(place.path().join("semel.db"), "x".repeat(5000)).unwrap();
    let before = content(&place.path());
    refused(place.try_open(), ErrorKind::Incompatible, "not a database");
    assert_eq!(content(&place.path()), before);
}

#[test]
fn a_database_of_somebody_else() {
    let place = Place::new();
    fs::create_dir(place.path()).unwrap();
    let other = Connection::open(place.path().join("semel.db")).unwrap();
    other.execute_batch("CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1);").unwrap();
    drop(other);
    let before = content(&place.path());
    refused(place.try_open(), ErrorKind::Incompatible, "another program");
    assert_eq!(content(&place.path()), before);
}

#[test]
fn a_file_that_was_cut_to_nothing() {
    let place = Place::new();
    drop(place.open());
    fs::write(place.path().join("semel.db"), "").unwrap();
    refused(place.try_open(), ErrorKind::Corrupt, "cut short");
}

#[tokio::test]
async fn a_log_without_its_database() {
    let place = Place::new();
    let store = place.open();
    finish(&store, id(1), "x").await;
    let log = fs::read(place.path().join("semel.db-wal")).unwrap();
    drop(store);
    fs::remove_file(place.path().join("semel.db")).unwrap();
    fs::write(place.path().join("semel.db-wal"), log).unwrap();
    refused(place.try_open(), ErrorKind::Corrupt, "missing but its log is there");
}

fn raw(place: &Place, sql: &str) {
    let connection = Connection::open(place.path().join("semel.db")).unwrap();
    connection.execute_batch(sql).unwrap();
}

// A newer format; the oldest one is below.
#[test]
fn a_newer_format_is_refused_and_untouched() {
    let place = Place::new();
    drop(place.open());
    raw(&place, "PRAGMA user_version = 2");
    let before = content(&place.path());
    refused(place.try_open(), ErrorKind::Incompatible, "has format 2");
    assert_eq!(content(&place.path()), before);
}

#[test]
fn a_newer_format_that_is_still_in_the_log() {
    let place = Place::new();
    drop(place.open());
    let database = place.path().join("semel.db");
    let newer = Connection::open(&database).unwrap();
    newer.execute_batch("PRAGMA journal_mode = WAL; PRAGMA user_version = 2;").unwrap();
    let crashed = Place::new();
    fs::create_dir(crashed.path()).unwrap();
    for name in ["semel.db", "semel.db-wal"] {
        fs::copy(place.path().join(name), crashed.path().join(name)).unwrap();
    }
    let before = content(&crashed.path());
    refused(crashed.try_open(), ErrorKind::Incompatible, "has format 2");
    assert_eq!(content(&crashed.path()), before);
}

// A partially created file is never treated as a store.
#[tokio::test]
async fn an_interrupted_creation_starts_over() {
    let place = Place::new();
    fs::create_dir(place.path()).unwrap();
    fs::write(place.path().join("semel.new"), "half a database").unwrap();
    fs::write(place.path().join("semel.new-journal"), "half a journal").unwrap();
    let store = place.open();
    finish(&store, id(1), "x").await;
    assert!(!place.path().join("semel.new").exists());
    assert!(!place.path().join("semel.new-journal").exists());
}

#[cfg(unix)]
#[test]
fn only_the_owner_may_look_into_the_folder() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    drop(place.open());
    assert_eq!(fs::metadata(place.path()).unwrap().permissions().mode() & 0o777, 0o700);
}

// systemd's DynamicUser makes /var/lib/NAME a link to /var/lib/private/NAME. SQLite refused to create the file there.
#[cfg(unix)]
#[tokio::test]
async fn a_folder_may_be_reached_by_a_link() {
    let place = Place::new();
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), place.path()).unwrap();
    let store = place.open();
    finish(&store, id(1), "x").await;
    assert!(elsewhere.path().join("semel.db").exists());
    drop(store);
    drop(place.open());
}
