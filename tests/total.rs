//! The total: the cap over all slots, and the line of slots that stand before it.

#![allow(clippy::unwrap_used)]

mod by_hand;

use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tokio_test::task::Spawn;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower_slot::{Acquire, SlotConfig, SlotErrorKind, SlotLimits, SlotPermit, Slots, WaitReason};

use by_hand::{in_flight, line, queued, secs, slots, taken, visit, visits, waiting, woken};

fn refusal(slots: &Slots, key: &str) -> Option<WaitReason> {
    let error = assert_ready_err!(task::spawn(slots.acquire(key)).poll());
    assert_eq!(error.kind(), SlotErrorKind::QueueFull);
    error.reason()
}

// --- slots do not hold up each other

// Q1, Q4, L4, case 15
#[tokio::test(start_paused = true)]
async fn a_slow_slot_with_a_thousand_waiting_does_not_hold_up_another() {
    let slow = SlotLimits::new().delay(secs(60));
    let slots = slots(SlotConfig::builder().total_concurrency(10).slot("a", slow));
    let waiters: Vec<_> = (0..1_001).map(|_| visit(&slots, "a", Duration::ZERO)).collect();
    sleep(secs(1)).await;
    assert_eq!(waiting(&slots, "a"), 1_000);
    let b = visits(&slots, "b", 1, Duration::ZERO).await;
    assert_eq!(b, [Duration::ZERO]);
    assert_eq!(line(&slots), 0);
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
}

// Q4, L6, case 16
#[tokio::test(start_paused = true)]
async fn a_paused_slot_with_a_hundred_waiting_is_not_noticed_by_another() {
    let slots = slots(SlotConfig::builder().total_concurrency(8));
    slots.pause("a", Instant::now() + secs(60));
    let waiters: Vec<_> = (0..100).map(|_| visit(&slots, "a", Duration::ZERO)).collect();
    sleep(secs(1)).await;
    assert_eq!(waiting(&slots, "a"), 100);
    // All of the total is there for it.
    assert_eq!(visits(&slots, "b", 8, secs(1)).await, [Duration::ZERO; 8]);
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap(), secs(60));
    }
}

// L4, Q4: the total is taken last.
#[tokio::test(start_paused = true)]
async fn only_a_slot_that_is_ready_in_all_else_stands_in_line() {
    let (slots, permits) = taken(2);
    let limits = SlotLimits::new().concurrency(1);
    slots.configure("full", limits.clone()).unwrap();
    slots.configure("paced", limits.delay(secs(1))).unwrap();
    drop(permits);
    let full = slots.try_acquire("full").unwrap();
    drop(slots.try_acquire("paced").unwrap());
    let _x = slots.try_acquire("x").unwrap();
    let (mut at_full, mut at_paced) = (queued(&slots, "full"), queued(&slots, "paced"));
    assert_pending!(at_full.poll());
    assert_pending!(at_paced.poll());
    assert_eq!(line(&slots), 0);
    let mut ready = queued(&slots, "ready");
    assert_eq!(line(&slots), 1);
    // One that becomes ready later stands behind.
    sleep(secs(1)).await;
    assert_pending!(at_paced.poll());
    assert_eq!(line(&slots), 2);
    drop(full);
    assert_eq!(woken([&ready, &at_paced]), [true, false]);
    drop(assert_ready_ok!(ready.poll()));
}

// --- fairness

/// Three slots with `n` waiting in each.
fn three_queues(slots: &Slots, n: usize) -> Vec<(&'static str, Spawn<Acquire>)> {
    let keys = ["a", "b", "c"].into_iter().flat_map(|key| std::iter::repeat_n(key, n));
    keys.map(|key| (key, queued(slots, key))).collect()
}

