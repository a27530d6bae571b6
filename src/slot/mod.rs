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
mod list;
mod pace;
mod permit;
mod queue;
mod settings;
mod show;
mod sight;
mod slots;
mod state;
mod stats;
mod sync;
mod table;
mod tick;
mod ticket;
mod total;

use std::sync::Arc;
use std::task::Waker;

pub use self::acquire::Acquire;
pub use self::drain::Drained;
pub use self::permit::SlotPermit;
#[cfg_attr(not(any(feature = "tracing", feature = "metrics")), allow(unused_imports))]
pub(crate) use self::slots::WeakSlots;
pub use self::slots::{Slots, Sweeper};
pub(crate) use self::stats::Outcome;
pub use self::stats::{Counts, Phases, Recycled, SlotStats, Snapshot, TotalStats};

use self::common::Common;
use self::list::List;
use self::pace::Pace;
use self::queue::Queue;
use self::state::{After, Shut, State};
use self::stats::{Phase, Tally};
use self::sync::{Mutex, MutexGuard};
use self::tick::Tick;
use self::ticket::{Step, Ticket, earlier};
use crate::error::{SlotError, SlotErrorKind, WaitReason};
use crate::key::SlotKey;
use crate::limits::Limits;
use crate::telemetry::{SlotTelemetry, Voice};

