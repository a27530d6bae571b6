//! The pace: delay and jitter, from start to start inside one slot.

#![allow(clippy::unwrap_used)]

mod by_hand;

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Service, service_fn};
use tower_slot::{Jitter, SlotConfig, SlotErrorKind, SlotLayer, SlotLimits, SlotTimings, Slots, WaitReason};

use by_hand::{Hand, in_flight, millis, queued, secs, slots, visit, visits, waiting};

// L2, L3, case 21
#[tokio::test(start_paused = true)]
async fn requests_one_after_the_other_start_a_delay_apart() {
    let slots = slots(SlotConfig::builder().delay(secs(1)));
    let begin = Instant::now();
    let mut starts = Vec::new();
    for _ in 0..5 {
        let permit = slots.acquire("a").await.unwrap();
        starts.push(begin.elapsed());
        sleep(millis(1)).await;
        drop(permit);
    }
    assert_eq!(starts, [0, 1, 2, 3, 4].map(secs));
}

// L2
#[tokio::test(start_paused = true)]
async fn jitter_that_adds_to_the_delay_is_a_pace_without_one_too() {
    let slots = slots(SlotConfig::builder().jitter(Jitter::up_to(secs(1))));
    let begin = Instant::now();
    for key in ["a", "b", "c"] {
        drop(slots.try_acquire(key).unwrap());
        let next = slots.stats(key).unwrap().next_start.unwrap();
        assert!(begin < next && next <= begin + secs(1));
    }
}

// L2
#[tokio::test(start_paused = true)]
async fn a_gap_runs_from_the_start_not_from_the_end_before_it() {
    let slots = slots(SlotConfig::builder().concurrency(1).delay(secs(1)));
    // Longer than the delay: nothing is left to wait for when the one before has ended.
    assert_eq!(visits(&slots, "long", 3, millis(1_500)).await, [0, 1_500, 3_000].map(millis));
    // Shorter: the rest of it is.
    assert_eq!(visits(&slots, "short", 3, millis(700)).await, [0, 1_000, 2_000].map(millis));
}

// L3, case 22
#[test]
fn no_gap_on_eight_threads_is_shorter_than_the_delay() {
    const TASKS: usize = 200;
    let delay = millis(10);
    let limits = SlotConfig::builder().concurrency(1).delay(delay);
    let layer = SlotLayer::new(limits.build().unwrap()).timings(true);
    let slots = layer.slots().clone();
    let answer = |_: Request<()>| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) };
    let mut service = tower::Layer::layer(&layer, service_fn(answer));

    // All of them take their places while a clock stands still, so that the start of each is known to the
    // nanosecond, whatever the scheduler does: that moment, and how long it says it has waited.
    let blocker = slots.try_acquire("a").unwrap();
    let standing = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let mut requests = standing.unwrap().block_on(async {
        let request = || Request::get("http://a/").body(()).unwrap();
        let mut requests: Vec<_> = (0..TASKS).map(|_| task::spawn(service.call(request()))).collect();
        requests.iter_mut().for_each(|request| assert_pending!(request.poll()));
        requests
    });

    let threads =
        tokio::runtime::Builder::new_multi_thread().worker_threads(8).enable_time().build().unwrap();
    let mut starts = threads.block_on(async {
        let mut tasks = JoinSet::new();
        requests.drain(..).for_each(|request| _ = tasks.spawn(request));
        slots.configure("a", SlotLimits::new().unlimited_concurrency()).unwrap();
        // Every change wakes the first waiter: it looks at the clock at all times, and just before it is due.
        let handle = slots.clone();
        let restless = tokio::spawn(async move {
            loop {
                handle.configure("a", SlotLimits::new()).unwrap();
                yield_now().await;
            }
        });
        let responses = tasks.join_all().await;
        restless.abort();
        let waited = |response: &Response<_>| response.extensions().get::<SlotTimings>().unwrap().waited();
        responses.iter().map(|response| waited(response.as_ref().unwrap())).collect::<Vec<Duration>>()
    });
    drop(blocker);
    starts.sort_unstable();
    assert_eq!(starts.len(), TASKS);
    let short: Vec<_> = starts.windows(2).filter(|pair| pair[1] - pair[0] < delay).collect();
    assert!(short.is_empty(), "{short:?}");
}

// L3, case 23
#[tokio::test(start_paused = true)]
async fn slots_do_not_delay_each_other() {
    let slots = slots(SlotConfig::builder().delay(secs(1)));
    let begin = Instant::now();
    let (a, b) =
        tokio::join!(visits(&slots, "a", 3, Duration::ZERO), visits(&slots, "b", 3, Duration::ZERO),);
    assert_eq!((a, b), ([0, 1, 2].map(secs).to_vec(), [0, 1, 2].map(secs).to_vec()));
    assert_eq!(begin.elapsed(), secs(2));
}

