//! Jitter: how far a gap between two starts may stray from the configured delay.
//!
//! One number in `0..1` is drawn per start; the gap that follows is a pure function of the delay, the jitter
//! and that draw, so a delay that changes later needs no new draw.

use std::time::Duration;

/// How the gap between two starts varies around the delay.
///
/// ```
/// use std::time::Duration;
/// use tower_slot::Jitter;
///
/// let second = Duration::from_secs(1);
/// assert_eq!(Jitter::NONE.gap(second, 0.9), second);
/// assert_eq!(Jitter::ratio(0.5).gap(second, 0.0), second / 2); // 0.5 s to 1.5 s, 1 s on average
/// assert_eq!(Jitter::up_to(second).gap(second, 0.5), second + second / 2); // 1 s to 2 s
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter(pub(crate) Kind);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Ratio(f64),
    UpTo(Duration),
}

// === impl Jitter ===

impl Jitter {
    /// No jitter: every gap is the delay.
    pub const NONE: Self = Self(Kind::Ratio(0.0));

    /// Spreads gaps evenly over `delay * (1 - ratio)` to `delay * (1 + ratio)`.
    ///
    /// The ratio is within `0..=1`; anything else is refused when the configuration is built. Scrapy's
    /// `RANDOMIZE_DOWNLOAD_DELAY` is a ratio of 0.5.
    #[must_use]
    pub const fn ratio(ratio: f64) -> Self {
        Self(Kind::Ratio(ratio))
    }

    /// Adds between nothing and `max` to the delay.
    #[must_use]
    pub const fn up_to(max: Duration) -> Self {
        Self(Kind::UpTo(max))
    }

    /// Returns the gap that follows a start which drew `draw`, a number in `0..1`.
    #[must_use]
    pub fn gap(self, delay: Duration, draw: f64) -> Duration {
        Duration::from_nanos(self.gap_nanos(nanos(delay), draw))
    }

    /// The same in nanoseconds, which is what the engine counts in.
    pub(crate) fn gap_nanos(self, delay: u64, draw: f64) -> u64 {
        match self.0 {
            // Exact: no way through floating point.
            Kind::Ratio(0.0) => delay,
            // `as` saturates, and turns what is not a number into 0.
            Kind::Ratio(ratio) => (delay as f64 * (1.0 - ratio + 2.0 * ratio * draw)).round() as u64,
            Kind::UpTo(max) => delay.saturating_add((nanos(max) as f64 * draw).round() as u64),
        }
    }

    /// The same without durations over the longest that count.
    pub(crate) fn capped(self) -> Self {
        match self.0 {
            Kind::UpTo(max) => Self::up_to(max.min(LONGEST)),
            Kind::Ratio(_) => self,
        }
    }

    /// Says what is wrong with it.
    pub(crate) fn fault(self) -> Option<&'static str> {
        match self.0 {
            Kind::Ratio(ratio) if !(0.0..=1.0).contains(&ratio) => Some("the ratio is not within 0 to 1"),
            _ => None,
        }
    }

    /// Whether gaps can differ from nothing although there is no delay.
    #[inline]
    pub(crate) fn adds(self) -> bool {
        matches!(self.0, Kind::UpTo(max) if !max.is_zero())
    }
}

impl Default for Jitter {
    fn default() -> Self {
        Self::NONE
    }
}

/// The longest duration that counts, 30 years: longer ones are capped to it.
pub(crate) const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// `duration` in nanoseconds, capped.
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.min(LONGEST).as_nanos() as u64
}
