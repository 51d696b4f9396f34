//! The first page: traffic, waiting, the buffer, and a card for each target.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use semel::time::Timestamp;
use semel_client::retry::Circuit;
use semel_pipeline::delivery::DeliveryState;
use semel_pipeline::ledger::TargetPause;
use semel_triggers::gate::GateReason;

use super::html::{self, Html, Tone};
use super::live::Audience;
use super::page::{Page, Section, show};
use super::sample::{EVERY, OUTCOMES, TargetTraffic, Traffic};
use super::strip::Strip;
use super::visitor::Visitor;
use super::{Did, chart};
use crate::admin::{Admin, Refusal};

/// Above this share of answers from the record, clients probably retry too eagerly.
const HIGH_SHARE: f64 = 0.05;
/// After this many first runs without one answer from the record, keys probably differ between retries.
const LONG: u64 = 100_000;
/// A share of fewer calls says nothing.
const ENOUGH: u64 = 100;
/// The narrowest and the widest chart, in samples: that of a young server grows from two minutes to ten.
const COLUMNS: (usize, usize) = (40, 200);

/// The width of a chart with this many samples.
fn columns(samples: usize) -> usize {
    samples.clamp(COLUMNS.0, COLUMNS.1)
}

/// The time that such a chart covers, in words.
fn window(samples: usize) -> String {
    let covers = EVERY * u32::try_from(columns(samples)).unwrap_or(0);
    // A sample less or more is not worth a decimal.
    html::duration(Duration::from_secs(covers.as_secs().div_ceil(60) * 60))
}

/// The parts of the page that change by themselves.
#[derive(Template)]
#[template(path = "live.html")]
pub(super) struct LiveOverview {
    traffic: Traffic,
    in_flight: u64,
    waiters: u64,
    upstream_calls: Option<u64>,
    hint: Option<String>,
    buffer: Option<BufferState>,
    targets: Option<Vec<TargetCard>>,
    audience: Audience,
}

struct BufferState {
    queued: u64,
    in_transit: u64,
    oldest: Duration,
    decisions: Vec<(&'static str, u64)>,
}

/// A target as its card shows it.
pub(super) struct TargetCard {
    pub(super) name: String,
    pub(super) events: String,
    pub(super) state: Html,
    /// Why it takes no calls, or which calls it gets.
    pub(super) explanation: Html,
    pub(super) traffic: TargetTraffic,
    /// Number of deliveries by state, those that are not over.
    pub(super) backlog: Vec<(&'static str, u64)>,
    /// Pending dead letters; the text has a `+` if there are more than are counted.
    pub(super) dead: u64,
    pub(super) dead_text: String,
    /// Deliveries that wait for an earlier one with the same order key, which failed.
    pub(super) blocked: u64,
    pub(super) is_paused: bool,
    /// False for a target that was removed from the configuration and is still paused: nothing can be replayed to it.
    pub(super) is_configured: bool,
    /// When the next call is tried, if the circuit breaker is open; also of a paused target.
    pub(super) breaker_open_until: Option<Timestamp>,
    /// True if deliveries wait for their next attempt.
    pub(super) can_retry: bool,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    page: Page,
    live: LiveOverview,
}

pub(super) async fn overview(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(did): Query<Did>,
) -> Response {
    let audience = Audience::of(&visitor.caller);
    let page = Page::new(&admin, &visitor, Section::Overview, "Overview").await.with_message(did.code());
    show(&Overview { page, live: LiveOverview::read(&admin, audience) })
}

impl LiveOverview {
    /// The state in memory: no store is asked.
    pub(super) fn read(admin: &Admin, audience: Audience) -> Self {
        let stats = admin.engine.stats();
        let traffic = admin.console.samples.traffic();
        let buffer = admin.pipeline.as_ref().and_then(|pipeline| {
            let burst = pipeline.intake.triggers.burst()?;
            let depth = *pipeline.intake.depth.lock();
            let count = |reason: GateReason| (reason.as_str(), burst.gate.counters().count(reason));
            let decisions = GateReason::ALL.into_iter().map(count).filter(|(_, count)| *count > 0).collect();
            Some(BufferState {
                queued: depth.queued,
                in_transit: depth.leased,
                oldest: depth.oldest,
                decisions,
            })
        });
        let hint = hint(&traffic, stats.count("won"), stats.count("replayed"));
        Self {
            hint,
            traffic,
            in_flight: u64::try_from(admin.engine.in_flight()).unwrap_or(u64::MAX),
            waiters: u64::try_from(admin.engine.waiters()).unwrap_or(u64::MAX),
            upstream_calls: admin
                .gateway
                .as_ref()
                .map(|gateway| u64::try_from(gateway.capacity().calls_in_flight()).unwrap_or(u64::MAX)),
            buffer,
            targets: TargetCard::all(admin),
            audience,
        }
    }

