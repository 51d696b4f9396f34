//! What users of the registry get: complete metadata, packages that stand alone, documentation as docs.rs builds it.
//!
//! `SEMEL_PROVE=1` (`scripts/prove release`) also compiles every package as the registry would have it, and its documentation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::hygiene::{metadata, packages, root, text};

/// Crates that others need and nobody should use directly.
const INTERNAL: &[&str] = &["semel-postgres", "semel-testbed"];

/// What every published crate says of itself.
const MEMBERS: [&str; 5] = ["description", "license", "readme", "documentation", "rust_version"];
/// What it does not say: the sources have no public address yet. RELEASING.md says when it is set; then it moves to [`MEMBERS`].
const MISSING: &str = "repository";

/// The crates of the workspace that are published.
fn published() -> Vec<Value> {
    let metadata = metadata();
    let ours = packages(&metadata).iter().filter(|package| package["source"].is_null());
    ours.filter(|package| !package["publish"].is_array()).cloned().collect()
}

fn folder(package: &Value) -> PathBuf {
    Path::new(text(package, "manifest_path")).parent().expect("it is in a folder").to_owned()
}

#[test]
fn every_published_crate_has_complete_metadata() {
    let crates = published();
    assert!(crates.len() >= 10, "{} crates", crates.len());
    for package in &crates {
        let name = text(package, "name");
        for member in MEMBERS {
            assert!(!text(package, member).is_empty(), "{name}: {member}");
        }
        assert!(package[MISSING].is_null(), "{name} has a {MISSING}: move it to MEMBERS");
        let count = |member: &str| package[member].as_array().map_or(0, Vec::len);
        // The registry accepts five of each.
        assert!((1..=5).contains(&count("keywords")), "{name}: keywords");
        assert!((1..=5).contains(&count("categories")), "{name}: categories");
        assert_eq!(
            package["metadata"]["docs"]["rs"]["all-features"], true,
            "{name}: docs.rs builds every feature"
        );
        let licence = fs::read(folder(package).join("LICENSE")).expect("its licence is beside its manifest");
        let is_ours = licence == fs::read(root().join("LICENSE")).expect("the licence");
        assert!(is_ours, "{name}: LICENSE is not that of the workspace, to which it is a link");
    }
}

#[test]
fn internal_crates_say_so() {
    for package in &published() {
        let name = text(package, "name");
        let is_internal = INTERNAL.contains(&name);
        assert_eq!(text(package, "description").starts_with("Internal to Semel: "), is_internal, "{name}");
        let readme = fs::read_to_string(folder(package).join("README.md")).expect("a README");
        assert_eq!(readme.contains("\nInternal to Semel."), is_internal, "{name}");
    }
}

// A page of the registry has no folder beside it.
#[test]
fn readmes_do_not_link_to_files_of_the_repository() {
    for package in &published() {
        let readme = fs::read_to_string(folder(package).join("README.md")).expect("a README");
        for link in readme.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            assert!(
                link.starts_with("https://") || link.starts_with('#'),
                "{}: {link}",
                text(package, "name")
            );
        }
    }
}

#[test]
fn every_package_can_be_made_and_contains_what_its_users_need() {
    let place = tempfile::tempdir().expect("a folder");
    let cargo = |flag: &str| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "package",
            "--workspace",
            "--exclude",
            "semel-proof",
            "--allow-dirty",
            "--locked",
            "--offline",
            flag,
        ]);
        cargo.current_dir(root()).env("CARGO_TARGET_DIR", place.path());
        cargo
    };
    run(&mut cargo("--no-verify"));
    for package in &published() {
        let name = format!("{}-{}", text(package, "name"), text(package, "version"));
        let archive = place.path().join("package").join(format!("{name}.crate"));
        let size = fs::metadata(&archive).unwrap_or_else(|error| panic!("{name}: {error}")).len();
        assert!(size < 1 << 20, "{name}: {size} bytes");
        let listed = Command::new("tar").arg("-tzf").arg(&archive).output().expect("tar runs").stdout;
        let listed = String::from_utf8(listed).expect("paths");
        for file in ["LICENSE", "README.md", "Cargo.toml", "Cargo.lock"] {
            assert!(listed.lines().any(|line| line == format!("{name}/{file}")), "{name}: {file}");
        }
        let strays = ["tests/", "benches/", "fuzz/"].map(|folder| format!("{name}/{folder}"));
        let stray = listed.lines().find(|line| strays.iter().any(|folder| line.starts_with(folder)));
        assert_eq!(stray, None, "{name}");
    }
}

