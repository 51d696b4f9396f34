//! Who may use the admin side: where it listens, and the tokens.

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
pub(crate) struct Admin {
    pub(crate) listen: SocketAddr,
    /// Names under which it may be asked, beside those of loopback.
    pub(crate) hosts: Vec<String>,
    pub(crate) tls: Option<Certificate>,
}

/// As for the secret of a JWT: what is shorter can be found by trying.
const SHORTEST_TOKEN: usize = 32;

/// Somebody who may use the admin side.
#[derive(Clone)]
pub(crate) struct Token {
    /// The principal of what it does.
    pub(crate) name: String,
    pub(crate) role: Role,
    /// Confines its claims to one tenant.
    pub(crate) tenant: Option<String>,
    pub(crate) value: String,
}

/// What a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// Look.
    Viewer,
    /// Look, settle and forget.
    Operator,
    /// Everything.
    Admin,
    /// Claim, and whatever brings work in.
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

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

pub(super) fn tokens(root: &mut Table<'_>, environment: &Environment<'_>) -> Vec<Token> {
    let problems = root.problems();
    let mut tokens: Vec<Token> = Vec::new();
    for mut table in root.tables("token") {
        let name = table.located("name", text);
        if name.is_none() {
            table.need("name", text);
        }
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
                    "value: the token is shorter than {SHORTEST_TOKEN} bytes and could be found by trying; make one with \
                     `openssl rand -hex 32`"
                ),
            );
        }
        if tokens.iter().any(|other| other.name == name.value) {
            let taken = format!("name: {:?} is taken by another token; names say who did what", name.value);
            problems.at(&name.span, taken);
        }
        if tokens.iter().any(|other| other.value == value) {
            problems.at(&span, "value: another token has the same value, so nobody could tell them apart");
        }
        if let Some(tenant) = tenant.as_ref().filter(|_| role != Role::Producer) {
            let why = format!("tenant: goes with the role producer; a {role} sees the keys of all tenants");
            problems.at(&tenant.span, why);
        }
        tokens.push(Token { name: name.value, role, tenant: tenant.map(|tenant| tenant.value), value });
    }
    tokens
}

impl Admin {
    pub(super) fn read(root: &mut Table<'_>, args: &ServeArgs, tokens: &[Token]) -> Self {
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
        // admin_auth: without tokens, only whoever is on the machine.
        if tokens.is_empty() && !admin.listen.ip().is_loopback() {
            let why = format!(
                "the admin side may not listen on {} without tokens: anybody who reaches it could forget keys; \
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

    /// Every weaker promise it was configured into, in plain words.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let open = self.tls.is_none() && !self.listen.ip().is_loopback();
        let warning = format!(
            "the admin side listens on {} without TLS: tokens and what is done with them can be read on the way; set \
             tls in [admin]",
            self.listen
        );
        open.then_some(warning).into_iter().collect()
    }
}
