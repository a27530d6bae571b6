//! Changes while slots are in use: limits, pauses, the close.

mod by_hand;

use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower_slot::{Jitter, SlotConfig, SlotErrorKind, SlotKey, SlotLimits, WaitReason};

use by_hand::{Hand, in_flight, millis, queued, secs, slots, visit, visits, waiting};

fn limits() -> SlotLimits {
    SlotLimits::new()
}

// --- concurrency

// L6
#[tokio::test(start_paused = true)]
async fn raising_the_concurrency_starts_waiters_at_once() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let visits: Vec<_> = (0..6).map(|_| visit(&slots, "a", secs(100))).collect();
    sleep(secs(1)).await;
    slots.configure("a", limits().concurrency(4)).unwrap();
    sleep(secs(1)).await;
    assert_eq!((in_flight(&slots, "a"), waiting(&slots, "a")), (4, 2));
    slots.configure("a", limits().unlimited_concurrency()).unwrap();
    let mut starts = Vec::new();
    for visit in visits {
        starts.push(visit.await.unwrap());
    }
    assert_eq!(starts, [0, 1, 1, 1, 2, 2].map(secs));
}

// L6
#[test]
fn lowering_the_concurrency_lets_those_in_flight_finish_and_admits_nobody_until_there_is_room() {
    let slots = slots(SlotConfig::builder().concurrency(4));
    let mut permits: Vec<_> = (0..4).map(|_| slots.try_acquire("a").unwrap()).collect();
    let (mut first, second) = (queued(&slots, "a"), queued(&slots, "a"));
    slots.configure("a", limits().concurrency(2)).unwrap();
    assert_eq!(in_flight(&slots, "a"), 4);
    assert_pending!(first.poll());
    for _ in 0..2 {
        permits.pop();
        assert!(!first.is_woken());
        assert_pending!(first.poll());
        slots.try_acquire("a").unwrap_err();
    }
    permits.pop();
    assert!(first.is_woken());
    let _first = assert_ready_ok!(first.poll());
    assert!(!second.is_woken());
    assert_eq!((in_flight(&slots, "a"), waiting(&slots, "a")), (2, 1));
}

// L4, L6: all gates are looked at anew at each wake.
#[tokio::test(start_paused = true)]
async fn a_waiter_at_the_pace_whose_slot_is_lowered_waits_for_room_instead() {
    let slots = slots(SlotConfig::builder().concurrency(2).delay(secs(10)));
    let permit = slots.acquire("a").await.unwrap();
    let waiter = visit(&slots, "a", Duration::ZERO);
    sleep(secs(4)).await;
    slots.configure("a", limits().concurrency(1)).unwrap();
    sleep(secs(16)).await;
    let stats = slots.stats("a").unwrap();
    assert_eq!((stats.waiting, stats.reason), (1, Some(WaitReason::Concurrency)));
    assert_eq!((stats.times.pace, stats.times.concurrency), (secs(4), secs(16)));
    drop(permit);
    assert_eq!(waiter.await.unwrap(), secs(20));
}

// L4, L6: a change that comes between the wakeup and the poll.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_was_woken_looks_at_what_changed_since() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let permit = slots.acquire("a").await.unwrap();
    let mut waiter = queued(&slots, "a");
    drop(permit);
    assert!(waiter.is_woken());
    slots.pause("a", Instant::now() + secs(5));
    assert_pending!(waiter.poll());
    assert_eq!(slots.stats("a").unwrap().reason, Some(WaitReason::Pace));
    sleep(secs(5)).await;
    assert!(waiter.is_woken());
    drop(assert_ready_ok!(waiter.poll()));
}

