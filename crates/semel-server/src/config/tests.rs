//! Config files, good and bad.

use std::collections::BTreeSet;

use semel_http::{Codec, KeyedTools};
use serde_json::Value;
use toml::de::DeTable;

use super::EXAMPLE;
use super::problem::Problems;
use super::reader::Table;
use super::schema::schema;
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
    assert_eq!(format!("{:?}", gateway.patience), format!("{:?}", usual.patience));
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

// Every mistake has a position and the expected value.
#[test]
fn mistakes_are_told_with_their_place() {
    let table: &[(&str, &[&str])] = &[
        ("[gatewy]\n", &["semel.toml:1:2: unknown key `gatewy` in the file: did you mean `gateway`?"]),
        (
            "[gateway]\nupstream = \"http://h\"\n  lissten = \"x\"\n",
            &["semel.toml:3:3: unknown key `lissten` in [gateway]: did you mean `listen`?"],
        ),
        ("drain = 5\n", &["semel.toml:1:9: drain: expected a duration such as"]),
        ("drain = \"5 minutes\"\n", &["semel.toml:1:9: drain: expected a duration", "found \"5 minutes\""]),
        ("a = \n", &["semel.toml:1:"]),
        ("[gateway]\nlisten = \"127.0.0.1:1\"\n", &["semel.toml:1:1: [gateway] needs `upstream`"]),
        (
            "[gateway]\nupstream = \"ftp://x\"\n",
            &["semel.toml:2:12: upstream: the upstream must begin with http"],
        ),
        (
            "[gateway]\nupstream = \"http://h\"\nprofile = \"strip\"\n",
            &["semel.toml:3:11: profile: expected one of ietf, stripe", "did you mean \"stripe\"?"],
        ),
        ("[gateway]\nupstream = \"http://h\"\nscope = \"jwt:sub\"\n", &["semel.toml:3:9: scope: "]),
        ("[gateway]\nupstream = \"http://h\"\ntls = { cert = \"/no\" }\n", &["needs `key`"]),
        ("[admin]\ntls = { key = \"/no\" }\n", &["needs `cert`"]),
        ("[admin]\ntls = { cert = \"/no\", key = \"/no\" }\n", &["semel.toml:2:7: tls: cannot read /no"]),
        ("[admin]\nlisten = \"0.0.0.0:80\"\n", &["semel.toml:2:10: the admin API may not listen on 0.0.0.0"]),
        ("[store]\nurl = \"mysql://x\"\n", &["semel.toml:2:7: url: expected memory:, embedded:PATH"]),
        ("[store]\nurl = \"embedded:\"\n", &["semel.toml:2:7: url: expected"]),
        (
            "[store]\nprefix = \"x\"\n",
            &["semel.toml:2:10: prefix: is a setting of Redis stores; this store is embedded"],
        ),
        (
            "[store]\nurl = \"memory:\"\ncoordinate = \"redis://h\"\n",
            &["coordinate: goes with a postgres:// store only"],
        ),
        (
            "[[token]]\nname = \"a\"\nrole = \"boss\"\n",
            &["role: expected \"viewer\" or", "[[token]] needs `value`"],
        ),
        (
            "[[token]]\nname = \"a\"\nrole = \"admin\"\nvalue = \"hunter2\"\n",
            &["semel.toml:4:9: value: expected { env = \"NAME\" } or { file = \"PATH\" }"],
        ),
        (
            "[[token]]\nname = \"a\"\nrole = \"admin\"\nvalue = { env = \"X\" }\n\
             [[token]]\nname = \"a\"\nrole = \"admin\"\nvalue = { env = \"X\" }\n",
            &[
                "semel.toml:6:8: name: \"a\" is taken",
                "semel.toml:8:9: value: another token has the same value",
            ],
        ),
        (
            "[[token]]\nname = \"a\"\nrole = \"viewer\"\nvalue = { env = \"X\" }\ntenant = \"t\"\n",
            &["semel.toml:5:10: tenant: goes with the role producer"],
        ),
        (
            "[[target]]\nname = \"t\"\nurl = \"http://169.254.169.254/latest\"\n",
            &["semel.toml:3:7: url: the host is a link-local address", "set allow_link_local = true"],
        ),
        (
            "[[target]]\nname = \"t\"\nurl = \"http://metadata.google.internal\"\n",
            &["semel.toml:3:7: url: the host is a link-local address or a cloud's metadata service"],
        ),
        ("[limits]\nrun_wait = \"3650d\"\n", &["semel.toml:2:12: run_wait: expected a duration above 0s"]),
        ("[[route]]\nmode = \"marked\"\n", &["semel.toml:1:1: [[route]] needs `match`"]),
        ("secret = { file = \"/no/such/file\" }\n", &["semel.toml:1:10: secret: /no/such/file: "]),
        ("[store.encryption]\n", &["semel.toml:1:1: [store.encryption] needs keys"]),
        (
            "[[store.encryption.key]]\nid = \"a b\"\nvalue = { env = \"SEALING_KEY\" }\n",
            &["cannot be the id of a sealing key"],
        ),
        (
            "[store.encryption]\n[[store.encryption.key]]\nid = \"a\"\nvalue = { env = \"SEALING_KEY\" }\n[ledger]\n",
            &["[ledger] would store events, dead letters and buffered runs unencrypted"],
        ),
        (
            "[[downstream]]\nname = \"a\"\npattern = \"guess\"\n",
            &["semel.toml:3:11: pattern: expected \"derived-key\" or"],
        ),
        (
            "[[downstream]]\nname = \"a\"\npattern = \"claim-first\"\n[[downstream]]\nname = \"a\"\n",
            &["semel.toml:4:1: [[downstream]] needs `pattern`"],
        ),
        ("[ledger]\nurl = \"redis://h\"\n", &["semel.toml:2:7: url: expected embedded:PATH or postgres://"]),
        ("[ledger]\nlease = \"1ms\"\n", &["semel.toml:2:9: lease: expected at least"]),
        ("[ledger]\nschema = \"x\"\n", &["semel.toml:2:10: schema: goes with a postgres:// url"]),
        ("[limits]\npayload = 0\n", &["semel.toml:2:11: payload: expected a size"]),
        (
            "[limits]\npayloads = 1\n",
            &["semel.toml:2:1: unknown key `payloads` in [limits]: did you mean `payload`?"],
        ),
        (
            "[store]\nurl = \"memory:\"\n[[target]]\nname = \"a\"\nurl = \"http://h\"\n",
            &["[[target]] needs a ledger"],
        ),
        (
            "[gateway]\nupstream = \"http://h\"\nscope = [\"authorization\", \"single-tenant\"]\n",
            &["semel.toml:3:9: scope: the part \"single-tenant\" of the scope cannot be"],
        ),
        ("[gateway]\nupstream = \"http://h\"\nscope = []\n", &["semel.toml:3:9: scope: "]),
        (
            "[gateway]\nupstream = \"http://h\"\nupgrades = [\"h2c\"]\n",
            &["semel.toml:3:12: upgrades: \"h2c\" would let requests bypass every policy"],
        ),
        (
            "[gateway]\nupstream = \"http://h\"\nhosts = [\"http://a\"]\n",
            &["semel.toml:3:9: hosts: \"http://a\" is not a host"],
        ),
        (
            "[gateway]\nupstream = \"http://h\"\nlimits = { buffered = \"1KiB\" }\n",
            &["semel.toml:3:23: buffered: expected at least \"64KiB\""],
        ),
        ("[log]\nlevel = \"verbose\"\n", &["semel.toml:2:9: level: expected \"error\" or"]),
    ];
    for (text, expected) in table {
        let problems = parse(text).expect_err(text).join("\n");
        for expected in *expected {
            assert!(problems.contains(expected), "{expected:?} in {problems:?}");
        }
        assert!(!problems.contains("hunter2"), "a secret is never repeated: {problems}");
    }
}

