//! The queue of a slot: order, bound, wait timeout.

mod by_hand;

use std::convert::Infallible;
use std::future::pending;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{Layer, Service, service_fn};
use tower_slot::{SlotConfig, SlotErrorKind, SlotLayer, SlotLimits, WaitReason};

use by_hand::{in_flight, queued, secs, slots, visit, waiting};

// --- order

// Q1, words: the place is taken at the first poll.
#[test]
fn waiters_start_in_the_order_in_which_they_were_first_polled() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let mut permit = slots.try_acquire("a").unwrap();
    let mut waiters: Vec<_> = (0..4).map(|_| task::spawn(slots.acquire("a"))).collect();
    let order = [2, 0, 3, 1];
    for waiter in order {
        assert_pending!(waiters[waiter].poll());
    }
    for waiter in order {
        drop(permit);
        let woken: Vec<_> = (0..4).filter(|it| waiters[*it].is_woken()).collect();
        assert_eq!(woken, [waiter]);
        permit = assert_ready_ok!(waiters[waiter].poll());
    }
}

// Q1
#[test]
fn order_stays_when_waiters_leave_from_anywhere() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let mut permit = slots.try_acquire("a").unwrap();
    let mut waiters: Vec<_> = (0..100).map(|_| Some(queued(&slots, "a"))).collect();
    let leaves = |n: usize| n % 3 == 0 || (40..50).contains(&n) || n == 99;
    for n in (0..100).rev().filter(|n| leaves(*n)) {
        waiters[n] = None;
    }
    for n in (0..100).filter(|n| !leaves(*n)) {
        drop(permit);
        permit = assert_ready_ok!(waiters[n].as_mut().unwrap().poll());
    }
    assert_eq!(slots.stats("a").unwrap().counts.gone, 34 + 7);
}

// Q1, Q7
#[test]
fn a_newcomer_never_overtakes_a_waiter_that_was_woken_and_not_polled() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let permit = slots.try_acquire("a").unwrap();
    let mut first = queued(&slots, "a");
    drop(permit);
    assert!(first.is_woken());
    let mut newcomer = queued(&slots, "a");
    assert_eq!(slots.try_acquire("a").unwrap_err().kind(), SlotErrorKind::QueueFull);
    let permit = assert_ready_ok!(first.poll());
    assert!(!newcomer.is_woken());
    drop(permit);
    drop(assert_ready_ok!(newcomer.poll()));
}

// Q1
#[test]
fn a_full_slot_does_not_hold_up_another() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let _permit = slots.try_acquire("a").unwrap();
    let _waiters: Vec<_> = (0..100).map(|_| queued(&slots, "a")).collect();
    drop(assert_ready_ok!(task::spawn(slots.acquire("b")).poll()));
}

// Q7
#[tokio::test(start_paused = true)]
async fn try_acquire_takes_a_permit_only_if_it_could_start_now_and_nobody_waits() {
    let slots = slots(SlotConfig::builder().concurrency(2).delay(secs(1)));
    let refused = || {
        let error = slots.try_acquire("a").unwrap_err();
        assert_eq!(error.kind(), SlotErrorKind::QueueFull);
        error.reason().unwrap()
    };
    let first = slots.try_acquire("a").unwrap();
    assert_eq!(refused(), WaitReason::Pace);
    sleep(secs(1)).await;
    let second = slots.try_acquire("a").unwrap();
    sleep(secs(1)).await;
    assert_eq!(refused(), WaitReason::Concurrency);
    // There is room and the pace is due, but somebody waits.
    let mut waiter = queued(&slots, "a");
    drop(first);
    assert_eq!(refused(), WaitReason::Concurrency);
    drop(assert_ready_ok!(waiter.poll()));
    sleep(secs(1)).await;
    drop((slots.try_acquire("a").unwrap(), second));
    assert_eq!(slots.stats("a").unwrap().counts.refused, 3);
}

// --- bound

