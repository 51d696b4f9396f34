//! One client through every fault, and what has to come of it.

use std::collections::HashMap;
use std::sync::Arc;

use super::driver::{Driver, Ended, Program};
use super::fake::{Api, Fake, Keys};
use super::gateway::Gateway;
use super::stage;
use super::world::{Fault, World};

/// A client, and what is known of it.
pub(super) struct Client {
    pub(super) program: Program,
    pub(super) api: Api,
    pub(super) profile: &'static str,
    pub(super) route: &'static str,
    /// How the keys that it makes begin.
    pub(super) own_key: &'static str,
    /// Whether it retries when an answer ends in its middle.
    pub(super) half_an_answer: Retries,
    /// Whether it retries a 5xx that the gateway explains in JSON.
    pub(super) problem_in_json: Retries,
}

/// Whether the client retries by itself, or the application has to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retries {
    Yes,
    No,
}

/// Seconds after which a client gives up an attempt: short where that is the fault, and long elsewhere.
fn timeout(fault: Fault) -> u64 {
    match fault {
        Fault::AnswerLate | Fault::UpstreamLate => 3,
        _ => 45,
    }
}

/// How often each fault is played: side by side, and where the gateway is killed, one after the other.
fn rounds() -> (usize, usize) {
    if std::env::var_os("SEMEL_PROVE").is_some_and(|value| value != "0") { (20, 10) } else { (1, 1) }
}

/// A client, the gateway, and a fake behind it.
struct Play {
    world: Arc<World>,
    fake: Arc<Fake>,
    driver: Driver,
    own_key: &'static str,
    orders: usize,
}

/// Plays every fault without the gateway, in the mode that needs nothing of the API, and in the one where its help counts.
pub(super) fn play(client: &Client) {
    // Side by side: most of it is waiting.
    std::thread::scope(|scope| {
        for part in [without, marked, keyed] {
            scope.spawn(move || part(client));
        }
    });
}

/// The witness can see two effects: without the gateway, a client that retries makes them.
fn without(client: &Client) {
    let (world, fake, upstream) = behind(client, Keys::Ignored);
    world.gateway.leave_out(&upstream);
    let mut play = Play::before(client, world, fake);
    for fault in [Fault::AnswerCut, Fault::AnswerLate, Fault::UpstreamCut] {
        let (order, _) = play.call(fault);
        let (_, ended) = play.driver.ended();
        let id = ended.expect("the retry is answered");
        let made = play.fake.effects(&order);
        assert_eq!((made.len(), made.last()), (2, Some(&id)), "{fault:?}");
    }
}

/// At most one effect; where nobody can know, the client is told so.
fn marked(client: &Client) {
    let mut play = Play::start(client, Keys::Ignored, "");
    let (many, kills) = rounds();
    let mut calls = Vec::new();
    for fault in [
        Fault::None,
        Fault::AnswerCut,
        Fault::AnswerLate,
        Fault::BalancerUnavailable,
        Fault::UpstreamLate,
        Fault::UpstreamCut,
        Fault::UpstreamUnavailable,
    ] {
        calls.extend((0..many).map(|_| play.call(fault)));
    }
    let mut ended: HashMap<String, Ended> = calls.iter().map(|_| play.driver.ended()).collect();
    for (order, fault) in calls {
        let ended = ended.remove(&order).expect("every call ends");
        match fault {
            Fault::UpstreamCut => {
                let told =
                    if client.problem_in_json == Retries::Yes { "in_doubt" } else { "upstream_unknown" };
                play.in_doubt(&order, ended, told);
            }
            // The profile of this API keeps a 5xx, as the API does: nothing happened, and nothing will under this key.
            Fault::UpstreamUnavailable if client.profile == "stripe" => {
                let error = ended.expect_err("a kept 503 is the answer");
                assert!(error.contains("503"), "{error}");
                assert_eq!(play.fake.effects(&order), Vec::<String>::new(), "{order}");
            }
            _ => play.once(&order, fault, ended),
        }
    }
    for _ in 0..many {
        // Clients that do not retry half an answer raise.
        play.repeated(Fault::AnswerHalved, client.half_an_answer);
    }
    play.conflict();
    for _ in 0..kills {
        let (order, fault) = play.call(Fault::GatewayRestarted);
        let (_, ended) = play.driver.ended();
        play.once(&order, fault, ended);
        let (order, _) = play.call(Fault::GatewayKilled);
        let (_, ended) = play.driver.ended();
        play.in_doubt(&order, ended, "in_doubt");
    }
    let listed = play.world.gateway.admin().get("/v1/keys?phase=in_doubt&limit=100").expect(200);
    assert_eq!(listed["items"].as_array().expect("a list").len(), many + kills, "{listed}");
}

