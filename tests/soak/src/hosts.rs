//! The hosts. All of them are on loopback; what differs is how their limits are set: by name, by pattern or not at all.

use std::time::Duration;

use fastrand::Rng;

pub(crate) const HOSTS: usize = 500;

/// How many patterns there are.
pub(crate) const PATTERNS: usize = 4;

/// How many are asked at a time; the others are idle, and recycled.
const ACTIVE: usize = 160;

/// How many are asked all the time, and for more than their limits allow.
const BUSY: usize = 12;

/// Where the limits of a host come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Name,
    Pattern(usize),
    Defaults,
}

pub(crate) fn origin(host: usize) -> Origin {
    match host % 5 {
        0 => Origin::Name,
        1 | 2 => Origin::Pattern(host / 5 % PATTERNS),
        _ => Origin::Defaults,
    }
}

pub(crate) fn name(host: usize) -> String {
    match origin(host) {
        Origin::Pattern(pattern) => format!("h{host}.p{pattern}.test"),
        _ => format!("h{host}.test"),
    }
}

pub(crate) fn pattern(pattern: usize) -> String {
    format!("*.p{pattern}.test")
}

/// The host of that name.
pub(crate) fn index(name: &str) -> Option<usize> {
    name.strip_prefix('h')?.split_once('.')?.0.parse().ok().filter(|host| *host < HOSTS)
}

/// Some host whose name can have limits of its own.
pub(crate) fn named(rng: &mut Rng) -> usize {
    rng.usize(..HOSTS / 5) * 5
}

/// Some host that is asked at that time.
pub(crate) fn asked_at(time: Duration, rng: &mut Rng) -> usize {
    if rng.u8(..3) == 0 {
        return rng.usize(..BUSY);
    }
    let first = (time.as_millis() / 25) as usize;
    (first + rng.usize(..ACTIVE) * 7) % HOSTS
}
