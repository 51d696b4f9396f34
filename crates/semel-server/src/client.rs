//! A small HTTP client: for the commands that talk to a running server, and for the demo's traffic.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(120);
const MOST: usize = 64 << 20;

/// Sends one request after the other to one server.
#[derive(Debug)]
pub(crate) struct Client {
    authority: String,
    token: Option<String>,
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Client {
    /// A client of the server at `url`.
    ///
    /// # Errors
    /// A URL that is none.
    pub(crate) fn new(url: &str, token: Option<String>) -> anyhow::Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("{url:?} is not a URL"))?;
        if uri.scheme_str() != Some("http") {
            bail!("{url:?}: expected http://HOST:PORT");
        }
        let authority = uri.authority().with_context(|| format!("{url:?} names no host"))?;
        let port = authority.port_u16().unwrap_or(80);
        Ok(Self { authority: format!("{}:{port}", authority.host()), token, connection: None })
    }

    /// Sends a request and reads the whole answer. Nothing is ever sent twice.
    ///
    /// # Errors
    /// Nobody answers.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> anyhow::Result<Reply> {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, &self.authority);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).context("the request cannot be written")?;
        let mut connection = self.connect().await?;
        let answer = async {
            let response = connection.send_request(request).await?;
            let (parts, body) = response.into_parts();
            let body =
                Limited::new(body, MOST).collect().await.map_err(|error| anyhow::anyhow!("{error}"))?;
            anyhow::Ok(Reply { status: parts.status, headers: parts.headers, body: body.to_bytes() })
        };
        let answered = tokio::time::timeout(ANSWER, answer).await;
        let reply = answered
            .with_context(|| format!("{} did not answer within {ANSWER:?}", self.authority))?
            .with_context(|| format!("{} did not answer", self.authority))?;
        self.connection = Some(connection);
        Ok(reply)
    }

    async fn connect(&mut self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        if let Some(mut open) = self.connection.take()
            && open.ready().await.is_ok()
        {
            return Ok(open);
        }
        let at = &self.authority;
        let connected = tokio::time::timeout(CONNECT, TcpStream::connect(at)).await;
        let stream = connected
            .with_context(|| format!("{at} did not accept within {CONNECT:?}"))?
            .with_context(|| format!("nothing answers at {at}; is `semel serve` running there?"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}
