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
pub enum Decision {
    /// To the ledger.
    Pass(Why),
    /// To the buffer.
    Divert(Why),
}

/// The reason of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
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

impl Why {
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
pub struct GateCounters([AtomicU64; Why::ALL.len()]);

impl GateCounters {
    /// Number of decisions with this reason.
    pub fn count(&self, why: Why) -> u64 {
        self.0[why as usize].load(Ordering::Relaxed)
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
    pub async fn decide(&self, tenant: &str) -> Decision {
        let decision = self.judge(tenant).await;
        let (Decision::Pass(why) | Decision::Divert(why)) = decision;
        self.counters.0[why as usize].fetch_add(1, Ordering::Relaxed);
        decision
    }

    async fn judge(&self, tenant: &str) -> Decision {
        if self.mode == GateMode::Off {
            return Decision::Pass(Why::Off);
        }
        let own = self.count(Whose::Tenant(tenant), self.tenant).await;
        let held = match own {
            Some(GateHold::Yes) => Some(Why::Tenant),
            // A trigger that is held by its tenant's limit does not count for all.
            Some(GateHold::No) => match &self.global {
                Some(limit) => match self.count(Whose::All, *limit).await {
                    Some(GateHold::Yes) => Some(Why::Global),
                    Some(GateHold::No) => None,
                    None => return Decision::Pass(Why::FailedOpen),
                },
                None => None,
            },
            None => return Decision::Pass(Why::FailedOpen),
        };
        match (held, self.mode) {
            (None, _) => Decision::Pass(Why::Room),
            (Some(why), GateMode::On) => Decision::Divert(why),
            (Some(why), _) => {
                tracing::debug!(target: "semel", reason = why.as_str(), "the gate would have held this trigger");
                Decision::Pass(Why::Shadow)
            }
        }
    }

    fn is_held(&self, whose: Whose<'_>) -> bool {
        let until = match whose {
            Whose::Tenant(tenant) => self.held.lock().get(tenant).copied(),
            Whose::All => *self.all_held.lock(),
        };
        until.is_some_and(|until| Instant::now() < until)
    }

    fn remember(&self, whose: Whose<'_>, left: Duration) {
        let now = Instant::now();
        match whose {
            Whose::All => *self.all_held.lock() = Some(now + left),
            Whose::Tenant(tenant) => {
                let mut held = self.held.lock();
                if held.len() >= REMEMBERED {
                    held.retain(|_, until| now < *until);
                }
                held.insert(tenant.to_owned(), now + left);
            }
        }
    }

    /// `None` if Redis does not answer.
    async fn count(&self, whose: Whose<'_>, limit: Limit) -> Option<GateHold> {
        if self.is_held(whose) {
            return Some(GateHold::Yes);
        }
        let keys = ["admitted", "held"].map(|part| match whose {
            Whose::Tenant(tenant) => self.buffer.key(tenant, part),
            Whose::All => self.buffer.global(part),
        });
        let threshold = limit.threshold.to_string();
        let (window, hold) = (millis(limit.window).max(1).to_string(), millis(limit.hold).to_string());
        let arguments = [threshold.as_bytes(), window.as_bytes(), hold.as_bytes()];
        let keys = keys.each_ref().map(|key| key.as_bytes());
        let answer = self.buffer.client().call(&self.script, &keys, &arguments, Effect::Writes);
        match answer.await {
            Ok(Value::Array(parts)) => match parts[..] {
                [Value::Int(0), ..] => Some(GateHold::No),
                [Value::Int(_), Value::Int(left)] => {
                    self.remember(whose, Duration::from_millis(u64::try_from(left).unwrap_or(0)));
                    Some(GateHold::Yes)
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

/// Whose triggers are counted.
#[derive(Clone, Copy)]
enum Whose<'a> {
    Tenant(&'a str),
    All,
}

/// Number of remembered holds above which expired ones are removed.
const REMEMBERED: usize = 1024;

enum GateHold {
    Yes,
    No,
}
