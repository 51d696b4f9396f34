//! Two builds of one commit in different folders. It compiles everything twice, with optimisation; `tarball` compares two packagings
//! of one binary.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::artifacts::{host, root};
use super::run;

fn build(clone: &Path) -> String {
    run(Command::new("git").args(["clone", "--quiet", "--no-hardlinks"]).arg(root()).arg(clone));
    let mut release = Command::new("./scripts/release");
    release.current_dir(clone).env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
    run(&mut release);
    fs::read_to_string(clone.join("target/artifacts/SHA256SUMS")).unwrap()
}

#[test]
#[ignore = "builds two releases, for half an hour: a part of ./scripts/prove release"]
fn two_builds_of_a_commit_have_equal_checksums() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["a", "another place"].map(|name| folder.path().join(name));
    let sums = build(&first);
    // What is left of the place of a build would be in the binary.
    let binary = fs::read(first.join("target").join(host()).join("dist/semel")).unwrap();
    let place = folder.path().to_str().unwrap().as_bytes();
    assert!(
        !binary.windows(place.len()).any(|bytes| bytes == place),
        "the binary names the folder of its build"
    );
    fs::remove_dir_all(&first).unwrap();
    assert_eq!(build(&second), sums);
    println!("{sums}");
}
