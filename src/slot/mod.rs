//! The engine: slots, their queues and permits. It knows nothing of HTTP.
//!
//! One lock guards a slot. Whoever grants a permit is the first waiter itself, in its own poll and under that
//! lock: it passes the gates in order (concurrency, pace, total), and where one is shut it sleeps. A release or
//! a change only wakes the first waiter; so nothing is handed to somebody who may never look.
//!
//! The order of locks is shard, slot, then one of total, drain and settings; never two slots. Wakers are taken out of the queue under
//! the lock and woken, or dropped, after it: both run code that is not ours.

mod acquire;
mod drain;
mod list;
mod pace;
mod permit;
mod queue;
mod settings;
mod slots;
mod stats;
mod sync;
mod table;
mod tick;
mod total;

use std::sync::Arc;
use std::task::Waker;

pub use self::acquire::Acquire;
pub use self::drain::Drained;
pub use self::permit::SlotPermit;
pub use self::slots::{Slots, Sweeper};
pub(crate) use self::stats::Outcome;
pub use self::stats::{Counts, Phases, Recycled, SlotStats, Snapshot, TotalStats};

use self::drain::Drain;
use self::list::List;
use self::pace::Pace;
use self::queue::{Clocks, Queue};
use self::stats::{Phase, Tally};
use self::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use self::tick::{Epoch, Tick};
use self::total::{InLine, Total};
use crate::error::{Details, SlotError, SlotErrorKind, WaitReason};
use crate::key::SlotKey;
use crate::limits::Limits;

/// What all slots of one table share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) epoch: Epoch,
    pub(crate) closed: AtomicBool,
    /// The tick at which a piece of the table is due to be looked through; 0 when it is due now.
    pub(crate) sweep_at: AtomicU64,
    pub(crate) total: Total<Arc<Slot>>,
    pub(crate) drain: Drain,
}

/// One slot.
#[derive(Debug)]
pub(crate) struct Slot {
    key: SlotKey,
    /// Whether it counts against the number of slots there may be.
    counts: bool,
    common: Arc<Common>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limits: Arc<Limits>,
    /// Those in flight, in order of their starts.
    permits: List<Tick>,
    /// How many of them are in the body.
    in_body: usize,
    pace: Pace,
    /// `None` when nobody waits, so that an idle slot keeps no storage of a queue.
    queue: Option<Box<Queue>>,
    /// The slot's place in the line for the total; only while somebody waits.
    in_line: InLine,
    /// Whether the permits have units of the total.
    has_units: bool,
    /// Whether the slot was closed.
    closed: bool,
    /// When it was last left.
    idle_since: Tick,
    tally: Tally,
}

/// One waiter's side of the queue.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    /// Its place in the queue.
    index: Option<u32>,
    /// When it was first polled.
    asked: Option<Tick>,
    deadline: Option<Tick>,
    /// The queue's clocks when it came; once it has left, how long it waited by reason.
    clocks: Clocks,
}

/// What a poll comes to.
#[derive(Debug)]
pub(crate) enum Step {
    Started(SlotPermit),
    /// Not yet. Poll again when woken, or at that moment.
    Wait(Option<Tick>),
    Refused(SlotError),
}

/// A gate that is shut, and when it opens if that is known.
struct Shut(WaitReason, Option<Tick>);

/// What is to be done when the lock is free again. Both may run anybody's code.
#[derive(Default)]
#[must_use]
struct After {
    wake: Option<Waker>,
    called: Option<Arc<Slot>>,
    drained: Option<List<Waker>>,
    /// Not needed any more, only to be dropped.
    old: Option<Waker>,
}

// === impl Common ===

