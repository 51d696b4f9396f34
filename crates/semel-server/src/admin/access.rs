//! Who may do what on the admin side.

use std::net::SocketAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use subtle::ConstantTimeEq as _;

use super::answer::Refusal;
use crate::config::{AdminListener, AdminToken, Role};

/// Checks requests. Created again on every reload of the configuration.
pub(crate) struct Access {
    tokens: Vec<(blake3::Hash, Caller)>,
    hosts: Hosts,
}

/// Under which names the server answers.
enum Hosts {
    /// It listens on loopback: those of loopback, and these. A page of another name that resolves to us is refused.
    Local(Vec<String>),
    /// It listens beyond, with names in the configuration: those and the ones of loopback.
    Named(Vec<String>),
    /// It listens beyond, where a token is needed for everything: any.
    Any,
}

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The principal of what it does.
    pub(crate) name: String,
    pub(crate) tenant: Option<String>,
    role: Role,
}

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// To look at keys, events, deliveries and dead letters.
    Look,
    /// To settle and forget, to discard and restore, to pause and resume.
    Operate,
    /// To forget what is claimed or in doubt, and whatever is not listed here.
    Administrate,
    /// To claim, and to publish.
    Produce,
}

impl Right {
    /// What a request needs; `None` where anybody may. Asked in one place, so that no path can forget to.
    pub(crate) fn needed(method: &Method, path: &str) -> Option<Self> {
        match path {
            "/healthz" | "/readyz" | "/metrics" => None,
            // A path of gateways. Commands ask it to learn whether they were given the address of one; here it does not exist.
            "/.well-known/idempotency" => None,
            _ if path == "/v1/claims" || path.starts_with("/v1/claims/") => Some(Self::Produce),
            _ if method == Method::GET || method == Method::HEAD => Some(Self::Look),
            "/v1/events" => Some(Self::Produce),
            _ if path == "/v1/runs" || path.starts_with("/v1/runs/") => Some(Self::Produce),
            _ if path == "/v1/replays" || path.starts_with("/v1/replays/") => Some(Self::Operate),
            _ if ["/v1/keys/", "/v1/dead-letters/", "/v1/targets/"]
                .iter()
                .any(|parent| path.starts_with(parent)) =>
            {
                Some(Self::Operate)
            }
            _ => Some(Self::Administrate),
        }
    }
}

impl Caller {
    /// Any caller on the machine, if there are no tokens.
    fn local() -> Self {
        Self { name: "local".to_owned(), tenant: None, role: Role::Admin }
    }

    /// A visitor who has not logged in.
    pub(crate) fn nobody() -> Self {
        Self { name: String::new(), tenant: None, role: Role::Producer }
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// The tenant of what it brings in: its own, where it is confined to one, else the one it names.
    ///
    /// # Errors
    /// 403 where it names another than its own.
    pub(crate) fn tenant_for(&self, named: Option<String>) -> Result<String, Refusal> {
        match (&self.tenant, named) {
            (Some(own), Some(named)) if *own != named => {
                let detail = format!("the token {:?} is confined to the tenant {own:?}", self.name);
                Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", detail))
            }
            (Some(own), _) => Ok(own.clone()),
            (None, named) => Ok(named.unwrap_or_default()),
        }
    }

    /// Whether it has the right.
    ///
    /// # Errors
    /// 403, naming the role that would.
    pub(crate) fn may(&self, right: Right) -> Result<(), Refusal> {
        let allowed = match (self.role, right) {
            (Role::Admin, _) => true,
            (Role::Operator, Right::Look | Right::Operate) => true,
            (Role::Viewer, Right::Look) => true,
            (Role::Producer, Right::Produce) => true,
            (Role::Operator, Right::Administrate | Right::Produce) => false,
            (Role::Viewer | Role::Producer, _) => false,
        };
        if allowed {
            return Ok(());
        }
        let needed = match right {
            Right::Look => "viewer, operator or admin",
            Right::Operate => "operator or admin",
            Right::Administrate => "admin",
            Right::Produce => "producer or admin",
        };
        let detail = format!("the token {:?} has the role {}; this needs {needed}", self.name, self.role);
        Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", detail))
    }
}

impl Access {
    /// The rules for a listener that is bound to `bound`. The address in the config does not count: a socket can be
    /// older than the config.
    ///
    /// # Errors
    /// Beyond loopback, rules without tokens.
    pub(crate) fn new(
        admin: &AdminListener,
        bound: SocketAddr,
        tokens: &[AdminToken],
    ) -> anyhow::Result<Self> {
        if tokens.is_empty() && !bound.ip().is_loopback() {
            anyhow::bail!(
                "the admin listener is bound to {bound}, which others can reach, and the config has no [[token]]: add \
                 one, or listen on 127.0.0.1 and restart"
            );
        }
        let tokens = tokens
            .iter()
            .map(|token| {
                let AdminToken { name, role, tenant, value } = token.clone();
                (blake3::hash(value.as_bytes()), Caller { name, tenant, role })
            })
            .collect();
        let names = admin.hosts.iter().map(|host| host.to_ascii_lowercase()).collect::<Vec<_>>();
        let hosts = match (bound.ip().is_loopback(), names.is_empty()) {
            (true, _) => Hosts::Local(names),
            (false, false) => Hosts::Named(names),
            (false, true) => Hosts::Any,
        };
        Ok(Self { tokens, hosts })
    }

