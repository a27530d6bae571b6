//! The cap over all slots, and the line of slots that stand before it.
//!
//! A slot has at most one place in the line, and the place is the slot's: whoever is first in the slot uses it.
//! As many slots as there are units left are *called*, always those in front; a unit is kept for each of them
//! until its first waiter has taken it or the slot has left. So lowering the cap needs no memory of who was
//! called: the last ones called simply are not any more, and stand where they stood.

use std::num::NonZeroU32;

use super::list::List;
use super::panics::each;
use super::sync::{AtomicBool, Mutex, Ordering};

/// The cap. `T` is what has to be woken when it is called.
#[derive(Debug)]
pub(crate) struct Total<T> {
    /// Whether permits take units. It stays on once there was a limit.
    on: AtomicBool,
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    /// `None` is unlimited.
    limit: Option<usize>,
    /// While set nobody starts: those in flight from before the cap are still being counted.
    counting: bool,
    /// Units taken by permits.
    used: usize,
    line: List<Place<T>>,
    /// How many are called: they are the first in the line.
    called: usize,
    /// The first in the line who is not called.
    next: Option<u32>,
}

#[derive(Debug)]
struct Place<T> {
    who: T,
    called: bool,
}

/// A slot's place in the line, if it has one: the index, all bits turned, which no list makes zero.
pub(crate) type InLine = Option<NonZeroU32>;

/// What stands where, for statistics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) limit: Option<usize>,
    pub(crate) used: usize,
    pub(crate) line: usize,
}

// === impl Total ===

impl<T: Clone> Total<T> {
    pub(crate) fn new(limit: Option<usize>) -> Self {
        Self {
            on: AtomicBool::new(limit.is_some()),
            state: Mutex::new(State {
                limit,
                counting: false,
                used: 0,
                line: List::new(),
                called: 0,
                next: None,
            }),
        }
    }

    /// Whether permits take units. Read under a slot's lock: whoever switches it on comes by there later.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Takes a unit for a slot without a place, if one is free that is kept for nobody.
    pub(crate) fn try_take(&self) -> bool {
        self.state.lock().try_take()
    }

    /// The same, but only if the line is empty.
    pub(crate) fn try_take_alone(&self) -> bool {
        let mut state = self.state.lock();
        state.line.is_empty() && state.try_take()
    }

    /// Takes a unit for a slot, or lets it stand in line.
    pub(crate) fn take_or_stand(&self, place: &mut InLine, who: impl FnOnce() -> T) -> bool {
        let mut state = self.state.lock();
        let Some(index) = place.map(|place| !place.get()) else {
            if state.try_take() {
                return true;
            }
            let index = state.line.push(Place { who: who(), called: false });
            state.next = state.next.or(Some(index));
            *place = NonZeroU32::new(!index);
            return false;
        };
        if !state.line.get(index).is_some_and(|place| place.called) {
            return false;
        }
        // Called => Taken. One called less and one unit less: nobody else's turn changes.
        let gone = state.line.remove(index);
        state.called -= 1;
        state.used += 1;
        *place = None;
        drop(state);
        drop(gone);
        true
    }

    /// Gives up a slot's place. Returns who is called instead.
    #[must_use]
    pub(crate) fn leave(&self, place: &mut InLine) -> Option<T> {
        let index = !place.take()?.get();
        let mut state = self.state.lock();
        if state.next == Some(index) {
            state.next = state.line.after(index);
        }
        let gone = state.line.remove(index);
        // Called => Gone: the unit kept for it calls the next one. Standing => Gone: nothing else changes.
        if gone.as_ref().is_some_and(|place| place.called) {
            state.called -= 1;
        }
        let called = state.call_next();
        if state.line.is_empty() {
            state.line.shrink();
        }
        drop(state);
        drop(gone);
        called
    }

    /// Gives a unit back. Returns who is called.
    #[must_use]
    pub(crate) fn give_back(&self) -> Option<T> {
        let mut state = self.state.lock();
        state.used = state.used.saturating_sub(1);
        state.call_next()
    }

