//! Links lead to pages and headings that exist, and so do paths in the sources and commands in the text.

use std::collections::HashSet;
use std::path::Path;

use super::pages::{Page, files, pages, root};
use crate::kit::run;

/// The anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn anchors(page: &Page) -> HashSet<String> {
    page.prose()
        .filter(|line| line.starts_with('#'))
        .map(|line| anchor(line.trim_start_matches('#').trim()))
        .collect()
}

/// The targets of the links in a page.
fn links(page: &Page) -> Vec<&str> {
    page.prose().flat_map(|line| line.split("](").skip(1)).filter_map(|rest| rest.split(')').next()).collect()
}

#[test]
fn every_link_leads_to_a_page_and_a_heading() {
    let mut broken = Vec::new();
    let readmes = std::fs::read_dir(root().join("crates")).unwrap();
    let readmes = readmes.map(|entry| entry.unwrap().path().join("README.md")).filter(|path| path.exists());
    let readmes = readmes.map(|path| Page::read(path.strip_prefix(root()).unwrap().to_str().unwrap()));
    for page in pages().into_iter().chain(readmes) {
        let folder = root().join(&page.path).parent().unwrap().to_owned();
        for link in links(&page).into_iter().filter(|link| !link.contains("://")) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { root().join(&page.path) } else { folder.join(path) };
            let Ok(target) = target.canonicalize() else {
                broken.push(format!("{}: {link}", page.path));
                continue;
            };
            if !heading.is_empty() {
                let target = Page::read(target.strip_prefix(root()).unwrap().to_str().unwrap());
                if !anchors(&target).contains(heading) {
                    broken.push(format!("{}: {link}: no such heading", page.path));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_page_is_in_the_index() {
    let index = Page::read("docs/README.md");
    let listed: HashSet<&str> = links(&index).into_iter().collect();
    for page in pages() {
        let Some(path) = page.path.strip_prefix("docs/") else { continue };
        assert!(path == "README.md" || listed.contains(path), "docs/README.md does not list {path}");
    }
}

#[test]
fn the_sources_name_pages_that_exist() {
    let mut missing = Vec::new();
    let mut sources = files(&root().join("scripts"), &["sh"]);
    for name in ["test", "prove", "contract", "clients", "linters", "coverage", "release", "api"] {
        sources.push(root().join("scripts").join(name));
    }
    for part in std::fs::read_dir(root().join("crates")).unwrap() {
        sources.extend(files(&part.unwrap().path(), &["rs", "toml", "json", "yaml", "md"]));
    }
    sources.extend(pages().iter().map(|page| root().join(&page.path)));
    for source in sources {
        let text = std::fs::read_to_string(&source).unwrap();
        for (at, _) in text.match_indices("docs/") {
            let end = |letter: char| !(letter.is_ascii_alphanumeric() || "-_/.".contains(letter));
            let path = text[at..].split(end).next().unwrap_or_default().trim_end_matches('.');
            if path.ends_with(".md") && !root().join(path).exists() {
                missing.push(format!("{}: {path}", source.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// A newcomer finds the right file from ARCHITECTURE.md: its paths are below the repository, or below `crates`.
#[test]
fn the_architecture_names_files_that_exist() {
    let page = Page::read("ARCHITECTURE.md");
    let is_path = |span: &&str| {
        let ending = Path::new(span).extension().and_then(|ending| ending.to_str());
        let is_file = ending.is_some_and(|ending| ["rs", "md", "toml", "json", "yaml"].contains(&ending));
        !span.contains([' ', '…', '*']) && (is_file || span.ends_with('/'))
    };
    let spans = page.spans();
    let paths: Vec<&str> = spans.into_iter().filter(is_path).collect();
    assert!(paths.len() > 100, "{} paths", paths.len());
    let exists = |path: &str| root().join(path).exists() || root().join("crates").join(path).exists();
    let missing: Vec<&str> = paths.into_iter().filter(|path| !exists(path)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_architecture_describes_every_directory() {
    let text = Page::read("ARCHITECTURE.md").text;
    for part in std::fs::read_dir(root().join("crates")).unwrap() {
        let sources = part.unwrap().path().join("src");
        for entry in std::fs::read_dir(&sources).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root().join("crates")).unwrap().display().to_string();
            assert!(
                !path.is_dir() || text.contains(&format!("`{name}/`")),
                "ARCHITECTURE.md does not describe {name}/"
            );
        }
    }
}

/// A command in a sentence has the names and flags that the binary has.
#[test]
fn commands_in_sentences_exist() {
    let proofs = std::process::Command::new(root().join("scripts/prove")).output().unwrap();
    let proofs = String::from_utf8(proofs.stdout).unwrap();
    let mut wrong = Vec::new();
    let mut seen = HashSet::new();
    for page in pages() {
        for span in page.spans() {
            if !seen.insert(span.to_owned()) {
                continue;
            }
            let words: Vec<&str> = span.split_whitespace().collect();
            let is_known = match words[..] {
                ["semel", command, ref rest @ ..] if command.starts_with(char::is_lowercase) => {
                    let nested =
                        ["keys", "config", "events", "dlq", "runs", "store", "targets"].contains(&command);
                    let names: Vec<&str> = [command]
                        .into_iter()
                        .chain(rest.iter().copied().filter(|_| nested).take(1))
                        .collect();
                    let help = run(&[names.as_slice(), &["--help"]].concat());
                    let text = String::from_utf8_lossy(&help.stdout).into_owned();
                    let flags = rest.iter().filter(|word| word.starts_with("--"));
                    help.status.success() && flags.into_iter().all(|flag| text.contains(flag))
                }
                ["./scripts/prove", name] => proofs.lines().any(|line| line.starts_with(&format!("{name} "))),
                [script] if script.starts_with("./scripts/") => root().join(script).exists(),
                ["cargo", "bench" | "run", "-p", package, ref rest @ ..] => {
                    let folder = root().join("crates").join(package);
                    let named =
                        rest.iter().skip_while(|word| !["--bench", "--example"].contains(word)).nth(1);
                    named.is_some_and(|name| {
                        ["benches", "examples"].iter().any(|kind| {
                            let path = folder.join(kind).join(name);
                            path.is_dir() || path.with_extension("rs").exists()
                        })
                    })
                }
                _ => true,
            };
            if !is_known {
                wrong.push(format!("{}: {span}", page.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
