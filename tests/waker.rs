//! Wakers with a will of their own: what a waker's drop, wake and clone do to the slot it is for.

#![allow(clippy::unwrap_used)]

mod by_hand;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use cooked_waker::IntoWaker;
use tokio::runtime::Builder;
use tokio::time::sleep;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower_slot::{Acquire, SlotConfig, SlotError, SlotErrorKind, SlotLimits, SlotPermit, Slots};

use by_hand::{in_flight, line, must_not_hang, queued, secs, slots, taken, waiting};

/// A waker that owns a waiter: whoever drops the one drops the other.
struct Owner {
    _waiter: Mutex<task::Spawn<Acquire>>,
}

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

fn owner(waiter: task::Spawn<Acquire>) -> Waker {
    Arc::new(Owner { _waiter: Mutex::new(waiter) }).into()
}

fn poll(waiter: &mut Pin<Box<Acquire>>, waker: &Waker) -> Poll<Result<SlotPermit, SlotError>> {
    waiter.as_mut().poll(&mut Context::from_waker(waker))
}

/// Two waiters of the slot "a": the waker of the first owns the second.
fn entangled(slots: &Slots) -> Pin<Box<Acquire>> {
    let mut first = Box::pin(slots.acquire("a"));
    assert_pending!(poll(&mut first, Waker::noop()));
    let second = queued(slots, "a");
    assert_pending!(poll(&mut first, &owner(second)));
    assert_eq!(waiting(slots, "a"), 2);
    first
}

/// Runs `f` on a thread with a paused clock, and fails if it hangs.
#[track_caller]
fn paused<F: Future<Output = ()>>(f: impl FnOnce() -> F + Send + 'static) {
    must_not_hang(|| {
        Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(f());
    });
}

// Case 47
#[test]
fn a_waker_whose_drop_drops_another_waiter_may_be_dropped_anywhere() {
    paused(async || {
        let slots = slots(SlotConfig::builder().concurrency(1).total_concurrency(2));
        let permit = slots.try_acquire("a").unwrap();

        // Replaced by another waker.
        let mut first = entangled(&slots);
        assert_pending!(poll(&mut first, Waker::noop()));
        assert_eq!(waiting(&slots, "a"), 1);
        drop(first);

        // Gone with its waiter.
        drop(entangled(&slots));
        assert_eq!(waiting(&slots, "a"), 0);

        // Woken by a change: waking uses it up.
        let first = entangled(&slots);
        slots.configure("a", SlotLimits::new()).unwrap();
        assert_eq!(waiting(&slots, "a"), 1);
        drop(first);

        // Woken by a release.
        let mut first = entangled(&slots);
        drop(permit);
        assert_eq!(waiting(&slots, "a"), 1);
        let permit = assert_ready_ok!(poll(&mut first, Waker::noop()));

        // Woken by a release at the total, by way of another slot.
        let others = [slots.try_acquire("b").unwrap(), permit];
        let mut at_total = Box::pin(slots.acquire("c"));
        assert_pending!(poll(&mut at_total, &owner(queued(&slots, "a"))));
        drop(others);
        assert_eq!(waiting(&slots, "a"), 0);
        drop(assert_ready_ok!(poll(&mut at_total, Waker::noop())));

        // Left over when its waiter starts by its own timer.
        slots.configure("a", SlotLimits::new().delay(secs(1))).unwrap();
        let mut first = entangled(&slots);
        sleep(secs(1)).await;
        let permit = assert_ready_ok!(poll(&mut first, Waker::noop()));
        assert_eq!(waiting(&slots, "a"), 0);

        // Left over when its waiter times out.
        slots.configure("a", SlotLimits::new().wait_timeout(secs(1))).unwrap();
        let mut first = entangled(&slots);
        sleep(secs(1)).await;
        assert_ready_err!(poll(&mut first, Waker::noop()));
        assert_eq!(waiting(&slots, "a"), 0);

        // Woken by the close.
        slots.configure("a", SlotLimits::new().no_wait_timeout()).unwrap();
        let mut first = entangled(&slots);
        slots.close();
        assert_eq!(waiting(&slots, "a"), 1);
        assert_ready_err!(poll(&mut first, Waker::noop()));
        drop(permit);
    });
}

/// A waker that polls its waiter on the spot.
struct Inline {
    waiter: Mutex<Option<Pin<Box<Acquire>>>>,
    then: Box<dyn Fn(Result<SlotPermit, SlotError>) + Send + Sync>,
}

impl Inline {
    fn queue(slots: &Slots, key: &str, then: impl Fn(Result<SlotPermit, SlotError>) + Send + Sync + 'static) {
        let waiter = Mutex::new(Some(Box::pin(slots.acquire(key))));
        Arc::new(Self { waiter, then: Box::new(then) }).wake();
    }
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let mut waiter = self.waiter.lock().unwrap();
        let Some(acquire) = &mut *waiter else { return };
        let Poll::Ready(result) = poll(acquire, &self.clone().into()) else { return };
        *waiter = None;
        drop(waiter);
        (self.then)(result);
    }
}

