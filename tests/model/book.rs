//! The books: what became of those who asked in a slot, and how long they were where.

use tower_slot::SlotStats;

use crate::compare::{Fault, nanos, same};

/// What became of those who asked in a slot, and their times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Book {
    pub(crate) waiting: usize,
    pub(crate) in_flight: usize,
    pub(crate) refused: u64,
    pub(crate) timed_out: u64,
    pub(crate) gone: u64,
    pub(crate) finished: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    pub(crate) waited: u64,
    pub(crate) headers: u64,
    pub(crate) body: u64,
}

/// How a permit ended.
#[derive(Clone, Copy)]
pub(crate) enum Ended {
    Finished,
    Failed,
    Cancelled,
}

// === impl Book ===

impl Book {
    /// What the slot says; its counts have to add up.
    pub(crate) fn of(real: &SlotStats) -> Result<Self, Fault> {
        let counts = real.counts;
        let ended = counts.finished + counts.failed + counts.cancelled;
        same("started", counts.started, ended + real.in_flight as u64)?;
        let others = counts.refused + counts.timed_out + counts.gone + real.waiting as u64;
        same("asked", counts.asked, counts.started + others)?;
        Ok(Self {
            waiting: real.waiting,
            in_flight: real.in_flight,
            refused: counts.refused,
            timed_out: counts.timed_out,
            gone: counts.gone,
            finished: counts.finished,
            failed: counts.failed,
            cancelled: counts.cancelled,
            waited: nanos(real.times.waited()),
            headers: nanos(real.times.headers),
            body: nanos(real.times.body),
        })
    }

    /// A permit comes back.
    pub(crate) fn ends(&mut self, ended: Ended) {
        self.in_flight -= 1;
        match ended {
            Ended::Finished => self.finished += 1,
            Ended::Failed => self.failed += 1,
            Ended::Cancelled => self.cancelled += 1,
        }
    }
}
