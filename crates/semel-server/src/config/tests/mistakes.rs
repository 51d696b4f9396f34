//! Mistakes in a config file, each with its position and the way out.

use super::*;

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

#[test]
fn a_schedule_has_at_most_a_hundred_pauses() {
    let text = |pauses: usize| {
        let pauses = vec!["\"1s\""; pauses].join(", ");
        format!("[[target]]\nname = \"a\"\nurl = \"http://h\"\nschedule = [{pauses}]\n")
    };
    assert!(parse(&text(0)).is_ok() && parse(&text(100)).is_ok());
    let problems = parse(&text(101)).unwrap_err().join("\n");
    assert!(problems.contains("schedule: expected at most 100 pauses, found 101"), "{problems}");
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
            "name = \"a\"\nurl = \"http://h\"\nschedule = \"10s\"",
            "semel.toml:4:12: schedule: expected a list of durations, as in [\"10s\", \"1m\"]",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\nschedule = [\"10s\", \"soon\"]",
            "semel.toml:4:12: schedule: expected a duration such as",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\nschedule = [\"0s\"]",
            "semel.toml:4:12: schedule: expected pauses above 0s and of at most \"30d\"",
        ),
        (
            "name = \"a\"\nurl = \"http://h\"\nschedule = [\"31d\"]",
            "semel.toml:4:12: schedule: expected pauses above 0s and of at most \"30d\"",
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
