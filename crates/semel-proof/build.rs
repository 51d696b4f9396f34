//! Writes the mutants of the wake-up registry: the real source with one line made wrong, to prove that the
//! schedule tests would notice. A mutant whose line is no longer in the source fails the build.

use std::path::Path;
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
}
