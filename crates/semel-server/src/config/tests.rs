//! Config files, good and bad.

mod mistakes;
mod schema;

use semel_http::{Codec, KeyedTools};

use super::EXAMPLE;
use super::{Config, Environment, Loss, Role, StoreUrl, loopback};
use crate::cli::ServeArgs;

/// Every variable has a value of its own.
const EVERYTHING: Environment<'static> =
    Environment(&|name| Some(format!("a secret of more than 32 bytes for {name}")));

fn parse(text: &str) -> Result<Config, Vec<String>> {
    parse_with(text, &ServeArgs::default())
}

fn parse_with(text: &str, args: &ServeArgs) -> Result<Config, Vec<String>> {
    let parsed = Config::parse("semel.toml", text, args, &EVERYTHING);
    parsed.map_err(|invalid| invalid.0.iter().map(ToString::to_string).collect())
}

#[test]
fn fuzz_config() {
    let tokens = [
        "[gateway]\n",
        "[[routes]]\n",
        "[store]\n",
        "[[targets]]\n",
        "[admin]\n",
        "[gate]\n",
        " = ",
        "\"5s\"",
        "true",
        "-1",
        "\"${X}\"",
        "'''",
        "listen",
        "upstream",
        "key",
        "match",
        "path",
        "mode",
        "scope",
        "retention",
        "url",
        "name",
        "[",
        "]",
        "{",
        "}",
        "\n",
        "#",
        "9223372036854775807",
    ];
    let fuzz =
        semel_testbed::fuzz::Fuzz::new("config", include_str!("../../fuzz/config.seeds")).seed(EXAMPLE);
    fuzz.tokens(&tokens).run(|input| {
        let text = String::from_utf8_lossy(input);
        let problems = match parse(&text) {
            Ok(config) => {
                assert_eq!(parse(&text).map(|again| again.fixed()), Ok(config.fixed()));
                return (0, String::new());
            }
            Err(problems) => problems,
        };
        assert!(!problems.is_empty() && problems.iter().all(|problem| !problem.is_empty()));
        // The first words of the first problem: what follows quotes the file.
        let kind = problems[0].split(':').next_back().unwrap_or_default();
        (problems.len().min(8), kind.split_whitespace().take(3).collect())
    });
}

#[test]
fn the_example_can_be_read() {
    let config = parse(EXAMPLE).unwrap();
    let gateway = config.gateway.unwrap();
    assert_eq!(gateway.routes.len(), 6);
    assert_eq!(gateway.listen, loopback(8080));
    assert!(config.secret.is_some());
    assert_eq!((config.tokens[0].name.as_str(), config.tokens[0].role), ("billing", Role::Producer));
    // What the example shows as defaults are the defaults.
    let bare = parse("[gateway]\nupstream = \"http://127.0.0.1:3000\"").unwrap();
    let usual = bare.gateway.unwrap();
    assert_eq!(format!("{:?}", gateway.limits), format!("{:?}", usual.limits));
    assert_eq!(gateway.capacity, usual.capacity);
    assert_eq!(format!("{:?}", gateway.timeouts), format!("{:?}", usual.timeouts));
    assert_eq!(format!("{:?}", gateway.proxy), format!("{:?}", usual.proxy));
    assert_eq!(
        (gateway.namespace, gateway.profile, gateway.listen),
        (usual.namespace, usual.profile, usual.listen)
    );
    assert_eq!((config.drain, config.log, config.admin.listen), (bare.drain, bare.log, bare.admin.listen));
    assert_eq!(format!("{:?}", config.records), format!("{:?}", bare.records));
    assert_eq!(config.sealing.unwrap().ring.current_id(), "2026-11");
    let (shown, usual) = (&config.pipeline, &bare.pipeline);
    assert_eq!((&shown.ledger, shown.retention, shown.lease), (&usual.ledger, usual.retention, usual.lease));
    assert_eq!((shown.max_payload, shown.in_all), (usual.max_payload, usual.in_all));
    assert_eq!((shown.targets.len(), shown.targets[0].name.as_str()), (1, "ledger"));
}

