//! Permits: a place in a slot, from the start until it is given back.

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use super::Slot;
use super::queue::Clocks;
use super::stats::{Outcome, Phase};
use crate::hold::Hold;
use crate::key::SlotKey;

/// A place in a slot; dropping it gives it back.
///
/// It may be sent to another thread or task and be kept for as long as the work takes: until it is dropped it
/// counts as in flight.
#[must_use = "a permit is given back when it is dropped"]
pub struct SlotPermit {
    slot: Arc<Slot>,
    place: Place,
}

/// Which of those in flight in its slot a permit is, and what is said of it: all in one word of which every value is
/// valid, so that a permit moves in two registers even where it may be missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(u64);

// === impl SlotPermit ===

impl SlotPermit {
    /// A permit that was granted just now; it is on its way to the headers, and dropping it cancels.
    #[inline]
    pub(crate) fn new(slot: Arc<Slot>, place: Place) -> Self {
        Self { slot, place }
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
        self.place.hold()
    }

    #[inline]
    pub(crate) fn set_hold(&mut self, hold: Hold) {
        self.place = self.place.with_hold(hold);
    }

    /// When the present phase began.
    pub(crate) fn phase_began(&self) -> Instant {
        self.slot.phase_began(self.place.index())
    }

    /// How long the present phase has lasted, in nanoseconds.
    pub(crate) fn lasted(&self) -> u64 {
        self.slot.phase_lasted(self.place.index())
    }

    /// Headers => Body. Returns how long the headers took, in nanoseconds; nothing if they were there before.
    #[inline]
    pub(crate) fn headers(&mut self) -> u64 {
        if self.place.in_body() {
            return 0;
        }
        self.place = self.place.with_body();
        let took = self.slot.headers(self.place.index());
        self.slot.voice().headers(took);
        took
    }

    /// From now on it is in the hands of somebody who drops it when the work is done.
    pub(crate) fn by_hand(mut self) -> Self {
        self.headers();
        self.set_outcome(Outcome::Finished);
        self
    }

    /// It has been in such hands since its start, and never was on its way to headers.
    pub(crate) fn by_hand_from_start(mut self) -> Self {
        self.place = self.place.with_body();
        self.slot.skip_headers(self.place.index());
        self.set_outcome(Outcome::Finished);
        self
    }

    /// Gives it back.
    #[inline]
    pub(crate) fn end(mut self, outcome: Outcome) {
        self.set_outcome(outcome);
    }

    #[inline]
    pub(crate) fn set_outcome(&mut self, outcome: Outcome) {
        self.place = self.place.with_outcome(outcome);
    }
}

impl Drop for SlotPermit {
    // In flight => Given back.
    #[inline]
    fn drop(&mut self) {
        self.slot.release(self.place);
    }
}

// === impl Place ===

impl Place {
    const IN_BODY: u64 = 1 << 32;
    const TO_HEADERS: u64 = 1 << 33;
    const OUTCOME: u32 = 34;

    /// On its way to the headers; dropping it cancels.
    #[inline]
    pub(crate) fn new(index: u32, hold: Hold) -> Self {
        Self(u64::from(index)).with_outcome(Outcome::Cancelled).with_hold(hold)
    }

    #[inline]
    pub(super) fn index(self) -> u32 {
        self.0 as u32
    }

    /// Until when a request keeps it: by the limits in force at the start, or by the request's own word.
    #[inline]
    fn hold(self) -> Hold {
        if self.0 & Self::TO_HEADERS == 0 { Hold::Body } else { Hold::Headers }
    }

    #[inline]
    fn with_hold(self, hold: Hold) -> Self {
        match hold {
            Hold::Body => Self(self.0 & !Self::TO_HEADERS),
            Hold::Headers => Self(self.0 | Self::TO_HEADERS),
        }
    }

    #[inline]
    fn in_body(self) -> bool {
        self.0 & Self::IN_BODY != 0
    }

    #[inline]
    fn with_body(self) -> Self {
        Self(self.0 | Self::IN_BODY)
    }

    #[inline]
    pub(super) fn phase(self) -> Phase {
        if self.in_body() { Phase::Body } else { Phase::Headers }
    }

    /// What it counts as when it is dropped.
    #[inline]
    pub(super) fn outcome(self) -> Outcome {
        match self.0 >> Self::OUTCOME {
            0 => Outcome::Finished,
            1 => Outcome::Failed,
            _ => Outcome::Cancelled,
        }
    }

    #[inline]
    fn with_outcome(self, outcome: Outcome) -> Self {
        Self(self.0 & !(u64::MAX << Self::OUTCOME) | (outcome as u64) << Self::OUTCOME)
    }
}

impl fmt::Debug for SlotPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.phase_began();
        f.debug_struct("SlotPermit").field("slot", self.key()).field("since", &since).finish_non_exhaustive()
    }
}
