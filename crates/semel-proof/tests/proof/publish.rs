//! What users of the registry get: complete metadata, packages that stand alone, documentation as docs.rs builds it.
//!
//! The ignored test is a part of `scripts/prove release`: it compiles every package as the registry would have it, and its
//! documentation.

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
#[ignore = "compiles every package again and asks the registry: a part of ./scripts/prove release"]
fn every_package_compiles_alone_and_has_its_documentation() {
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

/// The declaration at the top of a page of rustdoc.
fn declaration(code: &str) -> String {
    format!("<pre class=\"rust item-decl\"><code>{code}</code></pre>")
}

/// A part of a page of rustdoc: the headers of methods or implementations.
fn section(id: &str, headers: &[&str]) -> String {
    let header = |text: &&str| format!("<h3 class=\"code-header\">{text}</h3>");
    format!("<h2 id=\"{id}\"></h2>{}", headers.iter().map(header).collect::<String>())
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

    /// Pages of unit structs.
    fn document(&self, items: &[&str]) {
        let page = |item: &&str| (format!("struct.{item}"), declaration(&format!("pub struct {item};")));
        self.write(&items.iter().map(page).collect::<Vec<_>>());
    }

    /// What `cargo doc` writes, as far as the script reads it: pages with their names.
    fn write(&self, pages: &[(String, String)]) {
        let lists =
            fs::read_dir(root().join("api")).expect("the lists").map(|list| list.expect("a list").path());
        for list in lists.filter(|path| path.is_file()) {
            let library = list.file_stem().expect("a name").to_string_lossy().replace('-', "_");
            let folder = self.path("target/doc").join(library);
            fs::create_dir_all(&folder).expect("a folder");
            let link = |(name, _): &(String, String)| format!("<a href=\"{name}.html\">{name}</a>");
            fs::write(folder.join("all.html"), pages.iter().map(link).collect::<String>()).expect("an index");
            for (name, page) in pages {
                fs::write(folder.join(format!("{name}.html")), page).expect("a page");
            }
        }
    }

    /// Tags the lists of these pages as version 0.1.0.
    fn release(&self, pages: &[(String, String)]) {
        self.set_version("0.1.0");
        self.write(pages);
        self.update();
        self.git(&["add", "."]);
        self.git(&["commit", "--quiet", "--message", "the first version"]);
        self.git(&["tag", "v0.1.0"]);
    }

    /// What the script says of these pages after 0.1.0, where the lists agree with them. Nothing, if it accepts them.
    fn judge(&self, pages: &[(String, String)]) -> String {
        self.write(pages);
        self.update();
        let (is_accepted, said) = self.compare();
        assert_eq!(is_accepted, said.is_empty(), "{said}");
        said
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
        // 3: lists of another rustdoc.
        assert!(matches!(output.status.code(), Some(0 | 1 | 3)), "{}", output.status);
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
    assert!(is_accepted && said.contains("no version is tagged, and api/released has none"), "{said}");
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
    assert!(!is_accepted && said.contains("v0.1.0 semel: gone: semel::Key: pub struct Key;"), "{said}");
    assert!(said.contains("v0.1.0 semel-window: ") && !said.contains("Engine"), "{said}");

    // The second number allows it before 1.0.
    checkout.set_version("0.2.0");
    assert_eq!(checkout.compare(), (true, String::new()));
}

// Without a tag, as before the first release and in a shallow clone, nothing was compared with the last version.
#[test]
fn without_tags_the_api_is_compared_with_the_lists_that_were_kept() {
    let checkout = Checkout::new();
    checkout.set_version("0.1.0");
    checkout.document(&["Engine", "Key"]);
    checkout.update();
    assert_eq!(checkout.api(&["release"]), (true, String::new()));
    checkout.document(&["Engine", "Key", "Store"]);
    checkout.update();
    assert_eq!(checkout.compare(), (true, String::new()), "more is allowed");
    checkout.document(&["Engine", "Store"]);
    checkout.update();
    let (is_accepted, said) = checkout.compare();
    let gone = "api/released (0.1.0) semel: gone: semel::Key: pub struct Key;\n";
    assert!(!is_accepted && said.contains(gone), "{said}");
    assert!(
        said.contains("While a version is not tagged it may still change: ./scripts/api release"),
        "{said}"
    );
    checkout.set_version("0.2.0");
    assert_eq!(checkout.compare(), (true, String::new()));

    // A tag says more than what was kept, which may be older.
    checkout.git(&["add", "."]);
    checkout.git(&["commit", "--quiet", "--message", "the second version"]);
    checkout.git(&["tag", "v0.2.0"]);
    checkout.document(&["Engine", "Key"]);
    checkout.update();
    let (is_accepted, said) = checkout.compare();
    assert!(!is_accepted && said.contains("v0.2.0 semel: gone: semel::Store"), "{said}");
    assert!(!said.contains("api/released ("), "{said}");
}

// The list beside the sources is one that the script reads.
#[test]
fn the_lists_of_the_last_version_are_kept_for_clones_without_tags() {
    let kept = root().join("api/released");
    let version = fs::read_to_string(kept.join("version")).expect("the version of the lists");
    assert!(version.trim().split('.').all(|part| part.parse::<u32>().is_ok()), "{version}");
    let names = |folder: &Path| -> Vec<_> {
        let files = fs::read_dir(folder).expect("lists").map(|file| file.expect("a list").path());
        let lists = files.filter(|file| file.extension().is_some_and(|ending| ending == "txt"));
        let mut names: Vec<_> = lists.map(|list| list.file_name().expect("a name").to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&kept), names(&root().join("api")));
}

/// A trait that users may implement, with these required methods and one provided.
fn store(required: &[&str], provided: &[&str]) -> (String, String) {
    let page = [
        declaration("pub trait Store { ... }"),
        section("required-methods", required),
        section("provided-methods", provided),
    ];
    ("trait.Store".into(), page.concat())
}

/// A type with these implementations, those of the compiler in `auto`.
fn body(implemented: &[&str], auto: &[&str]) -> (String, String) {
    let page = [
        declaration("pub struct Body { /* private fields */ }"),
        section("trait-implementations-list", implemented),
        section("synthetic-implementations-list", auto),
    ];
    ("struct.Body".into(), page.concat())
}

// The script looked only for lines that were gone: a new required method breaks everybody who implements the trait.
#[test]
fn a_new_required_method_breaks_users_and_a_provided_one_does_not() {
    let checkout = Checkout::new();
    checkout.release(&[store(&["fn get(&amp;self)"], &[])]);
    assert_eq!(checkout.judge(&[store(&["fn get(&amp;self)"], &["fn all(&amp;self)"])]), "");
    assert_eq!(checkout.judge(&[store(&[], &["fn get(&amp;self)"])]), "", "a default asks for less");
    let said = checkout.judge(&[store(&["fn get(&amp;self)", "fn put(&amp;self)"], &[])]);
    assert!(said.contains("v0.1.0 semel: required: semel::Store: required fn put(&self)"), "{said}");
    assert!(!said.contains("gone"), "{said}");
    // A trait that is new has no users.
    let (_, page) = store(&["fn get(&amp;self)"], &[]);
    let new = ("trait.Cache".to_owned(), page);
    assert_eq!(checkout.judge(&[store(&["fn get(&amp;self)"], &[]), new]), "");
}

#[test]
fn a_type_cannot_lose_send_or_sync() {
    let checkout = Checkout::new();
    let sync = ["impl Send for Body", "impl Sync for Body"];
    checkout.release(&[body(&[], &sync)]);
    let said = checkout.judge(&[body(&[], &["impl Send for Body", "impl !Sync for Body"])]);
    assert!(said.contains("v0.1.0 semel: no longer: semel::Body: impl !Sync for Body"), "{said}");
    assert_eq!(checkout.judge(&[body(&[], &sync)]), "");
}

// All traits of a type were one line, so one more changed it, and the script took that for a break.
#[test]
fn a_type_can_gain_a_derive_and_not_lose_one() {
    let checkout = Checkout::new();
    checkout.release(&[body(&["impl Clone for Body", "impl Debug for Body"], &[])]);
    let more = ["impl Clone for Body", "impl Debug for Body", "impl PartialEq for Body"];
    assert_eq!(checkout.judge(&[body(&more, &[])]), "");
    let said = checkout.judge(&[body(&["impl Clone for Body"], &[])]);
    assert!(said.contains("v0.1.0 semel: gone: semel::Body: impl Debug"), "{said}");
}

#[test]
fn an_enum_gains_variants_only_if_it_is_non_exhaustive() {
    let [open, closed] = ["#[non_exhaustive] ", ""].map(|mark| {
        let page = |variants: &str| {
            let code = format!("{mark}pub enum Answer {{ {variants} }}");
            [("enum.Answer".to_owned(), declaration(&code))]
        };
        let checkout = Checkout::new();
        checkout.release(&page("Yes, No(Vec&lt;(u8, u8)&gt;),"));
        let less = checkout.judge(&page("Yes,"));
        assert!(less.contains("gone: semel::Answer: "), "{less}");
        checkout.judge(&page("Yes, No(Vec&lt;(u8, u8)&gt;), Later { after: u64, },"))
    });
    assert_eq!(open, "");
    assert!(closed.contains("gone: semel::Answer: pub enum Answer { Yes, No(Vec<(u8, u8)>), }"), "{closed}");
}

// It said "not compared" and succeeded, and the test command showed neither.
#[test]
fn lists_of_another_rustdoc_are_not_accepted_in_silence() {
    let checkout = Checkout::new();
    checkout.release(&[body(&[], &[])]);
    let list = checkout.path("api/semel.txt");
    let text = fs::read_to_string(&list).expect("a list");
    let (first, rest) = text.split_once('\n').expect("the version");
    fs::write(&list, format!("# rustdoc 1.0.0\n{rest}")).expect("a list");
    let (is_accepted, said) = checkout.compare();
    assert!(!is_accepted, "{said}");
    let version = first.strip_prefix("# ").expect("a comment");
    let of_this =
        format!("api of semel: not compared, its list is from rustdoc 1.0.0 and this is {version}\n");
    assert!(said.contains(&of_this), "{said}");
    let of_tag =
        format!("not compared with v0.1.0, whose list is from {version}; this one is from rustdoc 1.0.0");
    assert!(said.contains(&of_tag) && !said.contains("gone"), "{said}");
    let test = fs::read_to_string(root().join("scripts/test")).expect("the test command");
    assert!(test.contains("SKIPPED the public API:"), "it shows what was not compared");
}

/// A checkout in which `scripts/prove` runs fakes of what is slow.
fn proving() -> Checkout {
    let checkout = Checkout::new();
    for script in ["prove", "lib.sh"] {
        fs::copy(root().join("scripts").join(script), checkout.path("scripts").join(script))
            .expect("a script");
    }
    let fake = |name: &str, text: &str| {
        let path = checkout.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, format!("#!/bin/sh\n{text}")).expect("a script");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its mode");
    };
    // As the real one: nothing is built from a checkout with changes.
    fake(
        "scripts/release",
        "test -z \"$(git status --porcelain)\" || { echo 'a dirty checkout' >&2; exit 1; }\n",
    );
    for name in ["scripts/linters", "bin/debootstrap", "bin/systemd-nspawn", "bin/podman"] {
        fake(name, "");
    }
    fake(
        "bin/cargo",
        "case \"$*\" in *--version*) exit ;; *canonical::tests*) echo 'does not compile' >&2; exit 101 ;; esac\n\
         case \"$*\" in *'run-ignored all '*packages::*) echo 'Summary [1s] 3 tests run: 2 passed, 1 failed, 9 skipped'; exit 100 ;; esac\n\
         echo 'Summary [1s] 4 tests run: 4 passed, 9 skipped'\n",
    );
    fs::create_dir_all(checkout.path("docs/reference")).expect("a folder");
    fs::copy(
        root().join("docs/reference/proof-results.md"),
        checkout.path("docs/reference/proof-results.md"),
    )
    .expect("the results");
    checkout.git(&["add", "."]);
    checkout.git(&["commit", "--quiet", "--message", "a version"]);
    checkout
}

/// Runs proofs; returns what they printed, and the rows of these names.
fn prove(checkout: &Checkout, names: &[&str]) -> (Option<i32>, String, Vec<String>) {
    let path = std::env::var("PATH").expect("a search path");
    let output = Command::new(checkout.path("scripts/prove"))
        .args(names)
        .env("PATH", format!("{}:{path}", checkout.path("bin").display()))
        .env("SEMEL_RECORD", "1")
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .expect("it runs");
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let results = fs::read_to_string(checkout.path("docs/reference/proof-results.md")).expect("the results");
    let row = |name: &&str| {
        let start = format!("| `{name}` | ");
        let row = results.lines().find_map(|line| line.strip_prefix(&start)).expect("a row");
        let result = row.split_once(" | ").expect("a date").1;
        result.split(", in ").next().expect("a result").to_owned()
    };
    (output.status.code(), printed, names.iter().map(row).collect())
}

// The results were written before the proof, and its release then refused to build from a checkout with changes.
#[test]
fn a_release_that_is_recorded_is_built_from_a_clean_checkout() {
    let checkout = proving();
    let (code, printed, rows) = prove(&checkout, &["mixed", "release"]);
    assert!(!printed.contains("a dirty checkout"), "{printed}");
    assert_eq!(rows, ["4 passed, 0 failed", "6 passed, 1 failed"], "{printed}");
    assert!(printed.ends_with("\n10 passed, 1 failed\n") && code == Some(1), "{code:?}: {printed}");
}

#[test]
fn a_proof_that_fails_is_counted_and_the_next_one_runs() {
    let checkout = proving();
    let (code, printed, rows) = prove(&checkout, &["pairs", "mixed"]);
    assert_eq!(rows, ["0 passed, 1 failed", "4 passed, 0 failed"], "{printed}");
    assert!(printed.ends_with("\n4 passed, 1 failed\n") && code == Some(1), "{code:?}: {printed}");
}
