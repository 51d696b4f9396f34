//! The promises of every store, also across a restart.

use super::*;
use crate::record::{Force, Phase};
use crate::secret::Secret;
use crate::store::{MarkId, MarkStore as _, Scan};

#[tokio::test]
async fn what_was_acknowledged_survives_a_restart() {
    let place = Place::new();
    let store = place.open();
    finish(&store, id(1), "first").await;
    let grant = won(store.apply(id(2), claim()).await.unwrap());
    let secret = store.secret(Secret::random()).await.unwrap();
    let mark = MarkId::of_session(b"s");
    assert_eq!(store.raise_mark(mark, u64::MAX - 1).await.unwrap(), u64::MAX - 1);
    drop(store);

    let store = place.open();
    assert_eq!(*replayed(store.apply(id(1), claim()).await.unwrap()), Outcome::new("text", "first"));
    assert!(matches!(store.apply(id(2), claim()).await.unwrap(), Ruling::Busy { .. }));
    assert!(matches!(store.apply(id(2), complete(grant, "second")).await.unwrap(), Ruling::Accepted { .. }));
    assert_eq!(store.secret(Secret::random()).await.unwrap().expose(), secret.expose());
    assert_eq!(store.raise_mark(mark, 5).await.unwrap(), u64::MAX - 1, "a mark never goes down");
    assert_eq!(store.read_mark(mark).await.unwrap(), Some(u64::MAX - 1));
    assert_eq!(store.read_mark(MarkId::of_session(b"other")).await.unwrap(), None);
}

#[tokio::test]
async fn another_payload_is_a_conflict_in_every_state() {
    let place = Place::new();
    let store = place.open();
    let grant = won(store.apply(id(1), claim()).await.unwrap());
    assert_eq!(store.apply(id(1), claim_as(Owner::random(), 2)).await.unwrap(), Ruling::Conflict);
    let _ = store.apply(id(1), complete(grant, "x")).await.unwrap();
    assert_eq!(store.apply(id(1), claim_as(Owner::random(), 2)).await.unwrap(), Ruling::Conflict);
}

#[tokio::test]
async fn a_listing_goes_by_id_and_by_phase() {
    let place = Place::new();
    let store = place.open();
    let mut ids: Vec<_> = (0..40).map(id).collect();
    for (number, id) in ids.iter().enumerate() {
        match number % 2 {
            0 => finish(&store, *id, "done").await,
            _ => drop(won(store.apply(*id, claim()).await.unwrap())),
        }
    }
    let list = async |phase, limit| {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = store.scan(Scan { phase, after, limit }).await.unwrap();
            assert!(page.items.len() <= limit);
            found.extend(page.items.into_iter().map(|item| item.id));
            after = page.next;
            if after.is_none() {
                return found;
            }
        }
    };
    let (mut done, mut begun): (Vec<KeyId>, Vec<KeyId>) = (Vec::new(), Vec::new());
    for (number, id) in ids.iter().enumerate() {
        if number % 2 == 0 { done.push(*id) } else { begun.push(*id) }
    }
    ids.sort();
    done.sort();
    begun.sort();
    assert_eq!(list(None, 7).await, ids);
    assert_eq!(list(Some(Phase::Done), 7).await, done);
    assert_eq!(list(Some(Phase::Begun), 7).await, begun);
    assert_eq!(list(Some(Phase::InDoubt), 7).await, []);
    place.clock.advance(Duration::from_secs(31));
    assert_eq!(list(Some(Phase::InDoubt), 100).await, begun, "time is applied, swept or not");
}

#[tokio::test]
async fn a_fence_never_goes_back_not_even_over_sweep_and_restart() {
    let place = Place::new();
    let store = place.open();
    let first = won(store.apply(id(1), claim()).await.unwrap());
    let forgotten = store.apply(id(1), Command::Forget(Force::Yes)).await.unwrap();
    assert!(matches!(forgotten, Ruling::Accepted { .. }));
    place.clock.advance(DAY);
    let swept = store.sweep(10).await.unwrap();
    assert_eq!((swept.removed, swept.more), (1, false));
    assert_eq!(store.get(id(1)).await.unwrap(), None);
    drop(store);
    place.clock.set(crate::time::Timestamp::from_micros(5));
    let store = place.open();
    let second = won(store.apply(id(1), claim()).await.unwrap());
    assert!(second.fence() > first.fence());
}

#[tokio::test]
async fn a_sweep_is_bounded_and_goes_on() {
    let place = Place::new();
    let store = place.open();
    for number in 0..200 {
        finish(&store, id(number), "done").await;
    }
    let _ = won(store.apply(id(1000), claim()).await.unwrap());
    place.clock.advance(DAY * 3);
    let swept = store.sweep(150).await.unwrap();
    assert_eq!((swept.shrunk, swept.removed, swept.more), (0, 150, true));
    let swept = store.sweep(150).await.unwrap();
    assert_eq!((swept.removed, swept.more), (50, false));
    let left = store.scan(Scan { phase: None, after: None, limit: 10 }).await.unwrap();
    assert_eq!(left.items.len(), 1, "what is in doubt is never swept");
    assert_eq!(left.items[0].phase(), Phase::InDoubt);
}

#[tokio::test]
async fn an_expired_record_shrinks_first() {
    let place = Place::new();
    let store = place.open();
    finish(&store, id(1), "done").await;
    place.clock.advance(DAY + Duration::from_secs(61));
    let swept = store.sweep(10).await.unwrap();
    assert_eq!((swept.shrunk, swept.removed, swept.more), (1, 0, false));
    assert_eq!(store.apply(id(1), claim()).await.unwrap(), Ruling::Expired);
}

#[tokio::test]
async fn a_waiter_is_woken_by_the_outcome() {
    let place = Place::new();
    let store = place.open();
    let grant = won(store.apply(id(1), claim()).await.unwrap());
    let mut watch = store.watch(id(1));
    let (_, ruling) = tokio::join!(watch.changed(), store.apply(id(1), complete(grant, "x")));
    assert!(matches!(ruling.unwrap(), Ruling::Accepted { .. }));
}

#[tokio::test]
async fn a_job_shares_the_transaction_and_is_undone_when_it_fails() {
    let place = Place::new();
    let store = place.open();
    let mut watch = store.watch(id(1));
    let done = store
        .write(|writing| {
            let grant = won(writing.apply(id(1), claim())?);
            writing.apply(id(1), complete(grant, "inside"))
        })
        .await
        .unwrap();
    assert!(matches!(done, Ruling::Accepted { .. }));
    watch.changed().await;
    assert_eq!(*replayed(store.apply(id(1), claim()).await.unwrap()), Outcome::new("text", "inside"));

    let failed: Result<(), Error> = store
        .write(|writing| {
            let _ = won(writing.apply(id(2), claim())?);
            Err(Error::new(crate::store::ErrorKind::Unavailable, "changed my mind"))
        })
        .await;
    assert_eq!(failed.unwrap_err().to_string(), "changed my mind");
    assert_eq!(store.get(id(2)).await.unwrap(), None);

    let panicked: Result<(), Error> = store
        .write(|writing| {
            let _ = won(writing.apply(id(2), claim())?);
            panic!("a handler's bug")
        })
        .await;
    assert_eq!(panicked.unwrap_err().kind(), crate::store::ErrorKind::Unavailable);
    assert_eq!(store.get(id(2)).await.unwrap(), None);
    let _ = won(store.apply(id(2), claim()).await.unwrap());
}
