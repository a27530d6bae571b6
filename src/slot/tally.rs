//! What a slot counts: the time in each phase, and what became of those who asked.
//!
//! Sums of time need nobody to be polled: entering a phase subtracts the moment, leaving it adds the moment, and whoever
//! is inside counts as if it left when somebody looks.

use std::time::Duration;

use super::stats::{Counts, Phases};
use super::tick::Tick;
use crate::error::WaitReason;

/// A phase in the life of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Connection,
    Headers,
    Body,
    Concurrency,
    Pace,
    Total,
}

/// How a permit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Finished,
    Failed,
    Cancelled,
}

/// What a slot counts. What can be derived from the rest is not kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    headers: Stays,
    body: Stays,
    finished: u64,
    /// `None` until one of them is needed: most slots are many, and see nothing but requests that come and go.
    rare: Option<Box<Rare>>,
}

#[derive(Clone, Debug, Default)]
struct Rare {
    connection: Stays,
    concurrency: Stays,
    pace: Stays,
    total: Stays,
    refused: u64,
    timed_out: u64,
    gone: u64,
    failed: u64,
    cancelled: u64,
}

/// The stays in one phase, added up.
#[derive(Clone, Copy, Debug, Default)]
struct Stays {
    /// In nanoseconds, and of moments while somebody is inside; see the module's head. 96 bits: there are many slots,
    /// and an `i128` would take more.
    low: u64,
    high: i32,
    inside: u32,
    longest: u64,
}

const NANOS: u128 = 1_000_000_000;

// === impl Outcome ===

impl Outcome {
    #[cfg(feature = "tracing")]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

// === impl Tally ===

impl Tally {
    /// One comes into a phase.
    #[inline]
    pub(crate) fn enter(&mut self, phase: Phase, now: Tick) {
        self.stays_mut(phase).change(1, now);
    }

    /// One leaves a phase.
    #[inline]
    pub(crate) fn leave(&mut self, phase: Phase, now: Tick) {
        self.stays_mut(phase).change(-1, now);
    }

    /// One leaves a phase after so many nanoseconds.
    #[inline]
    pub(crate) fn leave_after(&mut self, phase: Phase, took: u64, now: Tick) {
        let stays = self.stays_mut(phase);
        stays.change(-1, now);
        stays.longest = took.max(stays.longest);
    }

    /// `n` who wait for the one reason wait for the other from now on.
    pub(crate) fn wait_for(&mut self, from: WaitReason, to: WaitReason, n: usize, now: Tick) {
        // More than that have no room in memory.
        let n = i32::try_from(n).unwrap_or(i32::MAX);
        self.stays_mut(from.into()).change(-n, now);
        self.stays_mut(to.into()).change(n, now);
    }

    /// Somebody waited for so many nanoseconds, whose stay was counted as the queue's.
    pub(crate) fn waited(&mut self, reason: WaitReason, nanos: u64) {
        let longest = &mut self.stays_mut(reason.into()).longest;
        *longest = nanos.max(*longest);
    }

    #[inline]
    fn stays_mut(&mut self, phase: Phase) -> &mut Stays {
        match phase {
            Phase::Headers => &mut self.headers,
            Phase::Body => &mut self.body,
            other => self.rare().stays_mut(other),
        }
    }

    #[inline]
    pub(crate) fn ended(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Finished => self.finished += 1,
            Outcome::Failed => self.rare().failed += 1,
            Outcome::Cancelled => self.rare().cancelled += 1,
        }
    }

    pub(crate) fn refused(&mut self) {
        self.rare().refused += 1;
    }

    pub(crate) fn timed_out(&mut self) {
        self.rare().timed_out += 1;
    }

    pub(crate) fn gone(&mut self) {
        self.rare().gone += 1;
    }

    #[inline(never)]
    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Times up to `now`.
    pub(crate) fn times(&self, now: Tick) -> Phases {
        self.phases(|stays| stays.time(now))
    }

    pub(crate) fn longest(&self) -> Phases {
        self.phases(|stays| Duration::from_nanos(stays.longest))
    }