#[test]
fn a_short_token_is_refused_with_the_way_out() {
    let text = "[[token]]\nname = \"a\"\nrole = \"admin\"\nvalue = { env = \"X\" }\n";
    let parse = |length: usize| {
        let environment = |_: &str| Some("x".repeat(length));
        Config::parse("semel.toml", text, &ServeArgs::default(), &Environment(&environment))
    };
    let refused = parse(31).unwrap_err().to_string();
    assert!(refused.starts_with("semel.toml:4:9: value: the token is shorter than 32 bytes"), "{refused}");
    assert!(refused.contains("openssl rand -hex 32") && !refused.contains("xxx"), "{refused}");
    assert!(parse(32).is_ok());
}

#[test]
fn connections_without_tls_are_named() {
    let text = "[store]\nurl = \"redis://:hunter2@cache.internal\"\n[ledger]\nurl = \"postgres://u:hunter2@10.0.0.1/x\"\n\
                [[source]]\nkind = \"redis-stream\"\nurl = \"redis://127.0.0.1\"\nstream = \"s\"\ngroup = \"g\"\n";
    let warnings = super::transport::warnings(&parse(text).unwrap()).join("\n");
    assert!(
        warnings.contains("[store] url: the connection to cache.internal is not encrypted"),
        "{warnings}"
    );
    assert!(warnings.contains("[ledger] url: the connection to 10.0.0.1 is not encrypted"), "{warnings}");
    assert!(warnings.contains("sslmode=verify-full") && warnings.contains("rediss"), "{warnings}");
    assert!(!warnings.contains("hunter2") && !warnings.contains("[[source]]"), "{warnings}");
}

#[test]
fn a_secret_that_a_store_made_can_be_configured() {
    let parse = |value: &str| {
        let environment = |_: &str| Some(value.to_owned());
        let text = "secret = { env = \"SEMEL_SECRET\" }";
        Config::parse("semel.toml", text, &ServeArgs::default(), &Environment(&environment))
    };
    let made = parse(&format!("hex:{}0aFf", "07".repeat(30))).unwrap().secret.unwrap();
    assert_eq!(made.expose()[28..], [7, 7, 0x0a, 0xff]);
    for wrong in ["", "0", "0000", "g0", "+1"] {
        let value = format!("hex:{}{wrong}", "07".repeat(31));
        let problems = parse(&value).map(drop).unwrap_err().to_string();
        assert!(problems.contains("secret: expected 64 hexadecimal digits after hex:"), "{problems}");
        assert!(!problems.contains("0707"), "a secret is never repeated: {problems}");
    }
    let passphrase = "a passphrase, not hex:00";
    assert_eq!(
        parse(passphrase).unwrap().secret.unwrap().expose(),
        semel::secret::Secret::from_passphrase(passphrase.as_bytes()).expose()
    );
}

#[test]
fn nothing_is_needed() {
    let config = parse("").unwrap();
    assert!(config.gateway.is_none() && config.tokens.is_empty() && config.secret.is_none());
    assert!(
        matches!(config.records.place, StoreUrl::Embedded { ref folder, .. } if folder.ends_with("semel-data"))
    );
    assert_eq!(config.admin.listen, loopback(8081));
}

