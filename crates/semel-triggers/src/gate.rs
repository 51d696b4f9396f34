//! The gate decides for every trigger whether it goes directly to the ledger or waits in the buffer.
//!
//! It admits at most a threshold of triggers in any window, wherever the window begins, for each tenant and for all
//! of them together. When the threshold is exceeded, it holds for a while, so that it does not flap. Processes share
//! it through Redis. If Redis does not answer, the gate admits, and counts that. Each process remembers how long the
//! gate holds, and does not ask meanwhile.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use semel::store::redis_driver::Value;
use semel::store::{Effect, RedisScript};
use tokio::time::Instant;

use crate::buffer::{Buffer, millis};

/// Counts one trigger. Returns whether it is admitted (0) or held (1), and for how many milliseconds.
///
/// The list contains the times of the last admitted triggers: the threshold is exceeded if that many came within the
/// window. Each new entry removes two old ones, so the list covers little more than a window.
const COUNT: &str = "
local threshold, window, hold = tonumber(ARGV[1]), tonumber(ARGV[2]) * 1000, tonumber(ARGV[3])
local held = redis.call('PTTL', KEYS[2])
if held > 0 then return { 1, held } end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local nth = threshold > 0 and redis.call('LINDEX', KEYS[1], -threshold)
if threshold == 0 or (nth and now - tonumber(nth) < window) then
  if hold > 0 then redis.call('SET', KEYS[2], 1, 'PX', hold) end
  return { 1, hold }
end
for _ = 1, 2 do
  local first = redis.call('LINDEX', KEYS[1], 0)
  if not first or now - tonumber(first) < window then break end
  redis.call('LPOP', KEYS[1])
end
redis.call('RPUSH', KEYS[1], string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return { 0, 0 }";

/// What the gate does with its decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GateMode {
    /// The gate is not asked.
    #[default]
    Off,
    /// The gate counts and logs, and every trigger passes.
    Shadow,
    /// Triggers that it holds are buffered.
    On,
}

/// A limit of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The maximum number of triggers in a window.
    pub threshold: u32,
    /// The length of a window.
    pub window: Duration,
    /// How long the gate holds after the threshold was exceeded.
    pub hold: Duration,
}

impl Default for Limit {
    fn default() -> Self {
        Self { threshold: 100, window: Duration::from_millis(200), hold: Duration::from_millis(500) }
    }
}

/// The decision for one trigger, and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateDecision {
    /// To the ledger.
    Pass(GateReason),
    /// To the buffer.
    Divert(GateReason),
}

/// The reason of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateReason {
    /// The gate is off.
    Off,
    /// The rate is below the threshold.
    Room,
    /// This tenant exceeded its threshold.
    Tenant,
    /// All tenants together exceeded the threshold.
    Global,
    /// The threshold is exceeded, but the gate only observes.
    Shadow,
    /// Redis did not answer.
    FailedOpen,
}

impl GateReason {
    /// Every reason.
    pub const ALL: [Self; 6] =
        [Self::Off, Self::Room, Self::Tenant, Self::Global, Self::Shadow, Self::FailedOpen];

    /// Its name in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Room => "room",
            Self::Tenant => "tenant",
            Self::Global => "global",
            Self::Shadow => "shadow",
            Self::FailedOpen => "failed_open",
        }
    }
}

/// Counters of the decisions by reason.
#[derive(Debug, Default)]
pub struct GateCounters([AtomicU64; GateReason::ALL.len()]);

impl GateCounters {
    /// Number of decisions with this reason.
    pub fn count(&self, reason: GateReason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }
}

/// The gate of one deployment.
#[derive(Debug)]
pub struct Gate {
    buffer: Arc<Buffer>,
    mode: GateMode,
    tenant: Limit,
    global: Option<Limit>,
    script: RedisScript,
    counters: Arc<GateCounters>,
    /// Until when the gate holds each tenant: nothing changes in Redis before that.
    held: Mutex<HashMap<String, Instant>>,
    /// Until when it holds all tenants.
    all_held: Mutex<Option<Instant>>,
}

impl Gate {
    /// A gate on the Redis of this buffer.
    pub fn new(buffer: Arc<Buffer>, mode: GateMode, tenant: Limit, global: Option<Limit>) -> Self {
        let (script, counters) = (RedisScript::new(COUNT), Arc::default());
        let (held, all_held) = (Mutex::default(), Mutex::default());
        Self { buffer, mode, tenant, global, script, counters, held, all_held }
    }