/// Polls whoever was woken until nobody is, gives permits back one by one, and tells in which order slots started.
fn run(mut waiters: Vec<(&'static str, Spawn<Acquire>)>) -> String {
    let (mut order, mut permits) = (String::new(), Vec::<SlotPermit>::new());
    loop {
        if let Some(at) = waiters.iter().position(|(_, waiter)| waiter.is_woken()) {
            if let std::task::Poll::Ready(permit) = waiters[at].1.poll() {
                permits.push(permit.unwrap());
                order += waiters.remove(at).0;
            }
        } else if permits.is_empty() {
            assert!(waiters.is_empty(), "nobody runs, and {} wait", waiters.len());
            return order;
        } else {
            drop(permits.remove(0));
        }
    }
}

// Q4, Q5, case 15: starts differ by at most one at every moment.
#[test]
fn three_slots_at_a_total_of_one_take_turns() {
    let (slots, permits) = taken(1);
    let waiters = three_queues(&slots, 5);
    drop(permits);
    assert_eq!(run(waiters), "abcabcabcabcabc");
}

// Q4, Q5, case 15
#[test]
fn three_slots_at_a_total_of_two_take_turns() {
    let (slots, permits) = taken(2);
    let waiters = three_queues(&slots, 4);
    drop(permits);
    assert_eq!(run(waiters), "abcabcabcabc");
    assert_eq!((slots.snapshot().total.in_flight, line(&slots)), (0, 0));
}

// Q4, case 15: in tasks, and the one that starts at once is one of the three.
#[tokio::test(start_paused = true)]
async fn three_slots_at_a_total_of_one_take_turns_from_the_first_start_on() {
    let slots = slots(SlotConfig::builder().total_concurrency(1));
    let mut visits = Vec::new();
    for _ in 0..4 {
        for key in ["a", "b", "c"] {
            visits.push((key, visit(&slots, key, secs(1))));
            yield_now().await;
        }
    }
    let mut starts = Vec::new();
    for (key, visit) in visits {
        starts.push((visit.await.unwrap(), key));
    }
    starts.sort_unstable();
    let keys: String = starts.iter().map(|(_, key)| *key).collect();
    assert_eq!(keys, "abcabcabcabc");
    assert_eq!(starts.last().unwrap().0, secs(11));
}

// --- places

// Q4
#[test]
fn slots_are_called_in_the_order_in_which_they_came_with_one_place_each() {
    let (slots, mut permits) = taken(3);
    let [mut b1, b2, mut a1, mut c1] = ["b", "b", "a", "c"].map(|key| queued(&slots, key));
    assert_eq!(line(&slots), 3);
    permits.pop();
    assert_eq!(woken([&b1, &b2, &a1, &c1]), [true, false, false, false]);
    permits.pop();
    assert_eq!(woken([&b1, &b2, &a1, &c1]), [true, false, true, false]);
    permits.pop();
    assert_eq!(woken([&b1, &b2, &a1, &c1]), [true, false, true, true]);
    let _permits = [&mut c1, &mut a1, &mut b1].map(|waiter| assert_ready_ok!(waiter.poll()));
    // The second of "b" was woken to stand in line; that was no call.
    let mut b2 = b2;
    assert!(b2.is_woken());
    assert_pending!(b2.poll());
    assert_eq!((line(&slots), slots.snapshot().total.in_flight), (1, 3));
}

// Q4
#[test]
fn a_waiter_that_goes_away_leaves_the_place_to_its_successor() {
    let (slots, permits) = taken(1);
    let (a1, mut a2, b) = (queued(&slots, "a"), queued(&slots, "a"), queued(&slots, "b"));
    drop(a1);
    assert!(a2.is_woken());
    assert_pending!(a2.poll());
    drop(permits);
    assert_eq!(woken([&a2, &b]), [true, false]);
    drop(assert_ready_ok!(a2.poll()));
}

// Q4, Q5
#[test]
fn a_waiter_that_was_called_and_goes_away_leaves_the_call_to_its_successor() {
    let (slots, permits) = taken(1);
    let (a1, mut a2, mut b) = (queued(&slots, "a"), queued(&slots, "a"), queued(&slots, "b"));
    drop(permits);
    assert!(a1.is_woken());
    drop(a1);
    assert_eq!(woken([&a2, &b]), [true, false]);
    let permit = assert_ready_ok!(a2.poll());
    assert_pending!(b.poll());
    drop(permit);
    drop(assert_ready_ok!(b.poll()));
}

// Q4, Q5
#[test]
fn a_slot_whose_queue_empties_loses_its_place_and_its_call() {
    let (slots, permits) = taken(1);
    let (a, b, c) = (queued(&slots, "a"), queued(&slots, "b"), queued(&slots, "c"));
    drop(b);
    assert_eq!(line(&slots), 2);
    // Who comes back stands behind.
    let b = queued(&slots, "b");
    drop(permits);
    assert_eq!(woken([&a, &c, &b]), [true, false, false]);
    drop(a);
    assert_eq!(woken([&c, &b]), [true, false]);
    drop(c);
    assert_eq!(woken([&b]), [true]);
    drop(b);
    assert_eq!((line(&slots), slots.snapshot().total.in_flight), (0, 0));
    drop(slots.try_acquire("a").unwrap());
}

// Q3, Q4
#[tokio::test(start_paused = true)]
async fn a_waiter_that_times_out_in_line_says_so_and_leaves_its_place() {
    let (slots, permits) = taken(1);
    slots.configure("a", SlotLimits::new().wait_timeout(secs(2))).unwrap();
    let a1 = tokio::spawn(slots.acquire("a"));
    yield_now().await;
    slots.configure("a", SlotLimits::new().no_wait_timeout()).unwrap();
    let (mut a2, mut b) = (queued(&slots, "a"), queued(&slots, "b"));
    let error = a1.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.reason()), (SlotErrorKind::WaitTimeout, Some(WaitReason::Total)));
    assert_eq!((error.waited(), error.in_flight(), error.oldest()), (secs(2), 0, None));
    assert_pending!(a2.poll());
    drop(permits);
    assert_eq!(woken([&a2, &b]), [true, false]);
    drop(assert_ready_ok!(a2.poll()));
    drop(assert_ready_ok!(b.poll()));
}

