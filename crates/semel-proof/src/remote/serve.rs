//! The side that has the store.

use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::sync::{Arc, Weak};

use semel::key::KeyId;
use semel::store::{Error, Invalidate, Scan, Store, Trust};
use tokio::sync::mpsc;

use super::wire::{self, Answer, Ask, Told};
use crate::place::Place;

/// Executes what comes on standard input until that ends.
pub fn serve(place: &Place) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be started").block_on(listen(place))
}

async fn listen(place: &Place) -> ExitCode {
    let store = match place.open().await {
        Ok(store) => store,
        Err(error) => {
            eprintln!("semel-victim: {error}");
            return ExitCode::FAILURE;
        }
    };
    let cache: Arc<dyn Invalidate> = Arc::new(Tells);
    store.attach(Arc::downgrade(&cache) as Weak<dyn Invalidate>);
    let (sender, mut asked) = mpsc::unbounded_channel::<(u64, Ask)>();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(Ok(ask)) = line.map(|line| serde_json::from_str(&line)) else { break };
            if sender.send(ask).is_err() {
                break;
            }
        }
    });
    while let Some((number, ask)) = asked.recv().await {
        let store = Arc::clone(&store);
        if let Ask::Watch(id) = ask {
            // Before the next question is taken: whoever watches first and looks then misses nothing.
            let mut watch = store.watch(KeyId::from_bytes(id));
            tokio::spawn(async move {
                loop {
                    watch.changed().await;
                    tell(&Told::Woken(id));
                }
            });
            continue;
        }
        tokio::spawn(async move {
            let answer = execute(&*store, ask).await;
            let answer = answer.unwrap_or_else(|error| Answer::Failed {
                kind: format!("{:?}", error.kind()),
                message: error.to_string(),
            });
            tell(&Told::Answer(number, answer));
        });
    }
    ExitCode::SUCCESS
}

async fn execute(store: &dyn Store, ask: Ask) -> Result<Answer, Error> {
    Ok(match ask {
        Ask::Apply(id, command) => {
            Answer::Ruled((&store.apply(KeyId::from_bytes(id), command.into()).await?).into())
        }
        Ask::Get(id) => Answer::Found(store.get(KeyId::from_bytes(id)).await?.as_ref().map(Into::into)),
        Ask::Scan { phase, after, limit } => {
            let query = Scan { phase: phase.map(wire::phase), after: after.map(KeyId::from_bytes), limit };
            let page = store.scan(query).await?;
            Answer::Listed {
                items: page.items.iter().map(Into::into).collect(),
                next: page.next.map(|id| *id.as_bytes()),
            }
        }
        Ask::Sweep(limit) => {
            let swept = store.sweep(limit).await?;
            Answer::Swept { shrunk: swept.shrunk, removed: swept.removed, more: swept.more }
        }
        Ask::Watch(_) => unreachable!("it has no answer"),
    })
}

/// A cache that hands on what it is told.
struct Tells;

impl Invalidate for Tells {
    fn invalidate(&self, id: KeyId) {
        tell(&Told::Invalid(*id.as_bytes()));
    }

    fn trust(&self, trust: Trust) {
        tell(&Told::Trust(trust == Trust::Confirmed));
    }
}

fn tell(told: &Told) {
    let mut line = serde_json::to_string(told).expect("answers are plain data");
    line.push('\n');
    // Nobody listens any more: then nobody needs to know.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}
