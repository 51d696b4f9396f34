//! Another user of the machine reads the store's files, which hold the deployment's secret.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::kit::Semel;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn start(folder: &Path, data: &str, ledger: &str) -> Semel {
    let file = folder.join("semel.toml");
    let [data, ledger] = [data, ledger].map(|name| folder.join(name));
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n[ledger]\nurl = \"embedded:{}\"\n",
        data.display(),
        ledger.display()
    );
    fs::write(&file, text).unwrap();
    Semel::with_config(&file, &[])
}

#[track_caller]
fn assert_private(folder: &Path) {
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() >= 3, "database, log and lock: {files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

// They were 0644 where their folder was there already, and with a umask of 022.
#[test]
fn files_of_store_and_ledger_are_private_in_a_folder_that_others_can_enter() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    let semel = start(folder.path(), "data", "ledger");
    assert_private(&data);
    assert_private(&folder.path().join("ledger"));
    assert_eq!(mode(&folder.path().join("ledger")), 0o700, "a folder that it made");
    semel.logged("other users have permissions on the store's folder");
    semel.kill();

    // Files of an older version are made private, and that is said.
    for file in fs::read_dir(&data).unwrap() {
        fs::set_permissions(file.unwrap().path(), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let semel = start(folder.path(), "data", "ledger");
    assert_private(&data);
    semel.logged("other users had permissions on a file of the store");
}
