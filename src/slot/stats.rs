//! Statistics: where the work of a slot waits, and what became of it.

use std::time::Duration;

use tokio::time::Instant;

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
    /// Time spent in each phase by all who were ever in it, up to now. Of two looks the later one may show a little less
    /// in a phase: the moment in which one left it can be told after the first look.
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

// === impl Phases ===

impl Phases {
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
