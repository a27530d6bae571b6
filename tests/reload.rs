//! Reloading a whole configuration while slots are in use: it replaces what was set, and loses no state.
#![allow(clippy::unwrap_used)]

mod by_hand;

use std::time::Duration;

use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready_ok};
use tower_slot::{Hold, Jitter, KeyRef, SlotConfig, SlotConfigBuilder, SlotErrorKind, SlotLimits, Slots};

use by_hand::{in_flight, millis, queued, secs, slots, visit, waiting};

fn reload(slots: &Slots, config: SlotConfigBuilder) {
    slots.reload(config.build().unwrap());
}

fn limits() -> SlotLimits {
    SlotLimits::new()
}

/// The concurrency in force in a slot, which is made if need be.
fn concurrency(slots: &Slots, key: &str) -> Option<usize> {
    drop(slots.acquire(key));
    slots.stats(key).unwrap().limits.concurrency
}

// L5, L6
#[test]
fn names_patterns_and_defaults_are_replaced_in_slots_that_are_there_and_in_those_to_come() {
    let slots = slots(
        SlotConfig::builder()
            .concurrency(2)
            .slot("a.test", limits().concurrency(3))
            .slot("*.p.test", limits().concurrency(4))
            .slot("gone.test", limits().concurrency(5)),
    );
    slots.configure("by-hand", limits().concurrency(6)).unwrap();
    let names = ["a.test", "x.p.test", "gone.test", "by-hand", "new.test", "y.q.test", "other"];
    let seen = |slots: &Slots| names.map(|name| concurrency(slots, name).unwrap());
    assert_eq!(seen(&slots), [3, 4, 5, 6, 2, 2, 2]);
    let config = SlotConfig::builder()
        .concurrency(12)
        .slot("a.test", limits().delay(secs(1)))
        .slot("new.test", limits().concurrency(15))
        .slot("*.q.test", limits().concurrency(14));
    reload(&slots, config);
    assert_eq!(seen(&slots), [12, 12, 12, 12, 15, 14, 12]);
    assert_eq!(slots.stats("a.test").unwrap().limits.delay, secs(1));
    for (name, expected) in [("z.p.test", 12), ("z.q.test", 14)] {
        assert_eq!(concurrency(&slots, name), Some(expected), "{name}, made afterwards");
    }
    reload(&slots, SlotConfig::builder());
    assert_eq!(seen(&slots), [8; 7], "the crate's own defaults again");
}

// L6
#[test]
fn every_limit_is_replaced() {
    let all = limits()
        .concurrency(1)
        .delay(secs(2))
        .jitter(Jitter::ratio(0.5))
        .queue_capacity(3)
        .wait_timeout(secs(4))
        .hold(Hold::Headers);
    let slots = slots(SlotConfig::builder().slot("a", all));
    drop(slots.acquire("a"));
    let before = slots.stats("a").unwrap().limits;
    assert_eq!((before.queue_capacity, before.hold), (Some(3), Hold::Headers));
    reload(&slots, SlotConfig::builder());
    assert_eq!(slots.stats("a").unwrap().limits, Default::default());
}

// L3, L6, Q1: nothing is lost of those in flight, the queue, the last start and pauses.
#[tokio::test(start_paused = true)]
async fn those_in_flight_the_queue_and_the_next_start_stay() {
    let slots = slots(SlotConfig::builder().concurrency(2).delay(secs(10)));
    let held = slots.acquire("a").await.unwrap();
    let visits: Vec<_> = (0..3).map(|_| visit(&slots, "a", Duration::ZERO)).collect();
    slots.pause("b", Instant::now() + secs(60));
    drop(slots.acquire("b"));
    sleep(secs(4)).await;
    reload(&slots, SlotConfig::builder().concurrency(2).delay(secs(6)));
    assert_eq!((in_flight(&slots, "a"), waiting(&slots, "a")), (1, 3));
    let mut starts = Vec::new();
    for visit in visits {
        starts.push(visit.await.unwrap());
    }
    // The gap counts from the last start: no burst, and no start anew.
    assert_eq!(starts, [6, 12, 18].map(secs));
    drop(held);
    let counts = slots.stats("a").unwrap().counts;
    assert_eq!((counts.asked, counts.started), (4, 4));
    drop(slots.acquire("b").await.unwrap());
    let stats = slots.stats("b").unwrap();
    assert_eq!(stats.times.pace, secs(60 - 18), "the pause went on");
}

// L6
#[tokio::test(start_paused = true)]
async fn a_pause_of_a_slot_that_is_not_there_stays_too() {
    let slots = slots(SlotConfig::builder());
    slots.pause("a", Instant::now() + secs(60));
    reload(&slots, SlotConfig::builder().concurrency(1));
    assert_eq!(slots.try_acquire("a").unwrap_err().kind(), SlotErrorKind::QueueFull);
    slots.resume("a");
    drop(slots.try_acquire("a").unwrap());
}

