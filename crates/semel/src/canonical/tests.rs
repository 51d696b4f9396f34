//! Tests of the canonical form: published vectors, known failures, oracles, and generated pairs.

mod corpus;
mod exclusions;
mod fuzz;
mod generate;
mod numbers;
mod oracle;
mod soundness;
mod vectors;

use super::to_canonical;

/// The canonical text of valid input.
fn canon(text: impl AsRef<[u8]>) -> String {
    let text = text.as_ref();
    let canonical =
        to_canonical(text).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(text)));
    String::from_utf8(canonical).unwrap()
}

/// The number of rounds of a generated test: `short` in the normal run, `full` if `SEMEL_PROVE` is set.
fn rounds(short: usize, full: usize) -> usize {
    if std::env::var_os("SEMEL_PROVE").is_some() { full } else { short }
}