    /// Counts permits from before the cap.
    pub(crate) fn adopt(&self, in_flight: usize) {
        self.state.lock().used += in_flight;
    }

    /// Changes the limit. Returns whether those in flight must be counted first: then nobody starts until
    /// [`counted`](Self::counted).
    pub(crate) fn set_limit(&self, limit: Option<usize>, wake: impl FnMut(T)) -> bool {
        let mut state = self.state.lock();
        state.limit = limit;
        let first = limit.is_some() && !self.on.load(Ordering::Relaxed);
        if first {
            state.counting = true;
            self.on.store(true, Ordering::Relaxed);
        }
        let called = state.settle();
        drop(state);
        each(called, wake);
        first
    }

    /// Ends the counting that [`set_limit`](Self::set_limit) began.
    pub(crate) fn counted(&self, wake: impl FnMut(T)) {
        let mut state = self.state.lock();
        state.counting = false;
        let called = state.settle();
        drop(state);
        each(called, wake);
    }

    pub(crate) fn standing(&self) -> Standing {
        let state = self.state.lock();
        Standing { limit: state.limit, used: state.used, line: state.line.len() }
    }
}

// === impl State ===

impl<T: Clone> State<T> {
    /// Units that no permit has.
    fn free(&self) -> usize {
        match self.limit {
            _ if self.counting => 0,
            Some(limit) => limit.saturating_sub(self.used),
            None => usize::MAX,
        }
    }

    fn try_take(&mut self) -> bool {
        let free = self.called < self.free();
        self.used += usize::from(free);
        free
    }

    /// Calls the next in line if there is a unit for it.
    fn call_next(&mut self) -> Option<T> {
        let index = self.next.filter(|_| self.called < self.free())?;
        self.next = self.line.after(index);
        self.called += 1;
        let place = self.line.get_mut(index)?;
        place.called = true;
        Some(place.who.clone())
    }

    /// Calls as many as there are units for, and no more.
    fn settle(&mut self) -> Vec<T> {
        let free = self.free();
        // Called => Standing, from the last one called to the front: each stays where it is in the line.
        while self.called > free {
            let last = self.next.map_or(self.line.last(), |next| self.line.before(next));
            let Some(index) = last else { break };
            if let Some(place) = self.line.get_mut(index) {
                place.called = false;
            }
            self.next = Some(index);
            self.called -= 1;
        }
        std::iter::from_fn(|| self.call_next()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // L6, V1
    #[test]
    fn nobody_starts_while_those_from_before_the_first_cap_are_counted() {
        let total = Total::<()>::new(None);
        assert!(!total.set_limit(None, |()| {}) && !total.is_on());
        assert!(total.set_limit(Some(2), |()| {}) && total.is_on());
        total.adopt(1);
        assert!(!total.try_take());
        total.counted(|()| {});
        assert!(total.try_take() && !total.try_take());
        // Only once.
        assert!(!total.set_limit(Some(3), |()| {}));
        assert!(total.try_take());
        assert!(!total.set_limit(None, |()| {}) && total.is_on());
        assert_eq!(total.standing().used, 3);
    }

    // Q4
    #[test]
    fn who_is_called_is_called_once_whatever_the_cap_changes_to() {
        let total = Total::new(Some(1));
        assert!(total.try_take());
        let places = ["a", "b", "c"].map(|who| {
            let mut place = None;
            assert!(!total.take_or_stand(&mut place, || who));
            place
        });
        let called = |limit| {
            let mut called = Vec::new();
            total.set_limit(Some(limit), |who| called.push(who));
            called
        };
        assert_eq!(called(3), ["a", "b"]);
        assert_eq!(called(3), [""; 0]);
        // The last ones called stand where they stood.
        assert_eq!(called(2), [""; 0]);
        assert_eq!(called(4), ["b", "c"]);
        for mut place in places {
            assert!(total.take_or_stand(&mut place, || unreachable!()));
            assert_eq!(place, None);
        }
    }
}
