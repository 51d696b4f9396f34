//! Paths that the gateway and the upstream could read differently.

use super::{Recorder, gateway, status_of};

const PAYMENTS: &str = "[[route]]\nmatch = \"POST /v1/payments\"\nkey = { required = true }\n";

fn request(method: &str, path: &str, headers: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{headers}Content-Length: 0\r\n\r\n")
}

/// Each of these passed the route that requires a key, and many upstreams take it for `/v1/payments`.
#[test]
fn other_spellings_of_a_path_do_not_pass_its_route() {
    let upstream = Recorder::start();
    let (_folder, semel) = gateway(&upstream.url(), "scope = \"single-tenant\"", PAYMENTS);
    for path in [
        "/v1%2Fpayments",
        "/v1%2fpayments",
        "/v1/payments;x=1",
        "/v1;x/payments",
        "/v1/payments%3bx",
        "/v1/payments%2F",
        "/v1%5Cpayments",
        "/v1%252Fpayments",
        "/v1/payments%00",
        "/v1/payments%0a",
        "/v1/payments%",
        "/v1/payments%zz",
        "/v1%c0%afpayments",
        "/v1/./payments",
        "/v1/x/../payments",
        "/v1/x/%2e%2e/payments",
        "/v1/x/.%2E/payments",
        "/./v1/payments",
        "/v1/payments/.",
        "/v1/payments/..",
        "/v1/x/..;/payments",
    ] {
        assert_eq!(status_of(&semel, &request("POST", path, "")), 400, "{path}");
        assert_eq!(status_of(&semel, &request("GET", path, "")), 400, "{path}");
    }
    assert_eq!(upstream.heads(), Vec::<String>::new());
    for path in [
        "/a%20b",
        "/.well-known/x",
        "/a..b/c",
        "/100%25",
        "/x%E2%82%AC",
        "/v1?next=../a%2Fb;c",
        "//a//b",
        "/...",
    ] {
        assert_eq!(status_of(&semel, &request("GET", path, "")), 200, "{path}");
    }
}

/// Frameworks that honour the override run a POST that no policy has seen.
#[test]
fn a_method_override_does_not_pass_a_route() {
    let upstream = Recorder::start();
    let routes =
        format!("{PAYMENTS}[[route]]\nmatch = \"DELETE /v1/orders/{{id}}\"\nkey = {{ required = true }}\n");
    let (_folder, semel) = gateway(&upstream.url(), "scope = \"single-tenant\"", &routes);
    for header in ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"] {
        let header = |method: &str| format!("{header}: {method}\r\n");
        assert_eq!(status_of(&semel, &request("GET", "/v1/payments", &header("POST"))), 400);
        assert_eq!(status_of(&semel, &request("HEAD", "/v1/payments", &header("post"))), 400);
        assert_eq!(status_of(&semel, &request("POST", "/v1/orders/1", &header("DELETE"))), 400);
        assert_eq!(status_of(&semel, &request("POST", "/v1/orders/1", &header("Delete"))), 400);
        assert_eq!(status_of(&semel, &request("POST", "/v1/orders/1", &header("DELETE, x"))), 400);
    }
    for header in ["X-Original-URL", "X-Rewrite-URL"] {
        let header = format!("{header}: /v1/payments\r\n");
        assert_eq!(status_of(&semel, &request("POST", "/search", &header)), 400);
    }
    assert_eq!(upstream.heads(), Vec::<String>::new());
    let same = "X-HTTP-Method-Override: PATCH\r\nX-Original-URL: https://a/search?x=1\r\n";
    assert_eq!(status_of(&semel, &request("POST", "/search?x=1", same)), 200, "no other route");
    assert_eq!(status_of(&semel, &request("GET", "/search", "X-HTTP-Method-Override: GET\r\n")), 200);
}

#[test]
fn dot_segments_do_not_leave_the_prefix_of_the_upstream() {
    let upstream = Recorder::start();
    let prefixed = format!("{}/base", upstream.url());
    let (_folder, semel) = gateway(&prefixed, "ambiguous = \"allow\"", "");
    for path in [
        "/../admin",
        "/x/../../admin",
        "/%2e%2e/admin",
        "/..%2fadmin",
        "/..;/admin",
        "/..%5cadmin",
        "/%252e%252e/admin",
        "/x/../y",
        "/x/..;/admin/%252e%252e/x/y",
    ] {
        assert_eq!(status_of(&semel, &request("GET", path, "")), 400, "{path}");
    }
    assert_eq!(upstream.heads(), Vec::<String>::new());
    assert_eq!(status_of(&semel, &request("GET", "/x;v=1/y", "")), 200);
}

/// A route can take such paths. Even then, no reading of them may belong to another route.
#[test]
fn a_route_that_allows_ambiguous_paths_does_not_open_another() {
    let upstream = Recorder::start();
    let routes =
        format!("{PAYMENTS}[[route]]\nmatch = \"* /files/**\"\nguard = false\nambiguous = \"allow\"\n");
    let (_folder, semel) = gateway(&upstream.url(), "scope = \"single-tenant\"", &routes);
    for path in ["/files/a%2Fb", "/files/a;v=1"] {
        assert_eq!(status_of(&semel, &request("POST", path, "")), 200, "{path}");
    }
    let seen = upstream.heads().len();
    for path in [
        "/files/..%2fv1/payments",
        "/files/..%2f..%2f..%2fx",
        "/files/..;/v1/payments",
        "/files/..%5Cv1%5Cpayments",
        "/files/%252e%252e/v1/payments",
    ] {
        assert_eq!(status_of(&semel, &request("POST", path, "")), 400, "{path}");
    }
    assert_eq!(upstream.heads().len(), seen);
}

#[test]
fn letter_case_does_not_pass_a_route_where_case_is_ignored() {
    let upstream = Recorder::start();
    let (_folder, semel) =
        gateway(&upstream.url(), "scope = \"single-tenant\"\nignore_case = true", PAYMENTS);
    for path in ["/v1/Payments", "/V1/PAYMENTS", "/v1/%50ayments"] {
        assert_eq!(status_of(&semel, &request("POST", path, "")), 400, "{path} needs a key");
    }
    assert_eq!(upstream.heads(), Vec::<String>::new());
}

#[test]
fn what_no_route_matches_is_refused_where_that_is_denied() {
    let upstream = Recorder::start();
    let routes = format!("{PAYMENTS}[[route]]\nmatch = \"GET /open/**\"\nguard = false\n");
    let (_folder, semel) =
        gateway(&upstream.url(), "scope = \"single-tenant\"\nunmatched = \"deny\"", &routes);
    for (method, path) in
        [("POST", "/v1/Payments"), ("GET", "/v1/payments"), ("GET", "/x"), ("DELETE", "/open/x")]
    {
        assert_eq!(status_of(&semel, &request(method, path, "")), 404, "{method} {path}");
    }
    assert_eq!(upstream.heads(), Vec::<String>::new());
    assert_eq!(status_of(&semel, &request("GET", "/open/x", "")), 200);
    assert_eq!(status_of(&semel, &request("POST", "/v1/payments", "Idempotency-Key: k\r\n")), 200);
}
