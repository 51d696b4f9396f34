//! The runner.

mod file;
mod grade;
mod prepare;
mod seed;
mod send;
mod step;

use std::path::PathBuf;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Map, Value};

use crate::call::Caller;
use crate::error::Error;
use crate::redact::SHORTEST_SECRET;
use crate::report::Report;
use crate::storyboard::Storyboard;
use crate::wire::{Hold, Target};

/// What a run needs to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// The target's address: `http://HOST[:PORT][/PATH]` or `https://…`.
    pub target: String,
    /// Sent as a bearer token, or as it is where it names its scheme.
    pub auth: Option<String>,
    /// A second principal, for steps that ask for one.
    pub other_auth: Option<String>,
    /// Values that replace those of a file's `context`.
    pub set: Map<String, Value>,
    /// A shell command that restarts the target and ends when it is up again.
    pub restart: Option<String>,
    /// How long an answer may take.
    pub timeout: Duration,
    /// PEM certificates to trust instead of the web's.
    pub roots: Option<PathBuf>,
}

impl Options {
    /// The defaults for a target.
    pub fn new(target: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            auth: None,
            other_auth: None,
            set: Map::new(),
            restart: None,
            timeout: Duration::from_secs(30),
            roots: None,
        }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Steps that are done.
    pub done: usize,
    /// Steps in all files.
    pub total: usize,
    /// The step that comes next: its phase and its id.
    pub next: (&'a str, &'a str),
}

/// Runs storyboards against one target.
#[derive(Debug)]
pub struct Runner {
    options: Options,
    caller: Caller,
}

impl Runner {
    /// A runner for a target.
    ///
    /// # Errors
    /// The address is none, or the certificates cannot be read.
    pub fn new(options: Options) -> Result<Self, Error> {
        let roots = options.roots.as_ref().map(read_roots).transpose()?;
        let target = Target::new(&options.target, roots, options.timeout).map_err(Error::Target)?;
        Ok(Self { options, caller: Caller::new(target) })
    }

    /// Runs the files one after the other.
    ///
    /// Cancel-safe in that nothing is left running; what the target was asked to do stays done.
    ///
    /// # Errors
    /// Nobody answers at the target, or it does not speak the file's protocol. What a target answers wrongly is no
    /// error: it is in the report.
    pub async fn run(
        &self,
        storyboards: &[Storyboard],
        progress: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Result<Report, Error> {
        // Fail early, and once, where there is nobody.
        let open = self.caller.target().open(Hold::released()).await;
        drop(open.map_err(|error| Error::Target(error.to_string()))?);
        let count = |file: &Storyboard| file.phases.iter().map(|phase| phase.steps.len()).sum::<usize>();
        let total = storyboards.iter().map(count).sum();
        let mut done = 0;
        let mut files = Vec::new();
        for storyboard in storyboards {
            let tell =
                |within: usize, next: (&str, &str)| progress(Progress { done: done + within, total, next });
            files.push(file::run(self, storyboard, &tell).await?);
            done += count(storyboard);
        }
        Ok(Report::new(self.options.target.clone(), files))
    }

    /// What must not be shown, nor come back. A credential so short that it occurs by chance cannot be looked for.
    fn secrets(&self) -> Vec<String> {
        let given = [&self.options.auth, &self.options.other_auth];
        let bare = |text: &String| text.rsplit(' ').next().unwrap_or(text).to_owned();
        given.into_iter().flatten().map(bare).filter(|secret| secret.len() >= SHORTEST_SECRET).collect()
    }
}

fn read_roots(file: &PathBuf) -> Result<RootCertStore, Error> {
    let wrong = |why: String| Error::Setting(format!("{}: {why}", file.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| wrong(error.to_string()))? {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("expected at least one PEM certificate".to_owned()));
    }
    Ok(roots)
}
