//! Failed logins: each address may guess a few times, then slowly. Other addresses are not affected.
//!
//! A wrong token that is sent again is no new guess: a worker with an old token fills neither the log nor the budget of its address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How many logins of an address may fail in a row.
const BURST: u32 = 20;
/// After each of these it may fail once more.
const REFILL: Duration = Duration::from_secs(2);
/// Wrong tokens of an address that are recognised when they come again.
const TOKENS: usize = 4;
/// Addresses that are remembered. Less than half a megabyte.
const ADDRESSES: usize = 4_096;

/// Remembers which addresses failed to log in.
#[derive(Debug, Default)]
pub(super) struct LoginThrottle {
    failures: Mutex<HashMap<IpAddr, Failures>>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    /// When all failures are forgiven. Each one moves it by `REFILL`.
    forgiven: Instant,
    last: Instant,
    /// The wrong tokens that came last, as parts of their hashes.
    tokens: [u64; TOKENS],
}

/// What a failed login leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// It sent the same token before.
    Repeated,
    /// The address may try again.
    Counted,
    /// That was the last one for now.
    Blocked,
}

impl LoginThrottle {
    /// How long this address has to wait before its next wrong token is looked at; `None` where it is now.
    pub(super) fn wait(&self, address: IpAddr) -> Option<Duration> {
        self.wait_at(address, Instant::now())
    }

    /// A login of this address failed, with a token of this hash.
    pub(super) fn fail(&self, address: IpAddr, token: u64) -> Failed {
        self.fail_at(address, token, Instant::now())
    }

    fn wait_at(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let failures = self.failures.lock();
        let owed = failures.get(&network(address))?.forgiven.saturating_duration_since(now);
        owed.checked_sub(REFILL * (BURST - 1)).filter(|wait| !wait.is_zero())
    }

    fn fail_at(&self, address: IpAddr, token: u64, now: Instant) -> Failed {
        let mut failures = self.failures.lock();
        let address = network(address);
        if failures.len() >= ADDRESSES && !failures.contains_key(&address) {
            failures.retain(|_, known| known.forgiven > now);
            // Still full: the address that failed longest ago is forgotten.
            let oldest = failures.iter().min_by_key(|(_, known)| known.last).map(|(address, _)| *address);
            if let Some(oldest) = oldest.filter(|_| failures.len() >= ADDRESSES) {
                failures.remove(&oldest);
            }
        }
        let new = Failures { forgiven: now, last: now, tokens: [0; TOKENS] };
        let known = failures.entry(address).or_insert(new);
        if known.tokens.contains(&token) {
            return Failed::Repeated;
        }
        known.tokens.rotate_right(1);
        known.tokens[0] = token;
        known.forgiven = known.forgiven.max(now) + REFILL;
        known.last = now;
        if known.forgiven - now > REFILL * (BURST - 1) { Failed::Blocked } else { Failed::Counted }
    }
}

/// What counts as one address: of IPv6, a whole network, which one customer usually has.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    #[test]
    fn an_address_is_slowed_down_and_no_other() {
        let (throttle, now) = (LoginThrottle::default(), Instant::now());
        for token in 1..BURST {
            assert_eq!(throttle.fail_at(address(1), token.into(), now), Failed::Counted, "{token}");
            assert_eq!(throttle.wait_at(address(1), now), None);
        }
        assert_eq!(throttle.fail_at(address(1), 100, now), Failed::Blocked);
        assert_eq!(throttle.wait_at(address(1), now), Some(REFILL));
        assert_eq!(throttle.wait_at(address(2), now), None);
        assert_eq!(throttle.wait_at(address(1), now + REFILL), None, "one more try");
        assert_eq!(throttle.fail_at(address(1), 101, now + REFILL), Failed::Blocked);
        assert_eq!(throttle.wait_at(address(1), now + REFILL * BURST * 2), None, "all is forgiven");
    }

    #[test]
    fn workers_with_old_tokens_lock_nobody_out() {
        let (throttle, now) = (LoginThrottle::default(), Instant::now());
        for token in 1..=3 {
            assert_eq!(throttle.fail_at(address(1), token, now), Failed::Counted);
        }
        for time in 0..100 {
            assert_eq!(throttle.fail_at(address(1), time % 3 + 1, now), Failed::Repeated);
        }
        assert_eq!(throttle.wait_at(address(1), now), None);
    }

    #[test]
    fn memory_is_bounded_and_who_failed_last_is_remembered() {
        let (throttle, now) = (LoginThrottle::default(), Instant::now());
        let many = u32::try_from(ADDRESSES).unwrap() + 100;
        for number in 0..many {
            let later = now + Duration::from_micros(number.into());
            assert_eq!(throttle.fail_at(address(number), 1, later), Failed::Counted);
        }
        let failures = throttle.failures.lock();
        assert_eq!(failures.len(), ADDRESSES);
        assert!(failures.contains_key(&address(many - 1)) && !failures.contains_key(&address(0)));
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:a::1"), of("2001:db8:1:2:b::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
