//! Events published inside a caller's own transaction: all or nothing, and relayed once.

use std::sync::Arc;

use semel::secret::Secret;
use semel::store::{EmbeddedStore, rusqlite};
use semel::{Engine, FailureExt as _, Key};
use semel_pipeline::id::EventId;
use semel_pipeline::ledger::{
    EmbeddedLedger, EventFilter, LetterFilter, Letters as _, Page, Reading as _, Take, Working as _,
};
use semel_pipeline::letter::Cause;
use semel_pipeline::outbox::Relayed;
use semel_pipeline::outbox::embedded::{EmbeddedRelay, STREAM, publish_in};
use semel_pipeline::publish::Publication;

struct Shop {
    store: Arc<EmbeddedStore>,
    ledger: Arc<EmbeddedLedger>,
    relay: EmbeddedRelay,
    _folder: tempfile::TempDir,
}

impl Shop {
    async fn open() -> Self {
        let folder = super::folder();
        let store = Arc::new(EmbeddedStore::open(folder.path()).expect("the store can be opened"));
        let ledger = EmbeddedLedger::open(Arc::clone(&store)).await.expect("the ledger can be opened");
        store
            .transact(|transaction| transaction.execute_batch("CREATE TABLE orders (id TEXT)"))
            .await
            .expect("a table can be made");
        let ledger = Arc::new(ledger);
        let route = |event: &Publication| match event.event_type.as_str() {
            "order.paid" => vec!["crm".to_owned(), "mail".to_owned()],
            _ => Vec::new(),
        };
        let relay = EmbeddedRelay::new(Arc::clone(&ledger), Secret::from_bytes([1; 32]), route);
        Self { store, ledger, relay, _folder: folder }
    }

    async fn relay(&self) -> Relayed {
        self.relay.run_once(100).await.expect("it can be relayed")
    }

    async fn events(&self) -> Vec<EventId> {
        let page = Page { after: None, limit: 100 };
        let found = self.ledger.events(EventFilter::default(), page).await.expect("they can be listed");
        found.items.into_iter().map(|event| event.new.id).collect()
    }
}

fn paid(order: &str) -> Publication {
    Publication::new("order.paid", order, format!("{{\"order\":\"{order}\"}}"))
        .tenant("acme")
        .order_key(order)
}

fn order(transaction: &rusqlite::Transaction<'_>, id: &str) -> rusqlite::Result<EventId> {
    transaction.execute("INSERT INTO orders VALUES (?1)", [id])?;
    publish_in(transaction, &paid(id))
}

#[tokio::test]
async fn what_is_committed_is_relayed_once() {
    let shop = Shop::open().await;
    assert_eq!(shop.relay().await, Relayed::default());
    let changed = shop.ledger.changed();
    let id = shop.store.transact(|transaction| order(transaction, "a")).await.expect("it is committed");
    assert_eq!(shop.events().await, [], "not before it is relayed");
    assert_eq!(shop.relay().await, Relayed { accepted: 1, ..Relayed::default() });
    changed.await;
    assert_eq!(shop.relay().await, Relayed::default());
    let event =
        shop.ledger.event(id).await.expect("it can be read").expect("it has the id that was told").new;
    assert_eq!((event.tenant.as_str(), event.order_key.as_deref()), ("acme", Some("a")));
    assert_eq!(&event.payload[..], br#"{"order":"a"}"#);
    let take = Take {
        worker: "w".to_owned(),
        targets: vec![("crm".to_owned(), 9), ("mail".to_owned(), 9)],
        limit: 9,
        lease: std::time::Duration::from_secs(60),
    };
    assert_eq!(shop.ledger.take(take).await.expect("work can be taken").len(), 2);
    // The same order again is the same event.
    shop.store.transact(|transaction| order(transaction, "a")).await.expect("it is committed");
    assert_eq!(shop.relay().await, Relayed { cached: 1, ..Relayed::default() });
    assert_eq!(shop.events().await, [id]);
}

#[tokio::test]
async fn what_is_rolled_back_was_never_published() {
    let shop = Shop::open().await;
    let failed = shop.store.transact(|transaction| {
        order(transaction, "a")?;
        transaction.execute("INSERT INTO nowhere VALUES (1)", [])
    });
    assert!(failed.await.is_err());
    assert_eq!(shop.relay().await, Relayed::default());
    assert_eq!(shop.events().await, []);
}

#[tokio::test]
async fn an_effect_that_happens_once_publishes_once() {
    let shop = Shop::open().await;
    let engine = Engine::builder(shop.store.clone()).build().expect("an engine can be built");
    let mut told = Vec::new();
    for _ in 0..3 {
        let answer = engine
            .once(Key::new("pay").value("a"))
            .run_in(&shop.store, |transaction, _| order(transaction, "a").map(|id| id.to_string()).failed())
            .await
            .expect("it is paid");
        told.push(answer.value);
    }
    assert_eq!(shop.relay().await, Relayed { accepted: 1, ..Relayed::default() });
    let events: Vec<_> = shop.events().await.iter().map(ToString::to_string).collect();
    assert_eq!(events, told[..1]);
    assert!(told.iter().all(|id| *id == told[0]));
}

#[tokio::test]
async fn what_cannot_be_accepted_is_a_dead_letter() {
    let shop = Shop::open().await;
    shop.store
        .transact(|transaction| {
            publish_in(transaction, &paid("a"))?;
            let other = Publication { payload: "{}".into(), ..paid("a") };
            publish_in(transaction, &other)?;
            publish_in(transaction, &Publication::new("order.paid", "", "{}"))
        })
        .await
        .expect("it is committed");
    assert_eq!(shop.relay().await, Relayed { accepted: 1, cached: 0, refused: 2 });
    assert_eq!(shop.relay().await, Relayed::default());
    let page = Page { after: None, limit: 10 };
    let letters = shop.ledger.letters(LetterFilter::default(), page).await.expect("they can be listed").items;
    assert_eq!(letters.len(), 2);
    for letter in letters {
        assert_eq!((letter.cause, &letter.payload[..]), (Cause::NonRetryable, &b"{}"[..]));
        assert_eq!(letter.source.map(|source| source.stream).as_deref(), Some(STREAM));
    }
}
