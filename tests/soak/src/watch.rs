//! What must be true whenever somebody looks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tower_slot::{Counts, SlotKey, SlotStats, Slots, Snapshot, WaitReason};

use crate::hosts::{self, HOSTS};
use crate::ledger::Ledger;
use crate::rule;

/// How often it looks.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// For how long a first waiter may not start although all gates of its slot are open, if nobody woke it.
const LOST: Duration = Duration::from_millis(400);

/// The same if it was woken and is not polled, or somebody else may be in its way: other tasks have the threads.
const STARVED: Duration = Duration::from_secs(10);

/// The oldest that a permit gets: no exchange takes that long.
const OLDEST_PERMIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Watch {
    slots: Slots,
    ledger: Arc<Ledger>,
    /// Slots whose first waiter could go on, as they were when that was seen first.
    standing: HashMap<SlotKey, Standing>,
    last: Option<Instant>,
    looks: u64,
}

#[derive(Clone, Copy, Debug)]
struct Standing {
    since: Instant,
    /// Of this slot and of all.
    started: u64,
    starts: u64,
}

// === impl Watch ===

impl Watch {
    pub(crate) fn new(slots: Slots, ledger: Arc<Ledger>) -> Self {
        Self { slots, ledger, standing: HashMap::new(), last: None, looks: 0 }
    }

    pub(crate) fn looks(&self) -> u64 {
        self.looks
    }

    pub(crate) fn look(&mut self) -> Snapshot {
        let began = Instant::now();
        let starts = self.ledger.starts();
        let snapshot = self.slots.snapshot();
        self.looks += 1;
        // Whoever is late itself cannot tell that others are.
        let is_late = self.last.replace(began).is_some_and(|last| began - last > 4 * INTERVAL);
        let before = std::mem::take(&mut self.standing);
        let before = if is_late { HashMap::new() } else { before };
        let has_room = snapshot.total.limit.is_none_or(|limit| snapshot.total.in_flight < limit);
        for slot in &snapshot.slots {
            self.check(slot, began);
            if slot.waiting > 0 && own_gates_are_open(slot) && (has_room || !is_at_total(slot)) {
                let now = Standing { since: began, started: slot.counts.started, starts };
                // Somebody has been there from then to now, and so the slot's place at the total.
                let waited = slot.oldest_waiter.unwrap_or_default();
                let is_same =
                    |first: &&Standing| first.started == now.started && waited >= now.since - first.since;
                let first = before.get(&slot.key).filter(is_same).copied().unwrap_or(now);
                check_first_waiter(slot, first, now);
                self.standing.insert(slot.key.clone(), first);
            }
        }
        let limit = snapshot.total.limit;
        rule!(self.ledger.was_in_force(None, limit, began), "all slots: a cap of {limit:?} that was not set");
        add_up("recycled slots", snapshot.recycled.counts, 0, 0);
        snapshot
    }

    fn check(&self, slot: &SlotStats, began: Instant) {
        let name = slot.key.as_str();
        add_up(name, slot.counts, slot.in_flight, slot.waiting);
        let limit = slot.limits.concurrency;
        let host = hosts::index(name);
        rule!(host.is_some(), "{name}: nobody asked for that slot");
        let is_set = self.ledger.was_in_force(host, limit, began);
        rule!(is_set, "{name}: a concurrency of {limit:?} that was not set");
        let oldest = slot.oldest_permit.unwrap_or_default();
        rule!(oldest < OLDEST_PERMIT, "{name}: a permit has been out for {oldest:?}: {slot:?}");
    }
}

/// Each way of asking and each way of ending is counted once.
pub(crate) fn add_up(name: &str, counts: Counts, in_flight: usize, waiting: usize) {
    let Counts { asked, started, refused, timed_out, gone, finished, failed, cancelled, .. } = counts;
    let asks = started + refused + timed_out + gone + waiting as u64;
    rule!(asked == asks, "{name}: {counts:?} and {waiting} waiting do not add up");
    let ends = finished + failed + cancelled + in_flight as u64;
    rule!(started == ends, "{name}: {counts:?} and {in_flight} in flight do not add up");
}

fn own_gates_are_open(slot: &SlotStats) -> bool {
    let is_full = slot.limits.concurrency.is_some_and(|limit| slot.in_flight >= limit);
    !is_full && slot.next_start.is_none() && slot.paused_until.is_none()
}

fn is_at_total(slot: &SlotStats) -> bool {
    slot.reason == Some(WaitReason::Total)
}

/// Nobody has started from `first` to `now`, and at each look somebody waited and the gates were open.
fn check_first_waiter(slot: &SlotStats, first: Standing, now: Standing) {
    let (name, time) = (&slot.key, now.since - first.since);
    // At the total others may be before it, but they do not overtake it.
    let others = if is_at_total(slot) { now.starts - first.starts } else { 0 };
    rule!(others < 4 * HOSTS as u64, "{name}: overtaken by {others} at the total: {slot:?}");
    let is_lost = slot.stalled.is_none() && !is_at_total(slot);
    let most = if is_lost { LOST } else { STARVED };
    rule!(time < most, "{name}: could start for {time:?} and does not: {slot:?}");
}