    /// The counters.
    pub fn counters(&self) -> &Arc<GateCounters> {
        &self.counters
    }

    /// Decides for one trigger of a tenant.
    pub async fn decide(&self, tenant: &str) -> GateDecision {
        let decision = self.evaluate(tenant).await;
        let (GateDecision::Pass(reason) | GateDecision::Divert(reason)) = decision;
        self.count(reason);
        decision
    }

    /// Why triggers of a tenant are diverted at the moment, if this process knows that without asking Redis. Such a
    /// decision does not count until [`count`](Self::count) is called.
    pub fn known_hold(&self, tenant: &str) -> Option<GateReason> {
        match self.mode {
            GateMode::Off | GateMode::Shadow => None,
            GateMode::On if self.is_held(LimitScope::Tenant(tenant)) => Some(GateReason::Tenant),
            GateMode::On => self.is_held(LimitScope::All).then_some(GateReason::Global),
        }
    }

    /// Counts a decision.
    pub fn count(&self, reason: GateReason) {
        self.counters.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    async fn evaluate(&self, tenant: &str) -> GateDecision {
        if self.mode == GateMode::Off {
            return GateDecision::Pass(GateReason::Off);
        }
        let own = self.exceeds(LimitScope::Tenant(tenant), self.tenant).await;
        let held = match own {
            Some(true) => Some(GateReason::Tenant),
            // A trigger that is held by its tenant's limit does not count for all.
            Some(false) => match &self.global {
                Some(limit) => match self.exceeds(LimitScope::All, *limit).await {
                    Some(true) => Some(GateReason::Global),
                    Some(false) => None,
                    None => return GateDecision::Pass(GateReason::FailedOpen),
                },
                None => None,
            },
            None => return GateDecision::Pass(GateReason::FailedOpen),
        };
        match (held, self.mode) {
            (None, _) => GateDecision::Pass(GateReason::Room),
            (Some(reason), GateMode::On) => GateDecision::Divert(reason),
            (Some(reason), _) => {
                tracing::debug!(target: "semel", reason = reason.as_str(), "the gate would have held this trigger");
                GateDecision::Pass(GateReason::Shadow)
            }
        }
    }

    fn is_held(&self, scope: LimitScope<'_>) -> bool {
        let until = match scope {
            LimitScope::Tenant(tenant) => self.held.lock().get(tenant).copied(),
            LimitScope::All => *self.all_held.lock(),
        };
        until.is_some_and(|until| Instant::now() < until)
    }

    fn remember_hold(&self, scope: LimitScope<'_>, left: Duration) {
        let now = Instant::now();
        match scope {
            LimitScope::All => *self.all_held.lock() = Some(now + left),
            LimitScope::Tenant(tenant) => {
                let mut held = self.held.lock();
                if held.len() >= MAX_REMEMBERED_HOLDS {
                    held.retain(|_, until| now < *until);
                }
                held.insert(tenant.to_owned(), now + left);
            }
        }
    }

    /// `None` if Redis does not answer.
    async fn exceeds(&self, scope: LimitScope<'_>, limit: Limit) -> Option<bool> {
        if self.is_held(scope) {
            return Some(true);
        }
        let keys = ["admitted", "held"].map(|part| match scope {
            LimitScope::Tenant(tenant) => self.buffer.tenant_key(tenant, part),
            LimitScope::All => self.buffer.global_key(part),
        });
        let threshold = limit.threshold.to_string();
        let (window, hold) = (millis(limit.window).max(1).to_string(), millis(limit.hold).to_string());
        let arguments = [threshold.as_bytes(), window.as_bytes(), hold.as_bytes()];
        let keys = keys.each_ref().map(|key| key.as_bytes());
        let answer = self.buffer.client().call(&self.script, &keys, &arguments, Effect::Writes);
        match answer.await {
            Ok(Value::Array(parts)) => match parts[..] {
                [Value::Int(0), ..] => Some(false),
                [Value::Int(_), Value::Int(left)] => {
                    self.remember_hold(scope, Duration::from_millis(u64::try_from(left).unwrap_or(0)));
                    Some(true)
                }
                _ => None,
            },
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(target: "semel", %error, "the gate could not query Redis");
                None
            }
        }
    }
}

/// The triggers that a limit counts.
#[derive(Clone, Copy)]
enum LimitScope<'a> {
    Tenant(&'a str),
    All,
}

/// Number of remembered holds above which expired ones are removed.
const MAX_REMEMBERED_HOLDS: usize = 1024;
