//! The configuration: defaults for every slot, overrides by name, and what concerns all slots together.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::hold::Hold;
use crate::jitter::Jitter;
use crate::key::{SlotKey, is_host};
use crate::limits::{AT_LEAST_ONE, SlotLimits, limit_setters};
use crate::telemetry;

/// How many slots there may be by default.
const MAX_SLOTS: usize = 1 << 20;

/// How many there may be where strangers make them.
const MAX_SLOTS_OF_STRANGERS: usize = 10_000;

/// How long a slot is idle before it is recycled, by default.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A checked configuration.
///
/// Unless said otherwise: 8 in flight per slot, no delay, an unbounded queue without timeout, permits held to
/// the end of the body, no cap over all slots, slots recycled after 60 s, at most 1,048,576 slots.
#[derive(Clone, Debug)]
pub struct SlotConfig {
    pub(crate) defaults: SlotLimits,
    /// Names beginning with `*.` are patterns.
    pub(crate) slots: BTreeMap<SlotKey, SlotLimits>,
    /// The hosts of each group, and the ends that those have which match a pattern, star and all.
    pub(crate) groups: BTreeMap<SlotKey, BTreeSet<SlotKey>>,
    pub(crate) total: Option<usize>,
    pub(crate) idle_timeout: Duration,
    pub(crate) statistics: bool,
    pub(crate) max_slots: Option<usize>,
    pub(crate) overflow: Option<SlotKey>,
    pub(crate) telemetry: telemetry::Settings,
}

/// Builds a [`SlotConfig`]. Setters never fail, [`build`](Self::build) checks.
#[derive(Clone, Debug)]
pub struct SlotConfigBuilder {
    config: SlotConfig,
}

/// A value that cannot be: which slot, which field, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    slot: Option<SlotKey>,
    field: &'static str,
    problem: Cow<'static, str>,
}

// === impl SlotConfig ===

impl SlotConfig {
    /// Starts a configuration with the defaults.
    #[must_use]
    pub fn builder() -> SlotConfigBuilder {
        SlotConfigBuilder { config: Self::default() }
    }

    /// Starts a configuration for a server whose keys come from strangers: at most 10,000 slots, which is some
    /// 5 MB, instead of 1,048,576.
    #[must_use]
    pub fn server() -> SlotConfigBuilder {
        Self::builder().max_slots(MAX_SLOTS_OF_STRANGERS)
    }
}

impl Default for SlotConfig {
    fn default() -> Self {
        Self {
            defaults: SlotLimits::new(),
            slots: BTreeMap::new(),
            groups: BTreeMap::new(),
            total: None,
            idle_timeout: IDLE_TIMEOUT,
            statistics: true,
            max_slots: Some(MAX_SLOTS),
            overflow: None,
            telemetry: telemetry::Settings::default(),
        }
    }
}

// === impl SlotConfigBuilder ===

impl SlotConfigBuilder {
    limit_setters!(config.defaults);

    #[cfg(feature = "serde")]
    pub(crate) fn defaults(mut self, limits: &SlotLimits) -> Self {
        self.config.defaults.merge(limits);
        self
    }

    /// Sets limits for the slot of that name; what they leave open is inherited.
    ///
    /// A name that begins with `*.` is a pattern: `*.example.com` sets limits for every slot whose name ends in
    /// `.example.com`, each of which stays a slot of its own. The exact name comes first, then the longest
    /// pattern, then the defaults, field by field; the order of definition does not matter. The same name twice:
    /// the later values win.
    #[must_use]
    pub fn slot(mut self, name: impl Into<SlotKey>, limits: SlotLimits) -> Self {
        self.config.slots.entry(name.into()).or_default().merge(&limits);
        self
    }

