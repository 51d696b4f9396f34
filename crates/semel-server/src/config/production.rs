//! `semel config check --production`: settings that a server on a public network lacks. Each message names the setting, the reason, and
//! the fix.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use semel::store::Plain;
use semel_http::policy::StoreDown;
use semel_http::{RoutePolicy, Scope};
use toml::de::{DeTable, DeValue};

use super::certificate::Certificate;
use super::{Config, GatewayConfig, StoreUrl, transport};

/// The missing settings; empty if the config is fit for production. `text` is the content of the file, `path` its location.
pub(super) fn gaps(config: &Config, path: &Path, text: &str) -> Vec<String> {
    let mut gaps = Vec::new();
    let mut add = |gap: &str| gaps.push(gap.to_owned());
    if config.secret.is_none() {
        add(
            "secret: not set; the store keeps the deployment's secret beside the data it protects; set secret = { file = … }",
        );
    }
    admin(config, &mut add);
    if let Some(gateway) = &config.gateway {
        of_gateway(gateway, &mut add);
    }
    store(config, &mut add);
    for target in &config.pipeline.targets {
        let name = &target.name;
        let security = &target.security;
        if let Some(host) = &security.plain_host {
            add(&format!(
                "[[target]] {name:?} url: http:// to {host}; payloads and tokens can be read on the way; use https://"
            ));
        }
        if !security.authenticated {
            add(&format!(
                "[[target]] {name:?} secret: not set; the receiver cannot tell who sent a delivery; set secret or bearer"
            ));
        }
        if security.allow_link_local {
            add(&format!(
                "[[target]] {name:?} allow_link_local: true; a name that resolves to the cloud's metadata service would be \
                 called; remove it"
            ));
        }
    }
    if config.log.level > tracing::Level::INFO {
        add(
            "[log] level: debug or trace; every request writes lines, and clients can fill the disk; set level = \"info\"",
        );
    }
    gaps.extend(transport::gaps(config));
    permissions(config, path, text, &mut gaps);
    gaps
}

fn admin(config: &Config, add: &mut impl FnMut(&str)) {
    if config.tokens.is_empty() {
        add("[[token]]: none; every process on this machine has the role admin; add a token for each caller");
    }
    if config.admin.listen.ip().is_loopback() {
        return;
    }
    match &config.admin.tls {
        None => add(
            "[admin] tls: not set; tokens can be read on the way; set tls = { cert = …, key = …, client_ca = … }",
        ),
        Some(Certificate { client_ca: None, .. }) => add(
            "[admin] tls.client_ca: not set; a stolen token is enough to forget keys from anywhere; set client_ca, or \
             listen on 127.0.0.1",
        ),
        Some(_) => {}
    }
}

fn of_gateway(gateway: &GatewayConfig, add: &mut impl FnMut(&str)) {
    if gateway.tls.is_none() && !gateway.listen.ip().is_loopback() {
        add(
            "[gateway] tls: not set; credentials, keys and answers can be read on the way; set tls = { cert = …, key = … }",
        );
    }
    if gateway.hosts.is_empty() && !gateway.listen.ip().is_loopback() {
        add(
            "[gateway] hosts: not set; requests under any host name reach the upstream; set hosts = [\"api.example.com\"]",
        );
    }
    if matches!(gateway.scope, Scope::SingleTenant) {
        add(
            "[gateway] scope: single-tenant; a client that knows another's key gets the other's answer; set \
             scope = \"authorization\" or \"jwt:CLAIM\"",
        );
    }
    for route in &gateway.routes {
        if matches!(route.scope(), Some(Scope::SingleTenant)) {
            add(&format!(
                "{} scope: single-tenant; a client that knows another's key gets the other's answer; remove it",
                route.pattern()
            ));
        }
    }
    let scopes = std::iter::once(&gateway.scope).chain(gateway.routes.iter().filter_map(RoutePolicy::scope));
    for scope in scopes {
        if scope.is_freely_chosen() {
            add("[gateway] scope: made of headers that a client chooses; a client can pose as another; add \
                 \"authorization\" or \"jwt:CLAIM\"");
        }
        if scope.takes_any_token() {
            add(
                "[gateway] scope: tokens of any issuer and audience are accepted; set issuer or audience in [gateway.jwt]",
            );
        }
    }
    for route in
        gateway.routes.iter().chain([&gateway.fallback]).filter(|route| !route.uncompared().is_empty())
    {
        add(&format!(
            "{} fingerprint_headers_exclude: requests of two accounts can share one answer; remove it",
            route.pattern()
        ));
    }
    let named = gateway.upstreams.iter().map(|(_, upstream)| upstream);
    for upstream in std::iter::once(&gateway.upstream).chain(named).filter(|upstream| !upstream.is_tls()) {
        for host in transport::hosts(&upstream.to_string()).iter().filter(|host| !transport::is_local(host)) {
            add(&format!(
                "[gateway] upstream: http:// to {host}; requests and credentials can be read on the way; use https://"
            ));
        }
    }
    for route in gateway.routes.iter().chain([&gateway.fallback]) {
        if route.passes_ambiguous() {
            add(&format!(
                "{} ambiguous: allow; a path that the upstream reads differently can pass without a key; remove it",
                route.pattern()
            ));
        }
        if route.store_down() == StoreDown::Open {
            add(&format!(
                "{} store_down: open; while the store is unavailable, retries run their effect again; set \
                 store_down = \"closed\"",
                route.pattern()
            ));
        }
    }
}