/// The documentation of packages, built from nothing but what they contain.
fn document(target: &Path) {
    let place = tempfile::tempdir().expect("a folder");
    let mut manifest =
        String::from("[workspace]\nresolver = \"3\"\nmembers = [\"semel*\"]\n[patch.crates-io]\n");
    for package in &published() {
        let name = format!("{}-{}", text(package, "name"), text(package, "version"));
        let archive = target.join("package").join(format!("{name}.crate"));
        run(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(place.path()));
        manifest += &format!("{} = {{ path = \"{name}\" }}\n", text(package, "name"));
    }
    fs::write(place.path().join("Cargo.toml"), manifest).expect("a manifest");
    fs::copy(root().join("Cargo.lock"), place.path().join("Cargo.lock"))
        .expect("the versions of this workspace");
    run(Command::new(env!("CARGO"))
        .args(["doc", "--workspace", "--no-deps", "--all-features"])
        .current_dir(place.path())
        .env("CARGO_TARGET_DIR", target)
        .env("RUSTDOCFLAGS", "--cfg docsrs -D warnings"));
}

#[test]
fn every_package_compiles_alone_and_has_its_documentation() {
    if std::env::var_os("SEMEL_PROVE").is_none_or(|value| value == "0") {
        return; // the tests above are the short form
    }
    // Of its own: packages are compiled under other paths than the workspace.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("published");
    let published = run(Command::new(env!("CARGO"))
        .args(["publish", "--workspace", "--dry-run", "--allow-dirty", "--locked"])
        .current_dir(root())
        .env("CARGO_TARGET_DIR", &target));
    println!("{published}");
    document(&target);
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

/// A checkout with `scripts/api`, and pages of rustdoc in which every library has the items of `items`.
struct Checkout(tempfile::TempDir);

impl Checkout {
    fn new() -> Self {
        let checkout = Self(tempfile::tempdir().expect("a folder"));
        fs::create_dir(checkout.path("scripts")).expect("a folder");
        fs::copy(root().join("scripts/api"), checkout.path("scripts/api")).expect("the script");
        checkout.git(&["init", "--quiet"]);
        checkout
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn set_version(&self, version: &str) {
        let manifest = format!("[workspace.package]\nversion = \"{version}\"\n");
        fs::write(self.path("Cargo.toml"), manifest).expect("a manifest");
    }

    /// What `cargo doc` writes, as far as the script reads it.
    fn document(&self, items: &[&str]) {
        for list in fs::read_dir(root().join("api")).expect("the lists") {
            let list = list.expect("a list").path();
            let library = list.file_stem().expect("a name").to_string_lossy().replace('-', "_");
            let folder = self.path("target/doc").join(library);
            fs::create_dir_all(&folder).expect("a folder");
            let link = |item: &&str| format!("<a href=\"struct.{item}.html\">{item}</a>");
            fs::write(folder.join("all.html"), items.iter().map(link).collect::<String>()).expect("an index");
            for item in items {
                let page = format!("<pre class=\"rust item-decl\"><code>pub struct {item};</code></pre>");
                fs::write(folder.join(format!("struct.{item}.html")), page).expect("a page");
            }
        }
    }

    fn git(&self, arguments: &[&str]) {
        let person = ["-c", "user.name=a", "-c", "user.email=a@example", "-c", "commit.gpgsign=false"];
        run(Command::new("git").args(person).args(arguments).current_dir(self.0.path()));
    }

    /// Whether `scripts/api` accepts it, and what it says.
    fn compare(&self) -> (bool, String) {
        self.api(&[])
    }

    fn update(&self) {
        let (is_written, said) = self.api(&["update"]);
        assert!(is_written, "{said}");
    }

    fn api(&self, arguments: &[&str]) -> (bool, String) {
        let mut script = Command::new("python3");
        script.arg(self.path("scripts/api")).args(arguments).env_remove("CARGO_TARGET_DIR");
        let output = script.output().expect("python3 runs");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }
}

// While no version was tagged, nothing compared the API with the last one, and nobody would have seen that this does not work.
#[test]
fn an_item_that_the_last_version_had_cannot_be_removed_within_its_number() {
    let checkout = Checkout::new();
    checkout.set_version("0.1.0");
    checkout.document(&["Engine", "Key"]);
    checkout.update();
    let (is_accepted, said) = checkout.compare();
    assert!(is_accepted && said.contains("no version is tagged"), "{said}");
    checkout.git(&["add", "."]);
    checkout.git(&["commit", "--quiet", "--message", "the first version"]);
    checkout.git(&["tag", "v0.1.0"]);

    // More is allowed.
    checkout.set_version("0.1.1");
    checkout.document(&["Engine", "Key", "Store"]);
    checkout.update();
    assert_eq!(checkout.compare(), (true, String::new()));

    // Less is not, although the lists say so too.
    checkout.document(&["Engine", "Store"]);
    let (is_accepted, said) = checkout.compare();
    assert!(!is_accepted && said.contains("-semel::Key: pub struct Key;"), "the lists: {said}");
    checkout.update();
    let (is_accepted, said) = checkout.compare();
    assert!(!is_accepted && said.contains("v0.1.0 semel: semel::Key: pub struct Key;"), "{said}");
    assert!(said.contains("v0.1.0 semel-window: ") && !said.contains("Engine"), "{said}");

    // The second number allows it before 1.0.
    checkout.set_version("0.2.0");
    assert_eq!(checkout.compare(), (true, String::new()));
}