    /// Sends the requests of all hosts that match through one slot called `name`, instead of one slot per host.
    ///
    /// Hosts are written as host keys are: lower case, no port, no dot at the end. One that begins with `*.` is a
    /// pattern: `*.cdn.test` matches every host that ends in `.cdn.test`. The exact host comes first, then the longest
    /// pattern; the order of definition does not matter, and a host or pattern belongs to one group. The same name
    /// twice adds to the group. Limits for the group are those of the [slot](Self::slot) of its name.
    ///
    /// It is for hosts as the default extractor and [`KeyRef::host`](crate::KeyRef::host) find them. A key that was
    /// given is taken as it is, and other extractors name their slots themselves.
    ///
    /// ```
    /// # use tower_slot::{KeyRef, SlotConfig, SlotLimits, Slots};
    /// let config = SlotConfig::builder()
    ///     .group("cdn", ["*.cdn.test", "img.test"])
    ///     .slot("cdn", SlotLimits::new().concurrency(2))
    ///     .build()?;
    /// let slots = Slots::new(config);
    /// let permits = [slots.try_acquire(KeyRef::host("a.cdn.test")), slots.try_acquire(KeyRef::host("Img.test"))];
    /// assert_eq!(slots.stats("cdn").map(|slot| slot.in_flight), Some(2));
    /// # Ok::<(), tower_slot::ConfigError>(())
    /// ```
    #[must_use]
    pub fn group<H: Into<SlotKey>>(
        mut self,
        name: impl Into<SlotKey>,
        hosts: impl IntoIterator<Item = H>,
    ) -> Self {
        self.config.groups.entry(name.into()).or_default().extend(hosts.into_iter().map(H::into));
        self
    }

    /// Caps what is in flight over all slots together. At least 1.
    ///
    /// One slot may hold as much of it as its concurrency allows: keep that below the total, or a slow slot can
    /// take all of it. Scrapy's `CONCURRENT_REQUESTS`.
    #[must_use]
    pub fn total_concurrency(mut self, n: usize) -> Self {
        self.config.total = Some(n);
        self
    }

    /// Sets no cap over all slots. This is the default.
    #[must_use]
    pub fn unlimited_total(mut self) -> Self {
        self.config.total = None;
        self
    }

    /// Recycles a slot after it has been idle for `timeout`: nobody in flight or waiting, no handle to it, its
    /// next start and any pause past.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.config.idle_timeout = timeout;
        self
    }

    /// Whether slots keep count of the time from the start to a connection, to the headers and in the body. On by
    /// default.
    ///
    /// Off, a request is spared one look at the clock and one lock, and those [times](crate::Phases) stay at nothing;
    /// the times of those who wait, the ages of permits and all counts are kept as ever. It is settled when the slots
    /// are made: a [reload](crate::Slots::reload) does not change it.
    #[must_use]
    pub fn statistics(mut self, on: bool) -> Self {
        self.config.statistics = on;
        self
    }

    /// Lets there be at most `n` slots, not counting those named in the configuration. At least 1.
    ///
    /// A new key beyond it takes the place of an idle slot if one is found, else its request is refused with
    /// [`TooManySlots`](crate::SlotErrorKind::TooManySlots) or sent through the [overflow
    /// slot](Self::overflow_slot).
    #[must_use]
    pub fn max_slots(mut self, n: usize) -> Self {
        self.config.max_slots = Some(n);
        self
    }

    /// Sets no limit to the number of slots. Memory then is bounded by the keys that come.
    #[must_use]
    pub fn unlimited_slots(mut self) -> Self {
        self.config.max_slots = None;
        self
    }

    /// Sends requests whose slot would be one too many through the slot of this name instead of refusing them.
    #[must_use]
    pub fn overflow_slot(mut self, name: impl Into<SlotKey>) -> Self {
        self.config.overflow = Some(name.into());
        self
    }

    /// For setters that stand elsewhere.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code))]
    pub(crate) fn config_mut(&mut self) -> &mut SlotConfig {
        &mut self.config
    }

    /// Checks it all.
    ///
    /// # Errors
    ///
    /// The first value that cannot be: the defaults first, then the slots and the groups in order of their names, then
    /// what concerns all slots.
    pub fn build(self) -> Result<SlotConfig, ConfigError> {
        let Self { config } = self;
        ConfigError::check(None, &config.defaults)?;
        for (name, limits) in &config.slots {
            ConfigError::check_name(name)?;
            ConfigError::check(Some(name), limits)?;
        }
        let mut groups = BTreeMap::new();
        for (group, hosts) in &config.groups {
            ConfigError::check_group(group)?;
            for host in hosts {
                ConfigError::check_host(group, host)?;
                if let Some(other) = groups.insert(host, group) {
                    let problem = format!("{host:?} is in the group {other:?} too");
                    return Err(ConfigError::new(Some(group), "group", problem));
                }
            }
        }
        if config.total == Some(0) {
            return Err(ConfigError::new(None, "total_concurrency", AT_LEAST_ONE));
        }
        if config.max_slots == Some(0) {
            return Err(ConfigError::new(None, "max_slots", AT_LEAST_ONE));
        }
        Ok(config)
    }
}

