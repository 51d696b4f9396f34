//! The settings of the Redis store, and its thread.

use std::sync::Arc;
use std::time::Duration;

use redis::TlsCertificates;
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::oneshot;

use super::address::{RedisAddress, Timeouts, shown};
use super::caches::Caches;
use super::clock::ServerClock;
use super::complete::Completions;
use super::health::{self, ServerHealth};
use super::link::Link;
use super::listen::listen;
use super::listing::{IdListing, Sweeper};
use super::names::Names;
use super::replicas::Replicas;
#[cfg(all(test, feature = "testkit"))]
use super::script;
use super::script::Rules;
use super::{Guess, RedisStore, Shared, begin};
use crate::store::given::GivenSecret;
use crate::store::transfer::TransferWatch;
use crate::store::{Error, ErrorKind, Wakeups};

/// What to do if the server comes back with less data than it had. It is always logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreLoss {
    /// Continue. A key whose record was lost can have its effect twice.
    #[default]
    Alarm,
    /// Grant no new claims for this long, ideally one retention: after it, all lost records would have expired. Known
    /// outcomes are still given.
    Refuse(Duration),
}

/// What a server keeps. Warnings about lost data name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisContent {
    /// Records of effects.
    #[default]
    Records,
    /// Runs that wait in a burst buffer.
    BufferedRuns,
}

impl RedisContent {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Records => "claims and outcomes",
            Self::BufferedRuns => "buffered runs that were answered with 202",
        }
    }

    /// The consequence of a loss.
    pub(super) const fn consequence(self) -> &'static str {
        match self {
            Self::Records => "effects can run again",
            Self::BufferedRuns => "lost runs never start",
        }
    }
}

/// Settings of a [`RedisStore`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct RedisBuilder {
    url: String,
    prefix: String,
    timeouts: Timeouts,
    require_replicas: usize,
    on_store_loss: OnStoreLoss,
    check_every: Duration,
    root_certificate: Option<Vec<u8>>,
    used_for: &'static str,
    content: RedisContent,
    /// A change of the script before it is sent.
    #[cfg(all(test, feature = "testkit"))]
    rules: Option<fn(&str) -> String>,
}

