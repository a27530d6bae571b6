//! The queue of a slot: order, bound, wait timeout, and who is woken when.

mod by_hand;

use std::convert::Infallible;
use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use cooked_waker::IntoWaker;
use futures_util::StreamExt;
use http::{Request, Response};
use http_body_util::Empty;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Barrier, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{Layer, Service, service_fn};
use tower_slot::{
    Acquire, SlotConfig, SlotError, SlotErrorKind, SlotLayer, SlotLimits, SlotPermit, Slots, WaitReason,
};

use by_hand::{
    Hand, Watch, Watched, in_flight, line, millis, must_not_hang, queued, secs, slots, visit, waiting,
};

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
    assert_ready_ok!(newcomer.poll());
}

// Q1
#[test]
fn a_full_slot_does_not_hold_up_another() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let _permit = slots.try_acquire("a").unwrap();
    let _waiters: Vec<_> = (0..100).map(|_| queued(&slots, "a")).collect();
    assert_ready_ok!(task::spawn(slots.acquire("b")).poll());
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

// --- wakeups

// Q5, case 13
#[test]
fn a_woken_waiter_that_goes_away_wakes_its_successor() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let a = slots.try_acquire("a").unwrap();
    let (mut b, mut c) = (queued(&slots, "a"), queued(&slots, "a"));
    drop(a);
    assert!(b.is_woken());
    assert!(!c.is_woken());
    drop(b);
    assert!(c.is_woken());
    assert_ready_ok!(c.poll());
}

// Q5, case 13: in the same tick, in a task.
#[tokio::test(start_paused = true)]
async fn the_successor_of_a_waiter_that_goes_away_starts_in_that_tick() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let a = slots.try_acquire("a").unwrap();
    let b = queued(&slots, "a");
    let c = visit(&slots, "a", Duration::ZERO);
    sleep(secs(1)).await;
    drop(a);
    drop(b);
    assert_eq!(c.await.unwrap(), secs(1));
}

// Q5, case 13: the successor has to set a timer of its own.
#[tokio::test(start_paused = true)]
async fn a_first_waiter_at_the_pace_that_goes_away_wakes_its_successor() {
    let slots = slots(SlotConfig::builder().delay(secs(1)));
    let begin = Instant::now();
    let _a = slots.try_acquire("a").unwrap();
    let b = queued(&slots, "a");
    let mut c = Hand::new(slots.acquire("a"));
    assert_pending!(c.poll());
    sleep(millis(400)).await;
    drop(b);
    assert_eq!(c.woken_at(), [begin + millis(400)]);
    assert_pending!(c.poll());
    sleep(secs(1)).await;
    assert_eq!(c.woken_at(), [begin + millis(400), begin + secs(1)]);
    assert_ready_ok!(c.poll());
}

// Q2, Q5, case 13
#[test]
fn the_head_of_a_bounded_queue_that_goes_away_wakes_its_successor() {
    let slots = slots(SlotConfig::builder().concurrency(1).queue_capacity(2));
    let a = slots.try_acquire("a").unwrap();
    let (b, mut c) = (queued(&slots, "a"), queued(&slots, "a"));
    assert_ready_err!(task::spawn(slots.acquire("a")).poll());
    drop(a);
    drop(b);
    let mut d = queued(&slots, "a");
    assert!(c.is_woken());
    drop(assert_ready_ok!(c.poll()));
    assert_ready_ok!(d.poll());
}

// Q5
#[test]
fn a_waiter_that_goes_away_from_a_full_slot_or_from_behind_wakes_nobody() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let a = slots.try_acquire("a").unwrap();
    let [b, c, mut d, e] = [(); 4].map(|()| queued(&slots, "a"));
    drop(b);
    drop(e);
    assert!(!c.is_woken() && !d.is_woken());
    drop(a);
    drop(c);
    assert!(d.is_woken());
    assert_ready_ok!(d.poll());
}