// L6, Q5
#[test]
fn raising_by_a_reload_wakes_the_first_waiter() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let _held = slots.try_acquire("a").unwrap();
    let mut first = queued(&slots, "a");
    reload(&slots, SlotConfig::builder().concurrency(2));
    assert!(first.is_woken());
    let _second = assert_ready_ok!(first.poll());
}

// L6, Q4
#[test]
fn the_total_comes_and_goes_and_counts_those_in_flight() {
    let slots = slots(SlotConfig::builder());
    let mut held: Vec<_> = ["a", "b", "c"].iter().map(|key| slots.try_acquire(*key).unwrap()).collect();
    reload(&slots, SlotConfig::builder().total_concurrency(2));
    assert_eq!((slots.snapshot().total.limit, slots.snapshot().total.in_flight), (Some(2), 3));
    let mut waiter = queued(&slots, "d");
    held.pop();
    assert_pending!(waiter.poll());
    held.pop();
    assert!(waiter.is_woken());
    held.push(assert_ready_ok!(waiter.poll()));
    let mut waiter = queued(&slots, "e");
    reload(&slots, SlotConfig::builder());
    assert!(waiter.is_woken());
    held.push(assert_ready_ok!(waiter.poll()));
    assert_eq!(slots.snapshot().total.limit, None);
}

// K3
#[test]
fn groups_are_replaced_and_who_waits_stays_where_it_waits() {
    let slots = slots(SlotConfig::builder().concurrency(1).group("old", ["a.test", "b.test"]));
    let host = || KeyRef::host("a.test");
    let held = slots.try_acquire(host()).unwrap();
    let mut waiter = tokio_test::task::spawn(slots.acquire(host()));
    assert_pending!(waiter.poll());
    reload(&slots, SlotConfig::builder().concurrency(1).group("new", ["a.test"]));
    let now = slots.try_acquire(host()).unwrap();
    assert_eq!(now.key().as_str(), "new");
    assert_eq!(slots.try_acquire(KeyRef::host("b.test")).unwrap().key().as_str(), "b.test");
    assert_eq!(waiting(&slots, "old"), 1);
    drop(held);
    assert_eq!(assert_ready_ok!(waiter.poll()).key().as_str(), "old");
    drop(now);
    reload(&slots, SlotConfig::builder());
    assert_eq!(slots.try_acquire(host()).unwrap().key().as_str(), "a.test");
}

// K3
#[test]
fn the_first_groups_may_come_with_a_reload() {
    let slots = slots(SlotConfig::builder());
    drop(slots.try_acquire("a.test").unwrap());
    reload(&slots, SlotConfig::builder().group("g", ["a.test"]));
    assert_eq!(slots.try_acquire(KeyRef::host("a.test")).unwrap().key().as_str(), "g");
}

// G4
#[test]
fn the_number_of_slots_and_the_overflow_slot_are_replaced() {
    let slots = slots(SlotConfig::builder().max_slots(1));
    let _a = slots.try_acquire("a").unwrap();
    slots.try_acquire("b").unwrap_err();
    reload(&slots, SlotConfig::builder().max_slots(2));
    let _b = slots.try_acquire("b").unwrap();
    slots.try_acquire("c").unwrap_err();
    reload(&slots, SlotConfig::builder().max_slots(1).overflow_slot("rest"));
    assert_eq!(slots.try_acquire("c").unwrap().key().as_str(), "rest");
    reload(&slots, SlotConfig::builder().max_slots(1).slot("named", limits()));
    slots.try_acquire("c").unwrap_err();
    drop(slots.try_acquire("named").unwrap());
    reload(&slots, SlotConfig::builder().unlimited_slots());
    drop(slots.try_acquire("c").unwrap());
}

// G1
#[tokio::test(start_paused = true)]
async fn the_idle_timeout_is_replaced() {
    let slots = slots(SlotConfig::builder().idle_timeout(secs(60 * 60)));
    drop(slots.acquire("a").await);
    advance(secs(2)).await;
    slots.retain_recent();
    assert_eq!(slots.len(), 1);
    reload(&slots, SlotConfig::builder().idle_timeout(secs(1)));
    slots.retain_recent();
    assert!(slots.is_empty());
}

// G3: traffic does it soon, although the next look was an hour away.
#[tokio::test(start_paused = true)]
async fn traffic_keeps_to_the_new_idle_timeout() {
    let slots = slots(SlotConfig::builder().idle_timeout(secs(60 * 60)));
    drop(slots.acquire("a").await);
    reload(&slots, SlotConfig::builder().idle_timeout(secs(1)));
    for _ in 0..100 {
        advance(millis(50)).await;
        drop(slots.acquire("b").await);
    }
    assert!(slots.stats("a").is_none());
    assert_eq!(slots.len(), 1);
}

// V3
#[test]
fn what_was_closed_stays_closed() {
    let slots = slots(SlotConfig::builder());
    slots.close();
    reload(&slots, SlotConfig::builder());
    assert_eq!(slots.try_acquire("a").unwrap_err().kind(), SlotErrorKind::Closed);
}
