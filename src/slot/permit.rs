//! Permits: a place in a slot, from the start until it is given back.

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use super::Slot;
use super::queue::Clocks;
use super::stats::{Outcome, Phase};
use super::tick::Tick;
use super::ticket::Start;
use crate::hold::Hold;
use crate::key::SlotKey;

/// A place in a slot; dropping it gives it back.
///
/// It may be sent to another thread or task and be kept for as long as the work takes: until it is dropped it
/// counts as in flight.
#[must_use = "a permit is given back when it is dropped"]
pub struct SlotPermit {
    slot: Arc<Slot>,
    /// Its place among those in flight in the slot.
    index: u32,
    in_body: bool,
    /// What it counts as when it is dropped.
    outcome: Outcome,
    /// Until when a request keeps it, by the limits in force at the start.
    hold: Hold,
    /// When the present phase began.
    since: Tick,
}

// === impl SlotPermit ===

impl SlotPermit {
    /// A permit that was granted just now; it is on its way to the headers, and dropping it cancels.
    #[inline]
    pub(crate) fn new(slot: Arc<Slot>, Start { index, now, hold }: Start) -> Self {
        Self { slot, index, in_body: false, outcome: Outcome::Cancelled, hold, since: now }
    }

    /// Returns the key of its slot.
    #[must_use]
    pub fn key(&self) -> &SlotKey {
        self.slot.key()
    }

    /// Tells that it has started, after such a wait.
    #[inline]
    pub(crate) fn told(self, waited: Clocks) -> Self {
        self.slot.voice().started(waited);
        self
    }

    #[inline]
    pub(crate) fn hold(&self) -> Hold {
        self.hold
    }

    #[inline]
    pub(crate) fn set_hold(&mut self, hold: Hold) {
        self.hold = hold;
    }

    /// When the present phase began.
    pub(crate) fn phase_began(&self) -> Instant {
        self.slot.common().epoch.instant(self.since)
    }

    /// How long the present phase has lasted, in nanoseconds.
    pub(crate) fn lasted(&self) -> u64 {
        self.slot.common().epoch.now().since(self.since)
    }

    /// Headers => Body. Returns how long the headers took, in nanoseconds; nothing if they were there before.
    #[inline]
    pub(crate) fn headers(&mut self) -> u64 {
        if self.in_body {
            return 0;
        }
        let now = self.slot.common().epoch.now();
        let took = now.since(self.since);
        self.slot.headers(now, took);
        (self.in_body, self.since) = (true, now);
        self.slot.voice().headers(took);
        took
    }

    /// From now on it is in the hands of somebody who drops it when the work is done.
    pub(crate) fn by_hand(mut self) -> Self {
        self.headers();
        self.outcome = Outcome::Finished;
        self
    }

    /// It has been in such hands since its start, and never was on its way to headers.
    pub(crate) fn by_hand_from_start(mut self) -> Self {
        self.slot.headers(self.since, 0);
        (self.in_body, self.outcome) = (true, Outcome::Finished);
        self
    }

    /// Gives it back.
    #[inline]
    pub(crate) fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    #[inline]
    pub(crate) fn outcome(&self) -> Outcome {
        self.outcome
    }

    #[inline]
    pub(crate) fn set_outcome(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for SlotPermit {
    // In flight => Given back.
    fn drop(&mut self) {
        let phase = if self.in_body { Phase::Body } else { Phase::Headers };
        let took = self.slot.release(self.index, phase, self.since, self.outcome);
        self.slot.voice().ended(self.outcome, self.in_body, took);
    }
}

impl fmt::Debug for SlotPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.phase_began();
        f.debug_struct("SlotPermit").field("slot", self.key()).field("since", &since).finish_non_exhaustive()
    }
}
