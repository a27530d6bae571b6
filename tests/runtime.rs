//! Runtimes: what works without one, what does not, and what is left when one ends.

#![allow(clippy::unwrap_used)]

mod by_hand;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_test::{assert_ready_err, assert_ready_ok, task};
use tower_slot::{SlotConfig, SlotLimits, SlotPermit, Slots, WaitReason};

use by_hand::{in_flight, line, millis, queued, secs, slots, visit, waiting};

// S6
#[test]
fn acquiring_without_waiting_works_without_a_runtime() {
    let slots = slots(SlotConfig::builder().concurrency(2).delay(secs(60)).total_concurrency(8));
    let _a = slots.try_acquire("a").unwrap();
    let _b = assert_ready_ok!(task::spawn(slots.acquire("b")).poll());
    assert_eq!(slots.try_acquire("a").unwrap_err().reason(), Some(WaitReason::Pace));
    slots.configure("b", SlotLimits::new().queue_capacity(0)).unwrap();
    assert_ready_err!(task::spawn(slots.acquire("b")).poll());
}

// S6: waiting for somebody needs no timer.
#[test]
fn waiting_for_a_permit_works_without_a_runtime() {
    let slots = slots(SlotConfig::builder().concurrency(1).total_concurrency(1));
    let a = slots.try_acquire("a").unwrap();
    let mut in_slot = queued(&slots, "a");
    let mut at_total = queued(&slots, "b");
    drop(a);
    assert!(at_total.is_woken());
    drop(assert_ready_ok!(at_total.poll()));
    drop(assert_ready_ok!(in_slot.poll()));
}

/// The slots of somebody who waits for a moment: at the pace, or with a wait timeout.
fn timed() -> [(Slots, SlotPermit); 2] {
    let config = || SlotConfig::builder().concurrency(1);
    [config().concurrency(2).delay(secs(1)), config().wait_timeout(secs(1))].map(|config| {
        let slots = slots(config);
        let permit = slots.try_acquire("a").unwrap();
        (slots, permit)
    })
}

// S6
#[test]
fn waiting_for_a_moment_without_a_timer_panics_and_leaves_the_slot_usable() {
    let without_time = Builder::new_current_thread().build().unwrap();
    for (runtime, text) in [(None, "no reactor running"), (Some(&without_time), "timers are disabled")] {
        let _inside = runtime.map(Runtime::enter);
        for (slots, permit) in timed() {
            let mut waiter = task::spawn(slots.acquire("a"));
            let panic = catch_unwind(AssertUnwindSafe(|| waiter.poll())).unwrap_err();
            let message = panic.downcast_ref::<String>().cloned();
            let message = message.or(panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap();
            assert!(message.contains(text), "{message}");
            drop(waiter);
            assert_eq!((in_flight(&slots, "a"), waiting(&slots, "a")), (1, 0));
            drop(permit);
            slots.configure("a", SlotLimits::new().delay(Duration::ZERO)).unwrap();
            drop(assert_ready_ok!(task::spawn(slots.acquire("a")).poll()));
        }
    }
}

// S6
#[test]
fn a_waiter_that_panicked_without_a_timer_goes_on_where_there_is_one() {
    let slots = slots(SlotConfig::builder().delay(secs(1)));
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let started = runtime.block_on(async { slots.try_acquire("a").map(|_| Instant::now()) }).unwrap();
    let mut waiter = task::spawn(slots.acquire("a"));
    catch_unwind(AssertUnwindSafe(|| waiter.poll())).unwrap_err();
    drop(runtime.block_on(waiter).unwrap());
    assert_eq!(runtime.block_on(async { started.elapsed() }), secs(1));
}

// S6
#[test]
fn a_runtime_that_ends_takes_its_waiters_with_it_and_leaves_the_slots_usable_from_another() {
    let hour = secs(3_600);
    let paced = SlotLimits::new().delay(hour);
    let slots = slots(SlotConfig::builder().concurrency(1).total_concurrency(3).slot("paced", paced));
    let runtime = || Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let first = runtime();
    let last_start = first.block_on(async {
        drop(slots.try_acquire("paced").unwrap());
        let last_start = Instant::now();
        // Three that stay, each with three that wait; one slot at its pace; one at the total.
        for key in ["x", "y", "z", "paced", "at total"] {
            (0..4).for_each(|_| _ = visit(&slots, key, hour));
        }
        while slots.snapshot().slots.iter().map(|slot| slot.waiting).sum::<usize>() < 9 + 4 + 4 {
            yield_now().await;
        }
        last_start
    });
    assert_eq!((slots.snapshot().total.in_flight, line(&slots)), (3, 1));
    drop(first);

    let snapshot = slots.snapshot();
    assert_eq!((snapshot.total.in_flight, snapshot.total.line), (0, 0));
    for slot in snapshot.slots {
        assert_eq!((slot.in_flight, slot.waiting), (0, 0), "{}", slot.key);
    }
    runtime().block_on(async {
        for key in ["x", "y", "at total", "paced"] {
            drop(slots.acquire(key).await.unwrap());
        }
        let late = last_start.elapsed().checked_sub(hour).unwrap();
        // The clocks of the two are not in step.
        assert!(late < millis(1), "{late:?} late");
    });
}

// S6: one that is kept by hand holds its place until it is dropped, and no longer.
#[test]
fn a_waiter_that_outlives_its_runtime_leaves_its_place_when_it_is_dropped() {
    let slots = slots(SlotConfig::builder().delay(secs(3_600)));
    drop(slots.try_acquire("a").unwrap());
    let first = Builder::new_current_thread().enable_time().build().unwrap();
    let inside = first.enter();
    let waiter = queued(&slots, "a");
    drop(inside);
    let second = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let next = second.spawn(slots.acquire("a"));
    second.block_on(yield_now());
    drop(first);
    second.block_on(yield_now());
    assert!(!next.is_finished());
    drop(waiter);
    drop(second.block_on(next).unwrap().unwrap());
}