// Q5
#[tokio::test(start_paused = true)]
async fn every_change_wakes_the_first_waiter_and_nobody_else() {
    let slots = slots(SlotConfig::builder().delay(secs(60)).slot("a", limits().concurrency(2)));
    drop(slots.try_acquire("a").unwrap());
    let mut waiters: Vec<_> = (0..3).map(|_| Hand::new(slots.acquire("a"))).collect();
    waiters.iter_mut().for_each(|waiter| assert_pending!(waiter.poll()));
    let changes: [&dyn Fn(); 5] = [
        &|| slots.configure("a", limits().delay(secs(50))).unwrap(),
        &|| slots.configure_default(limits().wait_timeout(secs(500))).unwrap(),
        &|| slots.configure("*.a", limits().concurrency(7)).unwrap(),
        &|| slots.pause("a", Instant::now() + secs(70)),
        &|| slots.resume("a"),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        change();
        assert_eq!(waiters[0].wakes(), n + 1);
        assert_pending!(waiters[0].poll());
    }
    assert_eq!(waiters[1].wakes() + waiters[2].wakes(), 0);
    // Two changes before a poll are one wakeup.
    changes.iter().for_each(|change| change());
    assert_eq!(waiters[0].wakes(), changes.len() + 1);
}

// --- pauses

// L6
#[tokio::test(start_paused = true)]
async fn a_pause_holds_starts_and_not_those_in_flight() {
    let slots = slots(SlotConfig::builder().concurrency(1).delay(secs(1)));
    let running = visit(&slots, "a", secs(3));
    yield_now().await;
    let begin = Instant::now();
    slots.pause("a", begin + secs(10));
    assert_eq!(slots.stats("a").unwrap().paused_until, Some(begin + secs(10)));
    let visits = visits(&slots, "a", 2, Duration::ZERO).await;
    // After the pause the pace goes on.
    assert_eq!(visits, [10, 11].map(secs));
    assert_eq!(running.await.unwrap(), Duration::ZERO);
    assert_eq!(slots.stats("a").unwrap().paused_until, None);
    let times = slots.stats("a").unwrap().times;
    assert_eq!((times.concurrency, times.pace), (2 * secs(3), secs(7) + secs(8)));
}

// L6
#[tokio::test(start_paused = true)]
async fn a_pause_holds_starts_until_its_end_and_not_longer_than_the_delay_asks() {
    let slots = slots(SlotConfig::builder().delay(secs(10)));
    drop(slots.acquire("a").await.unwrap());
    // Over before the delay is.
    slots.pause("a", Instant::now() + secs(4));
    assert_eq!(visits(&slots, "a", 1, Duration::ZERO).await, [secs(10)]);
    slots.pause("a", Instant::now() + secs(14));
    assert_eq!(visits(&slots, "a", 2, Duration::ZERO).await, [14, 24].map(secs));
}

// L6
#[tokio::test(start_paused = true)]
async fn a_later_pause_never_shortens_an_earlier_one() {
    let slots = slots(SlotConfig::builder());
    let begin = Instant::now();
    slots.pause("a", begin + secs(10));
    let waiter = visit(&slots, "a", Duration::ZERO);
    sleep(secs(1)).await;
    slots.pause("a", begin + secs(5));
    slots.pause("a", begin - millis(1));
    assert_eq!(slots.stats("a").unwrap().paused_until, Some(begin + secs(10)));
    slots.pause("a", begin + secs(12));
    assert_eq!(waiter.await.unwrap(), secs(12));
}

// L6
#[tokio::test(start_paused = true)]
async fn resume_ends_any_pause_at_once() {
    let slots = slots(SlotConfig::builder().delay(secs(2)));
    drop(slots.acquire("a").await.unwrap());
    for pause in [secs(60), secs(30)] {
        slots.pause("a", Instant::now() + pause);
    }
    let waiter = visit(&slots, "a", Duration::ZERO);
    sleep(secs(5)).await;
    slots.resume("a");
    assert_eq!(slots.stats("a").unwrap().paused_until, None);
    assert_eq!(waiter.await.unwrap(), secs(5));
    // What is left of the delay it does not end.
    slots.pause("a", Instant::now() + secs(60));
    let waiter = visit(&slots, "a", Duration::ZERO);
    sleep(secs(1)).await;
    slots.resume("a");
    assert_eq!(waiter.await.unwrap(), secs(2));
    // A pause after a resume is a new one, though it is shorter than the old one was.
    slots.pause("a", Instant::now() + secs(3));
    assert_eq!(visits(&slots, "a", 1, Duration::ZERO).await, [secs(3)]);
}

