//! Guessing tokens.

use std::process::Command;

use crate::kit::{Semel, metric, semel};

const TOKEN: &str = "an-admin-token-of-more-than-32-bytes";
const CONFIG: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n\
                      [[token]]\nname = \"root\"\nrole = \"admin\"\nvalue = { env = \"ROOT_TOKEN\" }\n";

#[test]
fn guessing_tokens_is_logged_and_slowed_down_for_one_address_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    std::fs::write(&file, CONFIG).unwrap();
    let semel = Semel::with_config(&file, &[("ROOT_TOKEN", TOKEN)]);
    let admin = semel.admin();
    let right = admin.with("authorization", &format!("Bearer {TOKEN}"));
    // The same wrong token is no new guess: a worker with an old one locks nobody out.
    let old = admin.with("authorization", "Bearer a-guess-from-before");
    assert!((0..40).all(|_| old.get("/v1/keys").status == 401));
    assert_eq!(right.get("/v1/keys").status, 200);
    let guess = |number: usize| {
        let guess = format!("Bearer a-guess-that-nobody-should-ever-see-{number}");
        admin.with("authorization", &guess).get("/v1/keys")
    };
    let statuses: Vec<u16> = (0..40).map(|number| guess(number).status).collect();
    assert!(statuses[..19].iter().all(|status| *status == 401), "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
    // One more guess is allowed every two seconds, and the machine may be slow.
    let slowed = (40..80).map(guess).find(|answer| answer.status == 429).expect("it is slowed down");
    assert!(slowed.header("retry-after").is_some(), "{}", slowed.text());
    // A correct token is too long to be guessed: guesses from the same address do not lock its owner out.
    for number in 80..120 {
        guess(number);
        assert_eq!(right.get("/v1/keys").status, 200, "the correct token is answered");
    }
    assert_eq!(admin.get("/healthz").status, 200, "what needs no token is not affected");

    let other = Command::new("curl")
        .args(["-sS", "--noproxy", "*", "--interface", "127.0.0.2", "-o", "/dev/null", "-w", "%{http_code}"])
        .args(["-H", &format!("authorization: Bearer {TOKEN}"), &format!("{}/v1/keys", semel.admin_url())])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&other.stdout),
        "200",
        "a correct token from another address: {other:?}"
    );

    assert!(metric(&admin, "semel_admin_logins_refused_total{reason=\"unknown\"}") >= 20.0);
    assert!(metric(&admin, "semel_admin_logins_refused_total{reason=\"throttled\"}") >= 1.0);
    semel.logged("login failed: unknown token");
    let log = semel.log();
    let line = log.lines().find(|line| line.contains("login failed: unknown token")).unwrap();
    assert!(line.contains("\"WARN\"") && line.contains("127.0.0.1"), "{line}");
    assert!(line.contains("\"request_id\":\""), "{line}");
    assert!(!log.contains("a-guess") && !log.contains(TOKEN), "{log}");
}

#[test]
fn a_token_that_can_be_guessed_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    std::fs::write(&file, CONFIG).unwrap();
    let refused =
        semel().args(["serve", "--config"]).arg(&file).env("ROOT_TOKEN", "hunter2").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("shorter than 32 bytes") && said.contains("openssl rand -hex 32"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}
