//! A target that counts its deliveries.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::any;
use parking_lot::Mutex;
use tokio::net::TcpListener;

/// A target that counts deliveries by key.
pub(super) struct DrillTarget {
    at: SocketAddr,
    shared: Arc<TargetShared>,
    serving: Option<tokio::task::JoinHandle<()>>,
}

struct TargetShared {
    status: AtomicU16,
    taken: Mutex<BTreeMap<String, u32>>,
    calls: Mutex<Vec<(String, String)>>,
}

impl DrillTarget {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let at = listener.local_addr()?;
        let shared = Arc::new(TargetShared {
            status: AtomicU16::new(200),
            taken: Mutex::default(),
            calls: Mutex::default(),
        });
        let mut target = Self { at, shared, serving: None };
        target.serve(listener);
        Ok(target)
    }

    fn serve(&mut self, listener: TcpListener) {
        let router = Router::new().fallback(any(take)).with_state(Arc::clone(&self.shared));
        self.serving = Some(tokio::spawn(async move { drop(axum::serve(listener, router).await) }));
    }

    /// Stops listening.
    pub(super) async fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            let _ = serving.await;
        }
    }

    /// Listens at the same address again.
    pub(super) async fn restart(&mut self) -> anyhow::Result<()> {
        let listener = TcpListener::bind(self.at).await.context("the target's port")?;
        self.serve(listener);
        Ok(())
    }

    pub(super) fn answer_with(&self, status: u16) {
        self.shared.status.store(status, Ordering::SeqCst);
    }

    /// A `[[target]]` that gives up soon.
    pub(super) fn config(&self, name: &str) -> String {
        format!(
            "[[target]]\nname = \"{name}\"\nurl = \"http://{}/\"\n\
             retry = {{ max_attempts = 3, base = \"20ms\", cap = \"100ms\", timeout = \"5s\" }}\nschedule = []\n",
            self.at
        )
    }

    /// Number of keys that it accepted.
    pub(super) fn effects(&self) -> usize {
        self.shared.taken.lock().len()
    }

    /// The key and the body of every call.
    pub(super) fn calls(&self) -> Vec<(String, String)> {
        self.shared.calls.lock().clone()
    }
}

async fn take(State(shared): State<Arc<TargetShared>>, headers: HeaderMap, body: String) -> StatusCode {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or("").to_owned();
    shared.calls.lock().push((key.clone(), body));
    let status = StatusCode::from_u16(shared.status.load(Ordering::SeqCst)).unwrap_or(StatusCode::OK);
    if status.is_success() {
        *shared.taken.lock().entry(key).or_default() += 1;
    }
    status
}
