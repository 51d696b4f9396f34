//! The dispatcher: asks the ledger for work when there may be some, and sleeps otherwise.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::room::Wanted;
use super::{Shared, attempt};
use crate::delivery::{Settle, Work};
use crate::ledger::{BoxFuture, Take};
use crate::target::{Registered, Targets};

/// The most that one call takes.
const BATCH: u32 = 256;
/// While something is under way, the ledger is asked for the next due moment no more often than this: usually its end
/// comes first, and with it the next take.
const LAZY: Duration = Duration::from_millis(50);
/// The ledger is asked at least so often, whatever it said.
const BACKSTOP: Duration = Duration::from_secs(30);
/// After a failed take, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

pub(super) async fn run(shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let ledger = Arc::clone(&shared.ledger);
    let mut changed = ledger.changed();
    let mut pause = PAUSE.0;
    // Whether the ledger should be asked what is due next, rather than what is under way waited for.
    let mut patience = Patience::Fresh;
    // How often in a row the ledger said that something is due, and then gave nothing out.
    let mut futile = 0u32;
    loop {
        // Before the ledger is asked: a change while it answers is not missed. The second time is for the new future.
        for _ in 0..2 {
            if !is_over(&mut changed).await {
                break;
            }
            changed = ledger.changed();
            shared.room.soil_all();
        }
        if *stop.borrow() {
            return;
        }
        let targets = shared.registry.current();
        let wanted = shared.room.wanted(&targets);
        if wanted.limit > 0 {
            patience = Patience::Fresh;
            match take(&shared, &targets, &wanted, &stop).await {
                Ok(()) => pause = PAUSE.0,
                Err(()) => {
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        _ = stop.changed() => {}
                    }
                    pause = (pause * 2).min(PAUSE.1);
                    shared.room.soil_all();
                }
            }
            continue;
        }
        let lazy = patience == Patience::Fresh && shared.room.held() > 0;
        let wait = if lazy { LAZY } else { due(&shared, &targets, &mut futile).await };
        let wait = wanted.reopens.map_or(wait, |left| wait.min(left));
        tokio::select! {
            () = &mut changed => {
                changed = ledger.changed();
                futile = 0;
                shared.room.soil_all();
            }
            () = shared.stir.notified() => futile = 0,
            () = tokio::time::sleep(wait) => {
                patience = Patience::Spent;
                if !lazy {
                    shared.room.soil_all();
                }
            }
            _ = stop.changed() => {}
        }
    }
}

#[derive(PartialEq, Eq)]
enum Patience {
    Fresh,
    Spent,
}

/// Polls once.
async fn is_over(future: &mut BoxFuture<'_, ()>) -> bool {
    tokio::select! {
        biased;
        () = future => true,
        () = std::future::ready(()) => false,
    }
}

/// How long until something is due.
async fn due(shared: &Shared, targets: &Targets, futile: &mut u32) -> Duration {
    // Those whose breaker is open are not asked for: what is due for them has to wait.
    let open = |registered: &Registered| super::room::is_open(registered);
    let asked: Vec<String> = targets
        .iter()
        .filter(|(_, registered)| !open(registered))
        .map(|(name, _)| name.as_ref().to_owned())
        .collect();
    if asked.is_empty() {
        return BACKSTOP;
    }
    match shared.ledger.next_due(asked).await {
        Ok(Some(Duration::ZERO)) => {
            // Due, and not given out: it waits for another's end, or somebody else has just taken it.
            *futile = (*futile + 1).min(8);
            Duration::from_millis(4) * (1 << *futile)
        }
        Ok(next) => {
            *futile = 0;
            next.map_or(BACKSTOP, |due| due.min(BACKSTOP))
        }
        Err(error) => {
            tracing::debug!(target: "semel::deliveries", %error, "the ledger did not say what is due next");
            Duration::from_secs(1)
        }
    }
}

async fn take(
    shared: &Arc<Shared>,
    targets: &Targets,
    wanted: &Wanted,
    stop: &watch::Receiver<bool>,
) -> Result<(), ()> {
    let limit = wanted.limit.min(BATCH);
    let take = Take {
        worker: shared.settings.name.clone(),
        targets: wanted.targets.clone(),
        limit,
        lease: shared.settings.lease,
    };
    // Leases are counted from here: the answer may be read long after the ledger gave it.
    let sent = Instant::now();
    let taken = match shared.ledger.take(take).await {
        Ok(taken) => taken,
        Err(error) => {
            tracing::warn!(target: "semel::deliveries", %error, "the ledger gave out no work; it is asked again");
            return Err(());
        }
    };
    soil_what_may_have_more(shared, wanted, limit, &taken);
    let stopping = *stop.borrow();
    for work in taken {
        shared.room.take();
        let lease = shared.leases.hold(work.holding, sent, shared.settings.lease);
        match targets.get(&work.target) {
            Some(registered) if !stopping => attempt::start(shared, &Arc::new(work), registered, lease),
            // It cannot be sent any more, or to nobody: somebody else may.
            _ => shared.settle(&work, Settle::Defer(Duration::ZERO)),
        }
    }
    Ok(())
}

/// Who got all that was asked for, or may have been left out by the limit, may have more.
fn soil_what_may_have_more(shared: &Shared, wanted: &Wanted, limit: u32, taken: &[Work]) {
    let full = u32::try_from(taken.len()).unwrap_or(u32::MAX) >= limit;
    for (name, asked) in &wanted.targets {
        let got = taken.iter().filter(|work| work.target == *name).count();
        if full || u32::try_from(got).unwrap_or(u32::MAX) >= *asked {
            shared.room.soil(name);
        }
    }
}