    /// Whether the request is meant for us, and not sent by a page that somebody else made (csrf, rebinding).
    pub(crate) fn admit<B>(&self, request: &Request<B>) -> Result<(), Refusal> {
        let (headers, method) = (request.headers(), request.method());
        let refuse = |detail: &str| Err(Refusal::new(StatusCode::FORBIDDEN, "foreign_origin", detail));
        // HTTP/2 says it in the target; the listener has seen to it that both are the same where both are there.
        let host = match headers.get(header::HOST) {
            Some(host) => host.to_str().ok(),
            None => request.uri().authority().map(Authority::as_str),
        };
        let names = match &self.hosts {
            Hosts::Local(names) => Some(names),
            // Probes and scrapers ask for an address. Nothing at these paths is secret or changes anything.
            Hosts::Named(names) => Right::needed(method, request.uri().path()).map(|_| names),
            Hosts::Any => None,
        };
        if let Some(names) = names {
            let name = host.map(without_port).unwrap_or_default().to_ascii_lowercase();
            let local = matches!(name.as_str(), "localhost" | "127.0.0.1" | "[::1]");
            if !local && !names.contains(&name) {
                return refuse("the Host header names another server; allow it with `hosts` in [admin]");
            }
        }
        if method == Method::GET || method == Method::HEAD {
            return Ok(());
        }
        if let Some(origin) = headers.get(header::ORIGIN) {
            let origin = origin.to_str().unwrap_or_default();
            let same = origin.split_once("://").map(|(_, origin)| origin) == host;
            if !same {
                return refuse("the request comes from a page of another origin");
            }
        }
        Ok(())
    }

    /// Who asks.
    pub(super) fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, LoginError> {
        let given = headers.get(header::AUTHORIZATION).and_then(|given| given.to_str().ok());
        self.find(given.and_then(bearer))
    }

    /// The caller without a login: the listener is on loopback, and there are no tokens.
    pub(crate) fn local_caller(&self) -> Option<Caller> {
        self.tokens.is_empty().then(Caller::local)
    }

    /// The caller with the token of this hash, while the config has it.
    pub(crate) fn caller_of(&self, token: &blake3::Hash) -> Option<Caller> {
        // Comparing hashes takes constant time.
        self.tokens.iter().find(|(hash, _)| hash == token).map(|(_, caller)| caller.clone())
    }

    /// The caller with this token.
    pub(super) fn find(&self, token: Option<&str>) -> Result<Caller, LoginError> {
        if let Some(local) = self.local_caller() {
            return Ok(local);
        }
        let Some(given) = token else { return Err(LoginError::Missing) };
        let given = blake3::hash(given.as_bytes());
        // All are compared, each in constant time: how long it takes says nothing about any of them.
        let found = self.tokens.iter().fold(None, |found, (hash, caller)| {
            if bool::from(hash.as_bytes().ct_eq(given.as_bytes())) { Some(caller) } else { found }
        });
        let [a, b, c, d, e, f, g, h, ..] = *given.as_bytes();
        found.cloned().ok_or(LoginError::Unknown(u64::from_le_bytes([a, b, c, d, e, f, g, h])))
    }
}

/// Why nobody is logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoginError {
    /// There is no token.
    Missing,
    /// There is one that nobody has; a part of its hash.
    Unknown(u64),
}

impl From<LoginError> for Refusal {
    fn from(error: LoginError) -> Self {
        Self::unauthorised(match error {
            LoginError::Missing => "a token is needed: Authorization: Bearer TOKEN",
            LoginError::Unknown(_) => "the token is not known",
        })
    }
}

fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use semel_testbed::timing::{self, Class};

    use super::*;

    // admin_auth: every role against every right.
    #[test]
    fn roles_have_their_rights() {
        let may = |role, right| Caller { name: "t".into(), tenant: None, role }.may(right).is_ok();
        let rights = [Right::Look, Right::Operate, Right::Administrate, Right::Produce];
        let table = [
            (Role::Viewer, [true, false, false, false]),
            (Role::Operator, [true, true, false, false]),
            (Role::Admin, [true, true, true, true]),
            (Role::Producer, [false, false, false, true]),
        ];
        for (role, expected) in table {
            assert_eq!(rights.map(|right| may(role, right)), expected, "{role}");
        }
    }

    #[test]
    fn paths_need_their_rights() {
        let needed = |method: Method, path| Right::needed(&method, path);
        assert_eq!(needed(Method::GET, "/metrics"), None);
        assert_eq!(needed(Method::GET, "/.well-known/idempotency"), None);
        assert_eq!(needed(Method::GET, "/openapi.json"), Some(Right::Look));
        assert_eq!(needed(Method::GET, "/v1/keys"), Some(Right::Look));
        assert_eq!(needed(Method::POST, "/v1/keys/x/forget"), Some(Right::Operate));
        assert_eq!(needed(Method::POST, "/v1/claims"), Some(Right::Produce));
        assert_eq!(needed(Method::POST, "/v1/claims/x/begin"), Some(Right::Produce));
        assert_eq!(needed(Method::POST, "/v1/events"), Some(Right::Produce));
        assert_eq!(needed(Method::GET, "/v1/events"), Some(Right::Look));
        assert_eq!(needed(Method::GET, "/v1/story/x"), Some(Right::Look));
        assert_eq!(needed(Method::POST, "/v1/dead-letters/x/discard"), Some(Right::Operate));
        assert_eq!(needed(Method::POST, "/v1/targets/x/pause"), Some(Right::Operate));
        assert_eq!(needed(Method::GET, "/v1/targets"), Some(Right::Look));
        assert_eq!(needed(Method::DELETE, "/v1/other"), Some(Right::Administrate));
    }

    // A token of one tenant cannot name another.
    #[test]
    fn a_confined_token_publishes_for_its_own_tenant() {
        let of = |tenant: Option<&str>| Caller {
            name: "t".into(),
            tenant: tenant.map(str::to_owned),
            role: Role::Producer,
        };
        assert_eq!(of(None).tenant_for(Some("b".into())).unwrap(), "b");
        assert_eq!(of(None).tenant_for(None).unwrap(), "");
        assert_eq!(of(Some("a")).tenant_for(None).unwrap(), "a");
        assert_eq!(of(Some("a")).tenant_for(Some("a".into())).unwrap(), "a");
        assert!(of(Some("a")).tenant_for(Some("b".into())).is_err());
    }

    // The setting was ignored beyond loopback.
    #[test]
    fn names_in_the_configuration_are_the_only_ones() {
        let ask = |bound: &str, hosts: &[&str], host: &str, path: &str| {
            let bound = bound.parse().unwrap();
            let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
            let admin = AdminListener { listen: bound, hosts, tls: None };
            let (name, value) = ("t".to_owned(), "x".repeat(32));
            let token = AdminToken { name, role: Role::Viewer, tenant: None, value };
            let access = Access::new(&admin, bound, &[token]).unwrap();
            let request = Request::get(path).header(header::HOST, host).body(()).unwrap();
            access.admit(&request).is_ok()
        };
        let (beyond, local) = ("192.0.2.1:8081", "127.0.0.1:8081");
        for (bound, hosts, host, path, admitted) in [
            (beyond, &[][..], "anything.example", "/v1/keys", true),
            (beyond, &["Semel.example"], "semel.example:8081", "/v1/keys", true),
            (beyond, &["semel.example"], "evil.example", "/v1/keys", false),
            (beyond, &["semel.example"], "evil.example", "/", false),
            (beyond, &["semel.example"], "192.0.2.1:8081", "/metrics", true),
            (beyond, &["semel.example"], "localhost:8081", "/v1/keys", true),
            (local, &["semel.example"], "evil.example", "/metrics", false),
            (local, &["semel.example"], "semel.example", "/v1/keys", true),
        ] {
            assert_eq!(ask(bound, hosts, host, path), admitted, "{bound} {hosts:?} {host} {path}");
        }
    }

    #[test]
    fn hosts_are_read_without_their_port() {
        for (host, name) in
            [("localhost", "localhost"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("a.b:1", "a.b")]
        {
            assert_eq!(without_port(host), name);
        }
    }

    // timing: how long a login takes does not say how much of a token was guessed.
    #[test]
    fn timing_of_a_login_does_not_reveal_a_token() {
        let token = |number: usize| format!("{number:02}-{}", "correct horse battery staple ".repeat(4));
        let caller = |number: usize| Caller { name: format!("t{number}"), tenant: None, role: Role::Viewer };
        let tokens = (0..20).map(|number| (blake3::hash(token(number).as_bytes()), caller(number))).collect();
        let access = Access { tokens, hosts: Hosts::Any };
        // All but the last character right against nothing right, of the same length.
        let near = format!("{}!", token(0).trim_end());
        let far = "x".repeat(near.len());
        let prepare = |class: Class, _| if class == Class::A { near.clone() } else { far.clone() };
        let login = |given: String| assert!(access.find(Some(&given)).is_err(), "neither is a token");
        assert!(!timing::differ(5_000, prepare, login), "a right beginning can be seen by its time");

        // The measurement can see what it looks for: a comparison that ends at the first difference.
        let long = token(0).repeat(50);
        let prepare = |class: Class, _| match class {
            Class::A => long.clone(),
            Class::B => format!("x{}", &long[1..]),
        };
        let compare = |given: String| {
            std::hint::black_box(
                given.bytes().zip(long.bytes()).take_while(|(one, other)| one == other).count(),
            );
        };
        assert!(timing::differ(5_000, prepare, compare));
    }
}
