//! The engine: slots, their queues and permits. It knows nothing of HTTP.
//!
//! One lock guards a slot. Whoever grants a permit is the first waiter itself, in its own poll and under that
//! lock: it passes the gates in order (concurrency, pace, total), and where one is shut it sleeps. A release or
//! a change only wakes the first waiter; so nothing is handed to somebody who may never look.
//!
//! The order of locks is shard, slot, then one of total, drain and settings; never two slots. Wakers are taken out of
//! the queue under the lock and woken, or dropped, after it: both run code that is not ours.

mod acquire;
mod change;
mod common;
mod drain;
mod flights;
mod list;
mod note;
mod pace;
mod panics;
mod permit;
mod queue;
#[cfg(feature = "serde")]
mod serial;
mod settings;
mod show;
mod sight;
mod slots;
mod state;
mod stats;
mod sync;
mod table;
mod tally;
mod tick;
mod ticket;
mod total;
mod wait;

use std::sync::Arc;
use std::task::Waker;

pub use self::acquire::Acquire;
pub use self::drain::Drained;
pub use self::permit::SlotPermit;
#[cfg_attr(not(any(feature = "tracing", feature = "metrics")), allow(unused_imports))]
pub(crate) use self::slots::WeakSlots;
pub use self::slots::{Slots, Sweeper};
pub use self::stats::{Counts, Phases, Recycled, SlotStats, Snapshot, TotalStats};
pub(crate) use self::tally::{Outcome, Phase};

use self::common::Common;
use self::flights::{Flights, LONE};
use self::note::Note;
use self::pace::Pace;
use self::permit::Place;
use self::state::{After, Shut, State};
use self::sync::Mutex;
use self::tally::Tally;
use self::tick::Tick;
use crate::error::{SlotError, SlotErrorKind, WaitReason};
use crate::key::SlotKey;
use crate::limits::Limits;
use crate::telemetry::{SlotTelemetry, Voice};

/// One slot.
#[derive(Debug)]
pub(crate) struct Slot {
    key: SlotKey,
    common: Arc<Common>,
    telemetry: SlotTelemetry,
    note: Note,
    state: Mutex<State>,
}

// === impl Slot ===

impl Slot {
    pub(crate) fn new(
        key: SlotKey,
        counts: bool,
        common: Arc<Common>,
        limits: Arc<Limits>,
        paused: Option<Tick>,
    ) -> Self {
        let now = common.epoch.now();
        let state = State {
            limits,
            permits: Flights::new(now),
            pace: Pace::new(paused),
            queue: None,
            in_line: None,
            has_units: false,
            closed: false,
            timed: common.statistics,
            counts,
            tally: Tally::default(),
        };
        let (telemetry, note, state) = (SlotTelemetry::default(), Note::new(), Mutex::new(state));
        Self { key, common, telemetry, note, state }
    }

    pub(crate) fn key(&self) -> &SlotKey {
        &self.key
    }

    pub(crate) fn common(&self) -> &Common {
        &self.common
    }

    /// Whether it counts against the number of slots there may be.
    pub(crate) fn counts(&self) -> bool {
        self.state.lock().counts
    }

