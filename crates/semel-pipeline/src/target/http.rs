//! HTTP endpoints: `POST url` with the exact bytes of the payload.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, header};
use semel::store::BoxFuture;
use semel::time::{Clock, SystemClock};
use semel_client::client::{AddressError, Client, ClientBuildError, Lost, Request, RequestError, Sent};
use semel_client::downstream::Scrubber;

use super::scrub::{self, excerpt};
use super::{DeliveryCall, DeliveryOutcome, SigningSecret, Target};
use crate::envelope;

const EVENT_ID: HeaderName = HeaderName::from_static("semel-event-id");
const EVENT_TYPE: HeaderName = HeaderName::from_static("semel-event-type");
const ATTEMPT: HeaderName = HeaderName::from_static("semel-attempt");
const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("semel/", env!("CARGO_PKG_VERSION")));

/// How much of an answer is read: enough for the reason of a refusal.
const READ: usize = 64 << 10;

/// An HTTP endpoint. Redirects are not followed; a status of 2xx is a success, regardless of the answer's body.
pub struct HttpTarget {
    client: Client,
    /// Path and query after the address.
    path: String,
    secret: Option<SigningSecret>,
    /// Finds its credentials in its answers.
    credentials: Scrubber,
    clock: Arc<dyn Clock>,
}

/// Why an endpoint cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpTargetError {
    /// The URL is invalid.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A fragment, or a path with invalid characters.
    #[error(
        "the URL's path cannot be sent: it holds a fragment, a space or a character that must be encoded"
    )]
    Path,
    /// The token is not valid in a header.
    #[error("the bearer token cannot stand in a header: it must be visible ASCII")]
    Token,
    /// The client cannot be built.
    #[error(transparent)]
    Build(#[from] ClientBuildError),
}

/// The settings of an endpoint.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// Signs every delivery.
    pub secret: Option<SigningSecret>,
    /// Certificates to trust instead of the web's, as a PEM file.
    pub ca: Option<PathBuf>,
    /// The maximum number of open connections. Zero means the client's default.
    pub connections: usize,
    /// True if it may be a link-local address or a cloud's metadata service, which gives credentials to machines.
    pub allow_link_local: bool,
    /// The time limit of one attempt.
    pub timeout: Option<std::time::Duration>,
}

impl HttpTarget {
    /// The endpoint at `url`; `bearer` is sent as its `Authorization`, if given.
    ///
    /// # Errors
    /// The URL, token or certificate is invalid.
    pub fn new(url: &str, bearer: Option<&str>, options: HttpOptions) -> Result<Self, HttpTargetError> {
        let (origin, path) = split(url);
        let plain = path.bytes().all(|byte| byte.is_ascii_graphic());
        if path.contains('#') || !plain || path.parse::<http::uri::PathAndQuery>().is_err() {
            return Err(HttpTargetError::Path);
        }
        let mut builder = Client::builder(origin)?.header(header::USER_AGENT, AGENT).body_limit(READ);
        if let Some(token) = bearer {
            builder = builder.bearer(token).map_err(|_| HttpTargetError::Token)?;
        }
        if let Some(ca) = options.ca {
            builder = builder.ca(ca);
        }
        if !options.allow_link_local {
            builder = builder.refuse_link_local();
        }
        if options.connections > 0 {
            builder = builder.connections(options.connections, options.connections);
        }
        if let Some(timeout) = options.timeout {
            builder = builder.timeout(timeout);
        }
        let client = builder.build()?;
        let credentials = scrub::of_target(bearer, options.secret.as_ref(), path);
        let (path, secret, clock) = (path.to_owned(), options.secret, Arc::new(SystemClock));
        Ok(Self { client, path, secret, credentials, clock })
    }