// L4, Q4, L6
#[tokio::test(start_paused = true)]
async fn a_slot_that_is_paused_in_line_loses_its_place() {
    let (slots, mut permits) = taken(1);
    let (mut a, mut b) = (queued(&slots, "a"), queued(&slots, "b"));
    slots.pause("a", Instant::now() + secs(60));
    assert_eq!(line(&slots), 1);
    assert_pending!(a.poll());
    slots.resume("a");
    assert_pending!(a.poll());
    assert_eq!(line(&slots), 2);
    permits.clear();
    assert_eq!(woken([&a, &b]), [false, true]);
    drop(assert_ready_ok!(b.poll()));
    drop(assert_ready_ok!(a.poll()));
}

// L4, Q4, L6: though its first waiter has not seen the pause yet.
#[tokio::test(start_paused = true)]
async fn a_slot_that_is_paused_when_called_has_the_next_one_called() {
    let (slots, permits) = taken(1);
    let (mut a, mut b) = (queued(&slots, "a"), queued(&slots, "b"));
    drop(permits);
    assert_eq!(woken([&a, &b]), [true, false]);
    slots.pause("a", Instant::now() + secs(60));
    assert!(b.is_woken());
    assert_pending!(a.poll());
    drop(assert_ready_ok!(b.poll()));
    sleep(secs(60)).await;
    drop(assert_ready_ok!(a.poll()));
}

// L4, Q4, L6
#[test]
fn a_slot_that_is_lowered_below_what_it_has_loses_its_place() {
    let (slots, mut permits) = taken(3);
    permits.truncate(1);
    let mut of_a = vec![slots.try_acquire("a").unwrap(), slots.try_acquire("a").unwrap()];
    let (mut a, mut b) = (queued(&slots, "a"), queued(&slots, "b"));
    slots.configure("a", SlotLimits::new().concurrency(2)).unwrap();
    assert_eq!(line(&slots), 1);
    assert_pending!(a.poll());
    permits.clear();
    assert_eq!(woken([&a, &b]), [false, true]);
    let _b = assert_ready_ok!(b.poll());
    // Room in the slot and in the total comes with the same permit.
    of_a.pop();
    assert!(a.is_woken());
    drop(assert_ready_ok!(a.poll()));
}

