//! Those in flight in a slot. One alone, which is what most slots ever have, takes no storage and no list.

use super::list::List;
use super::tick::Tick;

/// Those in flight. An index belongs to its member from `push` to `remove`.
#[derive(Debug)]
pub(super) struct Flights {
    /// When the one at [`LONE`] started, if there is one: whoever starts while nobody is there.
    lone: Option<Tick>,
    /// When that one's present phase began; when the slot was left, if nobody is in flight.
    since: Tick,
    /// The others, in order of their starts. Kept once there were two at a time.
    more: Option<Box<List<Flight>>>,
}

#[derive(Debug)]
struct Flight {
    started: Tick,
    since: Tick,
}

/// No index of a list.
pub(super) const LONE: u32 = u32::MAX;

// === impl Flights ===

impl Flights {
    pub(super) const fn new(now: Tick) -> Self {
        Self { lone: None, since: now, more: None }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.lone.is_some()) + self.more.as_ref().map_or(0, |more| more.len())
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When the oldest one started.
    pub(super) fn oldest(&self) -> Option<Tick> {
        let first = self.more.as_ref().and_then(|more| more.front());
        self.lone.into_iter().chain(first.map(|flight| flight.started)).min()
    }

    /// When the present phase of one began.
    pub(super) fn since(&self, index: u32) -> Option<Tick> {
        if index == LONE {
            self.lone.map(|_| self.since)
        } else {
            Some(self.more.as_ref()?.get(index)?.since)
        }
    }

    /// The next phase of one begins. Returns when the former one did.
    #[inline]
    pub(super) fn pass_on(&mut self, index: u32, now: Tick) -> Option<Tick> {
        if index == LONE {
            return self.lone.map(|_| std::mem::replace(&mut self.since, now));
        }
        let flight = self.more.as_mut()?.get_mut(index)?;
        Some(std::mem::replace(&mut flight.since, now))
    }

    /// One starts. Returns its index.
    #[inline]
    pub(super) fn push(&mut self, now: Tick) -> u32 {
        if self.lone.is_none() {
            (self.lone, self.since) = (Some(now), now);
            return LONE;
        }
        self.push_more(now)
    }

    #[inline(never)]
    fn push_more(&mut self, now: Tick) -> u32 {
        let more = self.more.get_or_insert_with(|| Box::new(List::new()));
        more.push(Flight { started: now, since: now })
    }

    /// Takes one out. Returns when its last phase began; `None` if there is none at `index`.
    #[inline]
    pub(super) fn remove(&mut self, index: u32) -> Option<Tick> {
        if index == LONE { self.lone.take().map(|_| self.since) } else { self.remove_more(index) }
    }

    #[inline(never)]
    fn remove_more(&mut self, index: u32) -> Option<Tick> {
        Some(self.more.as_mut()?.remove(index)?.since)
    }

    /// The slot is left. Only if nobody is in flight.
    #[inline]
    pub(super) fn rest(&mut self, now: Tick) {
        self.since = now;
    }

    /// When it was last left, if nobody is in flight.
    pub(super) fn rested_since(&self) -> Option<Tick> {
        self.is_empty().then_some(self.since)
    }

    /// Gives storage back if nobody is in flight.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            self.more = None;
        }
    }

    #[cfg(test)]
    pub(super) fn has_storage(&self) -> bool {
        self.more.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_goes_the_oldest_of_those_that_stay_is_known() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut flights = Flights::new(Tick::FIRST);
        let mut model: Vec<(u32, Tick)> = Vec::new();
        for now in (0..if cfg!(miri) { 300 } else { 10_000 }).map(Tick::new) {
            if rng.bool() || model.is_empty() {
                model.push((flights.push(now), now));
            } else {
                let (index, started) = model.remove(rng.usize(..model.len()));
                assert_eq!(flights.since(index), Some(started));
                assert_eq!(flights.pass_on(index, now), Some(started));
                assert_eq!(flights.since(index), Some(now));
                assert_eq!(flights.remove(index), Some(now));
                assert_eq!(
                    [flights.since(index), flights.pass_on(index, now), flights.remove(index)],
                    [None; 3]
                );
            }
            assert_eq!((flights.len(), flights.is_empty()), (model.len(), model.is_empty()));
            assert_eq!(flights.oldest(), model.first().map(|(_, started)| *started));
            if flights.is_empty() {
                flights.rest(now);
            }
            assert_eq!(flights.rested_since(), model.is_empty().then_some(now));
        }
    }

    #[test]
    fn one_alone_takes_no_storage_and_no_storage_is_left_when_all_are_gone() {
        let mut flights = Flights::new(Tick::FIRST);
        let one = flights.push(Tick::FIRST);
        assert!(!flights.has_storage());
        let two = flights.push(Tick::FIRST);
        flights.remove(one);
        // Somebody is in flight.
        flights.shrink();
        assert!(flights.remove(two).is_some() && flights.has_storage());
        flights.shrink();
        assert!(!flights.has_storage());
    }
}
