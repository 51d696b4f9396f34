//! An agent that knows nothing of idempotency: every call of `create_media_buy` is another media buy.
//!
//! ```sh
//! cargo run -p semel-http --example naive_agent -- 127.0.0.1:3000
//! semel serve --profile adcp-mcp --upstream http://127.0.0.1:3000/
//! ```
//!
//! Behind the gateway it conforms; see docs/reference/adcp-mcp.md. A second argument is how many milliseconds a media buy takes.

mod agent;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let millis = arguments.next().map_or(Ok(50), |millis| millis.parse())?;
    let agent = Arc::new(agent::Agent::new(Duration::from_millis(millis)));
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, agent::router(agent)).await?)
}