// Q2
#[test]
fn the_capacity_counts_all_who_wait_and_the_first_one_too() {
    let slots = slots(SlotConfig::builder().concurrency(1).queue_capacity(2));
    let permit = slots.try_acquire("a").unwrap();
    let (mut first, _second) = (queued(&slots, "a"), queued(&slots, "a"));
    let mut third = task::spawn(slots.acquire("a"));
    assert_eq!(assert_ready_err!(third.poll()).kind(), SlotErrorKind::QueueFull);
    assert_eq!(waiting(&slots, "a"), 2);
    drop(permit);
    // Woken is still waiting.
    assert_ready_err!(task::spawn(slots.acquire("a")).poll());
    let _permit = assert_ready_ok!(first.poll());
    let _third = queued(&slots, "a");
}

// Q2, case 14
#[test]
fn waiters_that_leave_make_room_at_once() {
    let slots = slots(SlotConfig::builder().concurrency(1).queue_capacity(10));
    let _permit = slots.try_acquire("a").unwrap();
    let mut waiters: Vec<_> = (0..10).map(|_| queued(&slots, "a")).collect();
    assert_ready_err!(task::spawn(slots.acquire("a")).poll());
    waiters.drain(3..8);
    assert_eq!(waiting(&slots, "a"), 5);
    waiters.extend((0..5).map(|_| queued(&slots, "a")));
    assert_ready_err!(task::spawn(slots.acquire("a")).poll());
    assert_eq!(waiting(&slots, "a"), 10);
}

// Q2, case 19
#[tokio::test(start_paused = true)]
async fn capacity_zero_means_no_waiting_when_full_or_at_the_pace() {
    let slots = slots(SlotConfig::builder().concurrency(1).delay(secs(1)).queue_capacity(0));
    let refused = async || {
        let error = slots.acquire("a").await.unwrap_err();
        assert_eq!((error.kind(), error.waited()), (SlotErrorKind::QueueFull, Duration::ZERO));
        error.reason().unwrap()
    };
    let permit = slots.acquire("a").await.unwrap();
    assert_eq!(refused().await, WaitReason::Concurrency);
    drop(permit);
    assert_eq!(refused().await, WaitReason::Pace);
    sleep(secs(1)).await;
    drop(slots.acquire("a").await.unwrap());
    assert_eq!(slots.stats("a").unwrap().counts.refused, 2);
}

// Q2, case 19
#[tokio::test(start_paused = true)]
async fn capacity_zero_never_refuses_because_the_inner_service_is_pending() {
    #[derive(Clone)]
    struct NeverReady;
    impl Service<Request<()>> for NeverReady {
        type Response = Response<Empty<Bytes>>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;
        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Pending
        }
        fn call(&mut self, _: Request<()>) -> Self::Future {
            unreachable!("it was never ready")
        }
    }
    let layer = SlotLayer::new(SlotConfig::builder().concurrency(3).queue_capacity(0).build().unwrap());
    let request = || Request::get("http://a/").body(()).unwrap();

    let never_ready = layer.layer(NeverReady);
    let mut one = task::spawn(never_ready.clone().call(request()));
    assert_pending!(one.poll());
    let mut other = task::spawn(never_ready.clone().call(request()));
    assert_pending!(other.poll());
    assert_pending!(one.poll());

    let answer = |_: Request<()>| pending::<Result<Response<Empty<Bytes>>, Infallible>>();
    let mut third = task::spawn(layer.layer(service_fn(answer)).call(request()));
    assert_pending!(third.poll());
    assert_eq!((in_flight(layer.slots(), "a"), waiting(layer.slots(), "a")), (3, 0));
    // Only now the slot is full.
    assert_ready_err!(task::spawn(never_ready.clone().call(request())).poll());
}