// L6
#[tokio::test(start_paused = true)]
async fn a_pause_waits_for_a_slot_that_is_not_there_yet() {
    let slots = slots(SlotConfig::builder());
    for key in ["a", "b"] {
        slots.pause(key, Instant::now() + secs(10));
    }
    slots.resume("b");
    assert_eq!(slots.len(), 0);
    assert_eq!(slots.try_acquire("a").unwrap_err().reason(), Some(WaitReason::Pace));
    drop(slots.try_acquire("b").unwrap());
    assert_eq!(visits(&slots, "a", 1, Duration::ZERO).await, [secs(10)]);
}

// L6
#[tokio::test(start_paused = true)]
async fn a_pause_is_for_one_slot_and_takes_nothing_of_the_total() {
    let slots = slots(SlotConfig::builder().total_concurrency(1));
    slots.pause("a", Instant::now() + secs(10));
    let waiter = visit(&slots, "a", Duration::ZERO);
    assert_eq!(visits(&slots, "b", 3, secs(2)).await, [0, 2, 4].map(secs));
    assert_eq!(waiter.await.unwrap(), secs(10));
}

// L1, L6
#[tokio::test(start_paused = true)]
async fn a_pause_until_the_end_of_time_can_be_ended() {
    let slots = slots(SlotConfig::builder());
    let hundred_years = secs(100 * 365 * 24 * 3_600);
    slots.pause("a", Instant::now() + hundred_years);
    let waiter = visit(&slots, "a", Duration::ZERO);
    sleep(secs(3_600)).await;
    assert_eq!(waiting(&slots, "a"), 1);
    slots.resume("a");
    assert_eq!(waiter.await.unwrap(), secs(3_600));
}

// --- queue and wait timeout

// L6, Q2
#[test]
fn a_queue_that_is_bounded_later_keeps_those_who_wait() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let permit = slots.try_acquire("a").unwrap();
    let mut waiters: Vec<_> = (0..3).map(|_| queued(&slots, "a")).collect();
    slots.configure("a", limits().queue_capacity(1)).unwrap();
    assert_ready_err!(task::spawn(slots.acquire("a")).poll());
    assert_eq!(waiting(&slots, "a"), 3);
    // Room again when less than one waits.
    waiters.truncate(1);
    assert_ready_err!(task::spawn(slots.acquire("a")).poll());
    slots.configure("a", limits().queue_capacity(2)).unwrap();
    let mut second = queued(&slots, "a");
    slots.configure("a", limits().unbounded_queue()).unwrap();
    let _third = queued(&slots, "a");
    drop(permit);
    drop(assert_ready_ok!(waiters[0].poll()));
    drop(assert_ready_ok!(second.poll()));
}

// L6, Q3
#[tokio::test(start_paused = true)]
async fn a_wait_timeout_that_changes_holds_for_later_waits() {
    let slots = slots(SlotConfig::builder().concurrency(1).wait_timeout(secs(4)));
    let _permit = slots.acquire("a").await.unwrap();
    let begin = Instant::now();
    let before = tokio::spawn(slots.acquire("a"));
    yield_now().await;
    slots.configure("a", limits().wait_timeout(secs(1))).unwrap();
    let after = tokio::spawn(slots.acquire("a"));
    assert_eq!(after.await.unwrap().unwrap_err().waited(), secs(1));
    assert_eq!(before.await.unwrap().unwrap_err().waited(), secs(4));
    assert_eq!(begin.elapsed(), secs(4));
}

// --- names