#[test]
fn flags_override_the_file() {
    let args = ServeArgs {
        upstream: Some("http://127.0.0.1:9".to_owned()),
        listen: Some("127.0.0.1:1".to_owned()),
        admin: Some("127.0.0.1:2".to_owned()),
        store: Some("memory:".to_owned()),
        profile: Some("stripe".to_owned()),
        scope: Some("single-tenant".to_owned()),
        ..ServeArgs::default()
    };
    let config = parse_with(EXAMPLE, &args).unwrap_err();
    // A setting of the embedded store is left over, and target and source have no ledger any more; all is said.
    assert_eq!(config.len(), 3, "{config:?}");
    let text = "[gateway]\nupstream = \"http://127.0.0.1:3000\"\n[store]\nurl = \"embedded:x\"";
    let config = parse_with(text, &args).unwrap();
    let gateway = config.gateway.unwrap();
    assert_eq!((gateway.listen, config.admin.listen), (loopback(1), loopback(2)));
    assert_eq!((gateway.profile.name, gateway.scope.to_string().as_str()), ("stripe", "single-tenant"));
    assert!(matches!(config.records.place, StoreUrl::Memory));
}

#[test]
fn weaker_promises_are_named() {
    let text = "[gateway]\nupstream = \"http://h\"\nlisten = \"0.0.0.0:1\"\nscope = \"single-tenant\"\nstore_down = \"open\"\n\
                [[route]]\nmatch = \"POST /a\"\nmode = \"rerun\"\n[[route]]\nmatch = \"POST /b\"\nmode = \"keyed\"\n\
                [[route]]\nmatch = \"POST /c\"\non_doubt = \"release\"\n";
    let warnings = parse(text).unwrap().gateway.unwrap().warnings().join("\n");
    for expected in [
        "single-tenant",
        "without TLS",
        "POST /a: store_down",
        "POST /a: mode = \"rerun\"",
        "POST /b: mode",
        "POST /c: on_doubt",
        "* /**: store_down",
    ] {
        assert!(warnings.contains(expected), "{expected} in {warnings}");
    }
    let text = "[gateway]\nupstream = \"http://h\"\nscope = [\"jwt:sub\", \"header:x-tenant\"]\njwt = { secret = { env = \"JWT_SECRET\" } }\n\
                [[route]]\nmatch = \"POST /a\"\nscope = \"header:x-tenant\"\nfingerprint_headers_exclude = [\"cookie\"]\n";
    let warnings = parse(text).unwrap().gateway.unwrap().warnings().join("\n");
    for expected in [
        "scope = \"jwt:sub,header:x-tenant\": every token that one of the keys has signed is accepted",
        "POST /a: scope = \"header:x-tenant\": clients can choose its value",
        "POST /a: fingerprint_headers_exclude: requests that differ only in cookie",
    ] {
        assert!(warnings.contains(expected), "{expected} in {warnings}");
    }
    let usual = parse("[gateway]\nupstream = \"http://h\"\n").unwrap();
    assert_eq!(usual.admin.warnings(), Vec::<String>::new());
    assert_eq!(usual.gateway.unwrap().warnings(), Vec::<String>::new());
    let open = "[admin]\nlisten = \"0.0.0.0:1\"\n\
                [[token]]\nname = \"a\"\nrole = \"admin\"\nvalue = { env = \"X\" }\n";
    let warnings = parse(open).unwrap().admin.warnings().join("\n");
    assert!(warnings.contains("0.0.0.0:1 without TLS"), "{warnings}");
}

