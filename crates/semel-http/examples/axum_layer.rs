//! A payments API in axum whose charges happen once, however often they are asked for.
//!
//! ```sh
//! cargo run -p semel-http --example axum_layer -- 127.0.0.1:3000
//! curl -i 127.0.0.1:3000/charge -H 'Authorization: me' -H 'Idempotency-Key: order-42' -d 1200   # twice
//! ```
//!
//! Without an address it sends itself the same charge three times, shows the answers and ends.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::post;
use semel::Engine;
use semel::store::MemoryStore;
use semel_http::{Guard, SemelLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let charges = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&charges);
    let charge = move |amount: String| async move {
        let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
        format!("charge {number}: {amount}\n")
    };

    // The memory store forgets everything when the process ends; a service would take a durable one.
    let engine = Engine::builder(MemoryStore::new()).build()?;
    let guard = Guard::builder(engine).build()?;
    let app = Router::new().route("/charge", post(charge)).layer(SemelLayer::new(guard));

    if let Some(address) = std::env::args().nth(1) {
        let listener = TcpListener::bind(address).await?;
        println!("listening on http://{}", listener.local_addr()?);
        return Ok(axum::serve(listener, app).await?);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    for _ in 0..3 {
        let mut connection = TcpStream::connect(address).await?;
        let request = "POST /charge HTTP/1.1\r\nHost: localhost\r\nAuthorization: me\r\nIdempotency-Key: order-42\r\nContent-Length: 4\r\nConnection: close\r\n\r\n1200";
        connection.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await?;
        println!("{answer}");
    }
    assert_eq!(charges.load(Ordering::SeqCst), 1, "three requests, one charge");
    println!("three requests, one charge");
    Ok(())
}
