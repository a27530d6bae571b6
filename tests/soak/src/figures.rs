//! What a client counts, and tells once a second.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What one client has counted, or all of them.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Figures {
    /// Those that were polled, and those that were dropped before.
    pub(crate) requests: u64,
    pub(crate) unpolled: u64,
    pub(crate) starts: u64,
    /// Errors of the connection or the body.
    pub(crate) faults: u64,
    /// Futures and bodies dropped before their end.
    pub(crate) cancels: u64,
    pub(crate) refused: u64,
    pub(crate) timed_out: u64,
    /// Of limits, the cap and pauses.
    pub(crate) changes: u64,
    pub(crate) recycled: u64,
    /// Looks at all slots.
    pub(crate) looks: u64,
    /// The most that were in flight at once.
    pub(crate) peak: usize,
    /// Resident memory in KiB, early and late in the run.
    pub(crate) early: u64,
    pub(crate) late: u64,
    /// Open files, before and after.
    pub(crate) files: (usize, usize),
}

/// Samples of resident memory.
#[derive(Debug, Default)]
pub(crate) struct Memory(Vec<u64>);

// === impl Figures ===

impl Figures {
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.unpolled += other.unpolled;
        self.starts += other.starts;
        self.faults += other.faults;
        self.cancels += other.cancels;
        self.refused += other.refused;
        self.timed_out += other.timed_out;
        self.changes += other.changes;
        self.recycled += other.recycled;
        self.looks += other.looks;
        self.peak = self.peak.max(other.peak);
        self.early += other.early;
        self.late += other.late;
        self.files = (self.files.0 + other.files.0, self.files.1 + other.files.1);
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, starts, faults, cancels, refused, timed_out, .. } = self;
        let Self { changes, recycled, looks, peak, early, late, files, .. } = self;
        write!(f, "{requests} requests, {starts} starts, {faults} faults, {cancels} cancels, ")?;
        write!(f, "{refused} refused, {timed_out} timed out, {changes} changes, {recycled} recycled, ")?;
        write!(
            f,
            "{looks} looks, peak {peak}, memory {early} -> {late} KiB, files {} -> {}",
            files.0, files.1
        )
    }
}

// === impl Memory ===

impl Memory {
    /// Takes one sample; they come once a second.
    pub(crate) fn sample(&mut self, resident: u64) {
        self.0.push(resident);
    }

    /// The mean of the second minute and of the last, or of the second and the last third of a short run.
    pub(crate) fn early_and_late(&self) -> (u64, u64) {
        let part = (self.0.len() / 3).clamp(1, 60);
        let mean = |samples: &[u64]| samples.iter().sum::<u64>() / samples.len().max(1) as u64;
        let early = self.0.get(part..2 * part).unwrap_or(&self.0);
        (mean(early), mean(&self.0[self.0.len().saturating_sub(part)..]))
    }

    /// How much more than early in a run it may be late in the run: a tenth, or an eighth in a short one, which is
    /// warming up still, and 4 MiB.
    pub(crate) fn tolerance(early: u64, time: Duration) -> u64 {
        early / if time < Duration::from_secs(180) { 8 } else { 10 } + 4_096
    }
}