impl RedisBuilder {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            prefix: "semel".to_owned(),
            timeouts: Timeouts { connect: Duration::from_secs(2), response: Duration::from_secs(2) },
            require_replicas: 0,
            on_store_loss: OnStoreLoss::default(),
            check_every: Duration::from_secs(60),
            root_certificate: None,
            used_for: "store",
            content: RedisContent::default(),
            #[cfg(all(test, feature = "testkit"))]
            rules: None,
        }
    }

    /// Changes the script, for tests with their own time.
    #[cfg(all(test, feature = "testkit"))]
    pub(super) fn rules(mut self, changed: fn(&str) -> String) -> Self {
        self.rules = Some(changed);
        self
    }

    /// The prefix of all keys (`semel`): deployments that share a server need different ones.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// How long to wait for a connection (2 s).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.connect = timeout;
        self
    }

    /// How long to wait for an answer (2 s). Keep it well below the lease: a heartbeat waits for it too.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.response = timeout;
        self
    }

    /// How many replicas must have a write before it counts (0). A claim that they do not have is not reported as
    /// won, so a failover cannot lose a claim whose effect ran. It costs a round trip to the replicas.
    pub fn require_replicas(mut self, count: usize) -> Self {
        self.require_replicas = count;
        self
    }

    /// What to do if the server comes back with less data than it had.
    pub fn on_store_loss(mut self, then: OnStoreLoss) -> Self {
        self.on_store_loss = then;
        self
    }

    /// How often the server's settings are checked again (60 s).
    pub fn check_every(mut self, interval: Duration) -> Self {
        self.check_every = interval;
        self
    }

    /// A certificate authority in PEM to trust instead of the machine's, for `rediss://`.
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificate = Some(pem.into());
        self
    }

    /// What the server is used for, in the log lines about an outage (`store`).
    pub fn used_for(mut self, purpose: &'static str) -> Self {
        self.used_for = purpose;
        self
    }

    /// What the server keeps, for the warnings about lost data ([`Records`](RedisContent::Records)).
    pub fn content(mut self, content: RedisContent) -> Self {
        self.content = content;
        self
    }

    /// Connects, and checks that the server can meet the promises.
    ///
    /// # Errors
    /// The settings or the server are wrong, and the error says what to do: an eviction policy, a replica, an old
    /// server, missing permissions.
    pub async fn connect(self) -> Result<RedisStore, Error> {
        let (check_every, used_for) = (self.check_every, self.used_for);
        let shared = self.shared(Wakeups::new())?;
        let (watched, watches) = unbounded_channel();
        let (calls, called) = unbounded_channel();
        let (running, stopped) = oneshot::channel();
        let (greeting, greeted) = oneshot::channel();
        let background = Arc::clone(&shared);
        let work = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(greeting.send(Err(thread_failed(error)))),
            };
            runtime.block_on(async move {
                let first = health::introduce_first(&background).await;
                let connected = first.is_ok();
                let availability = health::availability(&background, used_for);
                let of_store = (tokio::runtime::Handle::current(), Arc::clone(&availability));
                let told = greeting.send(first.map(|()| of_store));
                if connected && told.is_ok() {
                    tokio::spawn(begin(called));
                    tokio::spawn(listen(Arc::clone(&background), Some(Arc::clone(&availability)), watches));
                    tokio::spawn(health::watch_over(background, availability, check_every));
                    // Ends, with an error, when the store is dropped.
                    let _ = stopped.await;
                }
            });
        };
        std::thread::Builder::new().name("semel-redis".to_owned()).spawn(work).map_err(thread_failed)?;
        let (runtime, availability) = greeted.await.map_err(thread_failed)??;
        Ok(RedisStore { shared, availability, runtime, calls, watched, _running: running })
    }

    /// The same server for values of another store: under other names, and with a short timeout.
    #[cfg(feature = "postgres")]
    pub(super) fn beside(
        mut self,
        space: &str,
        timeout: Duration,
        wakeups: Wakeups,
    ) -> Result<Arc<Shared>, Error> {
        self.prefix = format!("{}:{space}", self.prefix);
        self.timeouts = Timeouts { connect: timeout, response: timeout };
        self.shared(wakeups)
    }

    /// The state that calls and background tasks share, before the first connection.
    fn shared(self, wakeups: Wakeups) -> Result<Arc<Shared>, Error> {
        let names = Names::new(&self.prefix).map_err(|why| Error::new(ErrorKind::Setup, why))?;
        let certificates =
            self.root_certificate.map(|pem| TlsCertificates { client_tls: None, root_cert: Some(pem) });
        let address = RedisAddress::parse(&self.url, certificates)?;
        let rules = Rules::new(address.dialect());
        #[cfg(all(test, feature = "testkit"))]
        let rules =
            self.rules.map_or(rules, |changed| Rules::of(changed(script::RULES), &changed(script::COMPLETE)));
        // Replicas that do not answer must not make a call seem unanswered.
        let timeout = self.timeouts.response / 2;
        Ok(Arc::new(Shared {
            name: shown(&self.url),
            process: rand::random(),
            link: Arc::new(Link::new(address, self.timeouts)),
            names,
            rules,
            replicas: Replicas::new(self.require_replicas, timeout),
            wakeups,
            caches: Caches::new(),
            clock: ServerClock::default(),
            health: ServerHealth::new(self.on_store_loss, self.content),
            given: GivenSecret::default(),
            transfer: TransferWatch::default(),
            guess: Guess::default(),
            completions: Completions::new(),
            listing: IdListing::default(),
            sweeper: Sweeper::default(),
        }))
    }
}

pub(super) fn thread_failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Unavailable, "the thread of the Redis store could not be started")
        .with_source(error)
}
