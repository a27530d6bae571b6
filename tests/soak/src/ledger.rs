//! A count of what is in flight that owes nothing to the slots: it stands between them and the client, begins after
//! the grant and ends before the permit is given back. So it is never above what the slots count.
//!
//! A grant obeys the limit of its moment, and that lies between the beginning of the poll that granted and the start
//! here. So at a start the count is at most the highest limit that was in force somewhere in between.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::hosts::{self, HOSTS};
use crate::rule;

thread_local! {
    static POLL_BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// A number of permits; `None` is unlimited.
pub(crate) type Limit = Option<usize>;

#[derive(Debug)]
pub(crate) struct Ledger {
    hosts: Vec<Mutex<Lane>>,
    total: Mutex<Lane>,
    starts: AtomicU64,
}

/// What is known of one slot, or of all together.
#[derive(Debug)]
struct Lane {
    in_flight: usize,
    peak: usize,
    limits: Vec<Period>,
    /// A pause: since when it is known to hold, and until when.
    paused: Option<(Instant, Instant)>,
}

/// A limit, from before it was set until after the next was.
#[derive(Debug)]
struct Period {
    limit: Limit,
    from: Instant,
    until: Option<Instant>,
}

/// One that is in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    ledger: Arc<Ledger>,
    host: usize,
}

/// Notes that a poll begins, on this thread, in which a permit may be granted.
pub(crate) fn poll_begins() {
    POLL_BEGAN.set(Some(Instant::now()));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Ledger ===

impl Ledger {
    pub(crate) fn new(limit: impl Fn(usize) -> Limit, total: Limit) -> Self {
        let hosts = (0..HOSTS).map(|host| Mutex::new(Lane::new(limit(host)))).collect();
        Self { hosts, total: Mutex::new(Lane::new(total)), starts: AtomicU64::new(0) }
    }

    /// Counts a start.
    pub(crate) fn start(self: &Arc<Self>, host: usize) -> InFlight {
        let began = POLL_BEGAN.get().unwrap_or_else(Instant::now);
        self.starts.fetch_add(1, Ordering::Relaxed);
        let count = |lane: &Mutex<Lane>, what: &dyn Fn() -> String| {
            let mut lane = lock(lane);
            lane.in_flight += 1;
            lane.peak = lane.peak.max(lane.in_flight);
            let (now, in_flight) = (Instant::now(), lane.in_flight);
            let highest = lane.limits.iter().filter(|period| period.overlaps(began, now));
            // Unlimited is above all.
            let highest = highest.map(|period| period.limit.unwrap_or(usize::MAX)).max().unwrap_or(0);
            rule!(in_flight <= highest, "{}: {in_flight} in flight, at most {highest} may be", what());
            let held = lane.paused.filter(|(since, until)| began > *since && now < *until);
            rule!(held.is_none(), "{}: a start in a pause", what());
        };
        count(&self.hosts[host], &|| hosts::name(host));
        count(&self.total, &|| "all slots".into());
        InFlight { ledger: self.clone(), host }
    }

    pub(crate) fn starts(&self) -> u64 {
        self.starts.load(Ordering::Relaxed)
    }

    pub(crate) fn in_flight(&self) -> usize {
        lock(&self.total).in_flight
    }

    /// The most that were in flight together.
    pub(crate) fn peak(&self) -> usize {
        lock(&self.total).peak
    }

    /// Whether `limit` was in force for the host, or for all of them, between `since` and now.
    pub(crate) fn was_in_force(&self, host: Option<usize>, limit: Limit, since: Instant) -> bool {
        let lane = lock(host.map_or(&self.total, |host| &self.hosts[host]));
        let now = Instant::now();
        lane.limits.iter().any(|period| period.limit == limit && period.overlaps(since, now))
    }

    /// Changes limits: `change` does it to the slots.
    pub(crate) fn change(&self, limit: impl Fn(usize) -> Limit, total: Limit, change: impl FnOnce()) {
        for (host, lane) in self.hosts.iter().enumerate() {
            lock(lane).begin(limit(host));
        }
        lock(&self.total).begin(total);
        change();
        self.hosts.iter().chain([&self.total]).for_each(|lane| lock(lane).settle());
    }

    /// Pauses or resumes: `change` does it to the slot.
    pub(crate) fn pause(&self, host: usize, until: Option<Instant>, change: impl FnOnce()) {
        let known = lock(&self.hosts[host]).paused.take();
        change();
        let now = Instant::now();
        // An earlier one that lasts longer stays.
        let longer = |(_, until): (Instant, Instant)| until;
        let until = until.map(|until| known.map_or(until, |known| until.max(longer(known))));
        lock(&self.hosts[host]).paused = until.map(|until| (now, until));
    }
}

// === impl Lane ===

impl Lane {
    fn new(limit: Limit) -> Self {
        let period = Period { limit, from: Instant::now(), until: None };
        Self { in_flight: 0, peak: 0, limits: vec![period], paused: None }
    }

    fn begin(&mut self, limit: Limit) {
        if self.limits.last().is_none_or(|last| last.limit != limit) {
            self.limits.push(Period { limit, from: Instant::now(), until: None });
        }
    }

    fn settle(&mut self) {
        let Some((_, before)) = self.limits.split_last_mut() else { return };
        let now = Instant::now();
        for period in before {
            period.until.get_or_insert(now);
        }
        // No poll takes that long.
        let recent = |until: Instant| now.duration_since(until) < Duration::from_secs(60);
        self.limits.retain(|period| period.until.is_none_or(recent));
    }
}

// === impl Period ===

impl Period {
    fn overlaps(&self, since: Instant, now: Instant) -> bool {
        self.from <= now && self.until.is_none_or(|until| until >= since)
    }
}

// === impl InFlight ===

impl Drop for InFlight {
    fn drop(&mut self) {
        for lane in [&self.ledger.hosts[self.host], &self.ledger.total] {
            lock(lane).in_flight -= 1;
        }
    }
}
