//! The log of an outage of Redis: one line when it begins, one when it ends.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use super::*;

static LINES: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());

/// Collects all lines that are not for debugging.
struct Lines;

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("semel") && *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push((*event.metadata().level(), message.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn lines() -> Vec<(Level, String)> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

// Under many calls, over two outages: a line for each change, and no other. Alone in its process, as every test is.
#[test]
fn breaker_logs_once_per_change() {
    tracing::subscriber::set_global_default(Lines).expect("the only subscriber of this process");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be started");
    runtime.block_on(async {
        let servers = Servers::start();
        let store = servers.ready().await;
        assert_eq!(lines(), [], "nothing to say at a start with Redis");
        for outage in 1..=2 {
            servers.redis.kill();
            let calls = (0..200).map(|_| {
                let store = Arc::clone(&store);
                tokio::spawn(async move { win(&*store, key()).await })
            });
            for call in calls.collect::<Vec<_>>() {
                call.await.expect("PostgreSQL goes on");
            }
            let told = lines();
            assert_eq!(told.len(), 2 * outage - 1, "{told:?}");
            let (level, line) = &told[2 * outage - 2];
            assert!(*level == Level::WARN && line.contains("store unavailable"), "{told:?}");
            servers.redis.restart().expect("it starts again");
            notices(&store, Coordination::Working).await;
            eventually("the line", async || (lines().len() == 2 * outage).then_some(())).await;
            let (level, line) = &lines()[2 * outage - 1];
            assert!(*level == Level::INFO && line.contains("store available again"), "{line}");
        }
    });
}
