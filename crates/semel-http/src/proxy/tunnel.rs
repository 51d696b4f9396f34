//! What follows a `101 Switching Protocols`: bytes, both ways.

use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::Body;
use crate::edge::Ending;

/// The client's half of a tunnel that may come.
pub(super) struct Entrance {
    client: OnUpgrade,
    protocol: HeaderValue,
    /// Of the listener's, where there is one.
    ending: Option<Ending>,
}

impl Entrance {
    /// Takes it from a request that asks to switch and may.
    pub(super) fn take<B>(request: &mut Request<B>) -> Option<Self> {
        let client = request.extensions_mut().remove::<OnUpgrade>()?;
        let protocol = request.headers().get(header::UPGRADE)?.clone();
        let ending = request.extensions_mut().remove::<Ending>();
        Some(Self { client, protocol, ending })
    }

    /// Asks the upstream for the same.
    pub(super) fn ask(&self, request: &mut Request<Body>) {
        let headers = request.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, self.protocol.clone());
    }

    /// Joins both sides where the upstream has agreed. The tunnel lives in a task of its own until one side closes, or
    /// the listener ends.
    pub(super) fn open<B>(self, response: &mut Response<B>) {
        debug_assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS, "asked only then");
        let upstream = hyper::upgrade::on(&mut *response);
        let protocol = response.headers().get(header::UPGRADE).cloned().unwrap_or(self.protocol);
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        response.headers_mut().insert(header::UPGRADE, protocol);
        let (client, mut ending) = (self.client, self.ending);
        let ended = async move {
            match &mut ending {
                Some(ending) => ending.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::spawn(async move {
            let (Ok(client), Ok(upstream)) = (client.await, upstream.await) else {
                return;
            };
            let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
            // How a tunnel ends is the business of those who talk through it.
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
                () = ended => {}
            }
        });
    }
}
