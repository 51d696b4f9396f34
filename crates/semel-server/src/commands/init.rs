//! `semel init`: writes a small config file that starts. It asks on a terminal; scripts use flags.

use std::fs::OpenOptions;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use semel_http::profile::Profile;
use serde_json::json;

use super::screen::{ask, write_line};
use super::store::has_password;
use crate::cli::ServeArgs;
use crate::config::{Config, Environment};
use crate::misused::Misused;

#[derive(Clone, Debug, Args)]
pub(crate) struct InitArgs {
    /// The API to protect [default: http://127.0.0.1:3000]
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Store of the records: memory:, embedded:PATH, redis://…, postgres://… [default: embedded:./semel-data]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Dialect of the clients [default: ietf]
    #[arg(long, value_name = "P", value_parser = Profile::NAMES.to_vec())]
    profile: Option<String>,
    /// The file to write; - prints it
    #[arg(long, short, value_name = "FILE", default_value = "semel.toml")]
    output: PathBuf,
    /// Overwrite the file
    #[arg(long)]
    force: bool,
    /// Do not ask: use the defaults for everything that no flag sets
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a user is asked.
#[derive(Clone, Copy)]
enum Setting {
    Upstream,
    Store,
    Profile,
}

/// The variable for a store URL with a password.
const STORE_VARIABLE: &str = "SEMEL_STORE_URL";

/// Runs the command.
///
/// # Errors
/// A value that no server accepts, or a file that exists or cannot be written.
pub(crate) fn run(args: &InitArgs) -> anyhow::Result<()> {
    let is_printed = args.output == Path::new("-");
    if !is_printed && !args.force && args.output.exists() {
        return Err(exists(&args.output).into());
    }
    let is_asked = !args.yes && std::io::stdin().is_terminal();
    if !is_asked && !args.yes && args.upstream.is_none() {
        let what = "standard input is not a terminal: set --upstream, or --yes for the defaults";
        return Err(Misused::new(what).into());
    }
    let value = |setting: Setting, given: Option<&String>| match given {
        Some(given) => setting.check(given).map(|()| given.clone()).map_err(anyhow::Error::from),
        None if is_asked => setting.ask(),
        None => Ok(setting.default().to_owned()),
    };
    let upstream = value(Setting::Upstream, args.upstream.as_ref())?;
    let store = value(Setting::Store, args.store.as_ref())?;
    let profile = value(Setting::Profile, args.profile.as_ref())?;

    let text = file(&upstream, &store, &profile);
    // What starts a server is the file, not its parts.
    let given = |name: &str| (name == STORE_VARIABLE).then(|| store.clone());
    Config::parse(&args.output.display().to_string(), &text, &ServeArgs::default(), &Environment(&given))?;
    if is_printed {
        return write_line(text.trim_end());
    }
    write(&args.output, &text, args.force)?;
    let shown = args.output.display();
    let variables: &[&str] = if has_password(&store) { &[STORE_VARIABLE] } else { &[] };
    if args.json {
        return write_line(&json!({ "file": shown.to_string(), "variables": variables }).to_string());
    }
    write_line(&format!("{shown} is written."))?;
    if !variables.is_empty() {
        write_line(&format!("The password stays out of it: set {STORE_VARIABLE} to the URL of the store."))?;
    }
    write_line(&format!("Start the server with `semel serve --config {shown}`."))
}

fn exists(file: &Path) -> Misused {
    Misused::new(format!(
        "{} exists: overwrite it with --force, or write another file with --output",
        file.display()
    ))
}

fn write(file: &Path, text: &str, force: bool) -> anyhow::Result<()> {
    let opened = OpenOptions::new().write(true).create(true).create_new(!force).truncate(force).open(file);
    match opened.and_then(|mut opened| opened.write_all(text.as_bytes())) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(exists(file).into()),
        written => written.with_context(|| file.display().to_string()),
    }
}

impl Setting {
    fn default(self) -> &'static str {
        match self {
            Self::Upstream => "http://127.0.0.1:3000",
            Self::Store => "embedded:./semel-data",
            Self::Profile => "ietf",
        }
    }

    fn question(self) -> String {
        let question = match self {
            Self::Upstream => "The API to protect".to_owned(),
            Self::Store => "The store: memory:, embedded:PATH, redis://HOST:PORT, postgres://…".to_owned(),
            Self::Profile => format!("The dialect of its clients: {}", Profile::NAMES.join(", ")),
        };
        format!("{question} [{}]: ", self.default())
    }

    /// Asks until the answer is valid. An empty line is the default.
    fn ask(self) -> anyhow::Result<String> {
        loop {
            let said = ask(&self.question())?;
            let said = if said.is_empty() { self.default().to_owned() } else { said };
            match self.check(&said) {
                Ok(()) => return Ok(said),
                Err(wrong) => eprintln!("{wrong}"),
            }
        }
    }

    /// The mistake in a value, as `semel serve` reports it for the flag of this name.
    fn check(self, value: &str) -> Result<(), crate::config::Invalid> {
        let mut flags =
            ServeArgs { upstream: Some(Self::Upstream.default().to_owned()), ..ServeArgs::default() };
        let flag = match self {
            Self::Upstream => &mut flags.upstream,
            Self::Store => &mut flags.store,
            Self::Profile => &mut flags.profile,
        };
        *flag = Some(value.to_owned());
        Config::parse("the flags", "", &flags, &Environment(&|_| None)).map(drop)
    }
}

/// The file. Values are checked, and a text of JSON is a text of TOML.
fn file(upstream: &str, store: &str, profile: &str) -> String {
    let [upstream, profile] = [upstream, profile].map(|value| json!(value).to_string());
    let store = if has_password(store) {
        format!("{{ env = \"{STORE_VARIABLE}\" }}")
    } else {
        json!(store).to_string()
    };
    format!(
        r#"# Settings of `semel serve --config`. `semel config example` prints all of them with their defaults,
# `semel config check FILE` finds mistakes in this file, and `semel config check --production FILE` what a public server lacks.

[gateway]
listen = "127.0.0.1:8080"               # clients send their requests here
upstream = {upstream}
profile = {profile}

[admin]
listen = "127.0.0.1:8081"               # the admin API and the metrics; `semel status` asks it

[store]
url = {store}

# Without routes, every POST and PATCH with a key is guarded. A route changes the settings of matching requests:
# [[route]]
# match = "POST /v1/payments"
# key = {{ header = "Idempotency-Key", required = true }}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_found() {
        for (url, expected) in [
            ("postgres://user:pw@h/db", true),
            ("redis://:pw@h:6379", true),
            ("postgres://user@h/db", false),
            ("redis://h:6379/0", false),
            ("embedded:./a:b@c", false),
            ("postgres://h/db?password=a@b:c", true),
            ("postgres://h/db?sslmode=require&password=pw", true),
            ("postgres://user@h/db?sslmode=require", false),
        ] {
            assert_eq!(has_password(url), expected, "{url}");
        }
    }

    // Every profile with every kind of store, as `semel serve` reads it.
    #[test]
    fn every_file_is_accepted_and_holds_no_password() {
        for profile in Profile::NAMES {
            for store in [
                "memory:",
                "embedded:./semel-data",
                "redis://h:6379",
                "postgres://user:hidden@h/db",
                "postgres://h/db?user=user&password=hidden",
            ] {
                let text = file("http://127.0.0.1:3000", store, profile);
                assert!(!text.contains("hidden"));
                let given = |name: &str| (name == STORE_VARIABLE).then(|| store.to_owned());
                Config::parse("semel.toml", &text, &ServeArgs::default(), &Environment(&given)).unwrap();
            }
        }
    }
}
