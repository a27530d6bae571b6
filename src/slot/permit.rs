//! Permits: a place in a slot, from the start until it is given back.

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use super::Slot;
use super::queue::Clocks;
use super::tally::{Outcome, Phase};
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
#[must_use = "whoever lets go of a place keeps it for ever"]
pub(crate) struct Place(u64);

// === impl SlotPermit ===

impl SlotPermit {
    /// A permit that was granted just now; dropping it cancels.
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

    /// Headers => Body, if statistics or somebody else wants to know. Returns how long the headers took, in
    /// nanoseconds; nothing if they were there before.
    #[inline]
    pub(crate) fn headers(&mut self, wanted: bool) -> u64 {
        if self.place.phase() == Phase::Body || !(wanted || self.slot.common().statistics) {
            return 0;
        }
        if !wanted && self.place.phase() == Phase::Headers && self.slot.note_headers(self.place.index()) {
            self.place = self.place.with_phase(Phase::Body);
            return 0;
        }
        let took = self.pass_on(Phase::Body);
        self.slot.voice().headers(took);
        took
    }

    /// Headers => Connection, as if from the start: the client will tell when it has one. Not without statistics,
    /// unless it is `wanted`; returns whether it did.
    #[cfg(feature = "connection")]
    pub(crate) fn awaits_connection(&mut self, wanted: bool) -> bool {
        let timed = wanted || self.slot.common().statistics;
        if timed {
            self.correct(Phase::Connection);
        }
        timed
    }

    /// Connection => Headers. Returns how long it took to get one, in nanoseconds.
    #[cfg(feature = "connection")]
    pub(crate) fn connected(&mut self) -> u64 {
        let took = self.pass_on(Phase::Headers);
        self.slot.voice().connected(took);
        took
    }

    /// Connection => Headers, as if from the start: nobody told of a connection.
    #[cfg(feature = "connection")]
    pub(crate) fn never_connected(&mut self) {
        if self.place.phase() == Phase::Connection {
            self.correct(Phase::Headers);
        }
    }

    #[inline]
    fn pass_on(&mut self, to: Phase) -> u64 {
        let from = self.place.phase();
        self.place = self.place.with_phase(to);
        self.slot.pass_on(self.place.index(), from, to)
    }

    #[cfg(feature = "connection")]
    fn correct(&mut self, to: Phase) {
        let from = self.place.phase();
        self.place = self.place.with_phase(to);
        self.slot.correct(self.place.index(), from, to);
    }

    /// From now on it is in the hands of somebody who drops it when the work is done.
    pub(crate) fn by_hand(mut self) -> Self {
        self.headers(false);
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
    // From the lowest bit: 32 for the index, 2 for the phase, 1 for what is held, 2 for the outcome.
    const PHASE: u32 = 32;
    const TO_HEADERS: u64 = 1 << 34;
    const OUTCOME: u32 = 35;

    /// Dropping it cancels.
    #[inline]
    pub(crate) fn new(index: u32, first: Phase, hold: Hold) -> Self {
        Self(u64::from(index)).with_phase(first).with_outcome(Outcome::Cancelled).with_hold(hold)
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
    pub(super) fn phase(self) -> Phase {
        [Phase::Connection, Phase::Headers, Phase::Body, Phase::Body][(self.0 >> Self::PHASE & 0b11) as usize]
    }

    #[inline]
    fn with_phase(self, phase: Phase) -> Self {
        Self(self.0 & !(0b11 << Self::PHASE) | (phase as u64 & 0b11) << Self::PHASE)
    }

    /// What it counts as when it is dropped.
    #[inline]
    pub(super) fn outcome(self) -> Outcome {
        use Outcome::{Cancelled, Failed, Finished};
        [Finished, Failed, Cancelled, Cancelled][(self.0 >> Self::OUTCOME & 0b11) as usize]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_permit_is_what_was_said_last() {
        let phases = [Phase::Connection, Phase::Headers, Phase::Body];
        let outcomes = [Outcome::Finished, Outcome::Failed, Outcome::Cancelled];
        let mut place = Place::new(u32::MAX - 1, Phase::Headers, Hold::Body);
        assert_eq!((place.phase(), place.outcome()), (Phase::Headers, Outcome::Cancelled));
        // From each to each, as the others stay.
        for phase in [phases, [phases[0], phases[2], phases[1]]].concat() {
            place = place.with_phase(phase);
            for hold in [Hold::Headers, Hold::Body, Hold::Body] {
                place = place.with_hold(hold);
                for outcome in [outcomes, [outcomes[0], outcomes[2], outcomes[1]]].concat() {
                    place = place.with_outcome(outcome).with_outcome(outcome);
                    let said = (place.index(), place.phase(), place.hold(), place.outcome());
                    assert_eq!(said, (u32::MAX - 1, phase, hold, outcome));
                }
            }
        }
    }
}