// L4, case 24
#[tokio::test(start_paused = true)]
async fn a_waiter_that_goes_away_leaves_no_hole() {
    let slots = slots(SlotConfig::builder().delay(secs(1)));
    let _a = slots.acquire("a").await.unwrap();
    let begin = Instant::now();
    let b = queued(&slots, "a");
    sleep(millis(500)).await;
    drop(b);
    sleep(millis(100)).await;
    let _c = slots.acquire("a").await.unwrap();
    assert_eq!(begin.elapsed(), secs(1));
}

// L4, Q5, case 24
#[tokio::test(start_paused = true)]
async fn those_behind_a_waiter_that_goes_away_start_when_it_would_have() {
    let slots = slots(SlotConfig::builder().delay(secs(1)));
    let _a = slots.acquire("a").await.unwrap();
    let b = queued(&slots, "a");
    let c = visit(&slots, "a", Duration::ZERO);
    let d = visit(&slots, "a", Duration::ZERO);
    // In the last moment: the next one has not set a timer yet.
    sleep(millis(999)).await;
    assert_eq!(waiting(&slots, "a"), 3);
    drop(b);
    assert_eq!((c.await.unwrap(), d.await.unwrap()), (secs(1), secs(2)));
}

// L4, case 25
#[tokio::test(start_paused = true)]
async fn the_wait_for_the_pace_is_booked_under_pace() {
    let slots = slots(SlotConfig::builder().concurrency(20).delay(secs(10)));
    assert_eq!(visits(&slots, "a", 3, Duration::ZERO).await, [0, 10, 20].map(secs));
    let times = slots.stats("a").unwrap().times;
    assert_eq!((times.pace, times.concurrency, times.total), (secs(30), Duration::ZERO, Duration::ZERO));
}

// L3, S6, case 28
#[test]
fn the_first_start_of_a_slot_comes_at_once_however_long_the_delay() {
    for delay in [secs(30 * 365 * 24 * 3_600), Duration::MAX] {
        let slots = slots(SlotConfig::builder().delay(delay).jitter(Jitter::up_to(delay)));
        let permit = slots.try_acquire("a").unwrap();
        let refused = slots.try_acquire("a").unwrap_err();
        assert_eq!((refused.kind(), refused.reason()), (SlotErrorKind::QueueFull, Some(WaitReason::Pace)));
        drop(permit);
        drop(assert_ready_ok!(task::spawn(slots.acquire("b")).poll()));
    }
}

// L3, case 46
#[tokio::test(start_paused = true)]
async fn a_lower_delay_counts_at_once_and_from_the_last_start() {
    let slots = slots(SlotConfig::builder().delay(secs(60)));
    let begin = Instant::now();
    let _first = slots.acquire("a").await.unwrap();
    let next = visit(&slots, "a", Duration::ZERO);
    sleep(millis(400)).await;
    slots.configure("a", SlotLimits::new().delay(secs(1))).unwrap();
    assert_eq!(slots.stats("a").unwrap().next_start, Some(begin + secs(1)));
    assert_eq!(next.await.unwrap(), secs(1));

    // With 59 s to go, that is now.
    slots.configure("a", SlotLimits::new().delay(secs(60))).unwrap();
    let next = visit(&slots, "a", Duration::ZERO);
    sleep(secs(1)).await;
    slots.configure("a", SlotLimits::new().delay(secs(1))).unwrap();
    assert_eq!(next.await.unwrap(), secs(1));
}

// L3
#[tokio::test(start_paused = true)]
async fn a_higher_delay_counts_at_once_and_from_the_last_start() {
    let slots = slots(SlotConfig::builder().delay(secs(1)));
    let _first = slots.acquire("a").await.unwrap();
    let next = visit(&slots, "a", Duration::ZERO);
    sleep(millis(500)).await;
    slots.configure("a", SlotLimits::new().delay(secs(10))).unwrap();
    assert_eq!(next.await.unwrap(), secs(10));
}

/// The gap that the limits in force give after the last start, which was at `last`.
fn gap(slots: &Slots, last: Instant) -> Duration {
    slots.stats("a").unwrap().next_start.unwrap() - last
}

// L2, L3
#[tokio::test(start_paused = true)]
async fn a_change_uses_the_draw_of_the_last_start() {
    let slots = slots(SlotConfig::builder().delay(secs(60)).jitter(Jitter::ratio(0.5)));
    for _ in 0..20 {
        let last = Instant::now();
        drop(slots.try_acquire("a").unwrap());
        let draw = (gap(&slots, last).as_secs_f64() / 60.0) - 0.5;
        let limits = |jitter| SlotLimits::new().delay(secs(8)).jitter(jitter);
        for (jitter, seconds) in [
            (Jitter::ratio(0.5), 8.0 * (0.5 + draw)),
            (Jitter::ratio(1.0), 8.0 * 2.0 * draw),
            (Jitter::ratio(0.25), 8.0 * (0.75 + 0.5 * draw)),
            (Jitter::up_to(secs(2)), 8.0 + 2.0 * draw),
            (Jitter::NONE, 8.0),
        ] {
            slots.configure("a", limits(jitter)).unwrap();
            let gap = gap(&slots, last).as_secs_f64();
            assert!((gap - seconds).abs() < 1e-6, "{jitter:?} gives {gap} s, not {seconds} s");
        }
        slots.configure("a", SlotLimits::new().delay(secs(60)).jitter(Jitter::ratio(0.5))).unwrap();
        sleep(secs(90)).await;
    }
}

