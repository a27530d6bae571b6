//! Limits: what one slot allows.
//!
//! [`SlotLimits`] is what somebody *set*, with holes; [`Limits`] is what is *in force* after the holes were
//! filled from the pattern and the defaults.

use std::time::Duration;

use crate::hold::Hold;
use crate::jitter::{Jitter, LONGEST};

/// Limits to set for a slot. What is not set is inherited: from the longest pattern that matches the slot's
/// name, then from the defaults.
///
/// Setters never fail; values are checked when the configuration is built or changed.
///
/// ```
/// use std::time::Duration;
/// use tower_slot::{SlotConfig, SlotLimits};
///
/// let config = SlotConfig::builder()
///     .concurrency(4)
///     .slot("api", SlotLimits::new().delay(Duration::from_millis(50)))
///     .build()?;
/// # Ok::<(), tower_slot::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlotLimits {
    // `Some(None)` says "unlimited", which is not the same as saying nothing.
    pub(crate) concurrency: Option<Option<usize>>,
    pub(crate) delay: Option<Duration>,
    pub(crate) jitter: Option<Jitter>,
    pub(crate) queue_capacity: Option<Option<usize>>,
    pub(crate) wait_timeout: Option<Option<Duration>>,
    pub(crate) hold: Option<Hold>,
}

/// The limits in force in a slot, nothing left open.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Limits {
    /// How many may be in flight at once; `None` is unlimited.
    pub concurrency: Option<usize>,
    /// From one start to the next.
    pub delay: Duration,
    /// How the gap varies around `delay`.
    pub jitter: Jitter,
    /// How many may wait; `None` is unlimited.
    pub queue_capacity: Option<usize>,
    /// How long one may wait, from the first poll to the start; `None` is for ever.
    pub wait_timeout: Option<Duration>,
    /// How long a request keeps its permit.
    pub hold: Hold,
}

/// Setters for limits, the same for one slot and for the defaults: `$limits` is where they are kept.
macro_rules! limit_setters {
    ($($limits:ident).*) => {
        /// Allows `n` in flight at once in a slot, from the grant until the permit is given back. At least 1.
        #[must_use]
        pub fn concurrency(mut self, n: usize) -> Self {
            self.$($limits.)*concurrency = Some(Some(n));
            self
        }

        /// Sets no limit to how many are in flight at once in a slot.
        #[must_use]
        pub fn unlimited_concurrency(mut self) -> Self {
            self.$($limits.)*concurrency = Some(None);
            self
        }

        /// Keeps starts in a slot at least `delay` apart (give or take the jitter), from start to start.
        ///
        /// Durations over 30 years count as 30 years. Scrapy's `DOWNLOAD_DELAY`.
        #[must_use]
        pub fn delay(mut self, delay: Duration) -> Self {
            self.$($limits.)*delay = Some(delay);
            self
        }

        /// Varies the gap between starts around the delay.
        #[must_use]
        pub fn jitter(mut self, jitter: Jitter) -> Self {
            self.$($limits.)*jitter = Some(jitter);
            self
        }

        /// Lets `n` wait in a slot's queue, the first one included; whoever could not start at once and finds
        /// no room is refused with [`QueueFull`](crate::SlotErrorKind::QueueFull). 0 means nobody waits.
        #[must_use]
        pub fn queue_capacity(mut self, n: usize) -> Self {
            self.$($limits.)*queue_capacity = Some(Some(n));
            self
        }

        /// Sets no limit to how many wait in a slot's queue. This is the default.
        #[must_use]
        pub fn unbounded_queue(mut self) -> Self {
            self.$($limits.)*queue_capacity = Some(None);
            self
        }

        /// Ends a wait with [`WaitTimeout`](crate::SlotErrorKind::WaitTimeout) after `timeout`, counted from
        /// the first poll. It is fixed when the wait begins; later changes hold for later waits.
        #[must_use]
        pub fn wait_timeout(mut self, timeout: Duration) -> Self {
            self.$($limits.)*wait_timeout = Some(Some(timeout));
            self
        }

        /// Lets a wait last as long as it takes. This is the default.
        #[must_use]
        pub fn no_wait_timeout(mut self) -> Self {
            self.$($limits.)*wait_timeout = Some(None);
            self
        }

        /// Says how long a request keeps its permit. The default is [`Hold::Body`].
        #[must_use]
        pub fn hold(mut self, hold: Hold) -> Self {
            self.$($limits.)*hold = Some(hold);
            self
        }
    };
}
pub(crate) use limit_setters;

// === impl SlotLimits ===

impl SlotLimits {
    /// Creates limits that set nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    limit_setters!();

    /// Takes from `later` all that is set there.
    pub(crate) fn merge(&mut self, later: &Self) {
        self.concurrency = later.concurrency.or(self.concurrency);
        self.delay = later.delay.or(self.delay);
        self.jitter = later.jitter.or(self.jitter);
        self.queue_capacity = later.queue_capacity.or(self.queue_capacity);
        self.wait_timeout = later.wait_timeout.or(self.wait_timeout);
        self.hold = later.hold.or(self.hold);
    }

    /// Fills the holes from `base`.
    pub(crate) fn over(&self, base: &Limits) -> Limits {
        Limits {
            concurrency: self.concurrency.unwrap_or(base.concurrency),
            delay: self.delay.unwrap_or(base.delay).min(LONGEST),
            jitter: self.jitter.unwrap_or(base.jitter).capped(),
            queue_capacity: self.queue_capacity.unwrap_or(base.queue_capacity),
            wait_timeout: self.wait_timeout.unwrap_or(base.wait_timeout).map(|timeout| timeout.min(LONGEST)),
            hold: self.hold.unwrap_or(base.hold),
        }
    }

    /// The first field with a value that cannot be, and what is wrong with it.
    pub(crate) fn fault(&self) -> Option<(&'static str, &'static str)> {
        if self.concurrency == Some(Some(0)) {
            return Some(("concurrency", AT_LEAST_ONE));
        }
        self.jitter.and_then(Jitter::fault).map(|problem| ("jitter", problem))
    }
}

/// What is wrong with a limit of 0.
pub(crate) const AT_LEAST_ONE: &str = "0 would let nothing through, the least is 1";

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Scrapy's CONCURRENT_REQUESTS_PER_DOMAIN.
            concurrency: Some(8),
            delay: Duration::ZERO,
            jitter: Jitter::NONE,
            queue_capacity: None,
            wait_timeout: None,
            hold: Hold::Body,
        }
    }
}
