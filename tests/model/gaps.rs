//! Gaps between starts in the model. The crate draws; what it drew shows in the next start that it tells, and
//! has to stay within the bounds, and to stay the same whatever the limits become.

use crate::schedule::Spread;
use crate::settings::Limits;

/// A start, and what is known of its draw, a number in `0..1`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Last {
    pub(crate) at: u64,
    low: f64,
    high: f64,
}

/// What is known of the next start. Once the crate has told, it is at `high`, or `high` is past or paused.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Next {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

// === impl Last ===

impl Last {
    pub(crate) fn new(at: u64) -> Self {
        Self { at, low: 0.0, high: 1.0 }
    }

    /// Learns that the next start is in between.
    pub(crate) fn learn(&mut self, limits: Limits, next: Next) {
        let (least, spread) = spread(limits);
        if spread == 0.0 {
            return;
        }
        // The crate may round to a nanosecond.
        let draw = |next: u64, off: f64| (next as f64 - self.at as f64 - least + off) / spread;
        let (low, high) = (draw(next.low, -1.0), draw(next.high, 1.0));
        (self.low, self.high) = (self.low.max(low), self.high.min(high));
    }
}

// === impl Next ===

impl Next {
    pub(crate) fn of(last: Option<Last>, limits: Limits) -> Self {
        let Some(last) = last else { return Self::default() };
        let (least, spread) = spread(limits);
        if spread == 0.0 {
            return Self { low: last.at + limits.delay, high: last.at + limits.delay };
        }
        let next = |draw: f64, off: f64| (last.at as f64 + least + spread * draw + off).max(0.0) as u64;
        Self { low: next(last.low, -1.0), high: next(last.high, 2.0) }
    }

    /// Learns what the crate tells; it tells nothing below `floor`. `None` if that cannot be.
    pub(crate) fn learn(self, floor: u64, told: Option<u64>) -> Option<Self> {
        let Self { low, high } = self;
        let learned = match told.filter(|told| *told > floor) {
            Some(told) => Self { low: told, high: told },
            None => Self { low, high: high.min(floor) },
        };
        (low <= learned.low && learned.low <= learned.high && learned.high <= high).then_some(learned)
    }
}

/// The shortest gap, and how much the draw adds at most.
fn spread(Limits { delay, jitter, .. }: Limits) -> (f64, f64) {
    let delay = delay as f64;
    match jitter {
        Spread::Percent(percent) => {
            let ratio = f64::from(percent) / 100.0;
            (delay * (1.0 - ratio), 2.0 * ratio * delay)
        }
        Spread::UpTo(ms) => (delay, ms as f64 * 1e6),
    }
}