    fn phases(&self, phase: impl Fn(&Stays) -> Duration) -> Phases {
        let rare = self.rare.as_deref().cloned().unwrap_or_default();
        Phases {
            concurrency: phase(&rare.concurrency),
            pace: phase(&rare.pace),
            total: phase(&rare.total),
            connection: phase(&rare.connection),
            headers: phase(&self.headers),
            body: phase(&self.body),
        }
    }

    pub(crate) fn counts(&self, in_flight: usize, waiting: usize) -> Counts {
        let Rare { refused, timed_out, gone, failed, cancelled, .. } =
            self.rare.as_deref().cloned().unwrap_or_default();
        let finished = self.finished;
        let started = finished + failed + cancelled + in_flight as u64;
        let asked = started + refused + timed_out + gone + waiting as u64;
        Counts { asked, started, refused, timed_out, gone, finished, failed, cancelled }
    }

    /// Adds the tally of a slot in which nobody is any more.
    pub(crate) fn add(&mut self, other: &Self) {
        self.headers.add(&other.headers);
        self.body.add(&other.body);
        self.finished += other.finished;
        if let Some(other) = &other.rare {
            self.rare().add(other);
        }
    }
}

// === impl Rare ===

impl Rare {
    fn stays_mut(&mut self, phase: Phase) -> &mut Stays {
        match phase {
            Phase::Concurrency => &mut self.concurrency,
            Phase::Pace => &mut self.pace,
            Phase::Total => &mut self.total,
            // The two others are not rare, and kept elsewhere.
            Phase::Connection | Phase::Headers | Phase::Body => &mut self.connection,
        }
    }

    fn add(&mut self, other: &Self) {
        self.connection.add(&other.connection);
        self.concurrency.add(&other.concurrency);
        self.pace.add(&other.pace);
        self.total.add(&other.total);
        self.refused += other.refused;
        self.timed_out += other.timed_out;
        self.gone += other.gone;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
    }
}

// === impl Stays ===

impl Stays {
    /// So many more, or fewer, are inside from now on.
    #[inline]
    fn change(&mut self, n: i32, now: Tick) {
        self.inside = self.inside.wrapping_add_signed(n);
        self.add_nanos(-i128::from(n) * i128::from(now.nanos()));
    }

    fn nanos(&self) -> i128 {
        i128::from(self.high) << 64 | i128::from(self.low)
    }

    #[inline]
    fn add_nanos(&mut self, nanos: i128) {
        // As many inside as can be counted, for 250 years, fit.
        let sum = self.nanos().wrapping_add(nanos);
        (self.low, self.high) = (sum as u64, (sum >> 64) as i32);
    }

    /// Whoever is inside counts as if it left now.
    fn time(&self, now: Tick) -> Duration {
        let nanos = self.nanos() + i128::from(self.inside) * i128::from(now.nanos());
        // Clocks of two threads may differ by a hair; a sum never shows less than nothing.
        let nanos = nanos.max(0) as u128;
        // Many who wait for long have more nanoseconds than 64 bits hold, but never so many seconds.
        Duration::new((nanos / NANOS) as u64, (nanos % NANOS) as u32)
    }

    /// Adds stays that are over.
    fn add(&mut self, other: &Self) {
        self.add_nanos(other.nanos());
        self.longest = self.longest.max(other.longest);
    }
}

// === impl Phase ===

impl From<WaitReason> for Phase {
    #[inline]
    fn from(reason: WaitReason) -> Self {
        match reason {
            WaitReason::Concurrency => Self::Concurrency,
            WaitReason::Pace => Self::Pace,
            WaitReason::Total => Self::Total,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // V1
    #[test]
    fn a_sum_never_shows_less_than_nothing() {
        let mut tally = Tally::default();
        let [early, late] = [1_000, 2_000].map(Tick::new);
        tally.enter(Phase::Body, late);
        assert_eq!(tally.times(early).body, Duration::ZERO);
        tally.leave_after(Phase::Body, 0, early);
        assert_eq!(tally.times(late).body, Duration::ZERO);
        assert_eq!(tally.longest(), Phases::default());
    }
}
