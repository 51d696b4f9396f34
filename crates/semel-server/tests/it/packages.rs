//! What is released: the tarball, the Debian package, the image. Every test packages the binary under test with
//! `scripts/release`. The ignored tests are parts of `scripts/prove release`: it builds the real artifacts twice, and installs them
//! in fresh roots, with systemd.

pub(crate) mod artifacts;
mod bill_of_materials;
mod debian;
mod image;
mod reproducible;
mod root;
mod tarball;

use std::process::{Command, Output};

/// Runs a command to its end, which must be a success. Returns its standard output.
#[track_caller]
fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    stdout
}
