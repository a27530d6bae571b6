//! The contract as a plain program: one thread, no locks, no wakers, no timers. It is asked at every moment and
//! looks at everything anew, so it cannot lose a wakeup; whoever is polled moves through the gates.
//!
//! Times are nanoseconds since the beginning. Sums of time are counted up as the time goes on.

use std::collections::BTreeMap;

use crate::gaps::{Last, Next};
use crate::schedule::{Change, Setup, Target};
use crate::settings::{Limits, Settings};
use crate::words::{Answer, Id, Kind, MS, Reason, Refusal, Sums};

/// All slots.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) now: u64,
    pub(crate) closed: bool,
    pub(crate) slots: BTreeMap<usize, Slot>,
    pub(crate) total: Option<usize>,
    /// The slots that stand in line for the total, in order. The first so many as there is room for are called.
    pub(crate) line: Vec<usize>,
    pub(crate) recycled: (u64, Sums),
    idle_timeout: u64,
    /// How many slots there may be, and why those were refused who have no slot.
    max_slots: usize,
    outside: BTreeMap<Id, Kind>,
    settings: Settings,
}

/// One slot.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) limits: Limits,
    /// Those in flight and when they started, in order of their starts.
    pub(crate) permits: Vec<(Id, u64)>,
    pub(crate) queue: Vec<Waiter>,
    /// What the first waiter found shut when it last looked.
    pub(crate) reason: Option<Reason>,
    pub(crate) last: Option<Last>,
    /// Before when the pace allows no start.
    pub(crate) next: Next,
    pub(crate) paused: u64,
    pub(crate) sums: Sums,
    /// Whether it counts against the number of slots.
    counts: bool,
    /// Futures that have not been polled.
    unpolled: Vec<Id>,
    /// When it was last left by one who was in flight or waiting, and by anybody at all.
    left: u64,
    touched: u64,
}

/// One who waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) id: Id,
    pub(crate) asked: u64,
    pub(crate) deadline: Option<u64>,
    waited: [u64; 3],
}

// === impl Model ===

impl Model {
    pub(crate) fn new(setup: &Setup) -> Self {
        let mut model = Self {
            now: 0,
            closed: false,
            slots: BTreeMap::new(),
            total: setup.total,
            line: Vec::new(),
            recycled: (0, Sums::default()),
            idle_timeout: setup.idle_timeout * MS,
            max_slots: setup.max_slots,
            outside: BTreeMap::new(),
            settings: Settings::default(),
        };
        for change in &setup.defaults {
            model.configure(Target::Default, *change);
        }
        for (target, change) in &setup.named {
            model.configure(*target, *change);
        }
        model
    }

    // --- time

    pub(crate) fn advance(&mut self, nanos: u64) {
        self.now += nanos;
        for slot in self.slots.values_mut() {
            slot.sums.times[3] += nanos * slot.permits.len() as u64;
            let Some(reason) = slot.reason else { continue };
            slot.sums.times[reason as usize] += nanos * slot.queue.len() as u64;
            for waiter in &mut slot.queue {
                waiter.waited[reason as usize] += nanos;
            }
        }
    }

    // --- ask

    pub(crate) fn acquire(&mut self, key: usize, id: Id) {
        match self.no_slot(key) {
            // No slot is made for it.
            Some(kind) => {
                self.recycled.1.refused += 1;
                self.outside.insert(id, kind);
            }
            None => self.slot(key).unpolled.push(id),
        }
    }

    /// Polls a future that has not resolved.
    pub(crate) fn poll(&mut self, key: usize, id: Id) -> Answer {
        if let Some(kind) = self.outside.remove(&id) {
            return Answer::Refused(Refusal::outside(kind));
        }
        let slot = self.slot(key);
        if let Some(at) = slot.unpolled.iter().position(|it| *it == id) {
            slot.unpolled.remove(at);
            return self.first_poll(key, id);
        }
        let at = slot.place(id);
        if self.closed {
            return self.turn_away(key, at, Kind::Closed);
        }
        if at == 0 {
            match self.shut(key) {
                None => {
                    self.leave(key, at);
                    self.start(key, id);
                    self.next_first(key);
                    return Answer::Started;
                }
                Some(reason) => self.stands_at(key, reason),
            }
        }
        let now = self.now;
        let late = self.slot(key).queue[at].deadline.is_some_and(|deadline| deadline <= now);
        if late { self.turn_away(key, at, Kind::WaitTimeout) } else { Answer::Wait }
    }