// Contradictory settings are refused at start.
#[test]
fn routes_are_checked() {
    let table = [
        ("match = \"GET /x\"", "GET"),
        ("match = \"POST /x\"\nlease = \"60s\"\nin_flight_max = \"30s\"", "in_flight_max"),
        ("match = \"POST /x\"\nwait = \"10m\"", "wait"),
        ("match = \"POST /x\"\non_doubt = \"probe\"", "probe"),
        ("match = \"POST /x\"\nprobe_absent = \"run\"", "there is no probe"),
        (
            "match = \"POST /x\"\nkey = { header = \"a\", json = \"/b\" }",
            "expected only one of header, json, content, route",
        ),
        ("match = \"POST /x\"\nkey = { json = \"nopointer\" }", "key"),
        ("match = \"POST /x\"\nfingerprint_exclude = [\"/a\"]", "needs fingerprint = \"json\""),
        ("match = \"POST /x\"\nlimits = { writes = { per_second = 1, burst = 1 } }", "needs `reads`"),
        ("match = \"POST /x\"\nexpired = 404", "410"),
        ("match = \"POST /x\"\nupstream = \"x\"", "upstream: "),
        ("match = \"post /x\"", "post /x"),
    ];
    for (route, expected) in table {
        let text = format!("[gateway]\nupstream = \"http://h\"\n[[route]]\n{route}\n");
        let problems = parse(&text).expect_err(&text).join("\n");
        assert!(problems.contains(expected), "{expected:?} in {problems:?}");
        assert!(problems.starts_with("semel.toml:"), "{problems}");
    }
}