// Q2
#[tokio::test(start_paused = true)]
async fn queue_full_tells_the_reason_and_where_known_the_earliest_start() {
    let slots = slots(SlotConfig::builder().concurrency(1).queue_capacity(1));
    let refused = || slots.try_acquire("a").unwrap_err();
    let newcomer = || assert_ready_err!(task::spawn(slots.acquire("a")).poll());

    // Full, and nobody knows for how long.
    let permit = slots.try_acquire("a").unwrap();
    let begin = Instant::now();
    let waiter = queued(&slots, "a");
    sleep(secs(2)).await;
    for error in [newcomer(), refused()] {
        assert_eq!(error.kind(), SlotErrorKind::QueueFull);
        assert_eq!(error.slot().as_str(), "a");
        assert_eq!(error.reason(), Some(WaitReason::Concurrency));
        assert_eq!((error.earliest_start(), error.retry_after()), (None, None));
        assert_eq!((error.in_flight(), error.oldest()), (1, Some(secs(2))));
        assert_eq!(error.waited(), Duration::ZERO);
        let text = "slot \"a\": queue is full, waiting for concurrency, 1 in flight, the oldest for 2s";
        assert_eq!(error.to_string(), text);
    }

    // Full, and not before the pace allows it.
    slots.configure("a", SlotLimits::new().delay(secs(10))).unwrap();
    for error in [newcomer(), refused()] {
        assert_eq!(error.reason(), Some(WaitReason::Concurrency));
        assert_eq!(error.earliest_start(), Some(begin + secs(10)));
        assert_eq!(error.retry_after(), Some(secs(8)));
    }

    // At its pace.
    drop((permit, waiter));
    let waiter = queued(&slots, "a");
    for error in [newcomer(), refused()] {
        assert_eq!(error.reason(), Some(WaitReason::Pace));
        assert_eq!(error.earliest_start(), Some(begin + secs(10)));
        assert_eq!((error.in_flight(), error.oldest()), (0, None));
    }

    // Paused.
    slots.pause("a", begin + secs(60));
    assert_eq!(newcomer().earliest_start(), Some(begin + secs(60)));
    assert_eq!(newcomer().reason(), Some(WaitReason::Pace));
    drop(waiter);
}

// --- wait timeout

// Q3, case 17
#[tokio::test(start_paused = true)]
async fn the_third_of_three_that_nobody_reads_ends_with_a_wait_timeout_that_says_why() {
    let slots = slots(SlotConfig::builder().concurrency(2).wait_timeout(secs(3)));
    let begin = Instant::now();
    let _first = slots.acquire("api").await.unwrap();
    sleep(secs(1)).await;
    let _second = slots.acquire("api").await.unwrap();
    let error = slots.acquire("api").await.unwrap_err();
    assert_eq!(begin.elapsed(), secs(4));
    assert_eq!(error.kind(), SlotErrorKind::WaitTimeout);
    assert_eq!(error.slot().as_str(), "api");
    assert_eq!(error.waited(), secs(3));
    assert_eq!(error.reason(), Some(WaitReason::Concurrency));
    assert_eq!((error.in_flight(), error.oldest()), (2, Some(secs(4))));
    assert_eq!((error.stalled(), error.earliest_start()), (None, None));
    let text = "slot \"api\": no start within 3s, waiting for concurrency, 2 in flight, the oldest for 4s";
    assert_eq!(error.to_string(), text);
    let counts = slots.stats("api").unwrap().counts;
    assert_eq!((counts.asked, counts.timed_out, counts.gone), (3, 1, 0));
}

// Q3
#[tokio::test(start_paused = true)]
async fn a_wait_timeout_at_the_pace_tells_when_a_start_could_have_come() {
    let slots = slots(SlotConfig::builder().delay(secs(10)).wait_timeout(secs(3)));
    let begin = Instant::now();
    drop(slots.acquire("a").await.unwrap());
    sleep(secs(1)).await;
    let error = slots.acquire("a").await.unwrap_err();
    assert_eq!((error.kind(), error.waited()), (SlotErrorKind::WaitTimeout, secs(3)));
    assert_eq!(error.reason(), Some(WaitReason::Pace));
    assert_eq!((error.in_flight(), error.oldest(), error.stalled()), (0, None, None));
    assert_eq!(error.earliest_start(), Some(begin + secs(10)));
    assert_eq!(error.retry_after(), Some(secs(6)));
}

