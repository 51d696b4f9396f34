//! Writes two sources that the tests include.
//!
//! - The mutants of the wake-up registry: the real source with one line made wrong, to prove that the schedule tests would
//!   notice. A mutant whose line is no longer in the source fails the build.
//! - The Rust snippets of the documentation, so that they compile.

use std::path::{Path, PathBuf};
use std::{env, fs};

const SOURCE: &str = "../semel/src/store/wakeups.rs";

/// Name, the line as it is, the line as it must not be.
const MUTANTS: &[(&str, &str, &str)] = &[
    ("no_version_check", "if slot.version != self.seen {", "if false {"),
    (
        "subscribes_at_the_wait",
        "if slot.version != self.seen {",
        "if self.seen == 0 { self.seen = slot.version; } if slot.version != self.seen {",
    ),
    ("forgets_the_wakers", "std::mem::take(&mut slot.wakers)", "Vec::<(u64, Waker)>::new()"),
    ("keeps_the_first_waker", "if waker.will_wake(context.waker()) => {}", "if waker.will_wake(waker) => {}"),
    ("never_frees_a_slot", "if slot.watches == 0 {", "if slot.watches == usize::MAX {"),
    ("frees_a_slot_too_early", "if slot.watches == 0 {", "if slot.watches <= 1 {"),
];

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed=build.rs");
    let source = fs::read_to_string(SOURCE).expect("the registry's source is beside this crate");
    let out = env::var_os("OUT_DIR").expect("set by cargo");
    // Included into a module, where inner doc comments are not allowed.
    let lines: Vec<&str> = source.lines().filter(|line| !line.starts_with("//!")).collect();
    let body = lines.join("\n");
    for (name, right, wrong) in MUTANTS {
        assert_eq!(body.matches(right).count(), 1, "mutant {name}: its line is not in {SOURCE} exactly once");
        fs::write(Path::new(&out).join(format!("wakeups_{name}.rs")), body.replace(right, wrong))
            .expect("the output folder can be written");
    }
    fs::write(Path::new(&out).join("snippets.rs"), snippets()).expect("the output folder can be written");
}

/// Every block of Rust in the documentation, each in a module of its own. A program stands as it is; other lines stand in a
/// function, behind those of the comment `<!-- given` before the block, which no reader sees.
fn snippets() -> String {
    println!("cargo::rerun-if-changed=../../README.md");
    println!("cargo::rerun-if-changed=../../docs");
    let mut pages = vec![PathBuf::from("../../README.md")];
    for folder in ["start", "howto", "reference", "explanation"] {
        let entries = fs::read_dir(Path::new("../../docs").join(folder)).expect("the documentation is there");
        pages.extend(entries.map(|entry| entry.expect("a page").path()));
    }
    pages.sort();
    let mut modules = String::new();
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page can be read");
        let (mut given, mut rest) = (String::new(), text.as_str());
        while let Some(at) = rest.find("\n```rust\n").into_iter().chain(rest.find("\n<!-- given\n")).min() {
            let line = text.len() - rest.len() + at;
            let line = text[..line].lines().count() + 2;
            let start = &rest[at + 1..];
            let start = &start[start.find('\n').expect("a line ends") + 1..];
            let is_given = rest[at + 1..].starts_with("<!--");
            let end = start.find(if is_given { "-->" } else { "```" }).expect("a block ends");
            rest = &start[end..];
            if is_given {
                start[..end].clone_into(&mut given);
                continue;
            }
            let name = format!("{}_{line}", page.display())
                .replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
            let body = &start[..end];
            let item = if body.contains("fn main()") {
                body.to_owned()
            } else {
                format!(
                    "use super::prelude::*;\nasync fn snippet() -> Result<(), Box<dyn std::error::Error>> {{\n{given}{body}Ok(())\n}}"
                )
            };
            modules +=
                &format!("// {}:{line}\n#[allow(warnings)]\nmod page{name} {{\n{item}\n}}\n", page.display());
            given.clear();
        }
    }
    modules
}