// Q5
#[test]
fn each_grant_wakes_the_next_while_there_is_room() {
    let slots = slots(SlotConfig::builder().concurrency(3));
    let permits = [(); 3].map(|()| slots.try_acquire("a").unwrap());
    let mut waiters: Vec<_> = (0..4).map(|_| Hand::new(slots.acquire("a"))).collect();
    waiters.iter_mut().for_each(|waiter| assert_pending!(waiter.poll()));
    let wakes = |waiters: &[Hand<_>]| waiters.iter().map(Hand::wakes).collect::<Vec<_>>();
    drop(permits);
    assert_eq!(wakes(&waiters), [1, 0, 0, 0]);
    let _first = assert_ready_ok!(waiters[0].poll());
    assert_eq!(wakes(&waiters), [1, 1, 0, 0]);
    let _second = assert_ready_ok!(waiters[1].poll());
    assert_eq!(wakes(&waiters), [1, 1, 1, 0]);
    let _third = assert_ready_ok!(waiters[2].poll());
    assert_eq!(wakes(&waiters), [1, 1, 1, 0]);
}

// Q5
#[test]
fn the_waker_of_the_last_poll_is_the_one_that_counts() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let permit = slots.try_acquire("a").unwrap();
    let mut waiter = task::spawn(queued(&slots, "a"));
    assert_pending!(waiter.poll());
    drop(permit);
    assert!(waiter.is_woken());
    assert!(!(*waiter).is_woken());
}

const CLONES: usize = 64;
const LIMIT: usize = 4;

// Q5, case 18
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_real_threads_a_start_costs_two_polls_and_one_wakeup() {
    let slots = slots(SlotConfig::builder().concurrency(LIMIT));
    let (counts, barrier) = (Arc::<Watch>::default(), Arc::new(Barrier::new(CLONES)));
    let (now, peak) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (open, gate) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for _ in 0..CLONES {
        let (slots, barrier, counts, mut gate) =
            (slots.clone(), barrier.clone(), counts.clone(), gate.clone());
        let (now, peak) = (now.clone(), peak.clone());
        tasks.spawn(async move {
            barrier.wait().await;
            let permit = Watched::new(slots.acquire("a"), counts).await.unwrap();
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            gate.wait_for(|open| *open).await.unwrap();
            yield_now().await;
            now.fetch_sub(1, Ordering::SeqCst);
            drop(permit);
        });
    }
    while (in_flight(&slots, "a"), waiting(&slots, "a")) != (LIMIT, CLONES - LIMIT) {
        yield_now().await;
    }
    open.send(true).unwrap();
    tasks.join_all().await;
    assert!(peak.load(Ordering::SeqCst) <= LIMIT);
    // Those who had to wait were polled once to take their place and once to start.
    assert_eq!(counts.polls.load(Ordering::SeqCst), LIMIT + 2 * (CLONES - LIMIT));
    assert_eq!(counts.wakes.load(Ordering::SeqCst), CLONES - LIMIT);
}

// Q5, case 18
#[test]
fn by_hand_a_start_costs_two_polls_and_one_wakeup() {
    let slots = slots(SlotConfig::builder().concurrency(LIMIT));
    let mut clones: Vec<_> = (0..CLONES).map(|_| Hand::new(slots.acquire("a"))).collect();
    let mut permits = Vec::new();
    for clone in &mut clones {
        if let Poll::Ready(permit) = clone.poll() {
            permits.push(permit.unwrap());
        }
    }
    for n in LIMIT..CLONES {
        assert_eq!((permits.len(), in_flight(&slots, "a")), (LIMIT, LIMIT));
        permits.remove(0);
        let woken: Vec<_> =
            (0..CLONES).filter(|clone| clones[*clone].wakes() >= clones[*clone].polls).collect();
        assert_eq!(woken, [n]);
        permits.push(assert_ready_ok!(clones[n].poll()));
    }
    let polls: usize = clones.iter().map(|clone| clone.polls).sum();
    let wakes: usize = clones.iter().map(Hand::wakes).sum();
    assert_eq!((polls, wakes), (LIMIT + 2 * (CLONES - LIMIT), CLONES - LIMIT));
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
    assert_ready_ok!(waiter.poll());
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
    slots.acquire("a").await.unwrap();
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
    assert_ready_ok!(last.poll());
}

// --- timers

