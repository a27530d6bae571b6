//! Statistics: where the work of a slot waits, and what became of it.
//!
//! Sums of time need nobody to be polled: entering a phase subtracts the moment, leaving it adds the moment,
//! and whoever is inside counts as if it left when somebody looks.

use std::time::Duration;

use tokio::time::Instant;

use super::tick::Tick;
use crate::error::WaitReason;
use crate::key::SlotKey;
use crate::limits::Limits;

/// Everything about one slot at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlotStats {
    /// The slot's name.
    pub key: SlotKey,
    /// The limits in force.
    pub limits: Limits,
    /// How many hold a permit.
    pub in_flight: usize,
    /// How many wait.
    pub waiting: usize,
    /// What they wait for; `None` when nobody waits.
    pub reason: Option<WaitReason>,
    /// How long ago the oldest of those in flight started.
    pub oldest_permit: Option<Duration>,
    /// How long the oldest waiter has been waiting.
    pub oldest_waiter: Option<Duration>,
    /// Before when the pace allows no start; `None` when it allows one now.
    pub next_start: Option<Instant>,
    /// Until when the slot is paused; `None` when it is not.
    pub paused_until: Option<Instant>,
    /// For how long the first waiter has been woken and not polled.
    pub stalled: Option<Duration>,
    /// Time spent in each phase by all who were ever in it, up to now.
    pub times: Phases,
    /// The longest that one request spent in each phase and left.
    pub longest: Phases,
    /// What became of those who asked.
    pub counts: Counts,
}

/// Time by phase: waiting by reason, then to a connection, to the headers, in the body.
///
/// A permit taken by hand, for work that is not HTTP, is in the body from the start. Without
/// [`statistics`](crate::SlotConfigBuilder::statistics) only the waiting is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Phases {
    /// Waiting because the slot was full.
    pub concurrency: Duration,
    /// Waiting for the delay, the jitter or a pause.
    pub pace: Duration,
    /// Waiting for the cap over all slots.
    pub total: Duration,
    /// From the start until the client had a connection: only with `SlotLayer::connection_times`, else nothing.
    pub connection: Duration,
    /// From the start, or the connection where that is told apart, to the response's headers; waiting for the inner
    /// service to be ready included.
    pub headers: Duration,
    /// From the headers until the permit was given back.
    pub body: Duration,
}

/// Counts that add up: `asked = started + refused + timed_out + gone + waiting` and
/// `started = finished + failed + cancelled + in flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Those who asked for a permit.
    pub asked: u64,
    /// Those who got one.
    pub started: u64,
    /// Those who were turned away: full queue, closed, too many slots.
    pub refused: u64,
    /// Those whose wait timeout ended the wait.
    pub timed_out: u64,
    /// Those who went away while they waited.
    pub gone: u64,
    /// Body ended, or headers there under [`Hold::Headers`](crate::Hold::Headers), or permit dropped by hand.
    pub finished: u64,
    /// Error of the inner service or of the body, or a panic.
    pub failed: u64,
    /// Dropped after the start.
    pub cancelled: u64,
}

/// Slots that are no more, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recycled {
    /// How many they were.
    pub slots: u64,
    /// Their times.
    pub times: Phases,
    /// The longest of them all.
    pub longest: Phases,
    /// Their counts, and those of requests that were refused before they had a slot.
    pub counts: Counts,
}

/// The cap over all slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TotalStats {
    /// The cap; `None` is unlimited.
    pub limit: Option<usize>,
    /// How much of it is taken. Not counted before there was a cap for the first time.
    pub in_flight: usize,
    /// How many slots stand in line for it.
    pub line: usize,
}

/// All slots, each consistent in itself.
///
/// With the feature `serde` it is written as [its `Serialize`](#impl-Serialize-for-Snapshot) says.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The slots, in order of their names.
    pub slots: Vec<SlotStats>,
    /// Those that are no more.
    pub recycled: Recycled,
    /// The cap over all slots.
    pub total: TotalStats,
    /// When the snapshot was begun.
    pub at: Instant,
}

/// A phase in the life of a request. Those after the start come first: there it is kept how many are in each.
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
    /// By phase, in nanoseconds; see the module's head.
    sums: Sums,
    longest: [u64; PHASES],
    /// How many are in each phase that comes after the start.
    inside: [u32; 3],
    pub(crate) refused: u64,
    pub(crate) timed_out: u64,
    pub(crate) gone: u64,
    ended: [u64; 3],
}

/// Sums of moments, of 96 bits each: there are many slots, and an `i128` would take a quarter more.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    low: [u64; PHASES],
    high: [i32; PHASES],
}

