//! What was set by name, whether or not there is such a slot just now, and which hosts share a slot.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::tick::Tick;
use crate::config::{SlotConfig, pattern};
use crate::key::SlotKey;
use crate::limits::{Limits, SlotLimits};

/// So many pauses are never looked through.
const FEW_PAUSES: usize = 64;

/// Overrides, patterns, defaults and pauses.
#[derive(Debug)]
pub(crate) struct Settings {
    defaults: Arc<Limits>,
    exact: HashMap<SlotKey, SlotLimits>,
    /// By the end of the name, with its dot, and with the limits they come to.
    patterns: HashMap<Box<str>, (SlotLimits, Arc<Limits>)>,
    pauses: HashMap<SlotKey, Tick>,
    /// The group of a host, by its name, and of those that match a pattern, by the end of the name with its dot.
    groups: HashMap<Box<[u8]>, SlotKey, foldhash::fast::RandomState>,
    group_names: HashSet<SlotKey>,
    pub(crate) overflow: Option<SlotKey>,
    /// How many pauses there are when those that are past are looked for.
    prune_at: usize,
}

/// What a slot of some name begins with.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) limits: Arc<Limits>,
    pub(crate) paused: Option<Tick>,
    /// Whether the slot was named, so that it does not count against the number of slots.
    pub(crate) named: bool,
}

// === impl Settings ===

impl Settings {
    pub(crate) fn new(config: &SlotConfig) -> Self {
        let mut settings = Self {
            defaults: Arc::new(config.defaults.over(&Limits::default())),
            exact: HashMap::new(),
            patterns: HashMap::new(),
            pauses: HashMap::new(),
            groups: HashMap::default(),
            group_names: config.groups.keys().cloned().collect(),
            overflow: config.overflow.clone(),
            prune_at: FEW_PAUSES,
        };
        for (group, hosts) in &config.groups {
            for host in hosts {
                let end = pattern(host.as_str()).unwrap_or(host.as_str());
                settings.groups.insert(end.as_bytes().into(), group.clone());
            }
        }
        for (name, limits) in &config.slots {
            settings.set(name, limits);
        }
        settings
    }

    /// Changes places with `new`, and keeps nothing but the pauses.
    pub(crate) fn replace(&mut self, new: &mut Self) {
        new.pauses = std::mem::take(&mut self.pauses);
        new.prune_at = self.prune_at;
        std::mem::swap(self, new);
    }

    pub(crate) fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// The group of a host: by the exact name, then by the longest pattern.
    pub(crate) fn group(&self, host: &[u8]) -> Option<&SlotKey> {
        // A pattern begins with its dot, which no host's name does.
        let dots = host.iter().enumerate().filter(|(at, b)| **b == b'.' && *at > 0).map(|(at, _)| at);
        std::iter::once(0).chain(dots).find_map(|at| self.groups.get(&host[at..]))
    }

    /// The exact name, then the longest pattern, then the defaults.
    pub(crate) fn of(&self, name: &str) -> Setting {
        // Something has to stand before the dot.
        let dots = name.match_indices('.').filter(|(at, _)| *at > 0).map(|(at, _)| &name[at..]);
        let pattern = dots.filter_map(|end| self.patterns.get(end)).map(|(_, limits)| limits).next();
        let base = pattern.unwrap_or(&self.defaults);
        let exact = self.exact.get(name);
        Setting {
            limits: exact.map_or_else(|| base.clone(), |limits| Arc::new(limits.over(base))),
            paused: self.pauses.get(name).copied(),
            named: exact.is_some() || self.group_names.contains(name),
        }
    }

    /// Changes what is set for a name or a pattern; what `limits` leaves open stays.
    pub(crate) fn set(&mut self, name: &SlotKey, limits: &SlotLimits) {
        match pattern(name.as_str()) {
            Some(end) => {
                let (known, in_force) = self.patterns.entry(end.into()).or_default();
                known.merge(limits);
                *in_force = Arc::new(known.over(&self.defaults));
            }
            None => self.exact.entry(name.clone()).or_default().merge(limits),
        }
    }

    pub(crate) fn set_defaults(&mut self, limits: &SlotLimits) {
        self.defaults = Arc::new(limits.over(&self.defaults));
        for (known, in_force) in self.patterns.values_mut() {
            *in_force = Arc::new(known.over(&self.defaults));
        }
    }

    /// Remembers a pause, and now and then forgets those that are past: when as many have come as stayed the last
    /// time, so that each pays for two.
    pub(crate) fn pause(&mut self, name: SlotKey, until: Tick, now: Tick) {
        if self.pauses.len() >= self.prune_at {
            self.pauses.retain(|_, until| *until > now);
            self.prune_at = FEW_PAUSES.max(2 * self.pauses.len());
            self.pauses.shrink_to(self.prune_at);
        }
        let known = self.pauses.entry(name).or_insert(until);
        *known = until.max(*known);
    }

    pub(crate) fn resume(&mut self, name: &str) {
        self.pauses.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // L6
    #[test]
    fn pauses_that_are_past_are_forgotten_when_as_many_have_come_as_stayed() {
        let mut settings = Settings::new(&SlotConfig::default());
        let pause = |settings: &mut Settings, n: u64, now: u64| {
            settings.pause(SlotKey::from(n.to_string()), Tick::new(n), Tick::new(now));
            (settings.pauses.len(), settings.prune_at)
        };
        for n in 0..64 {
            assert_eq!(pause(&mut settings, n, 63), (n as usize + 1, 64));
        }
        // The one that ends now is past.
        assert_eq!(pause(&mut settings, 64, 13), (50 + 1, 100));
        for n in 65..114 {
            assert_eq!(pause(&mut settings, n, 1_000), (n as usize - 13, 100));
        }
        assert_eq!(pause(&mut settings, 114, 1_000), (1, 64));
    }
}
