//! Two servers on one PostgreSQL ledger.

use semel_testbed::{Postgres, wait};

use super::{count, event, publish, target};
use crate::kit::{PATIENCE, Semel, Sink};

// In many processes: both deliver, one is killed, the other one goes on; effects by key equal events.
#[test]
fn two_servers_share_the_work() {
    let (sink, server) = (Sink::start(), Postgres::start().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    // One secret for both, or they would not make the same keys.
    let text = format!(
        "secret = {{ env = \"SECRET\" }}\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n[ledger]\nurl = {{ env = \"LEDGER\" }}\n\
         lease = \"500ms\"\n{}",
        target("all", &sink, "concurrency = 2")
    );
    std::fs::write(&file, text).unwrap();
    let start =
        || Semel::with_config(&file, &[("LEDGER", &server.url()), ("SECRET", "a secret of the deployment")]);
    let (one, two) = (start(), start());
    let (admin_one, admin) = (one.admin(), two.admin());
    for number in 0..60 {
        publish(if number % 2 == 0 { &admin_one } else { &admin }, &event("a", &number.to_string()));
    }
    let again = admin.post("/v1/events", &event("a", "0").to_string()).expect(200);
    assert_eq!(again["cached"], true, "the other server knows it");
    one.kill();
    for number in 60..80 {
        publish(&admin, &event("a", &number.to_string()));
    }
    wait::until("all are delivered", PATIENCE, || count(&admin, "done") == 80).unwrap();
    assert_eq!(sink.effects().len(), 80);
}