    fn outcomes(&self) -> Vec<(usize, &'static str, &'static str, String)> {
        let outcomes = OUTCOMES.iter().zip(self.traffic.now).enumerate();
        outcomes.map(|(at, ((name, what), rate))| (at + 1, *name, *what, html::rate(rate))).collect()
    }

    fn chart(&self) -> Html {
        let label = "Calls a second by outcome; the list below has the present rates";
        chart::stacked(&self.traffic.rates, columns(self.traffic.rates.len()), label)
    }

    fn top(&self) -> String {
        html::rate(chart::top(chart::peak(&self.traffic.rates)))
    }

    fn window(&self) -> String {
        window(self.traffic.rates.len())
    }

    fn share(&self) -> String {
        self.traffic.replay_share.map_or_else(|| "–".to_owned(), html::percent)
    }

    fn percentiles(&self) -> [String; 3] {
        match self.traffic.percentiles {
            Some(percentiles) => percentiles.map(html::duration),
            None => ["–", "–", "–"].map(str::to_owned),
        }
    }

    fn shows_buttons(&self) -> bool {
        self.audience == Audience::Operators
    }
}

/// What the share of answers from the record means.
fn hint(traffic: &Traffic, ran: u64, replayed: u64) -> Option<String> {
    match traffic.replay_share {
        Some(share) if share > HIGH_SHARE && traffic.calls >= ENOUGH => Some(format!(
            "{} of the calls are duplicates. Above 5 % a client usually retries too eagerly: look for one with short timeouts or \
             without backoff.",
            html::percent(share)
        )),
        _ if replayed == 0 && ran >= LONG => Some(format!(
            "{} first runs and not one duplicate. Clients probably make a new key for every retry, and no duplicate is recognised.",
            html::count(ran)
        )),
        _ => None,
    }
}

impl TargetCard {
    /// The cards of all targets, by name; `None` without a ledger.
    pub(super) fn all(admin: &Admin) -> Option<Vec<Self>> {
        let pipeline = admin.pipeline.as_ref()?;
        let strip = Strip::last(admin);
        let totals = &strip.totals;
        let states = pipeline.destinations.states();
        let registry = pipeline.registry.current();
        let is_configured = |name: &str| registry.iter().any(|(known, _)| **known == *name);
        let card = |name: &str, events: String| {
            let circuit = states
                .iter()
                .find(|state| &*state.name == name)
                .map_or(Circuit::Closed, |state| state.circuit);
            let pause = strip.pauses.iter().find(|pause| pause.target == name);
            let (state, explanation) = match pause {
                Some(pause) => paused(pause),
                None => breaker(circuit),
            };
            let of_target = totals.deliveries.iter().filter(|(target, _, _)| target == name);
            let in_state = |wanted: DeliveryState| {
                let found = of_target.clone().filter(|(_, state, _)| *state == wanted);
                found.map(|(_, _, count)| count).sum::<u64>()
            };
            let (dead, is_partial) = strip.letters.of(name);
            Self {
                name: name.to_owned(),
                events,
                state,
                explanation,
                traffic: admin.console.samples.target(name),
                dead,
                dead_text: format!("{}{}", html::count(dead), if is_partial { "+" } else { "" }),
                blocked: in_state(DeliveryState::Blocked),
                is_paused: pause.is_some(),
                is_configured: is_configured(name),
                breaker_open_until: match circuit {
                    Circuit::Open { until } => Some(until),
                    Circuit::Closed | Circuit::HalfOpen => None,
                },
                can_retry: in_state(DeliveryState::RetryWait) > 0,
                backlog: of_target
                    .filter(|(_, state, _)| !state.is_over())
                    .map(|(_, state, count)| (state.as_str(), *count))
                    .collect(),
            }
        };
        let mut cards: Vec<Self> =
            registry.iter().map(|(name, registered)| card(name, registered.events.to_string())).collect();
        // A pause outlives the entry in the configuration, and can still be ended.
        for pause in strip.pauses.iter().filter(|pause| !is_configured(&pause.target)) {
            let events = "none: the target is not in the configuration, and nothing can be replayed to it";
            cards.push(card(&pause.target, events.to_owned()));
        }
        Some(cards)
    }

