//! The pages of the documentation, taken apart.

use std::path::{Path, PathBuf};

/// The folder of the repository.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A page.
pub(super) struct Page {
    /// Its path below the repository.
    pub(super) path: String,
    pub(super) text: String,
    pub(super) blocks: Vec<Block>,
    needs: Vec<String>,
}

/// A fenced block.
#[derive(Default)]
pub(super) struct Block {
    pub(super) language: String,
    pub(super) text: String,
    /// Shell to run before it.
    pub(super) before: Vec<String>,
    pub(super) is_skipped: bool,
}

/// Every page: those of the repository's folder, all of `docs`, and what the registry shows of the binary.
pub(super) fn pages() -> Vec<Page> {
    let mut pages = files(&root().join("docs"), &["md"]);
    for name in [
        "README",
        "ARCHITECTURE",
        "CONTRIBUTING",
        "RELEASING",
        "SECURITY",
        "CHANGELOG",
        "crates/semel-server/README",
    ] {
        pages.push(root().join(name).with_extension("md"));
    }
    let named = |path: PathBuf| Page::read(path.strip_prefix(root()).unwrap().to_str().unwrap());
    pages.into_iter().map(named).collect()
}

/// The files below a folder with one of these extensions, in order.
pub(super) fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extensions));
        } else if path.extension().is_some_and(|ending| extensions.iter().any(|known| ending == *known)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

impl Page {
    pub(super) fn read(path: &str) -> Self {
        let text =
            std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut page =
            Self { path: path.to_owned(), text: text.clone(), blocks: Vec::new(), needs: Vec::new() };
        let mut block = Block::default();
        let (mut in_block, mut in_comment) = (false, false);
        for line in text.lines() {
            if in_comment {
                in_comment = line != "-->";
                if in_comment {
                    block.before.push(line.to_owned());
                }
            } else if in_block {
                if line == "```" {
                    page.blocks.push(std::mem::take(&mut block));
                    in_block = false;
                } else {
                    block.text += line;
                    block.text.push('\n');
                }
            } else if line == "<!-- test" {
                in_comment = true;
            } else if line.starts_with("<!-- test skip: ") {
                block.is_skipped = true;
            } else if let Some(server) = line.strip_prefix("<!-- needs ") {
                page.needs.push(server.trim_end_matches(" -->").to_owned());
            } else if let Some(language) = line.strip_prefix("```") {
                language.clone_into(&mut block.language);
                in_block = true;
            }
        }
        assert!(!in_block && !in_comment, "{path}: a block or comment does not end");
        if !block.before.is_empty() {
            // Commands after the last block, which check what it did.
            page.blocks.push(block);
        }
        page
    }

    /// Whether it wants this server.
    pub(super) fn needs(&self, server: &str) -> bool {
        self.needs.iter().any(|named| named == server)
    }

    /// Its lines outside of blocks and comments.
    pub(super) fn prose(&self) -> impl Iterator<Item = &str> {
        let mut in_block = false;
        let mut in_comment = false;
        self.text.lines().filter(move |line| {
            in_comment |= line.starts_with("<!--");
            let inside = in_block || in_comment;
            in_comment &= !line.ends_with("-->");
            let is_fence = line.starts_with("```");
            in_block ^= is_fence;
            !inside && !is_fence
        })
    }

    /// What stands between backticks in its prose.
    pub(super) fn spans(&self) -> Vec<&str> {
        self.prose().flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
    }
}