    fn first_poll(&mut self, key: usize, id: Id) -> Answer {
        if self.closed {
            let reason = self.slot(key).reason;
            return self.refuse(key, Kind::Closed, 0, reason);
        }
        let now = self.now;
        let slot = self.slot(key);
        let shut = match slot.queue.is_empty() {
            true => self.shut(key),
            false => slot.reason,
        };
        let Some(reason) = shut else {
            self.start(key, id);
            return Answer::Started;
        };
        let slot = self.slot(key);
        if slot.limits.capacity.is_some_and(|capacity| slot.queue.len() >= capacity) {
            return self.refuse(key, Kind::QueueFull, 0, Some(reason));
        }
        let deadline = slot.limits.timeout.map(|timeout| now + timeout);
        slot.queue.push(Waiter { id, asked: now, deadline, waited: [0; 3] });
        if slot.queue.len() == 1 {
            self.stands_at(key, reason);
        }
        if deadline == Some(now) {
            let at = self.slot(key).place(id);
            return self.turn_away(key, at, Kind::WaitTimeout);
        }
        Answer::Wait
    }

    /// Takes a permit if one could start now and nobody waits.
    pub(crate) fn try_acquire(&mut self, key: usize, id: Id) -> Answer {
        if let Some(kind) = self.no_slot(key) {
            self.recycled.1.refused += 1;
            return Answer::Refused(Refusal::outside(kind));
        }
        if self.closed {
            let reason = self.slot(key).reason;
            return self.refuse(key, Kind::Closed, 0, reason);
        }
        let slot = self.slot(key);
        let shut = match slot.queue.is_empty() {
            true => self.shut(key),
            false => slot.reason,
        };
        let shut = shut.or((!self.line.is_empty()).then_some(Reason::Total));
        if shut.is_some() {
            return self.refuse(key, Kind::QueueFull, 0, shut);
        }
        self.start(key, id);
        Answer::Started
    }

    /// Drops a future that has not resolved.
    pub(crate) fn forget(&mut self, key: usize, id: Id) {
        if self.outside.remove(&id).is_some() {
            return;
        }
        let now = self.now;
        let slot = self.slot(key);
        if slot.unpolled.contains(&id) {
            slot.unpolled.retain(|it| *it != id);
            slot.touched = now;
            return;
        }
        let at = slot.place(id);
        self.leave(key, at);
        self.slot(key).sums.gone += 1;
        if at == 0 {
            self.next_first(key);
        }
    }

    pub(crate) fn release(&mut self, key: usize, id: Id) {
        let now = self.now;
        let slot = self.slot(key);
        let at = slot.permits.iter().position(|(it, _)| *it == id).expect("it is in flight");
        let (_, since) = slot.permits.remove(at);
        slot.sums.longest[3] = slot.sums.longest[3].max(now - since);
        slot.sums.finished += 1;
        (slot.left, slot.touched) = (now, now);
    }

    // --- change

    pub(crate) fn configure(&mut self, target: Target, change: Change) {
        self.settings.set(target, change);
        for key in self.slots.keys().copied().collect::<Vec<_>>() {
            let limits = self.settings.of(key);
            let slot = self.slot(key);
            slot.limits = limits;
            slot.next = Next::of(slot.last, limits);
        }
    }

    /// Takes its place in the line from a slot that is not ready any more.
    pub(crate) fn look_again(&mut self) {
        let unready = |key: &usize| matches!(self.shut(*key), Some(Reason::Concurrency | Reason::Pace));
        let unready = self.line.iter().copied().filter(unready).collect::<Vec<_>>();
        self.line.retain(|key| !unready.contains(key));
    }