// Published bounds are enforced at start, and settings that weaken a promise cause warnings.
#[test]
fn adcp_mcp_has_bounds_and_says_what_it_promises() {
    let text = |rest: &str| format!("[gateway]\nupstream = \"http://h\"\nprofile = \"adcp-mcp\"\n{rest}");
    let gateway = |rest: &str| parse(&text(rest)).unwrap().gateway.unwrap();
    let warnings = gateway("").warnings().join("\n");
    assert!(
        warnings.contains("* /**: on_doubt = \"release\"") && warnings.contains("at least once"),
        "{warnings}"
    );
    let probed = "[[route]]\nmatch = \"POST /mcp\"\nprobe = \"GET /by-key/{key}\"\n";
    assert!(!gateway(probed).warnings().join("\n").contains("POST /mcp"), "a probe is asked first");
    assert_eq!(
        gateway("tools = [\"create_media_buy\"]\n").profile.codec,
        Codec::Mcp { tools: KeyedTools::Named(vec!["create_media_buy".to_owned()]) }
    );
    for (route, expected) in [
        ("retention = \"59m\"", "promises a retention of 3600s to 604800s"),
        ("retention = \"8d\"", "promises a retention of 3600s to 604800s"),
        ("retention = \"1h\"\nin_flight_max = \"2h\"", "is above the retention"),
        ("in_flight_max = \"500ms\"\nlease = \"100ms\"\nwait = \"0s\"", "below the second"),
        (
            "in_flight_max_tools = { buy = \"2d\" }",
            "in_flight_max_tools: buy: in_flight_max (172800s) is above",
        ),
        (
            "in_flight_max_tools = { buy = \"2s\" }",
            "in_flight_max_tools: buy: the route \"POST /mcp\": wait (5s)",
        ),
        ("in_flight_max_tools = { buy = 5 }", "in_flight_max_tools: buy: expected a duration such as"),
        ("key = { header = \"x-key\" }", "sets key"),
        ("fingerprint = \"json\"", "sets fingerprint"),
        ("pin = \"all\"", "sets pin"),
    ] {
        let problems =
            parse(&text(&format!("[[route]]\nmatch = \"POST /mcp\"\n{route}\n"))).expect_err(route);
        assert!(problems.join("\n").contains(expected), "{expected:?} in {problems:?}");
    }
    gateway(
        "[[route]]\nmatch = \"POST /mcp\"\nin_flight_max = \"30s\"\nin_flight_max_tools = { buy = \"5m\", look = \"5s\" }\n",
    );
    let plain = "[gateway]\nupstream = \"http://h\"\n[[route]]\nmatch = \"POST /x\"\nin_flight_max_tools = { buy = \"5m\" }\n";
    assert!(parse(plain).unwrap_err()[0].contains("requests, not tool calls"));
    let unknown = parse("[gateway]\nupstream = \"http://h\"\ntools = [\"x\"]\n").unwrap_err();
    assert!(unknown[0].starts_with("semel.toml:3:9: tools: "), "{unknown:?}");
}

// After a loss of data, a missing record does not prove that a key is new.
#[test]
fn adcp_mcp_refuses_after_a_loss_unless_told_otherwise() {
    let loss = |profile: &str, rest: &str| {
        let text = format!(
            "[gateway]\nupstream = \"http://h\"\nprofile = {profile:?}\n[store]\nurl = \"redis://h\"\n{rest}"
        );
        match parse(&text).unwrap().records.place {
            StoreUrl::Redis { on_store_loss, retention, .. } => (on_store_loss, retention.as_secs()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(loss("adcp-mcp", ""), (Loss::Refuse, 86_400));
    assert_eq!(loss("adcp-mcp", "on_store_loss = \"alarm\""), (Loss::Alarm, 86_400));
    assert_eq!(loss("ietf", ""), (Loss::Alarm, 86_400));
    let week = "[[route]]\nmatch = \"POST /mcp\"\nretention = \"7d\"\n";
    assert_eq!(loss("adcp-mcp", week), (Loss::Refuse, 604_800));
}

#[test]
fn a_jwt_is_a_scope_only_with_what_verifies_it() {
    let text = |jwt: &str| format!("[gateway]\nupstream = \"http://h\"\nscope = \"jwt:tenant\"\n{jwt}");
    let config = parse(&text("jwt = { secret = { env = \"JWT_SECRET\" }, issuer = \"i\" }")).unwrap();
    assert_eq!(config.gateway.unwrap().scope.to_string(), "jwt:tenant");
    assert!(parse(&text("")).unwrap_err()[0].starts_with("semel.toml:3:9: scope: "));
    let unused = text("jwt = { secret = { env = \"JWT_SECRET\" } }").replace("jwt:tenant", "authorization");
    assert!(parse(&unused).unwrap_err()[0].contains("jwt: is not used"));
}
