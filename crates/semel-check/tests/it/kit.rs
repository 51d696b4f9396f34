//! What the tests share: a server for any answer, and short ways to run a storyboard.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use semel_check::{Error, Report, RunOptions, Runner, Storyboard};
use tokio::net::TcpListener;

/// A request, read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.headers.get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or(serde_json::Value::Null)
    }
}

/// What happens to connections beyond the limit of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    /// They are never answered, like those beyond a full listen backlog.
    Ignored,
    /// They are closed at once.
    Closed,
}

pub(crate) type Reply = Response<Full<Bytes>>;
type Handler = Arc<dyn Fn(Asked) -> Pin<Box<dyn Future<Output = Reply> + Send>> + Send + Sync>;

/// A server that answers as it is told. It lives as long as the test's runtime.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) at: SocketAddr,
}

impl Server {
    pub(crate) async fn start<F, R>(handle: F) -> Self
    where
        F: Fn(Asked) -> R + Send + Sync + 'static,
        R: Future<Output = Reply> + Send + 'static,
    {
        Self::start_with(None, handle).await
    }

    /// A server that serves at most this number of connections at the same time.
    pub(crate) async fn start_with<F, R>(limit: Option<(usize, Excess)>, handle: F) -> Self
    where
        F: Fn(Asked) -> R + Send + Sync + 'static,
        R: Future<Output = Reply> + Send + 'static,
    {
        let handle: Handler = Arc::new(move |asked| Box::pin(handle(asked)));
        let open = Arc::new(());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let handle = Arc::clone(&handle);
                let counted = Arc::clone(&open);
                if let Some((_, excess)) = limit.filter(|(most, _)| Arc::strong_count(&open) > most + 1) {
                    if excess == Excess::Ignored {
                        tokio::spawn(async move {
                            let _stream = stream;
                            std::future::pending::<()>().await;
                        });
                    }
                    continue;
                }
                tokio::spawn(async move {
                    let _counted = counted;
                    let service = service_fn(move |request: Request<Incoming>| {
                        let handle = Arc::clone(&handle);
                        async move {
                            let (parts, body) = request.into_parts();
                            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                            let path = parts.uri.path().to_owned();
                            let query = parts.uri.query().unwrap_or_default().to_owned();
                            let asked =
                                Asked { method: parts.method, path, query, headers: parts.headers, body };
                            Ok::<_, Infallible>(handle(asked).await)
                        }
                    });
                    // A client that hangs up is its own affair.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { at }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.at)
    }
}

/// An answer in JSON.
pub(crate) fn reply(status: u16, headers: &[(&str, &str)], body: &serde_json::Value) -> Reply {
    let mut built = Response::builder().status(status);
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
        built = built.header("content-type", "application/json");
    }
    for (name, value) in headers {
        built = built.header(*name, *value);
    }
    built.body(Full::new(Bytes::from(body.to_string()))).unwrap()
}

/// Runs a storyboard given as text.
pub(crate) async fn run_text(url: &str, text: &str) -> Report {
    try_text(url, text).await.unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) async fn try_text(url: &str, text: &str) -> Result<Report, Error> {
    let storyboard = Storyboard::parse("test.yaml", text)?;
    Runner::new(RunOptions::new(url))?.run(&[storyboard], &|_| {}).await
}

/// The mistakes of a file, as told.
pub(crate) fn mistakes(text: &str) -> String {
    Storyboard::parse("test.yaml", text).map(|_| ()).unwrap_err().to_string()
}