    pub(crate) fn pause(&mut self, key: usize, until: u64) {
        let longest = self.settings.paused(key).max(until);
        self.settings.pauses.insert(key, longest);
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.paused = longest;
        }
    }

    pub(crate) fn resume(&mut self, key: usize) {
        self.settings.pauses.remove(&key);
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.paused = 0;
        }
    }

    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.line.clear();
    }

    // --- look

    pub(crate) fn in_flight(&self) -> usize {
        self.slots.values().map(|slot| slot.permits.len()).sum()
    }

    /// How many of those who stand in line for the total are called.
    pub(crate) fn called(&self) -> usize {
        self.total.map_or(usize::MAX, |total| total.saturating_sub(self.in_flight()))
    }

    /// The first gate that is shut for the first waiter, or for a newcomer if nobody waits.
    pub(crate) fn shut(&self, key: usize) -> Option<Reason> {
        let slot = &self.slots[&key];
        if slot.is_full() {
            return Some(Reason::Concurrency);
        }
        if slot.next_start() > self.now {
            return Some(Reason::Pace);
        }
        let place = self.line.iter().position(|it| *it == key).unwrap_or(self.line.len());
        (place >= self.called()).then_some(Reason::Total)
    }

    /// Whether the slot may be recycled.
    pub(crate) fn may_go(&self, key: usize) -> bool {
        self.is_idle(key, self.slots[&key].left + self.idle_timeout)
    }

    /// Whether it has to be when somebody looks.
    pub(crate) fn must_go(&self, key: usize) -> bool {
        self.is_idle(key, self.slots[&key].touched + self.idle_timeout)
    }

    /// Whether it may make room for another.
    pub(crate) fn may_make_room(&self, key: usize) -> bool {
        self.slots[&key].counts && self.is_idle(key, 0)
    }

    /// Whether the slot would be one too many.
    pub(crate) fn is_crowded(&self, key: usize) -> bool {
        let new = !self.slots.contains_key(&key) && !self.settings.is_named(key);
        new && !self.closed && self.slots.values().filter(|slot| slot.counts).count() >= self.max_slots
    }

    /// Whether there was a slot for that one.
    pub(crate) fn has_slot(&self, id: Id) -> bool {
        !self.outside.contains_key(&id)
    }

    /// Why there is no slot for a newcomer, if there is none.
    fn no_slot(&self, key: usize) -> Option<Kind> {
        let closed = self.closed && !self.slots.contains_key(&key);
        let crowded = self.is_crowded(key).then_some(Kind::TooManySlots);
        if closed { Some(Kind::Closed) } else { crowded }
    }

    fn is_idle(&self, key: usize, from: u64) -> bool {
        let slot = &self.slots[&key];
        let unused = slot.permits.is_empty() && slot.queue.is_empty() && slot.unpolled.is_empty();
        unused && slot.next_start() <= self.now && self.now >= from
    }

    pub(crate) fn recycle(&mut self, key: usize) {
        let slot = self.slots.remove(&key).expect("it is there");
        let (count, sums) = &mut self.recycled;
        *count += 1;
        sums.add(&slot.sums);
    }

    // --- within

    /// The slot, made if it is not there.
    fn slot(&mut self, key: usize) -> &mut Slot {
        if !self.slots.contains_key(&key) {
            let slot = Slot {
                counts: !self.settings.is_named(key),
                limits: self.settings.of(key),
                permits: Vec::new(),
                queue: Vec::new(),
                reason: None,
                last: None,
                next: Next::default(),
                paused: self.settings.paused(key),
                sums: Sums::default(),
                unpolled: Vec::new(),
                left: self.now,
                touched: self.now,
            };
            self.slots.insert(key, slot);
        }
        self.slots.get_mut(&key).expect("it was just made")
    }

    /// The first waiter has found this gate shut.
    fn stands_at(&mut self, key: usize, reason: Reason) {
        self.slot(key).reason = Some(reason);
        match reason {
            Reason::Total if !self.line.contains(&key) => self.line.push(key),
            Reason::Total => {}
            _ => self.line.retain(|it| *it != key),
        }
    }

    fn start(&mut self, key: usize, id: Id) {
        let now = self.now;
        self.line.retain(|it| *it != key);
        let slot = self.slot(key);
        slot.permits.push((id, now));
        slot.last = Some(Last::new(now));
        slot.next = Next::of(slot.last, slot.limits);
    }

    /// Takes a waiter out of the queue and returns how long it waited.
    fn leave(&mut self, key: usize, at: usize) -> u64 {
        let now = self.now;
        let slot = self.slot(key);
        let waiter = slot.queue.remove(at);
        (slot.left, slot.touched) = (now, now);
        for (longest, waited) in slot.sums.longest.iter_mut().zip(waiter.waited) {
            *longest = waited.max(*longest);
        }
        if slot.queue.is_empty() {
            slot.reason = None;
            self.line.retain(|it| *it != key);
        }
        now - waiter.asked
    }

    /// Ends the wait of the one at that place.
    fn turn_away(&mut self, key: usize, at: usize, kind: Kind) -> Answer {
        let reason = self.slot(key).reason;
        let waited = self.leave(key, at);
        if at == 0 {
            self.next_first(key);
        }
        self.refuse(key, kind, waited, reason)
    }

    /// There is another first waiter. It looks at the gates when it is polled; if the slot is full it has not been
    /// woken for that.
    fn next_first(&mut self, key: usize) {
        let slot = self.slot(key);
        if slot.is_full() && !slot.queue.is_empty() {
            slot.reason = Some(Reason::Concurrency);
        }
    }

    fn refuse(&mut self, key: usize, kind: Kind, waited: u64, reason: Option<Reason>) -> Answer {
        let now = self.now;
        let slot = self.slot(key);
        slot.touched = now;
        match kind {
            Kind::WaitTimeout => slot.sums.timed_out += 1,
            _ => slot.sums.refused += 1,
        }
        Answer::Refused(Refusal {
            kind,
            reason,
            waited,
            in_flight: slot.permits.len(),
            oldest: slot.permits.first().map(|(_, since)| now - since),
            earliest: Some(slot.next_start()).filter(|earliest| *earliest > now),
        })
    }
}

// === impl Slot ===

impl Slot {
    fn is_full(&self) -> bool {
        self.limits.concurrency.is_some_and(|concurrency| self.permits.len() >= concurrency)
    }

    /// Before when the pace allows no start.
    pub(crate) fn next_start(&self) -> u64 {
        self.next.high.max(self.paused)
    }

    fn place(&self, id: Id) -> usize {
        self.queue.iter().position(|waiter| waiter.id == id).expect("it waits")
    }
}