// L2, case 26
#[tokio::test(start_paused = true)]
async fn waking_up_again_never_draws_again() {
    let slots = slots(SlotConfig::builder().delay(secs(1)).jitter(Jitter::ratio(1.0)));
    drop(slots.acquire("a").await.unwrap());
    let next = slots.stats("a").unwrap().next_start.unwrap();
    let mut waiter = queued(&slots, "a");
    for _ in 0..100 {
        assert_pending!(waiter.poll());
        slots.configure("a", SlotLimits::new()).unwrap();
        slots.try_acquire("a").unwrap_err();
        drop(queued(&slots, "a"));
        assert_eq!(slots.stats("a").unwrap().next_start, Some(next));
    }
    drop(waiter);
    drop(queued(&slots, "a"));
    assert_eq!(slots.stats("a").unwrap().next_start, Some(next));
}

// L2, L3, case 26
#[tokio::test(start_paused = true)]
async fn each_start_draws_within_the_bounds_and_the_next_comes_at_most_a_tick_late() {
    for (jitter, bounds) in [
        (Jitter::ratio(0.5), millis(500)..=millis(1_500)),
        (Jitter::ratio(1.0), millis(0)..=millis(2_000)),
        (Jitter::up_to(millis(700)), millis(1_000)..=millis(1_700)),
    ] {
        let slots = slots(SlotConfig::builder().delay(secs(1)).jitter(jitter));
        let mut last = Instant::now();
        drop(slots.acquire("a").await.unwrap());
        let mut gaps = Vec::new();
        for _ in 0..300 {
            let gap = gap(&slots, last);
            assert!(bounds.contains(&gap), "{gap:?}");
            drop(slots.acquire("a").await.unwrap());
            let late = last.elapsed().checked_sub(gap).expect("a gap was shorter than its draw gives");
            assert!(late < millis(1), "{late:?} late");
            gaps.push(gap);
            last = Instant::now();
        }
        // Not one draw for all: the lowest and the highest fifth are both met.
        let fifth = (*bounds.end() - *bounds.start()) / 5;
        assert!(gaps.iter().any(|gap| *gap < *bounds.start() + fifth), "{jitter:?}");
        assert!(gaps.iter().any(|gap| *gap > *bounds.end() - fifth), "{jitter:?}");
    }
}

// L3
#[tokio::test(start_paused = true)]
async fn a_long_idle_slot_earns_no_burst() {
    let slots = slots(SlotConfig::builder().delay(secs(1)).idle_timeout(secs(1_000_000)));
    assert_eq!(visits(&slots, "a", 2, Duration::ZERO).await, [0, 1].map(secs));
    sleep(secs(3_600)).await;
    assert_eq!(visits(&slots, "a", 3, Duration::ZERO).await, [0, 1, 2].map(secs));
}

// Words: a start counts once granted.
#[tokio::test(start_paused = true)]
async fn a_start_counts_although_its_permit_is_dropped_at_once() {
    let slots = slots(SlotConfig::builder().delay(secs(1)));
    let begin = Instant::now();
    drop(slots.try_acquire("a").unwrap());
    drop(slots.acquire("a").await.unwrap());
    assert_eq!(begin.elapsed(), secs(1));
}

// L4
#[tokio::test(start_paused = true)]
async fn waiting_for_the_pace_takes_no_permit() {
    let slots = slots(SlotConfig::builder().concurrency(1).delay(secs(60)).total_concurrency(1));
    drop(slots.try_acquire("a").unwrap());
    let mut waiter = queued(&slots, "a");
    assert_pending!(waiter.poll());
    assert_eq!((in_flight(&slots, "a"), slots.snapshot().total.in_flight), (0, 0));
    // The one unit of the total is there for others.
    let permit = slots.try_acquire("b").unwrap();
    assert_eq!(slots.snapshot().total.in_flight, 1);
    drop(permit);
}

// L2, L4: the timer of a first waiter goes off once, at its time.
#[tokio::test(start_paused = true)]
async fn a_first_waiter_is_woken_at_its_time_and_only_then() {
    let slots = slots(SlotConfig::builder().delay(secs(10)));
    let begin = Instant::now();
    drop(slots.try_acquire("a").unwrap());
    let mut waiter = Hand::new(slots.acquire("a"));
    assert_pending!(waiter.poll());
    sleep_until(begin + secs(3_600)).await;
    assert_eq!(waiter.woken_at(), [begin + secs(10)]);
    drop(assert_ready_ok!(waiter.poll()));
}
