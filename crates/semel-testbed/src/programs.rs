//! Finds the programs of the servers.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Error, Result, process::run};

/// The path of the program, if a folder of `PATH` contains it.
pub(crate) fn on_path(program: &str, package: &'static str) -> Result<PathBuf> {
    path_folders()
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .ok_or_else(|| Error::Missing { program: program.to_owned(), package })
}

/// The programs of one PostgreSQL version.
#[derive(Clone, Debug)]
pub(crate) struct PostgresPrograms {
    folder: PathBuf,
    /// The output of `postgres --version`, such as `postgres (PostgreSQL) 15.13`.
    pub(crate) version: String,
}

impl PostgresPrograms {
    /// The newest version on this machine: on `PATH`, or where packages install it.
    pub(crate) fn newest() -> Result<Self> {
        let packages = ["/usr/lib/postgresql", "/opt/homebrew/opt", "/usr/local/opt"];
        let packaged = packages.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
        let packaged = packaged.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
        path_folders()
            .chain(packaged)
            .filter(|folder| folder.join("initdb").is_file())
            .filter_map(|folder| {
                let postgres = folder.join("postgres").canonicalize().ok()?;
                let version = run(Command::new(&postgres).arg("--version")).ok()?.trim().to_owned();
                Some(Self { folder: postgres.parent().map(Path::to_owned)?, version })
            })
            .max_by_key(|found| numbers(&found.version))
            .ok_or_else(|| missing("postgres"))
    }

    /// One of its programs; clients such as `psql` may be only on `PATH`.
    pub(crate) fn path(&self, program: &str) -> Result<PathBuf> {
        let own = self.folder.join(program);
        if own.is_file() { Ok(own) } else { on_path(program, "postgresql").map_err(|_| missing(program)) }
    }
}

fn missing(program: &str) -> Error {
    Error::Missing { program: program.to_owned(), package: "postgresql" }
}

fn path_folders() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).collect::<Vec<_>>().into_iter()
}

/// The major and minor version, for comparisons.
fn numbers(version: &str) -> Vec<u32> {
    let numeric = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
    let word = version.split_whitespace().find(numeric).unwrap_or_default();
    word.split('.').map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::{numbers, on_path};

    #[test]
    fn a_missing_program_is_named_with_the_script_and_the_package() {
        let error = on_path("no-such-server", "redis-server").expect_err("nobody has it").to_string();
        for word in ["`no-such-server`", "`./scripts/test`", "`redis-server`"] {
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert!(
            numbers("postgres (PostgreSQL) 15.13 (Debian 15.13-0)") > numbers("postgres (PostgreSQL) 9.6")
        );
        assert!(numbers("postgres (PostgreSQL) 15.13") > numbers("postgres (PostgreSQL) 15.4"));
    }
}