// L4, Q3: at most one per slot whose first waiter is at the pace.
#[tokio::test(start_paused = true)]
async fn only_the_first_waiter_at_the_pace_has_a_timer() {
    let slots = slots(SlotConfig::builder().delay(secs(10)));
    let begin = Instant::now();
    for key in ["a", "b", "c"] {
        drop(slots.try_acquire(key).unwrap());
        let mut waiters: Vec<_> = (0..5).map(|_| Hand::new(slots.acquire(key))).collect();
        waiters.iter_mut().for_each(|waiter| assert_pending!(waiter.poll()));
        // Polling for no reason arms nothing more.
        waiters.iter_mut().for_each(|waiter| assert_pending!(waiter.poll()));
        // Nobody answers, so whatever goes off is seen.
        let armed = Instant::now();
        sleep(secs(3_600)).await;
        let woken: Vec<_> = waiters.iter().map(Hand::woken_at).collect();
        assert_eq!(woken, [vec![armed + secs(10)], vec![], vec![], vec![], vec![]]);
    }
    assert_eq!(begin.elapsed(), secs(3 * 3_600));
}

// L4, Q3: and one per waiter with a wait timeout, the first one's pace included.
#[tokio::test(start_paused = true)]
async fn a_waiter_with_a_wait_timeout_has_one_timer_and_no_more() {
    for (timeout, first, others) in [(secs(4), secs(4), secs(4)), (secs(40), secs(10), secs(40))] {
        let slots = slots(SlotConfig::builder().delay(secs(10)).wait_timeout(timeout));
        let begin = Instant::now();
        drop(slots.try_acquire("a").unwrap());
        let mut waiters: Vec<_> = (0..5).map(|_| Hand::new(slots.acquire("a"))).collect();
        waiters.iter_mut().for_each(|waiter| assert_pending!(waiter.poll()));
        sleep(secs(3_600)).await;
        let woken: Vec<_> = waiters.iter().flat_map(Hand::woken_at).map(|at| at - begin).collect();
        assert_eq!(woken, [first, others, others, others, others]);
    }
}

// L4
#[tokio::test(start_paused = true)]
async fn a_timer_goes_when_there_is_no_moment_to_wait_for_any_more() {
    let slots = slots(SlotConfig::builder().concurrency(2).delay(secs(10)).total_concurrency(2));
    let mut permits = vec![slots.try_acquire("a").unwrap()];
    let mut waiter = Hand::new(slots.acquire("a"));
    assert_pending!(waiter.poll());
    // From the pace to a full slot.
    slots.configure("a", SlotLimits::new().concurrency(1)).unwrap();
    assert_pending!(waiter.poll());
    let wakes = waiter.wakes();
    sleep(secs(60)).await;
    assert_eq!(waiter.wakes(), wakes);
    // From a pause to the total.
    slots.pause("a", Instant::now() + secs(10));
    slots.configure("a", SlotLimits::new().concurrency(2)).unwrap();
    assert_pending!(waiter.poll());
    permits.push(slots.try_acquire("b").unwrap());
    slots.resume("a");
    assert_pending!(waiter.poll());
    let wakes = waiter.wakes();
    sleep(secs(60)).await;
    assert_eq!(waiter.wakes(), wakes);
    permits.clear();
    assert_ready_ok!(waiter.poll());
}

// --- stalled

// Q6
#[tokio::test(start_paused = true)]
async fn a_woken_waiter_that_is_not_polled_holds_up_its_own_slot_and_shows() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let stalled = || slots.stats("a").unwrap().stalled;
    let permit = slots.acquire("a").await.unwrap();
    let mut first = queued(&slots, "a");
    slots.configure("a", SlotLimits::new().wait_timeout(secs(5))).unwrap();
    // A change wakes, and a poll answers.
    assert_pending!(first.poll());
    let second = tokio::spawn(slots.acquire("a"));
    sleep(secs(2)).await;
    assert_eq!(stalled(), None);
    drop(permit);
    sleep(secs(1)).await;
    assert_eq!(stalled(), Some(secs(1)));
    let error = second.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.waited()), (SlotErrorKind::WaitTimeout, secs(5)));
    assert_eq!((error.stalled(), error.in_flight()), (Some(secs(3)), 0));
    let text = "slot \"a\": no start within 5s, waiting for concurrency, 0 in flight, \
                the first waiter woken 3s ago and not polled";
    assert_eq!(error.to_string(), text);
    assert_eq!(stalled(), Some(secs(3)));
    let permit = assert_ready_ok!(first.poll());
    assert_eq!(stalled(), None);
    drop(permit);
}

