//! What is set by name in the model, and the limits that come of it.

use std::collections::BTreeMap;

use crate::schedule::{Change, NAMES, PATTERNS, Spread, Target};
use crate::words::MS;

/// Defaults, overrides and pauses.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    defaults: Limits,
    named: BTreeMap<usize, Part>,
    patterns: BTreeMap<usize, Part>,
    pub(crate) pauses: BTreeMap<usize, u64>,
}

/// The limits in force.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    pub(crate) concurrency: Option<usize>,
    pub(crate) delay: u64,
    pub(crate) jitter: Spread,
    pub(crate) capacity: Option<usize>,
    pub(crate) timeout: Option<u64>,
}

/// Limits with holes.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    concurrency: Option<Option<usize>>,
    delay: Option<u64>,
    jitter: Option<Spread>,
    capacity: Option<Option<usize>>,
    timeout: Option<Option<u64>>,
}

// === impl Settings ===

impl Settings {
    pub(crate) fn set(&mut self, target: Target, change: Change) {
        match target {
            Target::Default => {
                let mut part = Part::default();
                part.set(change);
                self.defaults = part.over(self.defaults);
            }
            Target::Slot(key) => self.named.entry(key).or_default().set(change),
            Target::Pattern(pattern) => self.patterns.entry(pattern).or_default().set(change),
        }
    }

    /// The exact name, then the longest pattern, then the defaults.
    pub(crate) fn of(&self, key: usize) -> Limits {
        let matches = |pattern: usize| NAMES[key].ends_with(&PATTERNS[pattern][1..]);
        let longest = self.patterns.iter().rfind(|(pattern, _)| matches(**pattern));
        let base = longest.map_or(self.defaults, |(_, part)| part.over(self.defaults));
        self.named.get(&key).map_or(base, |part| part.over(base))
    }

    pub(crate) fn is_named(&self, key: usize) -> bool {
        self.named.contains_key(&key)
    }

    pub(crate) fn paused(&self, key: usize) -> u64 {
        self.pauses.get(&key).copied().unwrap_or(0)
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self { concurrency: Some(8), delay: 0, jitter: Spread::Percent(0), capacity: None, timeout: None }
    }
}

// === impl Part ===

impl Part {
    fn set(&mut self, change: Change) {
        match change {
            Change::Concurrency(concurrency) => self.concurrency = Some(concurrency),
            Change::Delay(ms) => self.delay = Some(ms * MS),
            Change::Jitter(jitter) => self.jitter = Some(jitter),
            Change::Capacity(capacity) => self.capacity = Some(capacity),
            Change::Timeout(ms) => self.timeout = Some(ms.map(|ms| ms * MS)),
        }
    }

    fn over(&self, base: Limits) -> Limits {
        Limits {
            concurrency: self.concurrency.unwrap_or(base.concurrency),
            delay: self.delay.unwrap_or(base.delay),
            jitter: self.jitter.unwrap_or(base.jitter),
            capacity: self.capacity.unwrap_or(base.capacity),
            timeout: self.timeout.unwrap_or(base.timeout),
        }
    }
}