/// One slot.
#[derive(Debug)]
pub(crate) struct Slot {
    key: SlotKey,
    /// Whether it counts against the number of slots there may be.
    counts: bool,
    common: Arc<Common>,
    telemetry: SlotTelemetry,
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
            permits: List::new(),
            in_body: 0,
            pace: Pace::new(paused),
            queue: None,
            in_line: None,
            has_units: false,
            closed: false,
            idle_since: now,
            tally: Tally::default(),
        };
        Self { key, counts, common, telemetry: SlotTelemetry::default(), state: Mutex::new(state) }
    }

    pub(crate) fn key(&self) -> &SlotKey {
        &self.key
    }

    pub(crate) fn common(&self) -> &Common {
        &self.common
    }

    pub(crate) fn counts(&self) -> bool {
        self.counts
    }

    /// Tells what happens here. Never under the lock.
    pub(crate) fn voice(&self) -> Voice<'_> {
        Voice { key: &self.key, shared: &self.common.telemetry, own: &self.telemetry }
    }

    /// Moves a waiter on: into the queue, to the next gate, or to its start.
    ///
    /// `clock` is read under the lock, at each look anew: so a start has the moment of its grant, and time goes on in
    /// a slot as its lock goes from hand to hand.
    #[inline]
    pub(crate) fn poll(
        self: &Arc<Self>,
        ticket: &mut Ticket,
        clock: impl Fn() -> Tick,
        waker: &Waker,
    ) -> Step {
        if ticket.index.is_none() {
            let mut state = self.state.lock();
            let now = clock();
            self.common.mind_sweep(now);
            if self.is_quiet(&state) && state.own_gate(now).is_none() {
                // New => Started, the usual way: nobody waits and nothing is to be asked but the slot.
                return Step::Quick(state.start(now));
            }
            return self.poll_slowly(state, ticket, now, clock, waker);
        }
        let state = self.state.lock();
        self.poll_slowly(state, ticket, clock(), clock, waker)
    }

    fn poll_slowly<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        ticket: &mut Ticket,
        mut now: Tick,
        clock: impl Fn() -> Tick,
        waker: &Waker,
    ) -> Step {
        let mut spare = None;
        loop {
            let mut after = After::default();
            let step = self.step(&mut state, ticket, now, waker, &mut spare, &mut after);
            drop(state);
            after.run();
            match step {
                Some(step) => return step,
                // Cloning a waker is not our code either: it happens without the lock, then all is looked at anew.
                None => spare = Some(waker.clone()),
            }
            state = self.state.lock();
            now = clock();
        }
    }

    /// Whether neither a queue nor the total nor a close takes part in what happens here.
    fn is_quiet(&self, state: &State) -> bool {
        state.queue.is_none() && !state.has_units && !self.common.total.is_on() && !self.common.is_closed()
    }

    /// One look, under the lock. `None` if it cannot end without a clone of the waker in `spare`.
    fn step(
        self: &Arc<Self>,
        state: &mut State,
        ticket: &mut Ticket,
        now: Tick,
        waker: &Waker,
        spare: &mut Option<Waker>,
        after: &mut After,
    ) -> Option<Step> {
        if self.common.is_closed() {
            // (New | Waiting) => Refused
            let error = self.error(state, SlotErrorKind::Closed, ticket.index, now);
            self.depart(state, ticket, now, after);
            state.tally.refused += 1;
            return Some(Step::Refused(error));
        }
        let len = state.waiting();
        let Some(index) = ticket.index else {
            let has_room = state.limits.queue_capacity.is_none_or(|capacity| len < capacity);
            let shut = if len == 0 {
                match self.pass(state, now, has_room && spare.is_some(), after) {
                    // New => Started
                    Ok(()) => return Some(Step::Started(self.permit(state, now))),
                    Err(shut) => shut,
                }
            } else {
                Shut(state.gate(), None)
            };
            if !has_room {
                // New => Refused
                state.tally.refused += 1;
                let mut error = self.error(state, SlotErrorKind::QueueFull, None, now);
                error.0.reason = Some(shut.0);
                return Some(Step::Refused(error));
            }
            // New => Waiting. The place in the queue is taken now.
            let own = spare.take()?;
            return Some(self.enqueue(state, ticket, now, own, shut));
        };
        let mut until = None;
        if state.is_first(index) {
            match self.pass(state, now, true, after) {
                Ok(()) => {
                    // Waiting => Started. The permit is its own before anybody else can look.
                    let permit = self.permit(state, now);
                    self.depart(state, ticket, now, after);
                    return Some(Step::Started(permit));
                }
                Err(Shut(reason, opens)) => {
                    state.stand_at(reason, now);
                    until = opens;
                }
            }
        }
        if ticket.deadline.is_some_and(|deadline| deadline <= now) {
            // Waiting => Timed out. Only after it was seen that it cannot start in this instant.
            if let Some(own) = state.queue.as_mut().and_then(|queue| queue.waiters.get_mut(index)) {
                // Nobody woke it but its own timer, which is never on the dot: it is not stalled.
                own.ready_at = own.ready_at.filter(|_| own.waker.is_none());
            }
            let error = self.error(state, SlotErrorKind::WaitTimeout, Some(index), now);
            self.depart(state, ticket, now, after);
            state.tally.timed_out += 1;
            return Some(Step::Refused(error));
        }
        let waiter = state.queue.as_mut()?.waiters.get_mut(index)?;
        if !waiter.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            after.old = waiter.waker.replace(spare.take()?);
        }
        // Its own timer wakes it, for the one or the other.
        waiter.ready_at = earlier(until, ticket.deadline);
        Some(Step::Wait(waiter.ready_at))
    }

    fn enqueue(
        &self,
        state: &mut State,
        ticket: &mut Ticket,
        now: Tick,
        waker: Waker,
        Shut(reason, opens): Shut,
    ) -> Step {
        let timeout = state.limits.wait_timeout;
        ticket.deadline = timeout.map(|timeout| now.plus(crate::jitter::nanos(timeout)));
        let queue = state.queue.get_or_insert_with(|| Box::new(Queue::new(reason, now)));
        if queue.waiters.is_empty() {
            queue.stand_at(reason, now, &mut state.tally);
        }
        ticket.clocks = queue.clocks(now);
        let index = queue.push(waker, now, &mut state.tally);
        let until = earlier(opens, ticket.deadline);
        if let Some(waiter) = queue.waiters.get_mut(index) {
            waiter.ready_at = until;
        }
        ticket.index = Some(index);
        Step::Wait(until)
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

    /// Starts one. The permit is there before the lock is free: whatever panics afterwards gives it back.
    fn permit(self: &Arc<Self>, state: &mut State, now: Tick) -> SlotPermit {
        SlotPermit::new(self.clone(), state.start(now))
    }

    /// Takes a waiter out of the queue, if it is there, and looks after whoever is next.
    fn depart(&self, state: &mut State, ticket: &mut Ticket, now: Tick, after: &mut After) {
        let Some(index) = ticket.index.take() else { return };
        let was_first = state.is_first(index);
        let Some(queue) = &mut state.queue else { return };
        let clocks = queue.clocks(now);
        for reason in WaitReason::ALL {
            let waited = &mut ticket.clocks[reason as usize];
            *waited = clocks[reason as usize].saturating_sub(*waited);
            state.tally.stayed(Phase::Waiting(reason), *waited);
        }
        after.old = queue.remove(index, now, &mut state.tally).and_then(|waiter| waiter.waker);
        if queue.waiters.is_empty() {
            self.leave_line(state, after);
            if state.permits.is_empty() {
                state.rest(now);
            }
        } else if was_first {
            if state.is_full() {
                state.stand_at(WaitReason::Concurrency, now);
            } else {
                // Also when the pace is not due: it has to set a timer of its own.
                after.wake = state.wake_first(now);
            }
        }
    }

    fn leave_line(&self, state: &mut State, after: &mut After) {
        if state.in_line.is_some() {
            after.called = self.common.total.leave(&mut state.in_line);
        }
    }

    /// A waiter goes away, whatever it waits for.
    pub(crate) fn give_up(&self, ticket: &mut Ticket) {
        if ticket.index.is_none() {
            return;
        }
        let mut after = After::default();
        let mut state = self.state.lock();
        let now = self.common.epoch.now();
        // Waiting => Gone
        self.depart(&mut state, ticket, now, &mut after);
        state.tally.gone += 1;
        drop(state);
        after.run();
        self.voice().gone();
    }

    /// Starts at once or not at all, and only if nobody waits here or for the total.
    pub(crate) fn try_start(self: &Arc<Self>) -> Result<SlotPermit, SlotError> {
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
            return Ok(self.permit(&mut state, now));
        };
        state.tally.refused += 1;
        let kind = if shut.is_none() { SlotErrorKind::Closed } else { SlotErrorKind::QueueFull };
        let mut error = self.error(&state, kind, None, now);
        error.0.reason = shut.or(error.0.reason);
        Err(error)
    }

    /// A permit moves from the headers to the body, having spent `took` nanoseconds so far.
    fn headers(&self, now: Tick, took: u64) {
        let mut state = self.state.lock();
        state.in_body += 1;
        state.tally.change(Phase::Headers, Phase::Body, 1, now);
        state.tally.stayed(Phase::Headers, took);
    }

    /// A permit comes back. Returns how long its last phase took, in nanoseconds.
    fn release(&self, index: u32, phase: Phase, since: Tick, outcome: Outcome) -> u64 {
        let mut state = self.state.lock();
        let now = self.common.epoch.now();
        let took = now.since(since);
        if state.permits.remove(index).is_none() {
            return took;
        }
        state.in_body -= usize::from(phase == Phase::Body);
        state.tally.leave(phase, now);
        state.tally.stayed(phase, took);
        state.tally.ended(outcome);
        if state.permits.is_empty() && state.waiting() == 0 {
            state.rest(now);
        }
        if self.is_quiet(&state) {
            return took;
        }
        let mut after = After::default();
        if state.has_units {
            after.called = self.common.total.give_back();
        }
        if state.gate() == WaitReason::Concurrency && !state.is_full() {
            after.wake = state.wake_first(now);
        }
        if state.closed && state.permits.is_empty() {
            after.drained = Some(self.common.drain.leave());
        }
        drop(state);
        after.run();
        took
    }

    /// Wakes the first waiter: its slot was called at the total.
    fn wake_first(&self) {
        let mut state = self.state.lock();
        let waker = state.wake_first(self.common.epoch.now());
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}