// Q6
#[tokio::test(start_paused = true)]
async fn a_waiter_whose_timer_went_off_at_the_pace_is_stalled_from_then_on() {
    let slots = slots(SlotConfig::builder().delay(secs(10)));
    let stalled = || slots.stats("a").unwrap().stalled;
    drop(slots.acquire("a").await.unwrap());
    let mut first = queued(&slots, "a");
    sleep(secs(9)).await;
    assert_eq!(stalled(), None);
    sleep(secs(4)).await;
    assert_eq!(stalled(), Some(secs(3)));
    // The successor was woken when it became the first.
    let second = queued(&slots, "a");
    drop(assert_ready_ok!(first.poll()));
    sleep(secs(2)).await;
    assert_eq!(stalled(), Some(secs(2)));
    drop(second);
    assert_eq!(stalled(), None);
}

// Q6
#[tokio::test(start_paused = true)]
async fn a_first_waiter_that_its_wait_timeout_woke_is_stalled_from_then_on() {
    let slots = slots(SlotConfig::builder().concurrency(1).wait_timeout(secs(5)));
    let _permit = slots.acquire("a").await.unwrap();
    let mut first = queued(&slots, "a");
    sleep(secs(2)).await;
    let second = tokio::spawn(slots.acquire("a"));
    sleep(secs(4)).await;
    assert!(first.is_woken());
    assert_eq!(slots.stats("a").unwrap().stalled, Some(secs(1)));
    assert_eq!(second.await.unwrap().unwrap_err().stalled(), Some(secs(2)));
    // Of itself it does not say so when it was polled in time.
    drop(first);
    assert_eq!(slots.acquire("a").await.unwrap_err().stalled(), None);
}

// Q6, case 44
#[tokio::test(start_paused = true)]
async fn the_loop_that_waits_for_itself_ends_with_a_timeout_that_tells_of_the_stalled_first_waiter() {
    let slots = slots(SlotConfig::builder().delay(secs(1)).wait_timeout(secs(5)));
    let acquires = futures_util::stream::iter(0..10).map(|_| slots.acquire("a"));
    let mut permits = acquires.buffer_unordered(4);
    let begin = Instant::now();
    let mut ended = None;
    while let Some(permit) = permits.next().await {
        let _permit = permit.unwrap();
        if let Err(error) = slots.acquire("a").await {
            ended = Some(error);
            break;
        }
    }
    // At first the stream had asked for one only, so that the loop's own got the start at 1 s. At 2 s the stream gave
    // another, which woke the one behind it in the stream; and that is polled by nobody but `next`.
    let error = ended.unwrap();
    assert_eq!(begin.elapsed(), secs(7));
    assert_eq!((error.kind(), error.waited()), (SlotErrorKind::WaitTimeout, secs(5)));
    assert_eq!((error.reason(), error.stalled()), (Some(WaitReason::Pace), Some(secs(5))));
}

// Q6, case 44: the cure.
#[tokio::test(start_paused = true)]
async fn the_loop_that_waits_for_itself_is_cured_by_spawning() {
    let slots = slots(SlotConfig::builder().delay(secs(1)).wait_timeout(secs(5)));
    let acquires = futures_util::stream::iter(0..4).map(|_| tokio::spawn(slots.acquire("a")));
    let mut permits = acquires.buffer_unordered(4);
    let begin = Instant::now();
    while let Some(permit) = permits.next().await {
        let _permit = permit.unwrap().unwrap();
        slots.acquire("a").await.unwrap();
    }
    assert_eq!(begin.elapsed(), secs(7));
}

// --- wakers with a will of their own

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
struct OnClone(Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>);

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

// --- runtimes

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
            assert_ready_ok!(task::spawn(slots.acquire("a")).poll());
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
    runtime.block_on(waiter).unwrap();
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
    second.block_on(next).unwrap().unwrap();
}