impl Common {
    pub(crate) fn new(total: Option<usize>) -> Self {
        Self {
            epoch: Epoch::new(),
            closed: AtomicBool::new(false),
            sweep_at: AtomicU64::new(u64::MAX),
            total: Total::new(total),
            drain: Drain::new(),
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Notes that a piece of the table is due; the next look-up pays for it.
    fn mind_sweep(&self, now: Tick) {
        let at = self.sweep_at.load(Ordering::Relaxed);
        if at != 0 && at <= now.nanos() {
            self.sweep_at.store(0, Ordering::Relaxed);
        }
    }

    fn is_sweep_due(&self) -> bool {
        self.sweep_at.load(Ordering::Relaxed) == 0
    }
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
        Self { key, counts, common, state: Mutex::new(state) }
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

    /// Moves a waiter on: into the queue, to the next gate, or to its start.
    pub(crate) fn poll(self: &Arc<Self>, ticket: &mut Ticket, now: Tick, waker: &Waker) -> Step {
        let mut spare = None;
        loop {
            let mut after = After::default();
            let step = self.step(ticket, now, waker, &mut spare, &mut after);
            after.run(now);
            match step {
                Some(step) => return step,
                // Cloning a waker is not our code either: it happens without the lock, then all is looked at anew.
                None => spare = Some(waker.clone()),
            }
        }
    }

    /// One look, under the lock. `None` if it cannot end without a clone of the waker in `spare`.
    fn step(
        self: &Arc<Self>,
        ticket: &mut Ticket,
        now: Tick,
        waker: &Waker,
        spare: &mut Option<Waker>,
        after: &mut After,
    ) -> Option<Step> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let asked = *ticket.asked.get_or_insert(now);
        if self.common.is_closed() {
            // (New | Waiting) => Refused
            let error = self.error(state, SlotErrorKind::Closed, asked, now);
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
                    Ok(()) => return Some(Step::Started(self.start(state, now))),
                    Err(shut) => shut,
                }
            } else {
                Shut(state.gate(), None)
            };
            if !has_room {
                // New => Refused
                state.tally.refused += 1;
                let mut error = self.error(state, SlotErrorKind::QueueFull, asked, now);
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
                    let permit = self.start(state, now);
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
            let error = self.error(state, SlotErrorKind::WaitTimeout, asked, now);
            self.depart(state, ticket, now, after);
            state.tally.timed_out += 1;
            return Some(Step::Refused(error));
        }
        let waiter = state.queue.as_mut()?.waiters.get_mut(index)?;
        if !waiter.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            after.old = waiter.waker.replace(spare.take()?);
        }
        waiter.ready_at = until;
        Some(Step::Wait(earlier(until, ticket.deadline)))
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
        if let Some(waiter) = queue.waiters.get_mut(index) {
            waiter.ready_at = opens;
        }
        ticket.index = Some(index);
        Step::Wait(earlier(opens, ticket.deadline))
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

    /// Counts a start.
    fn start(self: &Arc<Self>, state: &mut State, now: Tick) -> SlotPermit {
        let index = state.permits.push(now);
        state.pace.started(now);
        state.tally.enter(Phase::Headers, now);
        SlotPermit::new(self.clone(), index, now, state.limits.hold)
    }

