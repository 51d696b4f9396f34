//! Calls to other people's systems: a derived key for one that honours keys, claim-first for one that can only be asked.
//!
//! `cargo run -p semel-client --example downstream`

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel::store::MemoryStore;
use semel::{Engine, Failure, Key, Mode};
use semel_client::client::{Client, Request};
use semel_client::downstream::{
    ClaimFirst, DuplicatePattern, Reconciled, ReservedId, Runbook, RunbookEntry, Scrubber, SecretSource,
};
use semel_client::retry::{Destinations, Limits, Retry};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// A card company that honours keys. Its first answer is lost on the way.
async fn acquirer(booked: Arc<Mutex<HashMap<String, u32>>>) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        for number in 0u32.. {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let mut request = vec![0; 8192];
            let length = stream.read(&mut request).await.unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..length]).to_lowercase();
            let key =
                request.lines().find_map(|line| line.strip_prefix("idempotency-key: ")).unwrap_or("none");
            let receipt = {
                let mut booked = booked.lock().unwrap_or_else(PoisonError::into_inner);
                let next = booked.len() as u32 + 1;
                *booked.entry(key.to_owned()).or_insert(next)
            };
            if number == 0 {
                println!("   acquirer: booked as receipt {receipt}, and the connection is cut");
                continue;
            }
            println!("   acquirer: asked again with the same key, answers with receipt {receipt}");
            let body = json!({ "receipt": receipt }).to_string();
            let head = format!(
                "HTTP/1.1 201 Created\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    Ok(url)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::builder(MemoryStore::new()).mode(Mode::Keyed).build()?;

    println!("1. A provider that honours keys gets a derived one, and the lost answer is asked for again:");
    let booked = Arc::default();
    let destinations = Destinations::new(Limits::default());
    let client = Client::builder(&acquirer(Arc::clone(&booked)).await?)?
        .retry(Retry::default().base(Duration::from_millis(20)))
        .destination(&destinations.get("acquirer"))
        .build()?;
    let caller_key = "order-42";
    let charged = engine
        .once(Key::new("charge").scope("acct_1").value(caller_key))
        .fingerprint(&1200)
        .run_with(async move |attempt| {
            let request = Request::post("/v1/charges").operation("charge").bytes(r#"{"cents":1200}"#);
            let request = request.key(attempt.derived_key("acquirer").to_string());
            let request = request.expect("hex can stand in a header");
            client.json::<Value>(&request).await.map_err(Failure::from)
        })
        .await?;
    println!("   caller: {}", charged.value);
    assert_eq!(booked.lock().unwrap_or_else(PoisonError::into_inner).len(), 1);

    println!(
        "2. A provider that can only be asked: the claim is written first, and after a crash it is asked:"
    );
    let ledger: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
    let kept = Arc::clone(&ledger);
    let find = move |id: ReservedId| {
        let found = kept.lock().unwrap_or_else(PoisonError::into_inner).get(&id.to_string()).copied();
        println!("   ledger: asked for {}…, {found:?}", &id.to_string()[..8]);
        async move { found.map_or(Reconciled::NoRecord, Reconciled::Found) }
    };
    let transfers = ClaimFirst::new("ledger", find);
    let once = || engine.once(Key::new("transfer").scope("acct_1").value("tr-7")).fingerprint(&500);
    let booking = Arc::clone(&ledger);
    let lost = transfers
        .run(once(), async move |id: ReservedId| {
            booking.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_string(), 1);
            // The other side did it; this side will never know.
            Err::<u32, _>(Failure::Unknown("connection reset"))
        })
        .await;
    println!("   first attempt: {}", lost.map_or_else(|error| error.to_string(), |_| "done".to_owned()));
    let found = transfers
        .run(once(), async |_| Err::<u32, _>(Failure::Failed("must not be called a second time")))
        .await?;
    println!("   second attempt: booking {}, found and not made again", found.value);
    assert_eq!(ledger.lock().unwrap_or_else(PoisonError::into_inner).len(), 1);

    println!("3. What a provider says is scrubbed before anybody reads it:");
    let said = "duplicate of order%2D42 (b3JkZXItNDI=)";
    let scrubbed = Scrubber::new(caller_key).scrub(said);
    println!("   {said}  ->  {scrubbed}");
    assert!(!scrubbed.contains("42"));

    println!("4. The runbook:");
    let entry =
        |name: &str, pattern| RunbookEntry { name: name.to_owned(), pattern, secret: SecretSource::Derived };
    print!(
        "{}",
        Runbook::new([
            entry("acquirer", DuplicatePattern::DerivedKey),
            entry("ledger", DuplicatePattern::ClaimFirst)
        ])
    );
    Ok(())
}
