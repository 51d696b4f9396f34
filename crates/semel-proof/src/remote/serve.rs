//! The side with the store.

use std::collections::HashSet;
use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use semel::key::KeyId;
use semel::store::{Error, Invalidate, Scan, Store, Trust};
use tokio::sync::mpsc;

use super::wire::{self, WireAnswer, WireLine, WireQuestion};
use crate::place::StorePlace;

/// Executes the requests on standard input until that ends.
pub fn serve(place: &StorePlace) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be started").block_on(listen(place))
}

async fn listen(place: &StorePlace) -> ExitCode {
    let store = match place.open().await {
        Ok(store) => store,
        Err(error) => {
            eprintln!("semel-victim: {error}");
            return ExitCode::FAILURE;
        }
    };
    let tells = Arc::new(Tells::default());
    let cache: Arc<dyn Invalidate> = Arc::<Tells>::clone(&tells);
    let (sender, mut asked) = mpsc::unbounded_channel::<(u64, WireQuestion)>();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(Ok((number, ask))) = line.map(|line| serde_json::from_str(&line)) else { break };
            if let WireQuestion::Heard = ask {
                tells.heard(number);
            } else if sender.send((number, ask)).is_err() {
                break;
            }
        }
        tells.nobody_listens();
    });
    store.attach(Arc::downgrade(&cache) as Weak<dyn Invalidate>);
    while let Some((number, ask)) = asked.recv().await {
        let store = Arc::clone(&store);
        if let WireQuestion::Watch(id) = ask {
            // Before the next request is read: a caller that watches first and then reads misses nothing.
            let mut watch = store.watch(KeyId::from_bytes(id));
            tokio::spawn(async move {
                loop {
                    watch.changed().await;
                    tell(&WireLine::Woken(id));
                }
            });
            continue;
        }
        tokio::spawn(async move {
            let answer = execute(&*store, ask).await;
            let answer = answer.unwrap_or_else(|error| WireAnswer::Failed {
                kind: format!("{:?}", error.kind()),
                message: error.to_string(),
            });
            tell(&WireLine::Answer(number, answer));
        });
    }
    ExitCode::SUCCESS
}

async fn execute(store: &dyn Store, ask: WireQuestion) -> Result<WireAnswer, Error> {
    Ok(match ask {
        WireQuestion::Apply(id, command) => {
            WireAnswer::Ruled((&store.apply(KeyId::from_bytes(id), command.into()).await?).into())
        }
        WireQuestion::Get(id) => {
            WireAnswer::Found(store.get(KeyId::from_bytes(id)).await?.as_ref().map(Into::into))
        }
        WireQuestion::Scan { phase, after, limit } => {
            let query = Scan { phase: phase.map(wire::phase), after: after.map(KeyId::from_bytes), limit };
            let page = store.scan(query).await?;
            WireAnswer::Listed {
                items: page.items.iter().map(Into::into).collect(),
                next: page.next.map(|id| *id.as_bytes()),
            }
        }
        WireQuestion::Sweep(limit) => {
            let swept = store.sweep(limit).await?;
            WireAnswer::Swept { shrunk: swept.shrunk, removed: swept.removed, more: swept.more }
        }
        WireQuestion::Watch(_) | WireQuestion::Heard => unreachable!("it has no answer"),
    })
}

/// A cache that forwards its messages, and waits until the other side has handled them.
#[derive(Default)]
struct Tells {
    words: Mutex<CommandWords>,
    heard: Condvar,
}

#[derive(Default)]
struct CommandWords {
    said: u64,
    open: HashSet<u64>,
    /// The other side has ended: there will be no more answers.
    over: bool,
}

impl Tells {
    fn words(&self) -> MutexGuard<'_, CommandWords> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks for a round trip of the pipe, which a real cache must not do: here it represents the cache's own work.
    fn say(&self, word: impl FnOnce(u64) -> WireLine) {
        let mut words = self.words();
        words.said += 1;
        let number = words.said;
        words.open.insert(number);
        drop(words);
        tell(&word(number));
        let mut words = self.words();
        while words.open.contains(&number) && !words.over {
            words = self.heard.wait(words).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn heard(&self, number: u64) {
        self.words().open.remove(&number);
        self.heard.notify_all();
    }

    fn nobody_listens(&self) {
        self.words().over = true;
        self.heard.notify_all();
    }
}

impl Invalidate for Tells {
    fn invalidate(&self, id: KeyId) {
        self.say(|number| WireLine::Invalid(number, *id.as_bytes()));
    }

    fn trust(&self, trust: Trust) {
        self.say(|number| WireLine::Trust(number, trust == Trust::Confirmed));
    }
}

fn tell(told: &WireLine) {
    let mut line = serde_json::to_string(told).expect("answers are plain data");
    line.push('\n');
    // If nobody listens any more, nobody needs the report.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}
