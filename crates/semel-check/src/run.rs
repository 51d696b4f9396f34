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

use crate::call::TargetCaller;
use crate::error::Error;
use crate::redact::{SHORTEST_SECRET, is_secret, shown_address};
use crate::report::Report;
use crate::storyboard::Storyboard;
use crate::wire::{CheckedTarget, SharedHalves};

/// Timeout for an answer, by default.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The target's address: `http://HOST[:PORT][/PATH]` or `https://…`.
    pub target: String,
    /// A bearer token; sent unchanged if it names its scheme.
    pub auth: Option<String>,
    /// Credential of a second principal, for steps that need one.
    pub other_auth: Option<String>,
    /// Values that override those of a file's `context`.
    pub set: Map<String, Value>,
    /// A shell command that restarts the target and returns when it is up again.
    pub restart: Option<String>,
    /// Headers of every HTTP request, unless the file writes them itself.
    pub headers: Vec<(String, String)>,
    /// The header that carries keys, instead of `Idempotency-Key`.
    pub key_header: Option<String>,
    /// How `body` is written.
    pub body_format: BodyFormat,
    /// Timeout for an answer. If it is longer than the default, also for all answers of a race.
    pub timeout: Duration,
    /// PEM certificates to trust instead of the public roots.
    pub roots: Option<PathBuf>,
}

impl RunOptions {
    /// The defaults for a target.
    pub fn new(target: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            auth: None,
            other_auth: None,
            set: Map::new(),
            restart: None,
            headers: Vec::new(),
            key_header: None,
            body_format: BodyFormat::Json,
            timeout: DEFAULT_TIMEOUT,
            roots: None,
        }
    }
}

/// How the body of a request is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BodyFormat {
    /// As JSON.
    #[default]
    Json,
    /// Its members as `application/x-www-form-urlencoded`; nested ones as `a[b]=c`.
    Form,
    /// A string as it is, with this content type.
    Raw(String),
}

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Number of finished steps.
    pub done: usize,
    /// Number of steps in all files.
    pub total: usize,
    /// Phase and id of the next step.
    pub next: (&'a str, &'a str),
}

/// Runs storyboards against one target.
#[derive(Debug)]
pub struct Runner {
    options: RunOptions,
    caller: TargetCaller,
}

impl Runner {
    /// A runner for a target.
    ///
    /// # Errors
    /// An invalid address, or certificates that cannot be read.
    pub fn new(options: RunOptions) -> Result<Self, Error> {
        let names = options.headers.iter().map(|(name, _)| name).chain(&options.key_header);
        for name in names {
            if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
                return Err(Error::Setting(format!("{name:?} is not a header name")));
            }
        }
        let roots = options.roots.as_ref().map(read_roots).transpose()?;
        let target = CheckedTarget::new(&options.target, roots, options.timeout).map_err(Error::Target)?;
        Ok(Self { options, caller: TargetCaller::new(target) })
    }

    /// Runs the files one after the other.
    ///
    /// Cancel-safe: nothing keeps running. The effects on the target stay.
    ///
    /// # Errors
    /// Nothing answers at the target, or it does not support the file's protocol. A wrong answer is not an error: it is in the report.
    pub async fn run(
        &self,
        storyboards: &[Storyboard],
        progress: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Result<Report, Error> {
        self.refuse_unknown_values(storyboards)?;
        // Fails early if the target does not answer.
        let open = self.caller.target().open(SharedHalves::released()).await;
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
        Ok(Report::new(shown_address(&self.options.target), files))
    }

    /// A misspelt name would silently test something else.
    fn refuse_unknown_values(&self, storyboards: &[Storyboard]) -> Result<(), Error> {
        for name in self.options.set.keys() {
            let known =
                |file: &Storyboard| file.context.contains_key(name) || file.used_values.contains(name);
            if storyboards.iter().any(known) {
                continue;
            }
            let mut known: Vec<&str> =
                storyboards.iter().flat_map(|file| file.context.keys()).map(String::as_str).collect();
            known.sort_unstable();
            known.dedup();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Error::Setting(format!("--set {name}: no such value; the values are: {known}")));
        }
        Ok(())
    }

    /// Values that must not be shown or returned. A very short credential is skipped, because it would match by chance.
    fn secrets(&self) -> Vec<String> {
        let given = [&self.options.auth, &self.options.other_auth];
        let bare = |text: &String| text.rsplit(' ').next().unwrap_or(text).to_owned();
        let headers = self.options.headers.iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value);
        given
            .into_iter()
            .flatten()
            .chain(headers)
            .map(bare)
            .filter(|secret| secret.len() >= SHORTEST_SECRET)
            .collect()
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