    /// Takes a waiter out of the queue, if it is there, and looks after whoever is next.
    fn depart(&self, state: &mut State, ticket: &mut Ticket, now: Tick, after: &mut After) {
        let Some(index) = ticket.index.take() else { return };
        let was_first = state.is_first(index);
        let Some(queue) = &mut state.queue else { return };
        let clocks = queue.clocks(now);
        for (before, reading) in ticket.clocks.iter_mut().zip(clocks) {
            *before = reading.saturating_sub(*before);
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
        let now = self.common.epoch.now();
        let mut after = After::default();
        let mut state = self.state.lock();
        // Waiting => Gone
        self.depart(&mut state, ticket, now, &mut after);
        state.tally.gone += 1;
        drop(state);
        after.run(now);
    }

    /// Starts at once or not at all, and only if nobody waits here or for the total.
    pub(crate) fn try_start(self: &Arc<Self>, now: Tick) -> Result<SlotPermit, SlotError> {
        let mut state = self.state.lock();
        let shut = if self.common.is_closed() {
            None
        } else if state.waiting() > 0 {
            Some(state.gate())
        } else if let Some(Shut(reason, _)) = state.own_gate(now) {
            Some(reason)
        } else if self.count_units(&mut state) && !self.common.total.try_take_alone() {
            Some(WaitReason::Total)
        } else {
            return Ok(self.start(&mut state, now));
        };
        state.tally.refused += 1;
        let kind = if shut.is_none() { SlotErrorKind::Closed } else { SlotErrorKind::QueueFull };
        let mut error = self.error(&state, kind, now, now);
        error.0.reason = shut;
        Err(error)
    }

    /// A permit moves from the headers to the body, having spent `took` nanoseconds so far.
    fn headers(&self, now: Tick, took: u64) {
        let mut state = self.state.lock();
        state.in_body += 1;
        state.tally.change(Phase::Headers, Phase::Body, 1, now);
        state.tally.stayed(Phase::Headers, took);
    }

    /// A permit comes back.
    fn release(&self, index: u32, phase: Phase, since: Tick, outcome: Outcome) {
        let now = self.common.epoch.now();
        let mut after = After::default();
        let mut state = self.state.lock();
        if state.permits.remove(index).is_none() {
            return;
        }
        state.in_body -= usize::from(phase == Phase::Body);
        state.tally.leave(phase, now);
        state.tally.stayed(phase, now.since(since));
        state.tally.ended(outcome);
        if state.has_units {
            after.called = self.common.total.give_back();
        }
        if state.queue.is_some() && state.gate() == WaitReason::Concurrency && !state.is_full() {
            after.wake = state.wake_first(now);
        }
        if state.permits.is_empty() {
            if state.waiting() == 0 {
                state.rest(now);
            }
            if state.closed {
                after.drained = Some(self.common.drain.leave());
            }
        }
        drop(state);
        after.run(now);
    }

    /// Wakes the first waiter: its slot was called at the total.
    fn wake_first(&self, now: Tick) {
        let waker = self.state.lock().wake_first(now);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Changes something that gates depend on, and has the first waiter look at them.
    fn change(&self, f: impl FnOnce(&mut State)) {
        let now = self.common.epoch.now();
        let mut after = After::default();
        let mut state = self.state.lock();
        f(&mut state);
        if state.own_gate(now).is_some() {
            self.leave_line(&mut state, &mut after);
        }
        after.wake = state.wake_first(now);
        drop(state);
        after.run(now);
    }

    pub(crate) fn set_limits(&self, limits: impl FnOnce() -> Arc<Limits>) {
        self.change(|state| state.limits = limits());
    }

    pub(crate) fn set_pause(&self, until: impl FnOnce() -> Option<Tick>) {
        self.change(|state| state.pace.not_before = until());
    }

    /// Has the permits from before the cap take their units.
    pub(crate) fn adopt_units(&self) {
        let mut state = self.state.lock();
        self.count_units(&mut state);
    }

    /// Wakes everybody who waits: they find the slots closed.
    pub(crate) fn close(&self) {
        let now = self.common.epoch.now();
        let mut after = After::default();
        let mut state = self.state.lock();
        if !state.closed && !state.permits.is_empty() {
            self.common.drain.enter();
        }
        state.closed = true;
        self.leave_line(&mut state, &mut after);
        let wakers: Vec<Waker> = match &mut state.queue {
            Some(queue) => queue.waiters.iter_mut().filter_map(|waiter| waiter.wake(now)).collect(),
            None => Vec::new(),
        };
        drop(state);
        after.run(now);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether it has been idle for `timeout` nanoseconds and has no pace to remember. Gives back what storage
    /// an idle slot can spare.
    pub(crate) fn is_idle(&self, now: Tick, timeout: u64) -> bool {
        let mut state = self.state.lock();
        if !state.permits.is_empty() || state.waiting() > 0 {
            return false;
        }
        let rested = now.since(state.idle_since) >= timeout;
        if rested {
            state.permits.shrink();
        }
        rested && state.pace.next(&state.limits).is_none_or(|next| next <= now)
    }

    /// The tally of a slot that is no more.
    pub(crate) fn into_tally(self) -> Tally {
        std::mem::take(&mut self.state.lock().tally)
    }

    pub(crate) fn stats(&self) -> SlotStats {
        let epoch = self.common.epoch;
        let now = epoch.now();
        let state = self.state.lock();
        let (in_flight, waiting) = (state.permits.len(), state.waiting());
        let queue = state.queue.as_ref().filter(|_| waiting > 0);
        let mut inside = [0; 5];
        inside[Phase::Headers.index()] = in_flight - state.in_body;
        inside[Phase::Body.index()] = state.in_body;
        if let Some(queue) = queue {
            inside[Phase::Waiting(queue.gate()).index()] = waiting;
        }
        SlotStats {
            key: self.key.clone(),
            limits: Limits::clone(&state.limits),
            in_flight,
            waiting,
            reason: queue.map(|queue| queue.gate()),
            oldest_permit: state.permits.front().map(|start| now.duration_since(*start)),
            oldest_waiter: queue
                .and_then(|queue| queue.waiters.front())
                .map(|first| now.duration_since(first.asked)),
            next_start: state
                .pace
                .next(&state.limits)
                .filter(|next| *next > now)
                .map(|next| epoch.instant(next)),
            paused_until: state.pace.paused_until(now).map(|until| epoch.instant(until)),
            stalled: queue.and_then(|queue| queue.stalled(now)).map(std::time::Duration::from_nanos),
            times: state.tally.times(inside, now),
            longest: state.tally.longest(),
            counts: state.tally.counts(in_flight, waiting),
        }
    }

    fn error(&self, state: &State, kind: SlotErrorKind, asked: Tick, now: Tick) -> SlotError {
        let queue = state.queue.as_ref().filter(|queue| !queue.waiters.is_empty());
        let next = state.pace.next(&state.limits).filter(|next| *next > now);
        SlotError(Box::new(Details {
            kind,
            slot: self.key.clone(),
            reason: queue.map(|queue| queue.gate()),
            waited: now.duration_since(asked),
            in_flight: state.permits.len(),
            oldest: state.permits.front().map(|start| now.duration_since(*start)),
            stalled: queue.and_then(|queue| queue.stalled(now)).map(std::time::Duration::from_nanos),
            earliest_start: next.map(|next| self.common.epoch.instant(next)),
        }))
    }
}

// === impl State ===

impl State {
    fn waiting(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.waiters.len())
    }

    fn is_first(&self, index: u32) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.waiters.first() == Some(index))
    }