    /// Tells what happens here. Never under the lock.
    pub(crate) fn voice(&self) -> Voice<'_> {
        Voice { key: &self.key, shared: &self.common.telemetry, own: &self.telemetry }
    }

    /// Whether neither a queue nor the total nor a close takes part in what happens here.
    #[inline]
    fn is_quiet(&self, state: &State) -> bool {
        state.waiting() == 0 && !state.has_units && !self.common.total.is_on() && !self.common.is_closed()
    }

    /// Passes all gates, in order, taking a unit of the total at the last; or says which one is shut. Only with
    /// `stand` does the slot stand in line there, and only a slot with waiters may.
    fn pass(
        self: &Arc<Self>,
        state: &mut State,
        now: Tick,
        stand: bool,
        after: &mut After,
    ) -> Result<(), Shut> {
        if let Some(shut) = state.own_gate(now) {
            self.leave_line(state, after);
            return Err(shut);
        }
        if !self.count_units(state) {
            return Ok(());
        }
        let total = &self.common.total;
        let taken = match stand {
            true => total.take_or_stand(&mut state.in_line, || self.clone()),
            false => total.try_take(),
        };
        if taken { Ok(()) } else { Err(Shut(WaitReason::Total, None)) }
    }

    /// Whether permits have units of the total; those from before the cap get theirs now.
    fn count_units(&self, state: &mut State) -> bool {
        if !state.has_units && self.common.total.is_on() {
            self.common.total.adopt(state.permits.len());
            state.has_units = true;
        }
        state.has_units
    }

    /// Starts at once or not at all, and only if nobody waits here or for the total.
    pub(crate) fn try_start(&self) -> Result<Place, SlotError> {
        let mut state = self.state.lock();
        let now = self.common.epoch.now();
        self.common.mind_sweep(now);
        let shut = if self.common.is_closed() {
            None
        } else if state.waiting() > 0 {
            Some(state.gate())
        } else if let Some(Shut(reason, _)) = state.own_gate(now) {
            Some(reason)
        } else if self.count_units(&mut state) && !self.common.total.try_take_alone() {
            Some(WaitReason::Total)
        } else {
            return Ok(state.start(now, Phase::Body));
        };
        state.tally.refused();
        let kind = if shut.is_none() { SlotErrorKind::Closed } else { SlotErrorKind::QueueFull };
        let mut error = self.error(&state, kind, None, now);
        error.0.reason = shut.or(error.0.reason);
        Err(error)
    }

    /// The permit at `index` moves from one phase to the next. Returns how long the former was, in nanoseconds.
    fn pass_on(&self, index: u32, from: Phase, to: Phase) -> u64 {
        let now = self.common.epoch.now();
        self.state.lock().pass_on(index, from, to, now)
    }

    /// Headers => Body, for the permit at `index`, without the lock. Returns whether that can be done; how long it took
    /// is not told.
    #[inline]
    fn note_headers(&self, index: u32) -> bool {
        let can = index == LONE && !Voice::IS_HEARD;
        if can {
            self.note.put(self.common.epoch.now());
        }
        can
    }

    /// Takes what was noted into account.
    #[inline]
    fn settle(&self, state: &mut State) {
        if let Some(came) = self.note.take() {
            state.pass_on(LONE, Phase::Headers, Phase::Body, came);
        }
    }

    /// The permit at `index` has been in another phase than was thought.
    #[cfg(feature = "connection")]
    fn correct(&self, index: u32, from: Phase, to: Phase) {
        let mut state = self.state.lock();
        let Some(since) = state.permits.since(index) else { return };
        if state.timed {
            state.tally.leave(from, since);
            state.tally.enter(to, since);
        }
    }

    /// A permit comes back.
    fn release(&self, place: Place) {
        let (phase, outcome) = (place.phase(), place.outcome());
        // Before the lock, which others want: only a start has to have the moment of its grant.
        let now = self.common.epoch.now();
        let mut state = self.state.lock();
        self.settle(&mut state);
        let Some(since) = state.permits.remove(place.index()) else { return };
        let timed = state.timed.then(|| (phase, now.since(since)));
        if let Some((phase, took)) = timed {
            state.tally.leave_after(phase, took, now);
        }
        state.tally.ended(outcome);
        if state.permits.is_empty() && state.waiting() == 0 {
            state.rest(now);
        }
        if self.is_quiet(&state) {
            drop(state);
            return self.voice().ended(outcome, timed);
        }
        let mut after = After::default();
        if state.has_units {
            after.called = self.common.total.give_back();
        }
        if state.gate() == WaitReason::Concurrency && !state.is_full() {
            after.wake = state.wake_first(now);
        }
        if state.closed && state.permits.is_empty() {
            after.drained = Some(Box::new(self.common.drain.leave()));
        }
        drop(state);
        after.run();
        self.voice().ended(outcome, timed);
    }

    /// Wakes the first waiter: its slot was called at the total.
    fn wake_first(&self) {
        let mut state = self.state.lock();
        let waker = state.wake_first(self.common.epoch.now());
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}
