//! Keys, payloads, outcomes and secrets never show: not in errors, signals, logs or debug output.

use std::cell::{Cell, RefCell};
use std::fmt::Write;

use tracing::field::{Field, Visit};
use tracing::{span, subscriber::Interest};

use super::*;

thread_local! {
    static LOGGING: Cell<bool> = const { Cell::new(false) };
    static LOGGED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Records every field of every log line of a test that asked for it. There is one for the process, because tracing
/// decides once per call site, on whichever thread comes first.
struct Log;

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        LOGGED.with_borrow_mut(|logged| writeln!(logged, "{field}={value:?}").unwrap());
    }
}

impl tracing::Subscriber for Log {
    fn register_callsite(&self, _: &'static tracing::Metadata<'static>) -> Interest {
        Interest::sometimes()
    }
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        LOGGING.get()
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Log);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

const SECRET: [u8; 32] = *b"canary-secret-canary-secret-cana";

#[tokio::test]
async fn nothing_that_a_caller_sent_is_shown() {
    tracing::subscriber::set_global_default(Log).unwrap();
    LOGGING.set(true);
    let heard = Arc::new(Heard::default());
    let store = faulty();
    let builder =
        over(&store).secret(Secret::from_bytes(SECRET)).observe(heard.clone()).wait(ms(20)).lease(ms(200));
    let mut shown = format!("{builder:?}");
    let engine = build(builder);
    let secret_key = || Key::new("charge").scope("canary-scope").value("order-42-canary-value");
    let once = |amount: &str| engine.once(secret_key()).fingerprint(&("canary-payload", amount.to_owned()));
    write!(shown, "{:?}", once("1")).unwrap();

    store.script(StoreCall::Claim, When::Nth(1), InjectedFault::LoseReply);
    store.script(StoreCall::Complete, When::Nth(1), InjectedFault::LoseReply);
    let answer =
        once("1").run_with(async |attempt| Ok((format!("{attempt:?}"), "canary-outcome".to_owned())));
    let (attempt, _) = answer.await.unwrap().value;
    shown += &attempt;
    let wrong_type: Run = once("1").run(async || Ok(1)).await;
    let conflict: Run = once("2").run(async || Ok(1)).await;
    assert!(matches!((&wrong_type, &conflict), (Err(RunError::Decode(_)), Err(RunError::Conflict))));
    for error in [wrong_type.unwrap_err(), conflict.unwrap_err()] {
        write!(shown, "{error} {error:?}").unwrap();
    }

    let busy = engine.once(Key::new("charge").scope("canary-scope").value("order-43-canary-value"));
    let claim = won(busy).await;
    write!(shown, "{claim:?}").unwrap();
    let again = engine.once(Key::new("charge").scope("canary-scope").value("order-43-canary-value"));
    write!(shown, "{:?}", again.claim().await.unwrap()).unwrap();
    let running = claim.begin().await.unwrap();
    write!(shown, "{running:?}").unwrap();
    let tombstone = Arc::new(crate::outcome::Outcome::new("json", "canary-body"));
    write!(shown, "{:?}", running.complete(&tombstone, None).await).unwrap();
    write!(shown, "{engine:?} {:?} {}", engine.get(&secret_key()).await.unwrap(), engine.stats()).unwrap();

    let heard = heard.all();
    assert!(heard.len() > 5, "there was something to hear: {heard:?}");
    let log = LOGGED.take();
    assert!(log.contains("complete_retried"), "there was something to read: {log}");
    let shown = format!("{shown}\n{}\n{log}", heard.join("\n"));
    assert!(shown.contains("order-42"), "the first characters of a key are for people");
    let told = shown.lines().find(|line| line.contains("canary") || line.contains("order-42-"));
    assert_eq!(told, None);
}
