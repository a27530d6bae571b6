//! What the lock of a slot guards, and what is left to do after it.

use std::sync::Arc;
use std::task::Waker;

use super::Slot;
use super::flights::Flights;
use super::list::List;
use super::pace::Pace;
use super::panics::{Panics, each};
use super::permit::Place;
use super::queue::Queue;
use super::tally::{Phase, Tally};
use super::tick::Tick;
use super::total::InLine;
use crate::error::WaitReason;
use crate::limits::Limits;

#[derive(Debug)]
pub(super) struct State {
    pub(super) limits: Arc<Limits>,
    pub(super) permits: Flights,
    pub(super) pace: Pace,
    /// `None` when nobody waits, so that an idle slot keeps no storage of a queue.
    pub(super) queue: Option<Box<Queue>>,
    /// The slot's place in the line for the total; only while somebody waits.
    pub(super) in_line: InLine,
    /// Whether the permits have units of the total.
    pub(super) has_units: bool,
    /// Whether the slot was closed.
    pub(super) closed: bool,
    /// Whether the phases after the start are timed.
    pub(super) timed: bool,
    /// Whether the slot counts against the number of slots there may be.
    pub(super) counts: bool,
    pub(super) tally: Tally,
}

/// A gate that is shut, and when it opens if that is known.
pub(super) struct Shut(pub(super) WaitReason, pub(super) Option<Tick>);

/// What is to be done when the lock is free again: all of it may run anybody's code.
#[derive(Default)]
#[must_use]
pub(super) struct After {
    pub(super) wake: Option<Waker>,
    pub(super) called: Option<Arc<Slot>>,
    pub(super) drained: Option<Box<List<Waker>>>,
    /// Not needed any more, only to be dropped.
    pub(super) old: Option<Waker>,
}

// === impl State ===

impl State {
    /// Counts a start. Whoever has room and passed all gates may call it.
    #[inline]
    pub(super) fn start(&mut self, now: Tick, first: Phase) -> Place {
        let index = self.permits.push(now);
        self.pace.started(now);
        if self.timed {
            self.tally.enter(first, now);
        }
        Place::new(index, first, self.limits.hold)
    }

    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.waiters.len())
    }

    /// The permit at `index` moves from one phase to the next. Returns how long the former was, in nanoseconds.
    #[inline]
    pub(super) fn pass_on(&mut self, index: u32, from: Phase, to: Phase, now: Tick) -> u64 {
        let Some(since) = self.permits.pass_on(index, now) else { return 0 };
        let took = now.since(since);
        if self.timed {
            self.tally.leave_after(from, took, now);
            self.tally.enter(to, now);
        }
        took
    }

    pub(super) fn is_first(&self, index: u32) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.waiters.first() == Some(index))
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.limits.concurrency.is_some_and(|concurrency| self.permits.len() >= concurrency)
    }

    /// The first of the slot's own gates that is shut.
    #[inline]
    pub(super) fn own_gate(&self, now: Tick) -> Option<Shut> {
        if self.is_full() {
            return Some(Shut(WaitReason::Concurrency, None));
        }
        let next = self.pace.next(&self.limits).filter(|next| *next > now);
        next.map(|next| Shut(WaitReason::Pace, Some(next)))
    }

    /// What those who wait are waiting for.
    pub(super) fn gate(&self) -> WaitReason {
        self.queue.as_ref().map_or(WaitReason::Concurrency, |queue| queue.gate())
    }

    pub(super) fn stand_at(&mut self, gate: WaitReason, now: Tick) {
        if let Some(queue) = &mut self.queue {
            queue.stand_at(gate, now, &mut self.tally);
        }
    }

    pub(super) fn wake_first(&mut self, now: Tick) -> Option<Waker> {
        self.queue.as_mut()?.wake_first(now)
    }

    /// Busy => Idle. The queue's storage goes, and the time until it is recycled begins.
    #[inline]
    pub(super) fn rest(&mut self, now: Tick) {
        self.queue = None;
        self.permits.rest(now);
    }
}

// === impl After ===

impl After {
    /// Does all of it, whatever panics.
    #[inline]
    pub(super) fn run(self) {
        let Self { wake, called, drained, old: _old } = self;
        if called.is_none() && drained.is_none() {
            return wake.into_iter().for_each(Waker::wake);
        }
        let mut panics = Panics::default();
        panics.catch(|| wake.into_iter().for_each(Waker::wake));
        panics.catch(|| called.into_iter().for_each(|slot| slot.wake_first()));
        panics.catch(|| each(drained.into_iter().flat_map(|list| list.into_members()), Waker::wake));
        panics.resume();
    }

    /// The same, and what is to be undone should anything panic.
    pub(super) fn run_or(self, undo: impl FnOnce()) {
        if self.wake.is_none() && self.called.is_none() && self.old.is_none() {
            return self.run();
        }
        let mut panics = Panics::default();
        panics.catch(|| self.run());
        if panics.any() {
            panics.catch(undo);
        }
        panics.resume();
    }
}