    /// The card of one target.
    ///
    /// # Errors
    /// There is no such target.
    pub(super) fn of(admin: &Admin, name: &str) -> Result<Self, Refusal> {
        let found = Self::all(admin).unwrap_or_default().into_iter().find(|card| card.name == name);
        found.ok_or_else(|| Refusal::not_found(format!("the configuration has no target {name:?}")))
    }

    pub(super) fn path(&self) -> String {
        format!("/targets/{}", html::encode(&self.name))
    }

    pub(super) fn spark(&self) -> Html {
        let label = format!(
            "Attempts in the last {}: {} delivered, {} failed",
            self.window(),
            self.traffic.delivered,
            self.traffic.failed
        );
        chart::sparkline(&self.traffic.rates, columns(self.traffic.rates.len()), &label)
    }

    pub(super) fn window(&self) -> String {
        window(self.traffic.rates.len())
    }
}

/// A pause in words: who, when and why.
fn paused(pause: &TargetPause) -> (Html, Html) {
    let explanation = format!(
        "Paused by {} {}: {}",
        html::escape(&pause.by),
        html::when(pause.since),
        html::escape(&pause.reason)
    );
    (html::state(Tone::Pause, "paused"), Html::trusted(explanation))
}

/// The state of a circuit breaker in words.
fn breaker(circuit: Circuit) -> (Html, Html) {
    match circuit {
        Circuit::Closed => (html::state(Tone::Ok, "delivering"), Html::default()),
        Circuit::Open { until } => (
            html::state(Tone::Bad, "breaker open"),
            Html::trusted(format!(
                "Too many calls failed. The next call is tried {}, at {} UTC.",
                html::when(until),
                html::clock(until)
            )),
        ),
        Circuit::HalfOpen => (
            html::state(Tone::Warn, "breaker half open"),
            Html::trusted("A few calls are let through to see whether it has recovered."),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // An operator acts on it: few calls say nothing, and a share at the limit is no warning.
    #[test]
    fn the_hint_says_what_the_share_means_and_nothing_of_few_calls() {
        let shown = |share: Option<f64>, calls, ran, replayed| {
            hint(&Traffic { replay_share: share, calls, ..Traffic::default() }, ran, replayed)
        };
        assert_eq!(shown(None, 0, 0, 0), None);
        assert_eq!(shown(Some(0.9), ENOUGH - 1, 10, 89), None, "too few calls");
        assert_eq!(shown(Some(HIGH_SHARE), ENOUGH, 95, 5), None);
        let eager = shown(Some(0.125), ENOUGH, 7, 1).unwrap();
        assert!(
            eager.starts_with("12 % of the calls are duplicates.") && eager.contains("retries too eagerly"),
            "{eager}"
        );
        assert_eq!(shown(Some(0.0), ENOUGH, LONG - 1, 0), None);
        assert_eq!(shown(Some(0.0), ENOUGH, LONG, 1), None, "one duplicate was recognised");
        let never = shown(None, 0, LONG, 0).unwrap();
        assert!(
            never.contains("not one duplicate") && never.contains("a new key for every retry"),
            "{never}"
        );
    }
}