pub(crate) const PHASES: usize = 6;

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
        if let Some(inside) = self.inside_mut(phase) {
            *inside += 1;
        }
        self.shift(phase, 1, now);
    }

    /// One leaves a phase.
    #[inline]
    pub(crate) fn leave(&mut self, phase: Phase, now: Tick) {
        if let Some(inside) = self.inside_mut(phase) {
            *inside -= 1;
        }
        self.shift(phase, -1, now);
    }

    /// How many are in a phase that comes after the start.
    #[inline]
    fn inside_mut(&mut self, phase: Phase) -> Option<&mut u32> {
        self.inside.get_mut(phase as usize)
    }

    /// `n` who wait for the one reason wait for the other from now on.
    pub(crate) fn wait_for(&mut self, from: WaitReason, to: WaitReason, n: usize, now: Tick) {
        let n = i64::try_from(n).unwrap_or(i64::MAX);
        self.shift(from.into(), -n, now);
        self.shift(to.into(), n, now);
    }

    #[inline]
    fn shift(&mut self, phase: Phase, n: i64, now: Tick) {
        self.sums.add(phase as usize, -(i128::from(n) * i128::from(now.nanos())));
    }

    #[inline]
    pub(crate) fn stayed(&mut self, phase: Phase, nanos: u64) {
        let longest = &mut self.longest[phase as usize];
        *longest = nanos.max(*longest);
    }

    #[inline]
    pub(crate) fn ended(&mut self, outcome: Outcome) {
        self.ended[outcome as usize] += 1;
    }

    /// Times up to `now`, with so many `waiting` for a reason.
    pub(crate) fn times(&self, waiting: Option<(WaitReason, usize)>, now: Tick) -> Phases {
        Phases::of(|phase| {
            let inside = match self.inside.get(phase as usize) {
                Some(inside) => i128::from(*inside),
                None => waiting.filter(|(gate, _)| phase == (*gate).into()).map_or(0, |(_, n)| n as i128),
            };
            let nanos = self.sums.get(phase as usize) + inside * i128::from(now.nanos());
            // Clocks of two threads may differ by a hair; a sum never shows less than nothing.
            u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)
        })
    }

    pub(crate) fn longest(&self) -> Phases {
        Phases::of(|phase| self.longest[phase as usize])
    }

    pub(crate) fn counts(&self, in_flight: usize, waiting: usize) -> Counts {
        let Self { refused, timed_out, gone, ended: [finished, failed, cancelled], .. } = *self;
        let started = finished + failed + cancelled + in_flight as u64;
        let asked = started + refused + timed_out + gone + waiting as u64;
        Counts { asked, started, refused, timed_out, gone, finished, failed, cancelled }
    }

    /// Adds the tally of a slot in which nobody is any more.
    pub(crate) fn add(&mut self, other: &Self) {
        for index in 0..PHASES {
            self.sums.add(index, other.sums.get(index));
            self.longest[index] = self.longest[index].max(other.longest[index]);
        }
        self.refused += other.refused;
        self.timed_out += other.timed_out;
        self.gone += other.gone;
        for (ended, more) in self.ended.iter_mut().zip(other.ended) {
            *ended += more;
        }
    }
}

// === impl Sums ===

impl Sums {
    #[inline]
    fn get(&self, index: usize) -> i128 {
        i128::from(self.high[index]) << 64 | i128::from(self.low[index])
    }

    #[inline]
    fn add(&mut self, index: usize, nanos: i128) {
        // Ten thousand million requests at a time for 250 years fit.
        let sum = self.get(index).wrapping_add(nanos);
        (self.low[index], self.high[index]) = (sum as u64, (sum >> 64) as i32);
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

// === impl Phases ===

impl Phases {
    fn of(nanos: impl Fn(Phase) -> u64) -> Self {
        let phase = |phase| Duration::from_nanos(nanos(phase));
        Self {
            concurrency: phase(Phase::Concurrency),
            pace: phase(Phase::Pace),
            total: phase(Phase::Total),
            connection: phase(Phase::Connection),
            headers: phase(Phase::Headers),
            body: phase(Phase::Body),
        }
    }

    /// Returns the time waited for `reason`.
    #[must_use]
    pub fn waited_for(&self, reason: WaitReason) -> Duration {
        match reason {
            WaitReason::Concurrency => self.concurrency,
            WaitReason::Pace => self.pace,
            WaitReason::Total => self.total,
        }
    }

    /// Returns the time waited for whatever reason.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.concurrency.saturating_add(self.pace).saturating_add(self.total)
    }
}