    fn request(&self, call: &DeliveryCall) -> Result<Request, RequestError> {
        let work = call.work();
        let text = |name: &'static str, value: &str| {
            HeaderValue::from_str(value).map_err(|_| RequestError::Header(name))
        };
        let id = work.event.to_string();
        let mut request = Request::post(self.path.as_str())
            .bytes(work.payload.clone())
            .key(call.key().to_string())?
            .with_request_id(work.request_id.as_str())?
            .traceparent(&work.span().to_string())?
            .header(header::CONTENT_TYPE, text("content type", &work.content_type)?)
            .header(EVENT_TYPE, text("event type", &work.event_type)?)
            .header(EVENT_ID, text("event id", &id)?)
            .header(ATTEMPT, HeaderValue::from(work.attempt));
        for (name, value) in work.headers.iter().filter(|(name, _)| name.starts_with(envelope::PREFIX)) {
            // A producer of a stream may have written a field with such a name that is no header.
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse()) {
                request = request.header(name, value);
            }
        }
        if let Some(secret) = &self.secret {
            // Receivers treat a repeated id as the same message: a re-execution is another message.
            let message = match work.epoch {
                0 => id,
                epoch => format!("{id}.{epoch}"),
            };
            let seconds = self.clock.now().as_micros() / 1_000_000;
            let signature = secret.sign(&message, seconds, &work.payload);
            request = request
                .header(WEBHOOK_ID, text("event id", &message)?)
                .header(WEBHOOK_TIMESTAMP, HeaderValue::from(seconds))
                .header(WEBHOOK_SIGNATURE, text("signature", &signature)?);
        }
        Ok(request)
    }

    async fn send(&self, call: &DeliveryCall) -> DeliveryOutcome {
        let request = match self.request(call) {
            Ok(request) => request,
            Err(error) => {
                return DeliveryOutcome::refused(format!("the delivery cannot be written: {error}"));
            }
        };
        let sent = self.client.send_for_status(&request, Arc::new(call.clone())).await;
        let judged = self.client.judge_sent(&request, &sent);
        match &sent {
            Sent::NotSent(Lost::Stopped) => DeliveryOutcome::given_up(),
            Sent::NotSent(lost) => {
                DeliveryOutcome::judged(judged, self.credentials.scrub(&format!("not sent: {lost}")))
            }
            Sent::Unknown(lost) => {
                let error = format!("sent, and the result is unknown: {lost}");
                DeliveryOutcome::judged(judged, self.credentials.scrub(&error))
            }
            Sent::Answered(response) if response.status.is_success() => DeliveryOutcome::judged(judged, ""),
            Sent::Answered(response) => {
                // A target may quote the request.
                let secrets = self.credentials.clone().and(&call.key().to_string());
                let words = excerpt(&response.body, &secrets);
                DeliveryOutcome::judged(judged, format!("answered with {}", response.status)).excerpt(words)
            }
        }
    }
}

impl Target for HttpTarget {
    fn deliver(&self, call: DeliveryCall) -> BoxFuture<'_, DeliveryOutcome> {
        Box::pin(async move { self.send(&call).await })
    }
}

impl fmt::Debug for HttpTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A query may contain a token.
        let path = self.path.split('?').next().unwrap_or_default();
        f.debug_struct("HttpTarget")
            .field("client", &self.client)
            .field("path", &path)
            .finish_non_exhaustive()
    }
}

/// Scheme and authority, and the rest.
fn split(url: &str) -> (&str, &str) {
    let after = url.find("://").map_or(0, |at| at + 3);
    let end = url[after..].find(['/', '?', '#']).map_or(url.len(), |at| after + at);
    let (origin, path) = url.split_at(end);
    (origin, if path.is_empty() { "/" } else { path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_an_address_and_a_path() {
        for (url, origin, path) in [
            ("http://h:1", "http://h:1", "/"),
            ("http://h/hook/", "http://h", "/hook/"),
            ("https://h/hook?a=1", "https://h", "/hook?a=1"),
        ] {
            assert_eq!(split(url), (origin, path), "{url}");
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        let new = |url: &str| HttpTarget::new(url, None, HttpOptions::default());
        assert!(new("http://127.0.0.1:9000/hook?x=1").is_ok());
        let link_local = HttpOptions { allow_link_local: true, ..HttpOptions::default() };
        assert!(HttpTarget::new("http://169.254.1.1/hook", None, link_local).is_ok());
        let refused = new("http://169.254.169.254/latest/meta-data/").unwrap_err();
        assert!(refused.to_string().contains("link-local"), "{refused}");
        for wrong in ["", "127.0.0.1/hook", "ftp://h/", "http://user:pw@h/", "http://h/a b", "http://h/#x"] {
            assert!(new(wrong).is_err(), "{wrong}");
        }
        let token = HttpTarget::new("http://h", Some("a\nb"), HttpOptions::default());
        assert!(matches!(token, Err(HttpTargetError::Token)));
    }
}