// Q4, Q7
#[test]
fn no_newcomer_overtakes_a_slot_that_stands_or_was_called() {
    let (slots, mut permits) = taken(2);
    let mut a = queued(&slots, "a");
    permits.pop();
    assert!(a.is_woken());
    // The unit is kept for it.
    let mut b = queued(&slots, "b");
    let error = slots.try_acquire("c").unwrap_err();
    assert_eq!((error.kind(), error.reason()), (SlotErrorKind::QueueFull, Some(WaitReason::Total)));
    permits.pop();
    // One unit for each, and one after the other.
    let _b = assert_ready_ok!(b.poll());
    let _a = assert_ready_ok!(a.poll());
    assert_eq!(slots.snapshot().total.in_flight, 2);
}

// Q7: not even a unit that is kept for nobody.
#[test]
fn try_acquire_takes_no_unit_while_somebody_stands_in_line() {
    let (slots, mut permits) = taken(2);
    let mut a = queued(&slots, "a");
    permits.clear();
    assert_eq!(slots.try_acquire("b").unwrap_err().reason(), Some(WaitReason::Total));
    // One that may wait takes it, since it comes before nobody.
    let mut b = task::spawn(slots.acquire("b"));
    drop(assert_ready_ok!(b.poll()));
    drop(assert_ready_ok!(a.poll()));
    drop(slots.try_acquire("b").unwrap());
}

// Q2, Q4, case 19
#[test]
fn a_newcomer_refused_at_the_total_leaves_no_place() {
    let (slots, mut permits) = taken(1);
    slots.configure("a", SlotLimits::new().queue_capacity(0)).unwrap();
    let error = assert_ready_err!(task::spawn(slots.acquire("a")).poll());
    assert_eq!((error.kind(), error.reason()), (SlotErrorKind::QueueFull, Some(WaitReason::Total)));
    assert_eq!((error.in_flight(), error.earliest_start()), (0, None));
    assert_eq!(line(&slots), 0);
    let mut b = queued(&slots, "b");
    assert_eq!(refusal(&slots, "a"), Some(WaitReason::Total));
    permits.clear();
    // The unit is kept for "b".
    assert_eq!(refusal(&slots, "a"), Some(WaitReason::Total));
    let permit = assert_ready_ok!(b.poll());
    assert_eq!(refusal(&slots, "a"), Some(WaitReason::Total));
    drop(permit);
    drop(assert_ready_ok!(task::spawn(slots.acquire("a")).poll()));
}

// Q4
#[test]
fn a_slot_may_hold_as_much_of_the_total_as_its_concurrency_allows() {
    let slots = slots(SlotConfig::builder().concurrency(4).total_concurrency(4));
    let mut all: Vec<_> = (0..4).map(|_| slots.try_acquire("a").unwrap()).collect();
    let mut b = queued(&slots, "b");
    // Its own fifth waits for the slot, and does not stand in line.
    let a = queued(&slots, "a");
    assert_eq!(line(&slots), 1);
    all.pop();
    assert_eq!(woken([&a, &b]), [true, true]);
    drop(assert_ready_ok!(b.poll()));
}

// --- stalled

// Q6, case 45
#[test]
fn a_called_slot_that_nobody_polls_costs_one_unit_and_never_more() {
    let (slots, permits) = taken(2);
    let stalled: Vec<_> = (0..10).map(|_| queued(&slots, "a")).collect();
    let others = (0..5).map(|_| ("b", queued(&slots, "b"))).collect();
    drop(permits);
    assert!(stalled[0].is_woken());
    assert_eq!(run(others), "bbbbb");
    for _ in 0..5 {
        let permit = assert_ready_ok!(task::spawn(slots.acquire("c")).poll());
        drop(queued(&slots, "d"));
        drop(permit);
    }
    assert!(slots.stats("a").unwrap().stalled.is_some());
    assert_eq!((in_flight(&slots, "a"), waiting(&slots, "a")), (0, 10));
}
