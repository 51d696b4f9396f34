//! Behind a transaction pooler: nothing of a session is used.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command as Program, Stdio};
use std::sync::Arc;
use std::time::Duration;

use semel::store::{Pooling, PostgresStore, Store};
use semel::testkit::contract::{self, Context, agrees_with_the_rules};
use semel_testbed::Postgres;

use super::rounds;

/// A PgBouncer before a server, with two server connections for everybody. Ended when dropped.
struct Bouncer {
    process: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Bouncer {
    fn before(server: &Postgres) -> Self {
        let folder = tempfile::tempdir().expect("a healthy server");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777))
            .expect("a healthy server");
        let port = TcpListener::bind("127.0.0.1:0")
            .expect("a healthy server")
            .local_addr()
            .expect("a healthy server")
            .port();
        let config = folder.path().join("bouncer.ini");
        std::fs::write(
            &config,
            format!(
                "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
                 listen_port = {port}\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 2\n\
                 unix_socket_dir =\nmax_client_conn = 1000\n",
                server.port()
            ),
        )
        .expect("a healthy server");
        // It refuses to run as root.
        let mut program = Program::new("pgbouncer");
        program.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
        program.arg("-u").arg("postgres").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let process = program.spawn().expect("pgbouncer is installed");
        Self { process, url: format!("postgres://postgres@127.0.0.1:{port}/postgres"), _folder: folder }
    }

    async fn open(&self, schema: &str) -> PostgresStore {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            match PostgresStore::builder(&self.url)
                .schema(&schema[..schema.len().min(48)])
                .pooling(Pooling::Transaction)
                .open()
                .await
            {
                Ok(store) => return store,
                Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Wake-ups are pushed over a session, so behind such a pooler they reach this process only: waiters of others poll.
fn is_pushed(case: &contract::Case) -> bool {
    case.group() == "waking"
}

/// Caches need a session to be told of a forget, and are not used without one.
fn needs_caches(case: &contract::Case) -> bool {
    case.name().contains("cache")
}

// The whole contract but for caches, many cases at once, each in a schema of its own; two handles wherever nothing has to
// be pushed between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pooler_transaction_mode() {
    let server = Postgres::start().expect("a healthy server");
    let bouncer = Arc::new(Bouncer::before(&server));
    let mut running = tokio::task::JoinSet::new();
    for case in contract::cases().iter().filter(|case| !needs_caches(case)) {
        let bouncer = Arc::clone(&bouncer);
        running.spawn(async move {
            let open = async |bouncer: &Bouncer| Arc::new(bouncer.open(case.name()).await) as Arc<dyn Store>;
            let context = Context::new(open(&bouncer).await);
            let context = if is_pushed(case) { context } else { context.peer(open(&bouncer).await) };
            let context = context.reopen(move || {
                let bouncer = Arc::clone(&bouncer);
                async move { Arc::new(bouncer.open(case.name()).await) as Arc<dyn Store> }
            });
            case.run(&context).await;
        });
        // Those which wait for time to pass wait together; few enough that the load alone does not expire leases of a second.
        while running.len() >= 4 {
            running.join_next().await.expect("one runs").expect("a case holds");
        }
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("a case holds");
    }
    let context = Context::new(Arc::new(bouncer.open("one").await)).peer(Arc::new(bouncer.open("one").await));
    agrees_with_the_rules(&context, 4_000, rounds(60, 600)).await;
    let sessions =
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'postgres' AND application_name = 'semel'";
    let sessions: usize =
        server.sql(sessions).expect("a healthy server").trim().parse().expect("a healthy server");
    assert!(sessions <= 2, "{sessions} sessions behind a pool of two");
    let prepared = server.sql("SELECT count(*) FROM pg_prepared_statements").expect("a healthy server");
    assert_eq!(prepared.trim(), "0");
}