// Q3, words: the wait begins at the first poll.
#[tokio::test(start_paused = true)]
async fn a_wait_timeout_runs_from_the_first_poll() {
    let slots = slots(SlotConfig::builder().concurrency(1).wait_timeout(secs(1)));
    let _permit = slots.acquire("a").await.unwrap();
    let waiter = slots.acquire("a");
    sleep(secs(5)).await;
    assert_eq!(waiting(&slots, "a"), 0);
    let polled = Instant::now();
    assert_eq!(waiter.await.unwrap_err().waited(), secs(1));
    assert_eq!(polled.elapsed(), secs(1));
}

// Q3
#[tokio::test(start_paused = true)]
async fn a_start_and_a_timeout_in_the_same_instant_is_a_start() {
    let slots = slots(SlotConfig::builder().concurrency(1).delay(secs(1)).wait_timeout(secs(1)));
    // The pace is due when the timeout is.
    drop(slots.acquire("a").await.unwrap());
    let permit = slots.acquire("a").await.unwrap();
    // The permit comes back when the timeout is due.
    let mut waiter = queued(&slots, "a");
    sleep(secs(1)).await;
    drop(permit);
    drop(assert_ready_ok!(waiter.poll()));
}

// Q3
#[tokio::test(start_paused = true)]
async fn without_a_wait_timeout_a_wait_has_no_end() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let permit = slots.acquire("a").await.unwrap();
    let ten_years = secs(10 * 365 * 24 * 3_600);
    let waiter = visit(&slots, "a", Duration::ZERO);
    timeout(ten_years, pending::<()>()).await.unwrap_err();
    drop(permit);
    assert_eq!(waiter.await.unwrap(), ten_years);
}

// Q3
#[tokio::test(start_paused = true)]
async fn a_wait_timeout_of_nothing_is_a_timeout_in_the_same_instant() {
    let slots = slots(SlotConfig::builder().concurrency(1).wait_timeout(Duration::ZERO));
    let permit = slots.acquire("a").await.unwrap();
    let begin = Instant::now();
    let error = slots.acquire("a").await.unwrap_err();
    assert_eq!((error.kind(), error.waited()), (SlotErrorKind::WaitTimeout, Duration::ZERO));
    assert_eq!(begin.elapsed(), Duration::ZERO);
    drop(permit);
    drop(slots.acquire("a").await.unwrap());
}

// Q3, Q5
#[tokio::test(start_paused = true)]
async fn a_first_waiter_that_times_out_at_the_pace_leaves_its_start_to_the_next() {
    let slots = slots(SlotConfig::builder().delay(secs(10)).wait_timeout(secs(1)));
    drop(slots.acquire("a").await.unwrap());
    let first = tokio::spawn(slots.acquire("a"));
    yield_now().await;
    slots.configure("a", SlotLimits::new().no_wait_timeout()).unwrap();
    let next = visit(&slots, "a", Duration::ZERO);
    assert_eq!(first.await.unwrap().unwrap_err().kind(), SlotErrorKind::WaitTimeout);
    assert_eq!(next.await.unwrap(), secs(10));
}

// Q3, Q5
#[tokio::test(start_paused = true)]
async fn a_waiter_in_the_middle_times_out_and_order_stays() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let permit = slots.acquire("a").await.unwrap();
    let mut first = queued(&slots, "a");
    slots.configure("a", SlotLimits::new().wait_timeout(secs(1))).unwrap();
    let mut middle = queued(&slots, "a");
    slots.configure("a", SlotLimits::new().no_wait_timeout()).unwrap();
    let mut last = queued(&slots, "a");
    assert_pending!(first.poll());
    sleep(secs(1)).await;
    assert!(middle.is_woken());
    let error = assert_ready_err!(middle.poll());
    assert_eq!((error.kind(), error.reason()), (SlotErrorKind::WaitTimeout, Some(WaitReason::Concurrency)));
    assert_eq!(waiting(&slots, "a"), 2);
    drop(permit);
    assert!(first.is_woken() && !last.is_woken());
    drop(assert_ready_ok!(first.poll()));
    drop(assert_ready_ok!(last.poll()));
}
