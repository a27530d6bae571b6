//! Changes to a slot while it is in use. Each has the first waiter look at the gates anew.

use std::sync::Arc;
use std::task::Waker;

use super::Slot;
use super::panics::{Panics, each};
use super::state::{After, State};
use super::tick::Tick;
use crate::limits::Limits;

// === impl Slot ===

impl Slot {
    /// Changes something that gates depend on, and has the first waiter look at them.
    fn change(&self, f: impl FnOnce(&mut State)) {
        let mut after = After::default();
        let mut state = self.state.lock();
        let now = self.common.epoch.now();
        f(&mut state);
        if state.own_gate(now).is_some() {
            self.leave_line(&mut state, &mut after);
        }
        after.wake = state.wake_first(now);
        drop(state);
        after.run();
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
        let mut after = After::default();
        let mut state = self.state.lock();
        let now = self.common.epoch.now();
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
        let mut panics = Panics::default();
        panics.catch(|| after.run());
        panics.catch(|| each(wakers, Waker::wake));
        panics.resume();
    }
}
