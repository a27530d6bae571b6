//! Wakers that panic as they are woken: whom else it concerns hears of it, and nobody keeps what it did not get.

#![allow(clippy::panic, clippy::unwrap_used)]

mod by_hand;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use tokio_test::{assert_pending, assert_ready_ok};
use tower_slot::{Acquire, SlotConfig, SlotError, SlotPermit, Slots};

use by_hand::{in_flight, line, queued, slots, waiting, woken};

/// A waker that panics, and the panic hook does not see it.
struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        resume_unwind(Box::new("woken"));
    }
}

fn poll(waiter: &mut Pin<Box<Acquire>>, waker: &Waker) -> Poll<Result<SlotPermit, SlotError>> {
    waiter.as_mut().poll(&mut Context::from_waker(waker))
}

/// A waiter of the slot `key` whose waker panics.
fn panicking(slots: &Slots, key: &str) -> Pin<Box<Acquire>> {
    let mut waiter = Box::pin(slots.acquire(key));
    assert_pending!(poll(&mut waiter, &Arc::new(Panicking).into()));
    waiter
}

/// The panic that `f` ends with.
#[track_caller]
fn panic_of<T>(f: impl FnOnce() -> T) -> &'static str {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(f()))) else { panic!("it returned") };
    panic.downcast_ref::<&str>().unwrap()
}

// Q5
#[test]
fn a_waker_that_panics_keeps_the_slot_that_is_called_at_the_total_from_nothing() {
    let slots = slots(SlotConfig::builder().concurrency(1).total_concurrency(2));
    let (permit, _other) = (slots.try_acquire("a").unwrap(), slots.try_acquire("b").unwrap());
    let _first = panicking(&slots, "a");
    let called = queued(&slots, "c");
    assert_eq!(panic_of(|| drop(permit)), "woken");
    assert!(called.is_woken());
}

// B2, Q5: a start that wakes the next one is none if that panics; what it took is there again.
#[test]
fn whoever_starts_as_the_next_one_is_woken_and_panics_gives_its_permit_back() {
    let slots = slots(SlotConfig::builder().concurrency(2).total_concurrency(2));
    let permits = [(); 2].map(|()| slots.try_acquire("a").unwrap());
    let mut first = Box::pin(slots.acquire("a"));
    assert_pending!(poll(&mut first, Waker::noop()));
    let mut second = panicking(&slots, "a");
    drop(permits);

    assert_eq!(panic_of(|| poll(&mut first, Waker::noop())), "woken");
    assert_eq!((in_flight(&slots, "a"), waiting(&slots, "a")), (0, 1));
    let counts = slots.stats("a").unwrap().counts;
    assert_eq!((counts.asked, counts.started, counts.cancelled + counts.failed), (4, 3, 1));
    let second = assert_ready_ok!(poll(&mut second, Waker::noop()));
    assert_eq!(slots.snapshot().total.in_flight, 1);
    assert!(slots.try_acquire("b").is_ok(), "the other unit is free");
    drop(second);
}

// B2, Q5: a second panic would end the process.
#[test]
fn a_waker_that_panics_while_a_panic_gives_the_permit_back_leaves_that_panic_alone() {
    let slots = slots(SlotConfig::builder().concurrency(1).total_concurrency(1));
    let permit = slots.try_acquire("a").unwrap();
    let mut called = panicking(&slots, "b");
    let behind = queued(&slots, "c");
    let panic = panic_of(|| {
        let _permit = permit;
        resume_unwind(Box::new("the first"));
    });
    assert_eq!(panic, "the first");
    assert_eq!((in_flight(&slots, "a"), line(&slots), woken([&behind])), (0, 2, [false]));
    drop(assert_ready_ok!(poll(&mut called, Waker::noop())));
    assert_eq!(woken([&behind]), [true]);
}