/// The end that a slot's name has if it matches the pattern `name`, or `None` for an exact name.
pub(crate) fn pattern(name: &str) -> Option<&str> {
    name.strip_prefix('*').filter(|suffix| suffix.starts_with('.'))
}

// === impl ConfigError ===

impl ConfigError {
    pub(crate) fn new(
        slot: Option<&SlotKey>,
        field: &'static str,
        problem: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { slot: slot.cloned(), field, problem: problem.into() }
    }

    pub(crate) fn check(slot: Option<&SlotKey>, limits: &SlotLimits) -> Result<(), Self> {
        limits.fault().map_or(Ok(()), |(field, problem)| Err(Self::new(slot, field, problem)))
    }

    pub(crate) fn check_name(name: &SlotKey) -> Result<(), Self> {
        let exact = pattern(name.as_str());
        match exact.unwrap_or(name.as_str()) {
            "." if exact.is_some() => {
                Err(Self::new(Some(name), "name", "the pattern has nothing after the dot"))
            }
            rest if rest.contains('*') => {
                Err(Self::new(Some(name), "name", "a star stands only at the beginning, before a dot"))
            }
            suffix if exact.is_some() && suffix.ends_with('.') => {
                Err(Self::new(Some(name), "name", "a pattern ends without a dot, as host keys do"))
            }
            suffix if exact.is_some() && suffix.bytes().any(|b| b.is_ascii_uppercase()) => {
                Err(Self::new(Some(name), "name", "a pattern is written in lower case, as host keys are"))
            }
            _ => Ok(()),
        }
    }

    fn check_group(name: &SlotKey) -> Result<(), Self> {
        let problem = match name.as_str() {
            "" => "it has no name, and the slot without one is for requests without a host",
            name if name.contains('*') => "its slot's name is exact and has no star",
            _ => return Ok(()),
        };
        Err(Self::new(Some(name), "group", problem))
    }

    fn check_host(group: &SlotKey, host: &SlotKey) -> Result<(), Self> {
        let (name, what) = match host.as_str().strip_prefix("*.") {
            // No address ends like a name.
            Some(end) if !end.contains(':') => (end, "a pattern"),
            Some(_) => ("", "a pattern"),
            None => (host.as_str(), "a host"),
        };
        if is_host(name) {
            return Ok(());
        }
        let problem = format!(
            "{host:?} is not {what} as host keys are written: lower case, no port, no dot at the end"
        );
        Err(Self::new(Some(group), "group", problem))
    }

    /// Returns the slot, pattern or group with the bad value; `None` for the defaults and for all slots together.
    #[must_use]
    pub fn slot(&self) -> Option<&SlotKey> {
        self.slot.as_ref()
    }

    /// Returns the field with the bad value.
    #[must_use]
    pub fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.slot {
            Some(slot) => write!(f, "slot {slot:?}: {}: {}", self.field, self.problem),
            None => write!(f, "all slots: {}: {}", self.field, self.problem),
        }
    }
}

impl std::error::Error for ConfigError {}