fn store(config: &Config, add: &mut impl FnMut(&str)) {
    if matches!(config.records.place, StoreUrl::Memory) {
        add(
            "[store] url: memory:; a restart forgets every key, and retries run again; set url = \"embedded:PATH\" or a server's",
        );
    }
    if config.records.limits.max_bytes.is_none() {
        add("[store] max_bytes: not set; invented keys can fill the store; set max_bytes = \"20GiB\"");
    }
    if config.records.limits.new_keys.is_none() {
        add(
            "[store] new_keys_per_second: 0; invented keys are taken at any rate; set new_keys_per_second = 10000",
        );
    }
    match &config.sealing {
        None => {
            add("[store.encryption]: not set; answers can be read from the store's files or a backup; add \
             [[store.encryption.key]]");
        }
        Some(sealing) if sealing.plain == Plain::Read => add(
            "[store.encryption] plain: read; unencrypted outcomes are accepted; set plain = \"refuse\" one \
             retention after encryption was enabled",
        ),
        Some(_) => {}
    }
    if config.pipeline.ledger.is_none() {
        add(
            "[ledger] url: not set; changes by operators are only in the log, not in a durable audit log; set url = \
             \"embedded:PATH\" or \"postgres://…\"",
        );
    }
}

/// Files that other users of the machine could read or change.
fn permissions(config: &Config, path: &Path, text: &str, gaps: &mut Vec<String>) {
    let mut check = |file: &Path, forbidden: u32, what: &str, way_out: &str| {
        // A missing file is reported elsewhere, or is created when it is needed.
        let Ok(found) = fs::metadata(file) else { return };
        let mode = found.permissions().mode() & 0o777;
        if mode & forbidden != 0 {
            gaps.push(format!("{}: mode {mode:04o}; {what}; {way_out}", file.display()));
        }
    };
    check(path, 0o022, "others can change the configuration", "chmod 0644 or less");
    let gateway = config.gateway.as_ref().and_then(|gateway| gateway.tls.as_ref());
    for certificate in [gateway, config.admin.tls.as_ref()].into_iter().flatten() {
        check(&certificate.key, 0o037, "others can read the private key", "chmod 0600, or 0640 for a group");
    }
    for file in secret_files(text) {
        check(&file, 0o037, "others can read the secret", "chmod 0600, or 0640 for a group");
    }
    if let StoreUrl::Embedded { folder, .. } = &config.records.place {
        check(folder, 0o077, "others can read the store", "chmod 0700");
    }
}

/// The files of secrets: all `{ file = "…" }` of the config.
fn secret_files(text: &str) -> Vec<PathBuf> {
    fn walk(table: &DeTable<'_>, files: &mut Vec<PathBuf>) {
        for (name, value) in table.iter() {
            match value.get_ref() {
                DeValue::String(path) if name.get_ref() == "file" => files.push(PathBuf::from(path.as_ref())),
                DeValue::Table(inner) => walk(inner, files),
                DeValue::Array(items) => {
                    let tables = items.iter().filter_map(|item| item.get_ref().as_table());
                    tables.for_each(|inner| walk(inner, files));
                }
                _ => {}
            }
        }
    }
    let mut files = Vec::new();
    if let Ok(table) = DeTable::parse(text) {
        walk(table.get_ref(), &mut files);
    }
    files
}