    fn is_full(&self) -> bool {
        self.limits.concurrency.is_some_and(|concurrency| self.permits.len() >= concurrency)
    }

    /// The first of the slot's own gates that is shut.
    fn own_gate(&self, now: Tick) -> Option<Shut> {
        if self.is_full() {
            return Some(Shut(WaitReason::Concurrency, None));
        }
        let next = self.pace.next(&self.limits).filter(|next| *next > now);
        next.map(|next| Shut(WaitReason::Pace, Some(next)))
    }

    /// What those who wait are waiting for.
    fn gate(&self) -> WaitReason {
        self.queue.as_ref().map_or(WaitReason::Concurrency, |queue| queue.gate())
    }

    fn stand_at(&mut self, gate: WaitReason, now: Tick) {
        if let Some(queue) = &mut self.queue {
            queue.stand_at(gate, now, &mut self.tally);
        }
    }

    fn wake_first(&mut self, now: Tick) -> Option<Waker> {
        self.queue.as_mut()?.wake_first(now)
    }

    /// Busy => Idle. The queue's storage goes, and the time until it is recycled begins.
    fn rest(&mut self, now: Tick) {
        self.queue = None;
        self.idle_since = now;
    }
}

// === impl After ===

impl After {
    fn run(self, now: Tick) {
        if let Some(waker) = self.wake {
            waker.wake();
        }
        if let Some(slot) = self.called {
            slot.wake_first(now);
        }
        if let Some(mut drained) = self.drained {
            while let Some(waker) = drained.first().and_then(|index| drained.remove(index)) {
                waker.wake();
            }
        }
        drop(self.old);
    }
}

// === impl Ticket ===

impl Ticket {
    /// How long it waited by reason, in nanoseconds, once it has started.
    pub(crate) fn waited(&self) -> Clocks {
        self.clocks
    }
}

/// The earlier of two moments, where there is one.
fn earlier(a: Option<Tick>, b: Option<Tick>) -> Option<Tick> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
