//! Behind a transaction pooler: nothing of a session is used.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use semel::store::Pooling;
use semel_pipeline::ledger::{Ledger, PostgresLedger};
use semel_pipeline::testkit::contract::{self, LedgerContext};
use semel_testbed::Postgres;

/// A PgBouncer before a server, with two server connections for everybody. Ended when dropped.
struct Bouncer {
    process: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Bouncer {
    fn before(server: &Postgres) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let everybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), everybody).expect("a folder that it can read");
        let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = listener.expect("a free port").port();
        let config = folder.path().join("bouncer.ini");
        let lines = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 2\n\
             unix_socket_dir =\nmax_client_conn = 1000\n",
            server.port()
        );
        std::fs::write(&config, lines).expect("a file");
        // It refuses to run as root.
        let mut program = Command::new("pgbouncer");
        program.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
        program.arg("-u").arg("postgres").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let process = program.spawn().expect("pgbouncer is installed");
        Self { process, url: format!("postgres://postgres@127.0.0.1:{port}/postgres"), _folder: folder }
    }

    /// Opens a ledger of its own through the pooler.
    async fn open(&self, schema: &str) -> Arc<dyn Ledger> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            let builder = PostgresLedger::builder(&self.url).schema(schema).pooling(Pooling::Transaction);
            match builder.open().await {
                Ok(ledger) => return Arc::new(ledger),
                Err(error) => {
                    assert!(tokio::time::Instant::now() < deadline, "the pooler does not start: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

// pooler_transaction_mode
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_holds_behind_a_transaction_pooler() {
    let server = Postgres::start().expect("a server");
    let bouncer = Bouncer::before(&server);
    // Every case in a schema of its own. One of each group that uses another kind of statement, and all that race.
    let wanted = |name: &str| {
        name.contains("racing")
            || [
                "an_event_is_kept_as_it_was_accepted",
                "order_keys_go_one_by_one",
                "tenants_take_turns",
                "a_lost_worker_is_noticed",
                "every_ending_leads_where_it_is_drawn",
                "totals_count_everything",
                "what_is_over_is_swept",
                "an_edited_copy_is_linked_both_ways",
                "as_new_is_an_event_of_its_own",
                "a_run_is_cancelled",
                "random_commands_agree_with_the_model",
            ]
            .contains(&name)
    };
    for (number, case) in contract::cases().iter().filter(|case| wanted(case.name())).enumerate() {
        let schema = format!("case_{number}");
        let context = LedgerContext::new(bouncer.open(&schema).await).peer(bouncer.open(&schema).await);
        case.run(&context).await;
    }
}
