//! Who may do what: tokens, roles, and pages of other origins.

use std::path::Path;

use rustix::process::Signal;
use semel_testbed::wait;

use crate::kit::{Http, PATIENCE, Semel};

const ROLES: [&str; 4] = ["viewer", "operator", "admin", "producer"];

fn config(folder: &Path, roles: &[&str]) -> std::path::PathBuf {
    let mut text = "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n".to_owned();
    for role in roles {
        text += &format!(
            "[[token]]\nname = \"the-{role}\"\nrole = \"{role}\"\nvalue = {{ env = \"T_{role}\" }}\n"
        );
    }
    let file = folder.join("semel.toml");
    std::fs::write(&file, text).unwrap();
    file
}

fn start(folder: &Path) -> Semel {
    let env: Vec<(String, String)> = ROLES.iter().map(|role| (format!("T_{role}"), token(role))).collect();
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    Semel::with_config(&config(folder, &ROLES), &env)
}

fn token(role: &str) -> String {
    format!("{role}-token-of-more-than-32-bytes")
}

fn as_role(admin: &Http, role: &str) -> Http {
    admin.with("authorization", &format!("Bearer {}", token(role)))
}

// admin_auth: the matrix, over the wire.
#[test]
fn every_role_has_its_rights_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let semel = start(folder.path());
    let admin = semel.admin();
    let claim = r#"{"namespace": "n", "key": "k", "lease": "10m", "in_flight_max": "20m"}"#;
    let key = as_role(&admin, "producer").post("/v1/claims", claim).expect(200);
    let id = key["key_id"].as_str().unwrap();
    let (forget, settle) = (format!("/v1/keys/{id}/forget"), format!("/v1/keys/{id}/settle"));
    let table = [
        // What is asked for, then the status for each role.
        ("GET", "/v1/keys", "", [200, 200, 200, 403]),
        ("GET", &format!("/v1/keys/{id}"), "", [200, 200, 200, 403]),
        ("GET", "/openapi.json", "", [200, 200, 200, 403]),
        ("POST", "/v1/claims", r#"{"namespace": "n", "key": "other"}"#, [403, 403, 200, 200]),
        ("POST", &settle, r#"{"run": true, "reason": "r"}"#, [403, 409, 409, 403]),
        ("POST", &forget, r#"{"reason": "r"}"#, [403, 409, 409, 403]),
        // By force only the admin; it comes last in its row and takes the key away.
        ("POST", &forget, r#"{"reason": "r", "force": true}"#, [403, 403, 200, 403]),
        ("DELETE", "/v1/keys", "", [403, 403, 405, 403]),
    ];
    for (method, path, body, expected) in table {
        for (role, expected) in ROLES.iter().zip(expected) {
            let answer = as_role(&admin, role).send(method, path, body);
            assert_eq!(answer.status, expected, "{role}: {method} {path}: {}", answer.text());
        }
        let nobody = admin.send(method, path, body);
        assert_eq!(
            (nobody.status, nobody.header("www-authenticate")),
            (401, Some("Bearer")),
            "{method} {path}"
        );
        let wrong =
            admin.with("authorization", "Bearer viewer-token-of-more-than-32-byteS").send(method, path, body);
        assert_eq!(wrong.status, 401, "{method} {path}");
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(admin.get(path).status, 200, "{path} needs no token");
    }
}

// csrf, rebinding: a page of another origin, or of a name that resolves to us, gets nothing.
#[test]
fn pages_of_other_origins_get_nothing() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    let claim = r#"{"namespace": "n", "key": "k"}"#;
    for (name, value) in [("host", "evil.example"), ("host", "127.0.0.1.evil.example:80")] {
        let answer = admin.with(name, value).get("/v1/keys").expect(403);
        assert_eq!(answer["code"], "foreign_origin");
    }
    assert_eq!(admin.with("host", "").get("/v1/keys").status, 400);
    for origin in ["http://evil.example", "null", "http://localhost:1"] {
        let answer = admin.with("origin", origin).post("/v1/claims", claim).expect(403);
        assert_eq!(answer["code"], "foreign_origin", "{origin}");
    }
    assert_eq!(admin.with("host", "localhost").get("/v1/keys").status, 200);
    assert_eq!(admin.with("origin", semel.admin_url()).post("/v1/claims", claim).status, 200);
}

// A token that is taken out of the file is worth nothing after SIGHUP; a bad file changes nothing.
#[test]
fn tokens_are_read_anew() {
    let folder = tempfile::tempdir().unwrap();
    let semel = start(folder.path());
    let admin = semel.admin();
    let viewer = as_role(&admin, "viewer");
    assert_eq!(viewer.get("/v1/keys").status, 200);
    std::fs::write(folder.path().join("semel.toml"), "[admin]\nlisten = 5\n").unwrap();
    semel.signal(Signal::HUP);
    semel.logged("configuration reload refused");
    semel.logged("semel.toml:2:10: listen: expected text in quotes");
    assert_eq!(viewer.get("/v1/keys").status, 200, "the old one stays in force");
    config(folder.path(), &["admin"]);
    semel.signal(Signal::HUP);
    wait::until("the token is gone", PATIENCE, || viewer.get("/v1/keys").status == 401).unwrap();
    assert_eq!(as_role(&admin, "admin").get("/v1/keys").status, 200);
}
