//! Plain HTTP at a listener that speaks TLS: whoever mistook the scheme is told so, instead of being hung up on.

use std::io;
use std::time::Duration;

use http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::refusal::document;

/// What the first byte of a connection belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spoken {
    /// A handshake, or nothing that is known here; the handshake will say what is wrong with it.
    Tls,
    /// The method of a request.
    Http,
}

/// How much of a request is thrown away so that its sender sees the answer.
const MOST: u64 = 64 * 1024;

/// Waits for the first byte, and leaves it where it is.
pub(super) async fn look(stream: &TcpStream) -> io::Result<Spoken> {
    let mut first = [0];
    let length = stream.peek(&mut first).await?;
    // No record of TLS begins with a letter.
    Ok(if length == 1 && first[0].is_ascii_alphabetic() { Spoken::Http } else { Spoken::Tls })
}

/// Says which scheme is meant, and closes. What was asked is not looked at.
pub(super) async fn answer(mut stream: TcpStream, linger: Duration) {
    let detail = "this port speaks TLS: write https:// instead of http://";
    let body = document(StatusCode::BAD_REQUEST, "tls_required", detail, false);
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let told = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing over unread bytes would reset the connection and take the answer with it.
        tokio::io::copy(&mut stream.take(MOST), &mut tokio::io::sink()).await
    };
    // A client that is gone needs no answer.
    let _ = tokio::time::timeout(linger, told).await;
}
