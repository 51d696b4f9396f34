//! The stores that a command names: by URL, or by the config file of their servers.

use std::sync::Arc;

use semel::secret::Secret;
use semel::store::transfer::TransferStore;

use crate::cli::ServeArgs;
use crate::config::{Config, EXPECTED_STORES, Loss, PROCESS, Records, StoreUrl};
use crate::misused::Misused;
use crate::store;

/// A store that is not open yet.
pub(super) struct StorePlace {
    records: Records,
    secret: Option<Secret>,
}

impl StorePlace {
    /// Reads a URL or a config file. A config file also says which secret the servers have, and what they do after a
    /// loss of data. For a URL the safe choice counts.
    pub(super) fn read(text: &str) -> anyhow::Result<Self> {
        if is_url(text) && !is_store(text) {
            return Err(Misused::new(format!("{}: {EXPECTED_STORES}", shown(text))).into());
        }
        let args = match is_url(text) {
            true => ServeArgs { store: Some(text.to_owned()), ..ServeArgs::default() },
            false => ServeArgs { config: Some(text.into()), ..ServeArgs::default() },
        };
        let Config { mut records, secret, .. } = Config::load(&args, &PROCESS)?;
        match &mut records.place {
            StoreUrl::Memory => {
                return Err(Misused::new("memory: is a store of one process, and lost with it").into());
            }
            StoreUrl::Redis { on_store_loss, .. } if is_url(text) => *on_store_loss = Loss::Refuse,
            _ => {}
        }
        Ok(Self { records, secret })
    }

    /// The secret of the config file, if it has one.
    pub(super) fn secret(&self) -> Option<Secret> {
        self.secret.clone()
    }

    /// The folder of an embedded store.
    pub(super) fn folder(&self) -> Option<&std::path::Path> {
        match &self.records.place {
            StoreUrl::Embedded { folder, .. } => Some(folder),
            _ => None,
        }
    }

    /// Opens the store itself, without anything in front of it.
    pub(super) async fn open(&self) -> anyhow::Result<Arc<dyn TransferStore>> {
        store::open_for_transfer(&self.records).await
    }
}

/// True for a URL, also one of no store: it may have a password. Every other text is a path.
fn is_url(text: &str) -> bool {
    text.contains("://") || is_store(text)
}

/// True for the URL of a store.
fn is_store(text: &str) -> bool {
    let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
    matches!(scheme, "memory" | "embedded" | "unix" | "postgres" | "postgresql")
        || scheme.starts_with("redis")
}

/// The text as an error may show it: without a password.
pub(in crate::commands) fn shown(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (place, parameters) = match rest.split_once('?') {
        // Either may be part of a password.
        Some((_, parameters)) if parameters.contains('@') => return format!("{scheme}://…"),
        Some((place, parameters)) => (place, Some(parameters)),
        None => (rest, None),
    };
    let place = place.rsplit_once('@').map_or_else(|| place.to_owned(), |(_, host)| format!("…@{host}"));
    let Some(parameters) = parameters else { return format!("{scheme}://{place}") };
    let shown = parameters.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}=…"),
        _ => parameter.to_owned(),
    });
    format!("{scheme}://{place}?{}", shown.collect::<Vec<_>>().join("&"))
}

/// True if a URL has a password: before the host, or in a parameter.
pub(in crate::commands) fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let (place, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    place.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
        || parameters
            .split('&')
            .filter_map(|parameter| parameter.split_once('='))
            .any(|(name, _)| is_secret(name))
}

/// True for the parameters that hold a password, and for an encoded name, which may be one of them.
fn is_secret(parameter: &str) -> bool {
    let name = parameter.to_ascii_lowercase();
    name.contains('%') || matches!(name.as_str(), "password" | "pass" | "sslpassword")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_files_are_told_apart_and_passwords_are_not_shown() {
        for url in ["embedded:./data", "redis://h", "rediss-cluster://h", "postgres://u:p@h/db", "memory:"] {
            assert!(is_url(url), "{url}");
        }
        // A misspelt one is not read as a file, whose path an error would show.
        for url in ["postgress://u:p@h/db", "mysql://h"] {
            assert!(is_url(url) && !is_store(url), "{url}");
        }
        for file in ["semel.toml", "./old.toml", "/etc/semel/new.toml"] {
            assert!(!is_url(file), "{file}");
        }
        assert_eq!(shown("postgres://semel:secret@db:5432/app"), "postgres://…@db:5432/app");
        assert_eq!(shown("embedded:./data"), "embedded:./data");
        let url = "postgres://db/app?user=semel&password=ge%20heim&sslmode=require";
        assert_eq!(shown(url), "postgres://db/app?user=semel&password=…&sslmode=require");
        assert_eq!(shown("postgres://u:p@db/app?p%61ssword=x"), "postgres://…@db/app?p%61ssword=…");
        assert_eq!(shown("postgres://db/app?password=a@b"), "postgres://…");
        for url in [url, "postgres://u:p@db/app", "redis://:p@h", "postgres://db/app?Password=x"] {
            assert!(has_password(url), "{url}");
        }
        for url in ["postgres://u@db/app?sslmode=require", "redis://h:6379", "embedded:./a:b@c"] {
            assert!(!has_password(url), "{url}");
        }
    }
}
