//! The contract as a plain program: one thread, no locks, no wakers, no timers. It is asked at every moment and
//! looks at everything anew, so it cannot lose a wakeup; whoever is polled moves through the gates.
//!
//! Times are nanoseconds since the beginning. Sums of time are counted up as the time goes on.

use std::collections::BTreeMap;

use crate::gaps::{Last, Next};
use crate::schedule::{Change, NAMES, PATTERNS, Setup, Spread, Target};

pub(crate) const MS: u64 = 1_000_000;

/// Who asked.
pub(crate) type Id = u64;

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
    defaults: Limits,
    named: BTreeMap<usize, Part>,
    patterns: BTreeMap<usize, Part>,
    pauses: BTreeMap<usize, u64>,
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

/// The limits in force.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    pub(crate) concurrency: Option<usize>,
    pub(crate) delay: u64,
    pub(crate) jitter: Spread,
    pub(crate) capacity: Option<usize>,
    pub(crate) timeout: Option<u64>,
}

/// Limits with holes.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    concurrency: Option<Option<usize>>,
    delay: Option<u64>,
    jitter: Option<Spread>,
    capacity: Option<Option<usize>>,
    timeout: Option<Option<u64>>,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    /// Waiting by reason, and in flight.
    pub(crate) times: [u64; 4],
    /// The longest that one spent so.
    pub(crate) longest: [u64; 4],
    pub(crate) refused: u64,
    pub(crate) timed_out: u64,
    pub(crate) gone: u64,
    pub(crate) finished: u64,
}

/// A gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Concurrency,
    Pace,
    Total,
}

/// What a poll comes to.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Started,
    Wait,
    Refused(Refusal),
}

/// An error.
#[derive(Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) kind: Kind,
    pub(crate) reason: Option<Reason>,
    pub(crate) waited: u64,
    pub(crate) in_flight: usize,
    pub(crate) oldest: Option<u64>,
    pub(crate) earliest: Option<u64>,
}

/// An error's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    QueueFull,
    WaitTimeout,
    Closed,
    TooManySlots,
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
            defaults: Limits::default(),
            named: BTreeMap::new(),
            patterns: BTreeMap::new(),
            pauses: BTreeMap::new(),
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
        match target {
            Target::Default => {
                let mut part = Part::default();
                part.set(change);
                self.defaults = part.over(self.defaults);
            }
            Target::Slot(key) => self.named.entry(key).or_default().set(change),
            Target::Pattern(pattern) => self.patterns.entry(pattern).or_default().set(change),
        }
        for key in self.slots.keys().copied().collect::<Vec<_>>() {
            let limits = self.limits(key);
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
        let longest = self.pauses.get(&key).copied().unwrap_or(0).max(until);
        self.pauses.insert(key, longest);
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.paused = longest;
        }
    }

    pub(crate) fn resume(&mut self, key: usize) {
        self.pauses.remove(&key);
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
        let new = !self.slots.contains_key(&key) && !self.named.contains_key(&key);
        new && !self.closed && self.slots.values().filter(|slot| slot.counts).count() >= self.max_slots
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
                counts: !self.named.contains_key(&key),
                limits: self.limits(key),
                permits: Vec::new(),
                queue: Vec::new(),
                reason: None,
                last: None,
                next: Next::default(),
                paused: self.pauses.get(&key).copied().unwrap_or(0),
                sums: Sums::default(),
                unpolled: Vec::new(),
                left: self.now,
                touched: self.now,
            };
            self.slots.insert(key, slot);
        }
        self.slots.get_mut(&key).expect("it was just made")
    }

    /// The exact name, then the longest pattern, then the defaults.
    fn limits(&self, key: usize) -> Limits {
        let matches = |pattern: usize| NAMES[key].ends_with(&PATTERNS[pattern][1..]);
        let longest = self.patterns.iter().filter(|(pattern, _)| matches(**pattern)).next_back();
        let base = longest.map_or(self.defaults, |(_, part)| part.over(self.defaults));
        self.named.get(&key).map_or(base, |part| part.over(base))
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

// === impl Refusal ===

impl Refusal {
    /// Of one who asked for a slot that was not there and was not made.
    fn outside(kind: Kind) -> Self {
        Self { kind, reason: None, waited: 0, in_flight: 0, oldest: None, earliest: None }
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self { concurrency: Some(8), delay: 0, jitter: Spread::Percent(0), capacity: None, timeout: None }
    }
}

// === impl Part ===

impl Part {
    fn set(&mut self, change: Change) {
        match change {
            Change::Concurrency(concurrency) => self.concurrency = Some(concurrency),
            Change::Delay(ms) => self.delay = Some(ms * MS),
            Change::Jitter(jitter) => self.jitter = Some(jitter),
            Change::Capacity(capacity) => self.capacity = Some(capacity),
            Change::Timeout(ms) => self.timeout = Some(ms.map(|ms| ms * MS)),
        }
    }

    fn over(&self, base: Limits) -> Limits {
        Limits {
            concurrency: self.concurrency.unwrap_or(base.concurrency),
            delay: self.delay.unwrap_or(base.delay),
            jitter: self.jitter.unwrap_or(base.jitter),
            capacity: self.capacity.unwrap_or(base.capacity),
            timeout: self.timeout.unwrap_or(base.timeout),
        }
    }
}

// === impl Sums ===

impl Sums {
    fn add(&mut self, other: &Self) {
        for at in 0..4 {
            self.times[at] += other.times[at];
            self.longest[at] = self.longest[at].max(other.longest[at]);
        }
        self.refused += other.refused;
        self.timed_out += other.timed_out;
        self.gone += other.gone;
        self.finished += other.finished;
    }
}
