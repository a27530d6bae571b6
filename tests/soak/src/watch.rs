//! What must be true whenever somebody looks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tower_slot::{Counts, SlotKey, SlotStats, Slots, Snapshot, WaitReason};

use crate::changes::MAX_SLOTS;
use crate::hosts::{self, HOSTS, Origin};
use crate::ledger::Ledger;
use crate::rule;

/// How often it looks.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// For how long a first waiter may not start although all gates of its slot are open, if nobody woke it.
const LOST: Duration = Duration::from_millis(1_000);

/// The same if it was woken and is not polled: other tasks have the threads.
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
    starts: u64,
    left: [u64; 3],
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
                let now = Standing { since: began, starts, left: left(slot) };
                let first = before.get(&slot.key).filter(|first| first.left == now.left).copied();
                let first = first.unwrap_or(now);
                check_first_waiter(slot, first, now);
                self.standing.insert(slot.key.clone(), first);
            }
        }
        let limit = snapshot.total.limit;
        rule!(self.ledger.was_in_force(None, limit, began), "all slots: a cap of {limit:?} that was not set");
        let by_default = |slot: &&SlotStats| {
            hosts::index(slot.key.as_str()).is_some_and(|host| hosts::origin(host) != Origin::Name)
        };
        let counted = snapshot.slots.iter().filter(by_default).count();
        rule!(counted <= MAX_SLOTS, "{counted} slots, at most {MAX_SLOTS} may be");
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

/// Those who left the queue.
fn left(slot: &SlotStats) -> [u64; 3] {
    [slot.counts.started, slot.counts.timed_out, slot.counts.gone]
}

fn own_gates_are_open(slot: &SlotStats) -> bool {
    let is_full = slot.limits.concurrency.is_some_and(|limit| slot.in_flight >= limit);
    !is_full && slot.next_start.is_none() && slot.paused_until.is_none()
}

fn is_at_total(slot: &SlotStats) -> bool {
    slot.reason == Some(WaitReason::Total)
}

/// Nobody has left the queue from `first` to `now`, and at each look the gates were open.
fn check_first_waiter(slot: &SlotStats, first: Standing, now: Standing) {
    let (name, time) = (&slot.key, now.since - first.since);
    if is_at_total(slot) && now.starts > first.starts {
        // Others go on: it may be in line still, but they do not overtake it.
        let others = now.starts - first.starts;
        rule!(others < 4 * HOSTS as u64, "{name}: overtaken by {others} at the total: {slot:?}");
        rule!(time < STARVED, "{name}: at the total for {time:?}: {slot:?}");
        return;
    }
    let most = if slot.stalled.is_some() { STARVED } else { LOST };
    rule!(time < most, "{name}: could start for {time:?} and does not: {slot:?}");
}