// One upstream has one limit on calls, and one set of connections.
#[test]
fn an_upstream_is_one_however_it_is_spelled() {
    let text = "[gateway]\nupstream = \"http://h:80\"\n\
                [[route]]\nmatch = \"POST /a\"\nupstream = \"http://h:80/\"\n\
                [[route]]\nmatch = \"POST /b\"\nupstream = \"http://other/x\"\n\
                [[route]]\nmatch = \"POST /c\"\nupstream = \"http://other/x/\"\n";
    let gateway = parse(text).unwrap().gateway.unwrap();
    let named: Vec<Option<&str>> = gateway.routes.iter().map(|route| route.upstream()).collect();
    assert_eq!(named, [None, Some("http://other/x"), Some("http://other/x")]);
    assert_eq!(gateway.upstreams.len(), 1);
}

// Mistakes in targets, with their lines.
#[test]
fn targets_are_checked() {
    let table = [
        ("url = \"http://h\"", "semel.toml:1:1: [[target]] needs `name`"),
        ("name = \"a\"", "semel.toml:1:1: [[target]] needs `url`"),
        ("name = \"a b\"\nurl = \"http://h\"", "semel.toml:2:8: name: expected letters"),
        ("name = \"a\"\nurl = \"h/x\"", "semel.toml:3:7: url: this is not a URL"),
        ("name = \"a\"\nurl = \"ftp://h/x\"", "semel.toml:3:7: url: the URL must begin with http"),
        (
            "name = \"a\"\nurl = \"http://h\"\nevents = [\"*.x\"]",
            "semel.toml:4:10: events: \"*.x\" is no pattern",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\nsecret = { env = \"X\" }",
            "semel.toml:4:10: secret: expected `whsec_`",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\nsecret = \"whsec_hunter2\"",
            "semel.toml:4:10: secret: expected { env",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\non_exhausted = \"drop\"",
            "on_exhausted: expected \"dlq\" or \"blocked\"",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\nretry = { attempts = 3 }",
            "unknown key `attempts` in [target.retry]",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\nretry = { base = \"1m\", cap = \"1s\" }",
            "cap: expected at least `base`",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\nretry = { timeout = \"0s\" }",
            "timeout: expected a value above 0",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\nbreaker = { failure_percent = 101 }",
            "semel.toml:4:31: failure_percent: expected a whole number from 1 to 100, found 101",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\nbreaker = { failure_calls = 0 }",
            "semel.toml:4:29: failure_calls: expected a whole number from 1 to 1000000, found 0",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\nbreaker = { window = \"0s\" }",
            "semel.toml:4:22: window: expected a value above 0",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\nbreaker = { rest = \"10s\", longest_rest = \"5s\" }",
            "semel.toml:4:42: longest_rest: expected at least `rest`",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\nbreaker = { calls = 3 }",
            "unknown key `calls` in [target.breaker]",
        ),
        ("name = \"a\"\nurl = \"http://h\"\nbreaker = 3", "semel.toml:4:11: breaker: expected a table"),
        (
            "name = \"a\"\nurl = \"http://h\"\nconcurrency = 0",
            "semel.toml:4:15: concurrency: expected a whole number",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\n[[target]]\nname = \"a\"\nurl = \"http://h\"",
            "semel.toml:5:8: name: \"a\" is taken by another target",
        ),
    ];
    for (target, expected) in table {
        let text = format!("[[target]]\n{target}\n");
        let problems = parse(&text).expect_err(&text).join("\n");
        assert!(problems.contains(expected), "{expected:?} in {problems:?}");
        assert!(!problems.contains("hunter2"), "a secret is never repeated: {problems}");
    }
}

#[test]
fn all_mistakes_are_told_at_once() {
    let text = "drain = 1\n[log]\nlevel = \"x\"\n[store]\nurl = \"y\"\n[nope]\n";
    let problems = parse(text).unwrap_err();
    assert_eq!(problems.len(), 4, "{problems:?}");
    let lines: Vec<&str> = problems.iter().filter_map(|problem| problem.split(':').nth(1)).collect();
    assert_eq!(lines, ["1", "3", "5", "6"], "in the order of the file");
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

/// The paths of all properties of a schema.
fn properties(root: &Value, schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
        properties(root, &root["$defs"][name], path, found);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        properties(root, property, &below, found);
        found.insert(below);
    }
    if !schema["items"].is_null() {
        properties(root, &schema["items"], path, found);
    }
    for choice in schema["anyOf"].as_array().into_iter().flatten() {
        properties(root, choice, path, found);
    }
}

// What the schema lists is what is read, and the other way round.
#[test]
fn the_schema_lists_what_is_read() {
    let schema = schema();
    let mut listed = BTreeSet::new();
    properties(&schema, &schema, "", &mut listed);
    // Every table there is, so that all their keys are asked for.
    let text = EXAMPLE
        .replace("# tls = ", "tls = ")
        .replace("# jwt = { jwks", "jwt = { secret = { env = \"X\" }, jwks")
        .replace("url = \"embedded:./semel-data\"", "url = { env = \"X\" }")
        .replace("# url = \"embedded:./semel-ledger\"", "url = { env = \"X\" }")
        .replace("# secret = { env = \"LEDGER", "secret = { env = \"LEDGER")
        .replace("# bearer", "bearer")
        .replace("url = \"redis://127.0.0.1:6379\"\nstream", "url = { env = \"Y\" }\nstream")
        .replace("buffer = \"redis://127.0.0.1:6379\"", "buffer = { env = \"Y\" }")
        .replace("# coordinate = \"redis://127.0.0.1:6379\"", "coordinate = { env = \"Y\" }");
    let problems = Problems::new("semel.toml", &text);
    let table = DeTable::parse(&text).unwrap();
    Config::read(Table::root(&table, &problems), &ServeArgs::default(), &EVERYTHING);
    assert_eq!(problems.asked(), listed);
}

/// The settings of a schema below `table`, each with what it takes.
fn settings<'a>(schema: &'a Value, table: &str, found: &mut Vec<(String, String, &'a Value)>) {
    for (name, setting) in schema["properties"].as_object().into_iter().flatten() {
        let below = if table.is_empty() { name.clone() } else { format!("{table}.{name}") };
        if setting["properties"].is_object() {
            settings(setting, &below, found);
        } else if setting["items"]["properties"].is_object() {
            settings(&setting["items"], &format!("[[{below}]]"), found);
        } else {
            found.push((table.to_owned(), name.clone(), setting));
        }
    }
}

// The reader's own words about a value that no setting takes are those of the schema.
#[test]
fn every_setting_takes_what_the_schema_says() {
    let schema = schema();
    let mut found = Vec::new();
    settings(&schema, "", &mut found);
    for (table, name, takes) in found {
        let expected = match (takes["type"].as_str(), takes["$ref"].as_str()) {
            _ if takes["enum"].is_array() && name != "profile" && name != "expired" => {
                let words = takes["enum"].as_array().unwrap().iter().map(Value::to_string);
                format!("expected {}", words.collect::<Vec<_>>().join(" or "))
            }
            (Some("integer"), _) => {
                format!("expected a whole number from {} to {}", takes["minimum"], takes["maximum"])
            }
            (Some("boolean"), _) => "expected true or false".to_owned(),
            (Some("array"), _) => "expected a list of texts".to_owned(),
            (Some("object"), _) => "expected durations by name".to_owned(),
            (_, Some("#/$defs/duration")) => "expected a duration such as".to_owned(),
            (_, Some("#/$defs/size")) => "expected a size such as".to_owned(),
            // Secrets and certificates have tests of their own.
            (_, Some(_)) => continue,
            _ if takes["anyOf"][1]["type"] == "array" => {
                "expected text in quotes or a list of texts".to_owned()
            }
            _ if name == "expired" => "expected a whole number".to_owned(),
            _ => "expected text in quotes".to_owned(),
        };
        let (tables, rest) = match table.strip_prefix("[[").and_then(|table| table.split_once("]]")) {
            Some((tables, rest)) => (format!("[[{tables}]]"), rest.trim_start_matches('.').to_owned()),
            None => (String::new(), table.clone()),
        };
        let key = if rest.is_empty() { name.clone() } else { format!("{rest}.{name}") };
        let upstream = if key == "gateway.upstream" { "" } else { "gateway.upstream = \"http://h\"\n" };
        let text = format!("{upstream}{tables}\n{key} = 1979-05-27\n");
        let problems = parse(&text).err().unwrap_or_default();
        let wanted = format!("{name}: {expected}");
        assert!(
            problems.iter().any(|problem| problem.contains(&wanted)),
            "{wanted} in {problems:?} of {text}"
        );
    }
}