/// One effect at an API that honours the derived key, even where the gateway cannot know what became of the first call.
fn keyed(client: &Client) {
    let settings = "mode = \"keyed\"\npin = \"deterministic\"\non_5xx = \"release\"\n";
    let mut play = Play::start(client, Keys::Honoured, settings);
    let (many, kills) = rounds();
    let mut calls: Vec<_> = [Fault::None, Fault::AnswerCut, Fault::UpstreamUnavailable].repeat(many);
    calls.extend(vec![Fault::GatewayKilled; kills]);
    for fault in calls {
        let (order, _) = play.call(fault);
        let (_, ended) = play.driver.ended();
        play.once(&order, fault, ended);
        play.derived(&order);
    }
    for _ in 0..many {
        let order = play.repeated(Fault::UpstreamCut, client.problem_in_json);
        play.derived(&order);
    }
}

/// A fake, its address, and the world it is in.
fn behind(client: &Client, keys: Keys) -> (Arc<World>, Arc<Fake>, String) {
    let world = Arc::new(World::new(Gateway::new()));
    let (fake, upstream) = Fake::start(client.api, keys, &world);
    (world, fake, upstream)
}

impl Drop for Play {
    fn drop(&mut self) {
        self.world.gateway.end();
    }
}

impl Play {
    fn start(client: &Client, keys: Keys, settings: &str) -> Self {
        let (world, fake, upstream) = behind(client, keys);
        // A killed gateway's claim stands for one lease; a retry waits longer than that.
        let settings = format!(
            "profile = \"{}\"\n[[route]]\nmatch = \"{}\"\nlease = \"3s\"\nwait = \"20s\"\n{settings}",
            client.profile, client.route
        );
        world.gateway.start(&upstream, &settings);
        Self::before(client, world, fake)
    }

    /// Puts the client before them.
    fn before(client: &Client, world: Arc<World>, fake: Arc<Fake>) -> Self {
        let driver = Driver::start(client.program, &stage::start(&world));
        Self { world, fake, driver, own_key: client.own_key, orders: 0 }
    }

    /// Starts a logical call with a fault planned for its first attempt.
    fn call(&mut self, fault: Fault) -> (String, Fault) {
        let order = self.next(fault);
        self.driver.call(&order, timeout(fault), None);
        (order, fault)
    }

    fn next(&mut self, fault: Fault) -> String {
        self.orders += 1;
        let order = format!("order-{}", self.orders);
        self.world.plan(&order, fault);
        order
    }

    /// The client returned the one thing that was made, and retried by itself under one key of its own.
    #[track_caller]
    fn once(&self, order: &str, fault: Fault, ended: Ended) {
        let id = ended.unwrap_or_else(|error| panic!("{fault:?}: {error}\n{}", self.world.gateway.log()));
        assert_eq!(self.fake.effects(order), [id], "{fault:?}");
        let keys = self.same_key(order);
        assert!(keys[0].starts_with(self.own_key) && keys[0].len() >= 36, "{fault:?}: {keys:?}");
        assert_eq!(keys.len() > 1, fault != Fault::None, "{fault:?}: {keys:?}");
    }

    /// The client was told that nobody knows, and there is no second effect.
    #[track_caller]
    fn in_doubt(&self, order: &str, ended: Ended, told: &str) {
        let error = ended.expect_err("nobody can know");
        assert!(error.contains(told), "{error}");
        assert_eq!(self.fake.effects(order).len(), 1, "{order}");
        self.same_key(order);
    }

    /// Every attempt carried the same key.
    #[track_caller]
    fn same_key(&self, order: &str) -> Vec<String> {
        let keys = self.world.attempts(order);
        assert!(!keys.is_empty() && keys.iter().all(|key| *key == keys[0]), "{order}: {keys:?}");
        keys
    }

    /// The API saw one key, which is not the client's.
    #[track_caller]
    fn derived(&self, order: &str) {
        let (seen, own) = (self.fake.keys(order), self.same_key(order));
        assert!(!seen.is_empty() && seen.iter().all(|key| *key == seen[0]), "{order}: {seen:?}");
        assert_ne!(seen[0], own[0], "the client's key does not cross");
    }

    /// A key that the application uses for two things: the second does not happen, and the client can say why.
    fn conflict(&mut self) {
        let (first, second) = (self.next(Fault::None), self.next(Fault::None));
        let id = self.driver.run(&first, timeout(Fault::None), Some("key-of-two")).expect("the first is new");
        let error =
            self.driver.run(&second, timeout(Fault::None), Some("key-of-two")).expect_err("a conflict");
        assert!(error.contains("conflict"), "{error}");
        assert_eq!((self.fake.effects(&first), self.fake.effects(&second)), (vec![id], vec![]));
    }

    /// A call with a key of the application, which repeats it where the client does not.
    fn repeated(&mut self, fault: Fault, retries: Retries) -> String {
        let order = self.next(fault);
        let key = format!("key-of-{order}");
        let mut ended = self.driver.run(&order, timeout(fault), Some(&key));
        assert_eq!(ended.is_ok(), retries == Retries::Yes, "{fault:?}: {ended:?}");
        if ended.is_err() {
            ended = self.driver.run(&order, timeout(fault), Some(&key));
        }
        let id = ended.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert_eq!(self.fake.effects(&order), [id], "{fault:?}");
        assert_eq!(self.same_key(&order), [key.as_str(); 2], "{fault:?}");
        order
    }
}
