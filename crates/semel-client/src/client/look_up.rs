//! Asks a service what became of a request.

use http::StatusCode;
use serde::de::DeserializeOwned;

use super::{Client, Error, Request};
use crate::downstream::Reconciled;

impl Client {
    /// Asks for the record of a request: a GET of the service's own, by the reserved id.
    ///
    /// A success that can be read is found. A 404 is no record: ask this way only where the service's 404 means that. All
    /// else is ambiguous: another status, no answer, an answer that cannot be read.
    pub async fn look_up<T: DeserializeOwned>(&self, request: &Request) -> Reconciled<T> {
        match self.json(request).await {
            Ok(found) => Reconciled::Found(found),
            Err(error) => match error.response().map(|response| response.status) {
                Some(StatusCode::NOT_FOUND) => Reconciled::NoRecord,
                Some(status) => Reconciled::Ambiguous(format!("it answered with {status}")),
                None => Reconciled::Ambiguous(reason(&error)),
            },
        }
    }
}

/// Why there is no answer, with its cause and nothing of the request.
fn reason(error: &Error) -> String {
    match error {
        Error::Call(given_up) => match &given_up.last {
            Some(fault) => format!("{given_up}: {fault}"),
            None => given_up.to_string(),
        },
        Error::Decode(error) => error.to_string(),
    }
}
