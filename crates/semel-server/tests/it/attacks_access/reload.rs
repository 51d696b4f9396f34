//! A reload must not weaken a socket that is already open.

use std::path::Path;

use rustix::process::Signal;

use crate::kit::{Http, Semel, Upstream};

const TOKEN: &str = "an-admin-token-of-more-than-32-bytes";

fn write(file: &Path, listen: &str, token: bool) {
    let token = if token {
        "[[token]]\nname = \"root\"\nrole = \"admin\"\nvalue = { env = \"ROOT_TOKEN\" }\n"
    } else {
        ""
    };
    let text = format!("[admin]\nlisten = \"{listen}\"\n[store]\nurl = \"memory:\"\n{token}");
    std::fs::write(file, text).unwrap();
}

#[test]
fn a_reload_cannot_expose_the_admin_api() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    write(&file, "0.0.0.0:0", true);
    let semel = Semel::with_config(&file, &[("ROOT_TOKEN", TOKEN)]);
    let admin = Http::new(&semel.admin_url().replace("0.0.0.0", "127.0.0.1"));
    assert_eq!(admin.get("/v1/keys").status, 401);
    // The file on its own is fine: a listener on loopback needs no token. The socket is not on loopback.
    write(&file, "127.0.0.1:0", false);
    semel.signal(Signal::HUP);
    semel.logged("configuration reload refused");
    assert_eq!(admin.get("/v1/keys").status, 401, "the socket still listens on all addresses");
    semel.logged("[admin] listen: changing 0.0.0.0:0 to 127.0.0.1:0 requires a restart");
    let with_token = admin.with("authorization", &format!("Bearer {TOKEN}"));
    assert_eq!(with_token.get("/v1/keys").status, 200, "the old tokens stay");
    // Another name for a loopback address must not pass either.
    write(&file, "[::1]:0", false);
    semel.signal(Signal::HUP);
    semel.logged("to [::1]:0 requires a restart");
    assert_eq!(admin.get("/v1/keys").status, 401);
}

#[test]
fn a_reload_that_moves_the_gateway_changes_nothing_else() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let write = |listen: &str, profile: &str| {
        let text = format!(
            "[gateway]\nlisten = \"{listen}\"\nupstream = \"{}\"\nprofile = \"{profile}\"\nscope = \"single-tenant\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n",
            upstream.url()
        );
        std::fs::write(&file, text).unwrap();
    };
    write("127.0.0.1:0", "ietf");
    let semel = Semel::with_config(&file, &[]);
    let gateway = semel.gateway().with("idempotency-key", "k");
    assert_eq!(gateway.post("/pay", "a").status, 201);
    write("127.0.0.2:0", "stripe");
    semel.signal(Signal::HUP);
    semel.logged("[gateway] listen: changing 127.0.0.1:0 to 127.0.0.2:0 requires a restart");
    semel.logged("configuration reload refused");
    assert_eq!(gateway.post("/pay", "b").status, 422, "as the old profile answers");
}
