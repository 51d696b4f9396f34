//! Connections to the target: one per request, HTTP/1.1, with TLS for https.
//!
//! A connection can be **held**: its request is written, but no byte of the answer is read until it is released. This way all
//! concurrent requests are on the wire before the first answer is read.

mod held;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Uri, header};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub(crate) use self::held::SharedHalves;
use self::held::{HeldStream, SentBody};

/// Maximum size of an answer.
const MOST: usize = 16 << 20;

/// The target of requests.
pub(crate) struct CheckedTarget {
    host: String,
    port: u16,
    /// Prefix of every path.
    base: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    connect: Duration,
    answer: Duration,
}

/// A prepared request.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A received answer.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedAnswer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("cannot reach {at}: {source}")]
    Connect { at: String, source: std::io::Error },
    #[error("{at} does not accept connections within {within:?}")]
    ConnectTimeout { at: String, within: Duration },
    #[error("TLS with {at} failed: {source}")]
    Tls { at: String, source: std::io::Error },
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("the connection broke: {0}")]
    Broken(String),
    #[error("cannot write the request: {0}")]
    Request(String),
}

trait NetStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> NetStream for S {}

/// An open connection that has sent nothing yet.
pub(crate) struct Connection {
    sender: SendRequest<SentBody>,
    hold: Arc<SharedHalves>,
    answer: Duration,
}

/// Decides whether an answer is complete before its connection ends.
pub(crate) type CompletionCheck<'a> = &'a (dyn Fn(&HeaderMap, &[u8]) -> bool + Sync);

impl CheckedTarget {
    /// A target by its address. Trusts the public roots, or those of a file instead.
    pub(crate) fn new(url: &str, roots: Option<RootCertStore>, answer: Duration) -> Result<Self, String> {
        // A URL that may contain a password is not shown.
        let shown = if url.contains('@') { "the URL".to_owned() } else { format!("{url:?}") };
        let uri: Uri = url.parse().map_err(|error| format!("{shown} is not an address: {error}"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(format!("{shown}: expected http://HOST or https://HOST")),
        };
        let host =
            uri.host().filter(|host| !host.is_empty()).ok_or_else(|| format!("{shown} names no host"))?;
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let tls = if tls { Some((connector(roots)?, server_name(bare)?)) } else { None };
        let base = uri.path().trim_end_matches('/').to_owned();
        let connect = Duration::from_secs(5);
        Ok(Self { host: bare.to_owned(), port, base, tls, connect, answer })
    }

    fn at(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The path of a request at this target.
    pub(crate) fn path(&self, path: &str) -> String {
        let joined = format!("{}{path}", self.base);
        if joined.is_empty() { "/".to_owned() } else { joined }
    }

    /// Opens a connection. With `held`, its answer is not read before [`SharedHalves::release`].
    pub(crate) async fn open(&self, hold: SharedHalves) -> Result<Connection, WireError> {
        let at = self.at();
        let connect = TcpStream::connect((self.host.as_str(), self.port));
        let stream = match tokio::time::timeout(self.connect, connect).await {
            Err(_) => return Err(WireError::ConnectTimeout { at, within: self.connect }),
            Ok(Err(source)) => return Err(WireError::Connect { at, source }),
            Ok(Ok(stream)) => stream,
        };
        // Measures the answer, not the delay of its segments.
        let _ = stream.set_nodelay(true);
        let stream: Box<dyn NetStream> = match &self.tls {
            None => Box::new(stream),
            Some((connector, name)) => {
                let connecting = connector.connect(name.clone(), stream);
                match tokio::time::timeout(self.connect, connecting).await {
                    Err(_) => return Err(WireError::ConnectTimeout { at, within: self.connect }),
                    Ok(Err(source)) => return Err(WireError::Tls { at, source }),
                    Ok(Ok(stream)) => Box::new(stream),
                }
            }
        };
        let hold = Arc::new(hold);
        let io = TokioIo::new(HeldStream::new(stream, Arc::clone(&hold)));
        let (sender, connection) =
            handshake(io).await.map_err(|error| WireError::Broken(describe_error(&error)))?;
        // It ends when both sides are done; the request reports its errors.
        tokio::spawn(connection);
        Ok(Connection { sender, hold, answer: self.answer })
    }

    /// Sends one request over a new connection.
    pub(crate) async fn send(
        &self,
        request: Outgoing,
        complete: CompletionCheck<'_>,
    ) -> Result<ReceivedAnswer, WireError> {
        let connection = self.open(SharedHalves::released()).await?;
        connection.send(self, request, complete).await
    }
}

impl Connection {
    /// The handle that holds its answer.
    pub(crate) fn hold(&self) -> Arc<SharedHalves> {
        Arc::clone(&self.hold)
    }

    /// Sends the request and reads the whole answer.
    pub(crate) async fn send(
        mut self,
        target: &CheckedTarget,
        request: Outgoing,
        complete: CompletionCheck<'_>,
    ) -> Result<ReceivedAnswer, WireError> {
        let body = SentBody::new(request.body, Arc::clone(&self.hold));
        let mut built = Request::builder().method(request.method).uri(target.path(&request.path));
        if let Some(headers) = built.headers_mut() {
            *headers = request.headers;
            if !headers.contains_key(header::HOST)
                && let Ok(host) = header::HeaderValue::from_str(&target.at())
            {
                headers.insert(header::HOST, host);
            }
        }
        let request = built.body(body).map_err(|error| WireError::Request(error.to_string()))?;
        let answer = self.answer;
        let whole = async {
            let response = self
                .sender
                .send_request(request)
                .await
                .map_err(|error| WireError::Broken(describe_error(&error)))?;
            let (parts, mut body) = response.into_parts();
            let mut bytes = BytesMut::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| WireError::Broken(describe_error(&error)))?;
                if let Ok(data) = frame.into_data() {
                    bytes.extend_from_slice(&data);
                }
                if bytes.len() > MOST {
                    return Err(WireError::Broken(format!("the answer is larger than {MOST} bytes")));
                }
                if complete(&parts.headers, &bytes) {
                    break;
                }
            }
            Ok(ReceivedAnswer { status: parts.status.as_u16(), headers: parts.headers, body: bytes.freeze() })
        };
        tokio::time::timeout(answer, whole).await.unwrap_or(Err(WireError::Timeout(answer)))
    }
}

/// An error with its causes.
fn describe_error(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

fn connector(roots: Option<RootCertStore>) -> Result<TlsConnector, String> {
    let roots = roots.unwrap_or_else(|| RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned()).map_err(|_| format!("{host:?} is not a valid TLS server name"))
}

impl std::fmt::Debug for CheckedTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target")
            .field("at", &self.at())
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}
