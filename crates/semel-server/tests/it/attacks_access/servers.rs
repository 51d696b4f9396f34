//! Servers that others could listen to or pose as.

use crate::kit::{Semel, run};

#[test]
fn a_store_without_tls_beyond_loopback_is_named_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n\
         [[source]]\nkind = \"redis-stream\"\nurl = \"redis://:hunter2@192.0.2.1:6379\"\nstream = \"orders\"\ngroup = \"g\"\n",
        folder.path().join("data").display()
    );
    std::fs::write(&file, text).unwrap();
    let semel = Semel::with_config(&file, &[]);
    semel.logged("the connection to 192.0.2.1 is not encrypted");
    assert!(!semel.log().contains("hunter2"), "{}", semel.log());
}

#[test]
fn the_metadata_service_is_no_target() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let check = |url: &str, more: &str| {
        std::fs::write(&file, format!("[[target]]\nname = \"t\"\nurl = \"{url}\"\n{more}\n")).unwrap();
        let checked = run(&["config", "check", file.to_str().unwrap()]);
        (checked.status.code(), String::from_utf8_lossy(&checked.stderr).into_owned())
    };
    for url in [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://[::ffff:169.254.169.254]/",
        "http://metadata.google.internal/computeMetadata/v1/",
    ] {
        let (code, said) = check(url, "");
        assert_eq!(code, Some(2), "{url}");
        assert!(
            said.contains("metadata service") && said.contains("allow_link_local = true"),
            "{url}: {said}"
        );
        assert_eq!(check(url, "allow_link_local = true").0, Some(0), "{url}");
    }
}
