//! Those in flight in a slot. One alone, which is what most slots ever have, takes no storage and no list.

use super::list::List;
use super::tick::Tick;

/// Those in flight. An index belongs to its member from `push` to `remove`.
#[derive(Debug)]
pub(super) struct Flights {
    /// At [`LONE`]; whoever starts while nobody is here.
    lone: Option<Flight>,
    /// In order of their starts. Kept once there were two at a time.
    more: Option<Box<List<Flight>>>,
}

/// One in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) started: Tick,
    /// When its present phase began.
    pub(super) since: Tick,
}

/// No index of a list.
pub(super) const LONE: u32 = u32::MAX;

// === impl Flights ===

impl Flights {
    pub(super) const fn new() -> Self {
        Self { lone: None, more: None }
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
        self.lone.iter().chain(first).map(|flight| flight.started).min()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Flight> {
        if index == LONE { self.lone.as_mut() } else { self.more.as_mut()?.get_mut(index) }
    }

    pub(super) fn get(&self, index: u32) -> Option<&Flight> {
        if index == LONE { self.lone.as_ref() } else { self.more.as_ref()?.get(index) }
    }

    /// One starts. Returns its index.
    #[inline]
    pub(super) fn push(&mut self, now: Tick) -> u32 {
        let flight = Flight { started: now, since: now };
        if self.lone.is_none() {
            self.lone = Some(flight);
            return LONE;
        }
        self.push_more(flight)
    }

    #[inline(never)]
    fn push_more(&mut self, flight: Flight) -> u32 {
        self.more.get_or_insert_with(|| Box::new(List::new())).push(flight)
    }

    /// Takes one out; `None` if there is none at `index`.
    #[inline]
    pub(super) fn remove(&mut self, index: u32) -> Option<Flight> {
        if index == LONE { self.lone.take() } else { self.remove_more(index) }
    }

    #[inline(never)]
    fn remove_more(&mut self, index: u32) -> Option<Flight> {
        self.more.as_mut()?.remove(index)
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
        let mut flights = Flights::new();
        let mut model: Vec<(u32, Tick)> = Vec::new();
        for now in (0..if cfg!(miri) { 300 } else { 10_000 }).map(Tick::new) {
            if rng.bool() || model.is_empty() {
                model.push((flights.push(now), now));
            } else {
                let (index, started) = model.remove(rng.usize(..model.len()));
                let seen = flights.get(index).map(|flight| flight.started);
                assert_eq!((seen, flights.get_mut(index).map(|flight| flight.since)), (Some(started), seen));
                assert_eq!(flights.remove(index).map(|flight| flight.started), Some(started));
                assert!(flights.get(index).is_none() && flights.remove(index).is_none());
            }
            assert_eq!((flights.len(), flights.is_empty()), (model.len(), model.is_empty()));
            assert_eq!(flights.oldest(), model.first().map(|(_, started)| *started));
        }
    }

    #[test]
    fn one_alone_takes_no_storage_and_no_storage_is_left_when_all_are_gone() {
        let mut flights = Flights::new();
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
