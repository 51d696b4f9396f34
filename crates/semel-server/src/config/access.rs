//! Access to the admin API: its listener and its tokens.

use std::fmt;
use std::net::SocketAddr;

use super::certificate::Certificate;
use super::loopback;
use super::reader::Table;
use super::secrets::{self, Environment};
use super::values::{address, choice, parse_address, text, texts};
use crate::cli::ServeArgs;

/// The admin listener.
#[derive(Clone, Debug)]
pub(crate) struct AdminListener {
    pub(crate) listen: SocketAddr,
    /// Host names under which it may be called, in addition to those of loopback.
    pub(crate) hosts: Vec<String>,
    pub(crate) tls: Option<Certificate>,
}

/// A shorter token could be guessed.
const SHORTEST_TOKEN: usize = 32;

/// A token for the admin API.
#[derive(Clone)]
pub(crate) struct AdminToken {
    /// The principal of its actions.
    pub(crate) name: String,
    pub(crate) role: Role,
    /// Restricts its claims to one tenant.
    pub(crate) tenant: Option<String>,
    pub(crate) value: String,
}

/// The permissions of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// Read.
    Viewer,
    /// Read, settle and forget.
    Operator,
    /// Everything.
    Admin,
    /// Claim keys, publish events and trigger runs.
    Producer,
}

impl Role {
    pub(crate) const NAMES: [(&'static str, Self); 4] = [
        ("viewer", Self::Viewer),
        ("operator", Self::Operator),
        ("admin", Self::Admin),
        ("producer", Self::Producer),
    ];
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, role)| role == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

pub(super) fn tokens(root: &mut Table<'_>, environment: &Environment<'_>) -> Vec<AdminToken> {
    let problems = root.problems();
    let mut tokens: Vec<AdminToken> = Vec::new();
    for mut table in root.tables("token") {
        let name = table.need_located("name", text);
        let role = table.need("role", choice(&Role::NAMES));
        let tenant = table.located("tenant", text);
        if !table.has("value") {
            problems.at(&table.span(), "[[token]] needs `value`, as in { env = \"NAME\" }");
        }
        let value = secrets::read(&mut table, "value", environment);
        table.done();
        let (Some(name), Some(role), Some((value, span))) = (name, role, value) else { continue };
        if value.len() < SHORTEST_TOKEN {
            problems.at(
                &span,
                format!(
                    "value: the token is shorter than {SHORTEST_TOKEN} bytes and could be guessed; generate one with \
                     `openssl rand -hex 32`"
                ),
            );
        }
        if tokens.iter().any(|other| other.name == name.value) {
            let taken =
                format!("name: {:?} is taken by another token; names identify callers in logs", name.value);
            problems.at(&name.span, taken);
        }
        if tokens.iter().any(|other| other.value == value) {
            problems.at(&span, "value: another token has the same value");
        }
        if let Some(tenant) = tenant.as_ref().filter(|_| role != Role::Producer) {
            let why = format!("tenant: goes with the role producer; a {role} sees the keys of all tenants");
            problems.at(&tenant.span, why);
        }
        tokens.push(AdminToken { name: name.value, role, tenant: tenant.map(|tenant| tenant.value), value });
    }
    tokens
}

impl AdminListener {
    pub(super) fn read(root: &mut Table<'_>, args: &ServeArgs, tokens: &[AdminToken]) -> Self {
        let problems = root.problems();
        let mut admin = Self { listen: loopback(8081), hosts: Vec::new(), tls: None };
        let mut written = None;
        if let Some(mut table) = root.table("admin") {
            if let Some(listen) = table.located("listen", address) {
                admin.listen = listen.value;
                written = Some(listen.span);
            }
            admin.hosts = table.get("hosts", texts).unwrap_or_default();
            admin.tls = Certificate::read(&mut table);
            table.done();
        }
        if let Some(flag) = &args.admin {
            written = None;
            match parse_address(flag) {
                Ok(listen) => admin.listen = listen,
                Err(expected) => problems.flag("--admin", expected),
            }
        }
        // Without tokens the admin API is for local callers only.
        if tokens.is_empty() && !admin.listen.ip().is_loopback() {
            let why = format!(
                "the admin API may not listen on {} without tokens: any caller could remove records; \
                 listen on 127.0.0.1, or add [[token]] entries",
                admin.listen.ip()
            );
            match written {
                Some(span) => problems.at(&span, why),
                None => problems.flag("--admin", why),
            }
        }
        admin
    }

    /// Warnings about settings that weaken a promise.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let open = self.tls.is_none() && !self.listen.ip().is_loopback();
        let warning = format!(
            "the admin API listens on {} without TLS: others on the network can read tokens, requests and answers; set \
             tls in [admin]",
            self.listen
        );
        open.then_some(warning).into_iter().collect()
    }
}