// L5, L6
#[test]
fn a_change_reaches_the_slots_it_is_for_and_leaves_open_what_it_does_not_set() {
    let config = SlotConfig::builder().concurrency(2).queue_capacity(3).slot("own", limits().concurrency(5));
    let slots = slots(config);
    for key in ["own", "plain", "sub.example.com", "example.com"] {
        drop(slots.try_acquire(key).unwrap());
    }
    let seen = |key: &str| {
        let limits = slots.stats(key).unwrap().limits;
        (limits.concurrency.unwrap(), limits.queue_capacity.unwrap(), limits.delay)
    };
    let delay = secs(9);
    slots.configure_default(limits().concurrency(7).delay(delay)).unwrap();
    assert_eq!(seen("own"), (5, 3, delay));
    assert_eq!(seen("plain"), (7, 3, delay));
    slots.configure("*.example.com", limits().queue_capacity(1)).unwrap();
    assert_eq!(seen("sub.example.com"), (7, 1, delay));
    assert_eq!(seen("example.com"), (7, 3, delay));
    slots.configure("sub.example.com", limits().concurrency(4)).unwrap();
    assert_eq!(seen("sub.example.com"), (4, 1, delay));
    slots.configure("own", limits().queue_capacity(8)).unwrap();
    slots.configure_default(limits().concurrency(1)).unwrap();
    assert_eq!(seen("own"), (5, 8, delay));
    assert_eq!(seen("plain"), (1, 3, delay));
    // It is there for slots to come.
    slots.configure("later", limits().concurrency(6)).unwrap();
    drop(slots.try_acquire("later").unwrap());
    assert_eq!(seen("later"), (6, 3, delay));
}

// L1, L6
#[test]
fn a_change_with_a_bad_value_names_it_and_changes_nothing() {
    let slots = slots(SlotConfig::builder().concurrency(2));
    drop(slots.try_acquire("a").unwrap());
    let before = slots.stats("a").unwrap().limits;
    let nothing = limits().delay(secs(1)).concurrency(0);
    let far = limits().delay(secs(1)).jitter(Jitter::ratio(1.5));
    for (limits, field) in [(nothing, "concurrency"), (far, "jitter")] {
        let error = slots.configure("a", limits.clone()).unwrap_err().to_string();
        assert!(error.contains(field) && error.contains("\"a\""), "{error}");
        let error = slots.configure_default(limits).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
    assert_eq!(slots.stats("a").unwrap().limits, before);
}

// --- close

// V3, Q5
#[tokio::test(start_paused = true)]
async fn the_close_ends_every_wait_and_lets_those_in_flight_finish() {
    let config = SlotConfig::builder().concurrency(2).total_concurrency(3);
    let slots = slots(config.slot("paced", limits().delay(secs(60))));
    let permits = ["a", "a", "paced"].map(|key| slots.try_acquire(key).unwrap());
    let mut waiters: Vec<_> = ["a", "a", "a", "paced", "paced", "total", "total"]
        .map(|key| (key, Hand::new(slots.acquire(key))))
        .into();
    waiters.iter_mut().for_each(|(_, waiter)| assert_pending!(waiter.poll()));
    sleep(secs(1)).await;
    slots.close();
    for (key, waiter) in &mut waiters {
        assert_eq!(waiter.wakes(), 1);
        let error = assert_ready_err!(waiter.poll());
        assert_eq!((error.kind(), error.slot()), (SlotErrorKind::Closed, &SlotKey::new(*key)));
        assert_eq!(error.waited(), secs(1));
    }
    assert_eq!((in_flight(&slots, "a"), waiting(&slots, "a")), (2, 0));
    assert_eq!(slots.snapshot().total.line, 0);
    drop(permits);
    assert_eq!(slots.snapshot().total.in_flight, 0);
}

// V3
#[test]
fn nothing_undoes_a_close() {
    let slots = slots(SlotConfig::builder().concurrency(1).queue_capacity(0));
    drop(slots.try_acquire("a").unwrap());
    slots.close();
    slots.resume("a");
    slots.configure("a", limits().unlimited_concurrency().unbounded_queue()).unwrap();
    slots.configure_total(Some(100)).unwrap();
    for key in ["a", "new"] {
        assert_eq!(slots.try_acquire(key).unwrap_err().kind(), SlotErrorKind::Closed);
        let error = assert_ready_err!(task::spawn(slots.acquire(key)).poll());
        assert_eq!((error.kind(), error.reason()), (SlotErrorKind::Closed, None));
    }
    assert!(slots.is_closed());
}
