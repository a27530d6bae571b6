//! Moments as the engine counts them: nanoseconds since its slots were made, in eight bytes.

use std::num::NonZeroU64;
use std::time::Duration;

use tokio::time::Instant;

use crate::jitter::LONGEST;

/// A moment. No moment is zero, so that "never" needs no number of its own.
///
/// 584 years fit; arithmetic stops at both ends and never wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(NonZeroU64);

/// The moment from which ticks are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch(Instant);

const NANOS: u64 = 1_000_000_000;

// === impl Tick ===

impl Tick {
    pub(crate) const FIRST: Self = Self(NonZeroU64::MIN);

    pub(crate) fn new(nanos: u64) -> Self {
        Self(Self::FIRST.0.saturating_add(nanos))
    }

    /// The moment of which [`nanos`](Self::nanos) said that; 0 is none.
    pub(crate) fn from_nanos(nanos: u64) -> Option<Self> {
        NonZeroU64::new(nanos).map(Self)
    }

    pub(crate) fn nanos(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds from `earlier` to this moment; 0 if it is the other way round.
    #[inline]
    pub(crate) fn since(self, earlier: Self) -> u64 {
        self.nanos().saturating_sub(earlier.nanos())
    }

    pub(crate) fn duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.since(earlier))
    }
}

// === impl Epoch ===

impl Epoch {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    #[inline]
    pub(crate) fn now(self) -> Tick {
        let since = Instant::now().saturating_duration_since(self.0);
        // No clock gets to the 584 years after which either of these wraps.
        Tick::new(since.as_secs().wrapping_mul(NANOS).wrapping_add(u64::from(since.subsec_nanos())))
    }

    pub(crate) fn tick(self, moment: Instant) -> Tick {
        let nanos = moment.saturating_duration_since(self.0).as_nanos();
        Tick::new(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    pub(crate) fn instant(self, tick: Tick) -> Instant {
        let since = Duration::from_nanos(tick.nanos() - 1);
        // A clock that cannot hold it will not reach it either: then as late as our longest duration.
        self.0.checked_add(since).or_else(|| self.0.checked_add(LONGEST)).unwrap_or(self.0)
    }
}
