//! Several accounts behind one credential.

use super::gateway;
use crate::kit::{Semel, Upstream};

/// The same key and body for account B must not give the answer of account A: B would never be charged.
#[test]
fn stripe_account_b_is_not_given_the_answer_of_account_a() {
    for profile in ["stripe", "stripe-v2"] {
        for header in ["stripe-account", "stripe-context"] {
            let upstream = Upstream::start();
            let semel =
                Semel::start(&["--store", "memory:", "--upstream", &upstream.url(), "--profile", profile]);
            let platform = semel.gateway().with("authorization", "Bearer sk").with("idempotency-key", "k");
            let (a, b) = (platform.with(header, "acct_a"), platform.with(header, "acct_b"));
            for account in [&a, &b, &platform] {
                let answer = account.post("/v1/charges", "{}");
                assert_eq!(
                    (answer.status, answer.header("idempotent-replayed")),
                    (201, None),
                    "{profile} {header}"
                );
            }
            assert_eq!(upstream.calls("k"), 3);
            // Each account still has its own answer. The second time is answered by the usual way, the third by the short one.
            for account in [&a, &b, &platform, &a, &b, &platform] {
                assert_eq!(account.post("/v1/charges", "{}").header("idempotent-replayed"), Some("true"));
            }
            assert_eq!(upstream.calls("k"), 3);
            let answers = [&a, &b, &platform].map(|account| account.post("/v1/charges", "{}").text());
            assert_eq!(answers, ["{\"call\": 1}", "{\"call\": 2}", "{\"call\": 3}"]);
            let twice = a.with(header, "acct_b").post("/v1/charges", "{}");
            assert_eq!(twice.status, 400, "which account it is for must be beyond dispute");
        }
    }
}

#[test]
fn a_cookie_or_api_key_of_another_account_conflicts() {
    let upstream = Upstream::start();
    let semel =
        Semel::start(&["--store", "memory:", "--upstream", &upstream.url(), "--scope", "single-tenant"]);
    for header in ["cookie", "x-api-key", "x-tenant-id", "stripe-account"] {
        let client = semel.gateway().with("idempotency-key", &format!("k-{header}"));
        assert_eq!(client.with(header, "session=a").post("/pay", "{}").status, 201);
        for value in ["session=b", "session=c"] {
            let other = client.with(header, value).post("/pay", "{}");
            assert_eq!(other.expect(422)["code"], "conflict", "{header}");
        }
        assert_eq!(client.post("/pay", "{}").expect(422)["code"], "conflict", "{header} left out");
        let again = client.with(header, "session=a").post("/pay", "{}");
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
    }
    assert_eq!(upstream.total(), 4);
}

/// `fingerprint_headers` used to replace the defaults, and with them the comparison of method overrides.
#[test]
fn two_method_overrides_do_not_share_one_answer_where_fingerprint_headers_is_set() {
    let upstream = Upstream::start();
    let route = "[[route]]\nmatch = \"* /pay\"\nfingerprint_headers = [\"x-version\"]\n";
    let (_folder, semel) = gateway(&upstream.url(), "scope = \"single-tenant\"", route);
    for name in ["x-http-method-override", "x-method-override", "x-http-method"] {
        let client = semel.gateway().with("idempotency-key", name).with("x-version", "1");
        assert_eq!(client.with(name, "PUT").post("/pay", "{}").status, 201);
        assert_eq!(client.with(name, "PATCH").post("/pay", "{}").expect(422)["code"], "conflict");
    }
    let other_version = semel.gateway().with("idempotency-key", "v").with("x-version", "1");
    assert_eq!(other_version.post("/pay", "{}").status, 201);
    let other_version = semel.gateway().with("idempotency-key", "v").with("x-version", "2");
    assert_eq!(other_version.post("/pay", "{}").expect(422)["code"], "conflict");
}

#[test]
fn a_scope_of_several_parts_keeps_accounts_apart() {
    let upstream = Upstream::start();
    let scope = "scope = [\"authorization\", \"header:x-account\"]";
    let (_folder, semel) = gateway(&upstream.url(), scope, "");
    let client = semel.gateway().with("authorization", "Bearer a").with("idempotency-key", "k");
    for _ in 0..2 {
        assert_eq!(client.with("x-account", "1").post("/pay", "{}").text(), "{\"call\": 1}");
        assert_eq!(client.with("x-account", "2").post("/pay", "{}").text(), "{\"call\": 2}");
        assert_eq!(client.post("/pay", "{}").text(), "{\"call\": 3}");
    }
    let nobody = semel.gateway().with("x-account", "1").with("idempotency-key", "k").post("/pay", "{}");
    assert_eq!(nobody.expect(400)["code"], "scope_missing");
}

// A header that the configuration makes part of the scope is as safe as those that are known by name.
#[test]
fn a_header_of_the_scope_cannot_be_removed_or_spelled_otherwise() {
    let upstream = Upstream::start();
    let scope = "scope = [\"authorization\", \"header:x-workspace\"]";
    let (_folder, semel) = gateway(&upstream.url(), scope, "");
    let client = semel.gateway().with("authorization", "Bearer a").with("idempotency-key", "k");
    assert_eq!(client.with("x_workspace", "b").post("/pay", "{}").status, 400);
    let removed = client.with("x-workspace", "a").with("connection", "x-workspace");
    assert_eq!(removed.post("/pay", "{}").status, 400);
    assert_eq!(upstream.total(), 0);
    assert_eq!(client.with("x-workspace", "a").post("/pay", "{}").status, 201);
}

#[test]
fn a_scope_that_any_client_can_choose_is_warned_about() {
    let upstream = Upstream::start();
    let (_folder, semel) = gateway(&upstream.url(), "scope = \"header:x-tenant\"", "");
    semel.logged("scope = \\\"header:x-tenant\\\": clients can choose its value");
}

#[test]
fn the_flag_takes_several_parts() {
    let upstream = Upstream::start();
    let scope = "authorization,header:x-account";
    let semel = Semel::start(&["--store", "memory:", "--upstream", &upstream.url(), "--scope", scope]);
    let client = semel.gateway().with("authorization", "Bearer a").with("idempotency-key", "k");
    assert_eq!(client.with("x-account", "1").post("/pay", "{}").text(), "{\"call\": 1}");
    assert_eq!(client.with("x-account", "2").post("/pay", "{}").text(), "{\"call\": 2}");
    assert_eq!(client.with("x-account", "1").post("/pay", "{}").text(), "{\"call\": 1}");
}
