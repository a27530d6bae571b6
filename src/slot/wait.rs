//! Waiting in a slot: from the first poll to the start, or until the waiter is refused or goes away.

use std::sync::Arc;
use std::task::Waker;

use super::Slot;
use super::permit::Place;
use super::queue::Queue;
use super::state::{After, Shut, State};
use super::sync::MutexGuard;
use super::tally::Phase;
use super::tick::Tick;
use super::ticket::{Step, Ticket, earlier};
use crate::error::{SlotErrorKind, WaitReason};
use crate::jitter::nanos;

/// One look of a waiter at its slot.
struct Look<'a> {
    /// The phase that begins with the start.
    first: Phase,
    now: Tick,
    waker: &'a Waker,
    /// A clone of it, once it was made.
    spare: Option<Waker>,
    after: After,
}

// === impl Slot ===

impl Slot {
    /// New => Started, the usual way: nobody waits and nothing is to be asked but the slot. Otherwise the lock goes
    /// on to [`poll`](Self::poll).
    #[inline]
    pub(super) fn start_at_once(&self, first: Phase) -> Result<Place, MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        if self.is_quiet(&state) {
            let now = self.common.epoch.now();
            self.common.mind_sweep(now);
            if state.own_gate(now).is_none() {
                return Ok(state.start(now, first));
            }
        }
        Err(state)
    }

    /// Moves a waiter on: into the queue, to the next gate, or to its start, with which its `first` phase begins.
    ///
    /// `clock` is read under the slot's lock, at each look anew: so a start has the moment of its grant, and time
    /// goes on in a slot as its lock goes from hand to hand.
    pub(super) fn poll<'a>(
        self: &'a Arc<Self>,
        locked: Option<MutexGuard<'a, State>>,
        ticket: &mut Ticket,
        first: Phase,
        clock: impl Fn() -> Tick,
        waker: &Waker,
    ) -> Step {
        // Cloning a waker is not our code: it happens without the lock, and then all is looked at anew.
        let mut spare = None;
        let mut state = match locked {
            // Sure to need one.
            Some(state) if state.waiting() > 0 || state.is_full() => {
                drop(state);
                spare = Some(waker.clone());
                self.state.lock()
            }
            Some(state) => state,
            None => self.state.lock(),
        };
        loop {
            let now = clock();
            self.common.mind_sweep(now);
            let mut look = Look { first, now, waker, spare, after: After::default() };
            let step = self.step(&mut state, ticket, &mut look);
            drop(state);
            let after = look.after;
            match step {
                Some(Step::Started(place)) => {
                    // Whatever panics in there gives the permit back.
                    after.run_or(|| self.release(place));
                    return Step::Started(place);
                }
                Some(step) => {
                    after.run();
                    return step;
                }
                None => after.run(),
            }
            spare = Some(waker.clone());
            state = self.state.lock();
        }
    }

    /// One look, under the lock. `None` if it cannot end without a spare waker.
    fn step(self: &Arc<Self>, state: &mut State, ticket: &mut Ticket, look: &mut Look<'_>) -> Option<Step> {
        let Look { first, now, waker, ref mut spare, ref mut after } = *look;
        if self.common.is_closed() {
            // (New | Waiting) => Refused
            let error = self.error(state, SlotErrorKind::Closed, ticket.index, now);
            self.depart(state, ticket, now, after);
            state.tally.refused();
            return Some(Step::Refused(error));
        }
        let len = state.waiting();
        let Some(index) = ticket.index else {
            let has_room = state.limits.queue_capacity.is_none_or(|capacity| len < capacity);
            let shut = if len == 0 {
                match self.pass(state, now, has_room && spare.is_some(), after) {
                    // New => Started
                    Ok(()) => return Some(Step::Started(state.start(now, first))),
                    Err(shut) => shut,
                }
            } else {
                Shut(state.gate(), None)
            };
            if !has_room {
                // New => Refused
                state.tally.refused();
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
                    // Waiting => Started
                    let place = state.start(now, first);
                    self.depart(state, ticket, now, after);
                    return Some(Step::Started(place));
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
            state.tally.timed_out();
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
        ticket.deadline = timeout.map(|timeout| now.plus(nanos(timeout)));
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

    /// Takes a waiter out of the queue, if it is there, and looks after whoever is next.
    fn depart(&self, state: &mut State, ticket: &mut Ticket, now: Tick, after: &mut After) {
        let Some(index) = ticket.index.take() else { return };
        let was_first = state.is_first(index);
        let Some(queue) = &mut state.queue else { return };
        let clocks = queue.clocks(now);
        for reason in WaitReason::ALL {
            let waited = &mut ticket.clocks[reason as usize];
            *waited = clocks[reason as usize].saturating_sub(*waited);
            if *waited > 0 {
                state.tally.waited(reason, *waited);
            }
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

    pub(super) fn leave_line(&self, state: &mut State, after: &mut After) {
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
        state.tally.gone();
        drop(state);
        after.run();
        self.voice().gone();
    }
}
