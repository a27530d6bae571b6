//! The pace of a slot: when the next start may come.
//!
//! Everything is computed when it is asked for, from the last start, the number drawn at it, and the limits in
//! force: a delay that changes counts at once, and asking again never draws again.

use super::tick::Tick;
use crate::jitter::nanos;
use crate::limits::Limits;

#[derive(Debug)]
pub(crate) struct Pace {
    last_start: Option<Tick>,
    /// No start before this moment: a pause.
    pub(crate) not_before: Option<Tick>,
    /// What it draws next is the draw of the last start.
    rng: fastrand::Rng,
}

// === impl Pace ===

impl Pace {
    pub(crate) fn new(not_before: Option<Tick>) -> Self {
        Self { last_start: None, not_before, rng: fastrand::Rng::new() }
    }

    /// The moment from which the pace allows a start; `None` is any time.
    #[inline]
    pub(crate) fn next(&self, limits: &Limits) -> Option<Tick> {
        if limits.delay.is_zero() && !limits.jitter.adds() {
            return self.not_before;
        }
        self.by_delay(limits).max(self.not_before)
    }

    fn by_delay(&self, limits: &Limits) -> Option<Tick> {
        // A draw in `0..1`, the same whenever it is asked for.
        let draw = self.rng.clone().f64();
        self.last_start.map(|last| last.plus(limits.jitter.gap_nanos(nanos(limits.delay), draw)))
    }

    #[inline]
    pub(crate) fn started(&mut self, now: Tick) {
        self.last_start = Some(now);
        self.rng.u64(..);
    }

    pub(crate) fn paused_until(&self, now: Tick) -> Option<Tick> {
        self.not_before.filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Jitter;

    fn limits(delay: Duration, jitter: Jitter) -> Limits {
        Limits { delay, jitter, ..Limits::default() }
    }

    #[test]
    fn the_first_start_may_come_at_any_time_however_long_the_delay() {
        assert_eq!(Pace::new(None).next(&limits(Duration::MAX, Jitter::NONE)), None);
    }

    #[test]
    fn a_gap_follows_the_limits_in_force_and_never_draws_again() {
        let mut pace = Pace::new(None);
        let start = Tick::new(1_000);
        pace.started(start);
        let (minute, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let first = pace.next(&limits(minute, Jitter::ratio(0.5)));
        assert_eq!(pace.next(&limits(minute, Jitter::ratio(0.5))), first);
        assert_eq!(pace.next(&limits(minute, Jitter::NONE)), Some(start.plus(60_000_000_000)));
        assert_eq!(pace.next(&limits(second, Jitter::NONE)), Some(start.plus(1_000_000_000)));
        assert_eq!(pace.next(&limits(Duration::ZERO, Jitter::NONE)), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes a while, and is arithmetic alone")]
    fn draws_fill_the_range_evenly_and_their_mean_is_the_delay() {
        let mut pace = Pace { rng: fastrand::Rng::with_seed(26), ..Pace::new(None) };
        let limits = limits(Duration::from_secs(1), Jitter::ratio(0.5));
        let runs = 10_000;
        let gaps = (0..runs).map(|_| {
            pace.started(Tick::FIRST);
            pace.next(&limits).unwrap().since(Tick::FIRST) as f64 / 1e9
        });
        let gaps: Vec<f64> = gaps.collect();
        let mean = gaps.iter().sum::<f64>() / f64::from(runs);
        assert!((mean - 1.0).abs() < 0.01, "mean {mean}");
        assert!(gaps.iter().all(|gap| (0.5..=1.5).contains(gap)));
        for tenth in 0..10 {
            let low = 0.5 + f64::from(tenth) / 10.0;
            let share = gaps.iter().filter(|gap| (low..low + 0.1).contains(*gap)).count();
            assert!((900..1_100).contains(&share), "{share} of {runs} in {low}..");
        }
    }
}