// Case 47
#[test]
fn a_waker_that_polls_on_the_spot_starts_its_waiter_inside_the_release() {
    must_not_hang(|| {
        let slots = slots(SlotConfig::builder().concurrency(1));
        let permit = slots.try_acquire("a").unwrap();
        let started = Arc::new(Mutex::new(Vec::new()));
        for n in 0..50 {
            let started = started.clone();
            // Its permit goes back at once, still inside the wakeup.
            Inline::queue(&slots, "a", move |permit| started.lock().unwrap().push((n, permit.is_ok())));
        }
        drop(permit);
        assert_eq!(*started.lock().unwrap(), (0..50).map(|n| (n, true)).collect::<Vec<_>>());
        assert_eq!((in_flight(&slots, "a"), waiting(&slots, "a")), (0, 0));
    });
}

// Case 47
#[test]
fn wakers_that_poll_on_the_spot_start_their_waiters_inside_a_change_and_end_them_inside_the_close() {
    must_not_hang(|| {
        let slots = slots(SlotConfig::builder().concurrency(1).total_concurrency(8));
        let permit = slots.try_acquire("a").unwrap();
        let results = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..20 {
            let results = results.clone();
            Inline::queue(&slots, "a", move |result| results.lock().unwrap().push(result));
        }
        slots.configure("a", SlotLimits::new().concurrency(5)).unwrap();
        assert_eq!((in_flight(&slots, "a"), waiting(&slots, "a")), (5, 16));
        slots.configure_default(SlotLimits::new().concurrency(1)).unwrap();
        slots.configure("a", SlotLimits::new().unlimited_concurrency()).unwrap();
        assert_eq!((in_flight(&slots, "a"), waiting(&slots, "a")), (8, 13));
        slots.configure_total(Some(10)).unwrap();
        assert_eq!((in_flight(&slots, "a"), waiting(&slots, "a")), (10, 11));
        slots.close();
        assert_eq!((in_flight(&slots, "a"), waiting(&slots, "a")), (10, 0));
        let failed = results.lock().unwrap().iter().filter(|result| result.is_err()).count();
        assert_eq!(failed, 11);
        drop(permit);
    });
}

/// A waker whose first clone does something.
struct OnClone(Arc<Mutex<Option<Act>>>);

type Act = Box<dyn FnOnce() + Send>;

impl Clone for OnClone {
    fn clone(&self) -> Self {
        let act = self.0.lock().unwrap().take();
        act.into_iter().for_each(|act| act());
        Self(self.0.clone())
    }
}

impl cooked_waker::WakeRef for OnClone {
    fn wake_by_ref(&self) {}
}

impl cooked_waker::Wake for OnClone {}

fn on_clone(act: impl FnOnce() + Send + 'static) -> Waker {
    Box::new(OnClone(Arc::new(Mutex::new(Some(Box::new(act)))))).into_waker()
}

// Case 47
#[test]
fn a_waker_whose_clone_changes_the_slot_has_its_waiter_look_anew() {
    must_not_hang(|| {
        let slots = slots(SlotConfig::builder().concurrency(1));
        let permit = slots.try_acquire("a").unwrap();

        // It gives back the permit that the waiter would have waited for.
        let mut waiter = Box::pin(slots.acquire("a"));
        let permit = assert_ready_ok!(poll(&mut waiter, &on_clone(|| drop(permit))));

        // It lets another one in first.
        let (other, handle) = (Arc::new(Mutex::new(None)), slots.clone());
        let mut waiter = Box::pin(slots.acquire("a"));
        let queue_other = {
            let other = other.clone();
            move || *other.lock().unwrap() = Some(queued(&handle, "a"))
        };
        assert_pending!(poll(&mut waiter, &on_clone(queue_other)));
        let mut other = other.lock().unwrap().take().unwrap();
        drop(permit);
        assert_pending!(poll(&mut waiter, Waker::noop()));
        let permit = assert_ready_ok!(other.poll());

        // It drops the one in front, when a waiter only changes its waker.
        let front = waiter;
        let mut waiter = Box::pin(slots.acquire("a"));
        assert_pending!(poll(&mut waiter, Waker::noop()));
        assert_pending!(poll(&mut waiter, &on_clone(|| drop(front))));
        assert_eq!(waiting(&slots, "a"), 1);

        // It closes the slots.
        let handle = slots.clone();
        let closed = poll(&mut waiter, &on_clone(move || handle.close()));
        assert_eq!(assert_ready_err!(closed).kind(), SlotErrorKind::Closed);
        drop(permit);
    });
}

// Q4
#[test]
fn a_waker_whose_clone_panics_leaves_no_place_in_the_queue_nor_in_the_line() {
    let (slots, permits) = taken(1);
    let mut waiter = Box::pin(slots.acquire("a"));
    let waker = on_clone(|| resume_unwind(Box::new("cloned")));
    let panic = catch_unwind(AssertUnwindSafe(|| poll(&mut waiter, &waker))).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"cloned"));
    assert_eq!((waiting(&slots, "a"), line(&slots)), (0, 0));
    drop(permits);
    assert!(slots.try_acquire("b").is_ok());
    drop(assert_ready_ok!(poll(&mut waiter, Waker::noop())));
}
