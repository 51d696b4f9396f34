//! What the guard costs: CPU time per request over a service that answers at once, on the memory store.
//!
//! `cargo bench -p semel-http --bench guard`, with `-- --check` to fail when a budget is missed. The kinds of request take
//! turns, and what the service alone costs is taken off. A proxy spends most of its time on its two connections, some
//! 20 µs; the budgets are what is left for the guard if a keyed first run is to cost 1.8 of that, and a replay, which has
//! one connection only, 0.8 of a cache's hit.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::process::ExitCode;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt;
use rustix::time::{ClockId, clock_gettime};
use semel::Engine;
use semel::store::MemoryStore;
use semel_http::policy::{InsertLimits, Rate};
use semel_http::{Body, Guard, Profile};
use tower_service::Service;

const REQUESTS: usize = 20_000;
/// Requests are built outside the measurement, few at a time, so that they are warm as those of a server are.
const BATCH: usize = 100;
const REPEATS: usize = 7;

/// Answers at once.
#[derive(Clone)]
struct Echo(Bytes);

impl Service<Request<Body>> for Echo {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let mut answer = Response::new(Body::from(self.0.clone()));
        let headers = answer.headers_mut();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        headers.insert("content-length", HeaderValue::from_static("200"));
        headers.insert("x-request-id", HeaderValue::from_static("0123456789abcdef"));
        headers.insert("cache-control", HeaderValue::from_static("no-store"));
        ready(Ok(answer))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bare,
    PassedOn,
    FirstRun,
    Replay,
}

fn request(kind: Kind, round: usize, number: usize) -> Request<Body> {
    let builder = match kind {
        Kind::Bare | Kind::PassedOn => Request::get("/v1/payments"),
        Kind::FirstRun | Kind::Replay => {
            let key = format!("8e03978e-40d5-43e8-bc93-{round:04}{number:08}");
            Request::post("/v1/payments").header("idempotency-key", key)
        }
    };
    builder
        .header("host", "api.example")
        .header("user-agent", "client/1.0")
        .header("accept", "*/*")
        .header("authorization", "Bearer 4eC39HqLyjWDarjtT1zdp7dc")
        .header("content-type", "application/json")
        .header("content-length", "27")
        .body(Body::from("{\"amount\":1200,\"cur\":\"eur\"}"))
        .expect("it is well formed")
}

/// CPU time of this process, in nanoseconds.
fn cpu() -> i64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

async fn measure(guard: &Guard, echo: &Echo, kind: Kind, round: usize) -> f64 {
    let mut spent = 0;
    for batch in 0..REQUESTS / BATCH {
        let requests: Vec<_> =
            (0..BATCH).map(|number| request(kind, round, batch * BATCH + number)).collect();
        let before = cpu();
        for request in requests {
            let answer = match kind {
                Kind::Bare => echo.clone().call(request).await,
                _ => guard.handle(echo.clone(), request).await,
            };
            let Ok(answer) = answer;
            let replayed = answer.headers().contains_key("idempotent-replayed");
            assert_eq!(replayed, kind == Kind::Replay);
            let Ok(body) = answer.into_body().collect().await else { panic!("bytes do not fail") };
            assert_eq!(body.to_bytes().len(), 200);
        }
        spent += cpu() - before;
    }
    spent as f64 / REQUESTS as f64
}

fn main() -> ExitCode {
    let check = std::env::args().any(|argument| argument == "--check");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let engine = Engine::builder(MemoryStore::new()).hot_cache(256 << 20, std::time::Duration::from_secs(60));
    // One client sends everything, far above the limit of a principal: the limit is kept, and is not reached.
    let rate = Rate { per_second: u32::MAX, burst: u32::MAX };
    let profile = Profile { limits: Some(InsertLimits { writes: rate, reads: rate }), ..Profile::ietf() };
    let guard = Guard::builder(engine.build().expect("the defaults work")).profile(profile);
    let guard = guard.build().expect("the defaults work");
    let echo = Echo(vec![b'x'; 200].into());
    let kinds = [
        ("the service alone", Kind::Bare, f64::INFINITY),
        ("passed on (GET)", Kind::PassedOn, 300.0),
        ("keyed, first run", Kind::FirstRun, 12_000.0),
        ("keyed, replay", Kind::Replay, 4_500.0),
    ];
    let mut samples = [(); 4].map(|()| Vec::new());
    for round in 0..=REPEATS {
        for ((_, kind, _), samples) in kinds.iter().zip(&mut samples) {
            let sample = runtime.block_on(measure(&guard, &echo, *kind, round));
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    println!("guard over a service that answers at once, memory store, one thread, CPU time");
    let mut all_met = true;
    let mut alone = 0.0;
    for ((name, kind, budget), samples) in kinds.iter().zip(&mut samples) {
        samples.sort_by(f64::total_cmp);
        let (median, least, most) = (samples[REPEATS / 2], samples[0], samples[REPEATS - 1]);
        if *kind == Kind::Bare {
            alone = median;
            println!("  {name:18} {median:6.0} ns  (spread {least:.0} to {most:.0})");
            continue;
        }
        let met = median - alone <= *budget;
        all_met &= met;
        let word = if met { "met" } else { "missed" };
        let (over, least, most) = (median - alone, least - alone, most - alone);
        println!(
            "  {name:18} {over:6.0} ns  more (spread {least:.0} to {most:.0}; budget {budget:.0}: {word})"
        );
    }
    if check && !all_met { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
