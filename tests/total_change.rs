//! Changes of the total while slots are in use.

mod by_hand;

use tokio::time::sleep;
use tokio_test::{assert_pending, assert_ready_ok};
use tower_slot::{SlotConfig, WaitReason};

use by_hand::{in_flight, line, queued, secs, slots, taken, visit, woken};

// Q4, L6
#[test]
fn slots_that_were_called_go_back_to_their_old_places_when_the_total_is_lowered() {
    let (slots, mut permits) = taken(4);
    let [mut a, mut b, mut c, mut d] = ["a", "b", "c", "d"].map(|key| queued(&slots, key));
    permits.truncate(1);
    assert_eq!(woken([&a, &b, &c, &d]), [true, true, true, false]);
    // One of the three units stays, for the first in the line.
    slots.configure_total(Some(2)).unwrap();
    let mut newcomer = queued(&slots, "e");
    for waiter in [&mut d, &mut c, &mut b] {
        assert_pending!(waiter.poll());
    }
    let of_a = assert_ready_ok!(a.poll());
    assert_eq!(slots.snapshot().total.in_flight, 2);
    let mut last = of_a;
    for next in 0..4 {
        let line = [&mut b, &mut c, &mut d, &mut newcomer];
        drop(last);
        let woken = line.each_ref().map(|waiter| waiter.is_woken());
        assert_eq!(woken.iter().position(|woken| *woken), Some(next), "{woken:?}");
        last = assert_ready_ok!(line[next].poll());
    }
}

// Q4, L6
#[test]
fn a_slot_that_was_called_back_and_forth_starts_once_the_total_allows_it() {
    let (slots, mut permits) = taken(2);
    let (mut a, mut b) = (queued(&slots, "a"), queued(&slots, "b"));
    permits.clear();
    slots.configure_total(Some(1)).unwrap();
    slots.configure_total(Some(2)).unwrap();
    slots.configure_total(Some(1)).unwrap();
    let of_a = assert_ready_ok!(a.poll());
    assert_pending!(b.poll());
    slots.configure_total(Some(2)).unwrap();
    assert!(b.is_woken());
    let of_b = assert_ready_ok!(b.poll());
    drop((of_a, of_b));
    assert_eq!((slots.snapshot().total.in_flight, line(&slots)), (0, 0));
}

// L6
#[tokio::test(start_paused = true)]
async fn raising_the_total_starts_as_many_at_once() {
    let (slots, permits) = taken(1);
    let mut visits: Vec<_> = ["a", "a", "b", "c"].map(|key| visit(&slots, key, secs(1_000))).into();
    sleep(secs(1)).await;
    slots.configure_total(Some(3)).unwrap();
    sleep(secs(1)).await;
    assert_eq!(["a", "b", "c"].map(|key| in_flight(&slots, key)), [1, 1, 0]);
    slots.configure_total(None).unwrap();
    sleep(secs(1)).await;
    assert_eq!(["a", "b", "c"].map(|key| in_flight(&slots, key)), [2, 1, 1]);
    assert_eq!(slots.snapshot().total.limit, None);
    let last = visits.pop().unwrap();
    assert_eq!(last.await.unwrap(), secs(2));
    drop(permits);
}

// L6
#[test]
fn lowering_the_total_lets_those_in_flight_finish_and_admits_nobody_until_there_is_room() {
    let (slots, mut permits) = taken(4);
    slots.configure_total(Some(2)).unwrap();
    let mut a = queued(&slots, "a");
    for left in [3, 2] {
        permits.pop();
        assert!(!a.is_woken());
        assert_pending!(a.poll());
        assert_eq!(slots.snapshot().total.in_flight, left);
    }
    permits.pop();
    drop(assert_ready_ok!(a.poll()));
}

// L6
#[test]
fn a_total_that_is_switched_on_counts_those_in_flight() {
    let slots = slots(SlotConfig::builder());
    let mut before: Vec<_> = ["a", "a", "b"].map(|key| slots.try_acquire(key).unwrap()).into();
    slots.configure_total(Some(4)).unwrap();
    let total = slots.snapshot().total;
    assert_eq!((total.limit, total.in_flight, total.line), (Some(4), 3, 0));
    let fourth = slots.try_acquire("c").unwrap();
    let mut waiter = queued(&slots, "b");
    assert_eq!(slots.stats("b").unwrap().reason, Some(WaitReason::Total));
    // One from before the cap gives its unit back like any other.
    before.pop();
    let fifth = assert_ready_ok!(waiter.poll());
    assert_eq!(slots.snapshot().total.in_flight, 4);
    drop((before, fourth, fifth));
    assert_eq!(slots.snapshot().total.in_flight, 0);
}

// L6
#[test]
fn a_total_that_is_switched_on_below_those_in_flight_admits_nobody_until_there_is_room() {
    let slots = slots(SlotConfig::builder());
    let mut before: Vec<_> = ["a", "a", "b"].map(|key| slots.try_acquire(key).unwrap()).into();
    slots.configure_total(Some(1)).unwrap();
    let mut waiter = queued(&slots, "c");
    before.truncate(1);
    assert_pending!(waiter.poll());
    before.clear();
    drop(assert_ready_ok!(waiter.poll()));
}

// L6: also for those who wait in a slot for something else, and who ask for it only then.
#[test]
fn a_total_that_is_switched_on_holds_for_those_who_wait_already() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let (of_a, of_b) = (slots.try_acquire("a").unwrap(), slots.try_acquire("b").unwrap());
    let (mut a, mut b) = (queued(&slots, "a"), queued(&slots, "b"));
    slots.configure_total(Some(1)).unwrap();
    drop(of_a);
    assert_pending!(a.poll());
    assert_eq!(slots.stats("a").unwrap().reason, Some(WaitReason::Total));
    drop(of_b);
    assert_pending!(b.poll());
    drop(assert_ready_ok!(a.poll()));
    drop(assert_ready_ok!(b.poll()));
}

// L6
#[test]
fn a_total_that_is_lifted_and_set_again_has_counted_all_along() {
    let (slots, mut permits) = taken(2);
    slots.configure_total(None).unwrap();
    permits.extend((0..3).map(|_| slots.try_acquire("a").unwrap()));
    assert_eq!(slots.snapshot().total.in_flight, 5);
    slots.configure_total(Some(5)).unwrap();
    let mut b = queued(&slots, "b");
    drop(permits.remove(0));
    drop(assert_ready_ok!(b.poll()));
}

// L1
#[test]
fn a_total_of_nothing_is_refused_and_changes_nothing() {
    let (slots, permits) = taken(1);
    let error = slots.configure_total(Some(0)).unwrap_err();
    assert!(error.to_string().contains("total_concurrency"), "{error}");
    assert_eq!(slots.snapshot().total.limit, Some(1));
    drop(permits);
    drop(slots.try_acquire("a").unwrap());
}
