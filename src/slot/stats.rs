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

/// Time by phase: waiting by reason, then to the headers, then in the body.
///
/// A permit taken by hand, for work that is not HTTP, is in the body from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Phases {
    /// Waiting because the slot was full.
    pub concurrency: Duration,
    /// Waiting for the delay, the jitter or a pause.
    pub pace: Duration,
    /// Waiting for the cap over all slots.
    pub total: Duration,
    /// From the start to the response's headers, waiting for the inner service to be ready included.
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

/// A phase in the life of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Waiting(WaitReason),
    Headers,
    Body,
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
    sums: [Sum; 5],
    longest: [u64; 5],
    pub(crate) refused: u64,
    pub(crate) timed_out: u64,
    pub(crate) gone: u64,
    ended: [u64; 3],
}

/// A sum of moments. There are many slots: the alignment of `i128` would cost each of them 24 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(Rust, packed(8))]
struct Sum(i128);

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
    pub(crate) fn enter(&mut self, phase: Phase, now: Tick) {
        self.shift(phase, 1, now);
    }

    pub(crate) fn leave(&mut self, phase: Phase, now: Tick) {
        self.shift(phase, -1, now);
    }

    /// Moves `n` requests from one phase to another.
    pub(crate) fn change(&mut self, from: Phase, to: Phase, n: usize, now: Tick) {
        let n = i64::try_from(n).unwrap_or(i64::MAX);
        self.shift(from, -n, now);
        self.shift(to, n, now);
    }

    fn shift(&mut self, phase: Phase, n: i64, now: Tick) {
        self.sums[phase.index()].0 -= i128::from(n) * i128::from(now.nanos());
    }

    pub(crate) fn stayed(&mut self, phase: Phase, nanos: u64) {
        let longest = &mut self.longest[phase.index()];
        *longest = nanos.max(*longest);
    }

    pub(crate) fn ended(&mut self, outcome: Outcome) {
        self.ended[outcome as usize] += 1;
    }

    /// Times up to `now`, with `inside` in each phase.
    pub(crate) fn times(&self, inside: [usize; 5], now: Tick) -> Phases {
        Phases::of(|index| {
            let running = inside[index] as i128 * i128::from(now.nanos());
            // Clocks of two threads may differ by a hair; a sum never shows less than nothing.
            u64::try_from((self.sums[index].0 + running).max(0)).unwrap_or(u64::MAX)
        })
    }

    pub(crate) fn longest(&self) -> Phases {
        Phases::of(|index| self.longest[index])
    }

    pub(crate) fn counts(&self, in_flight: usize, waiting: usize) -> Counts {
        let Self { refused, timed_out, gone, ended: [finished, failed, cancelled], .. } = *self;
        let started = finished + failed + cancelled + in_flight as u64;
        let asked = started + refused + timed_out + gone + waiting as u64;
        Counts { asked, started, refused, timed_out, gone, finished, failed, cancelled }
    }

    /// Adds the tally of a slot in which nobody is any more.
    pub(crate) fn add(&mut self, other: &Self) {
        for index in 0..5 {
            self.sums[index].0 += other.sums[index].0;
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

// === impl Phase ===

impl Phase {
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Waiting(reason) => reason as usize,
            Self::Headers => 3,
            Self::Body => 4,
        }
    }
}

// === impl Phases ===

impl Phases {
    fn of(nanos: impl Fn(usize) -> u64) -> Self {
        let phase = |phase: Phase| Duration::from_nanos(nanos(phase.index()));
        Self {
            concurrency: phase(Phase::Waiting(WaitReason::Concurrency)),
            pace: phase(Phase::Waiting(WaitReason::Pace)),
            total: phase(Phase::Waiting(WaitReason::Total)),
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
