//! Plain HTTP on a TLS listener: answers with an explanation instead of closing the connection.

use std::io;
use std::time::Duration;

use http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::refusal::{document, new_request_id};

/// The protocol that the first byte of a connection belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstByte {
    /// A TLS handshake, or something unknown; the handshake then reports the error.
    Tls,
    /// The method of a request.
    Http,
}

/// Number of request bytes that are discarded so that the client sees the answer.
const MOST: u64 = 64 * 1024;

/// Waits for the first byte without consuming it.
pub(super) async fn peek_first_byte(stream: &TcpStream) -> io::Result<FirstByte> {
    let mut first = [0];
    let length = stream.peek(&mut first).await?;
    // No TLS record begins with a letter.
    Ok(if length == 1 && first[0].is_ascii_alphabetic() { FirstByte::Http } else { FirstByte::Tls })
}

/// Answers that the scheme must be https, and closes. The request is not read.
pub(super) async fn answer(mut stream: TcpStream, linger: Duration) {
    let detail = "this port speaks TLS: write https:// instead of http://";
    let body = document(StatusCode::BAD_REQUEST, "tls_required", detail, false);
    // A customer can quote it, although the request's own id is not read.
    let request_id = new_request_id();
    let request_id = request_id.to_str().unwrap_or_default();
    tracing::debug!(status = 400, code = "tls_required", request_id, "request refused");
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\nx-request-id: {request_id}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let told = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing with unread bytes would reset the connection and destroy the answer.
        tokio::io::copy(&mut stream.take(MOST), &mut tokio::io::sink()).await
    };
    // An error means that the client has disconnected.
    let _ = tokio::time::timeout(linger, told).await;
}
