//! Sight: times, ages and everything else in the statistics is exact at every moment.

#![allow(clippy::unwrap_used, clippy::panic)]

mod by_hand;

use std::convert::Infallible;

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, advance, sleep};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};
use tower::{Layer, ServiceExt, service_fn};
use tower_slot::{
    Hold, Phases, SlotConfig, SlotErrorKind, SlotKey, SlotLayer, SlotLimits, SlotTimings, Slots, WaitReason,
};

use by_hand::{millis, queued, request, row, secs, slots, stats};

/// In milliseconds: concurrency, pace, total, headers, body.
fn phases(times: Phases) -> [u128; 5] {
    [times.concurrency, times.pace, times.total, times.headers, times.body].map(|time| time.as_millis())
}

fn times(slots: &Slots, key: &str) -> [u128; 5] {
    phases(stats(slots, key).times)
}

/// Answers at once, or after 7 ms.
async fn answer(request: Request<()>) -> Result<Response<Full<&'static [u8]>>, Infallible> {
    if request.uri().path() == "/slow" {
        sleep(millis(7)).await;
    }
    Ok(Response::new(Full::from("body".as_bytes())))
}

// --- times

// V1
#[tokio::test(start_paused = true)]
async fn every_phase_is_summed_apart_and_up_to_now() {
    let slots = slots(SlotConfig::builder().concurrency(1).delay(millis(100)).total_concurrency(1));
    let service = SlotLayer::with_slots(slots.clone()).layer(service_fn(answer));
    let mut first = spawn(service.clone().oneshot(request("http://a.test/slow")));
    assert_pending!(first.poll());
    advance(millis(7)).await;
    let first = assert_ready_ok!(first.poll());
    advance(millis(3)).await;
    let mut second = spawn(service.clone().oneshot(request("http://a.test/slow")));
    assert_pending!(second.poll());
    advance(millis(10)).await;
    assert_eq!(times(&slots, "a.test"), [10, 0, 0, 7, 13], "at 20");

    advance(millis(10)).await;
    first.into_body().collect().await.unwrap();
    assert!(second.is_woken());
    assert_pending!(second.poll());
    advance(millis(30)).await;
    assert_eq!(times(&slots, "a.test"), [20, 30, 0, 7, 23], "at 60");

    advance(millis(30)).await;
    let other = slots.try_acquire("b").unwrap();
    advance(millis(10)).await;
    assert!(second.is_woken());
    assert_pending!(second.poll());
    advance(millis(10)).await;
    assert_eq!(times(&slots, "a.test"), [20, 70, 10, 7, 23], "at 110");

    advance(millis(15)).await;
    drop(other);
    assert!(second.is_woken());
    assert_pending!(second.poll());
    advance(millis(3)).await;
    assert_eq!(times(&slots, "a.test"), [20, 70, 25, 10, 23], "at 128");

    advance(millis(4)).await;
    let second = assert_ready_ok!(second.poll());
    advance(millis(8)).await;
    assert_eq!(times(&slots, "a.test"), [20, 70, 25, 14, 31], "at 140");
    drop(second);
    advance(millis(60)).await;
    assert_eq!(times(&slots, "a.test"), [20, 70, 25, 14, 31], "at 200, all are gone");
    assert_eq!(row(stats(&slots, "a.test").counts), [2, 2, 0, 0, 0, 1, 0, 1]);
    assert_eq!(times(&slots, "b"), [0, 0, 0, 0, 35], "taken by hand: all of it is the body's");
}

// V1
#[tokio::test(start_paused = true)]
async fn the_time_of_all_who_wait_is_summed_wherever_they_leave() {
    let slots = slots(SlotConfig::builder().concurrency(1).delay(millis(100)));
    let permit = slots.try_acquire("a").unwrap();
    let first = queued(&slots, "a");
    advance(millis(10)).await;
    let second = queued(&slots, "a");
    advance(millis(10)).await;
    let mut third = queued(&slots, "a");
    advance(millis(10)).await;
    assert_eq!(times(&slots, "a"), [30 + 20 + 10, 0, 0, 0, 30]);
    drop(second);
    advance(millis(10)).await;
    assert_eq!(times(&slots, "a"), [40 + 20 + 20, 0, 0, 0, 40]);
    drop(permit);
    drop(first);
    assert!(third.is_woken());
    assert_pending!(third.poll());
    advance(millis(60)).await;
    let permit = assert_ready_ok!(third.poll());
    assert_eq!(times(&slots, "a"), [40 + 20 + 20, 60, 0, 0, 40]);
    drop(permit);
    let waited = stats(&slots, "a").times;
    assert_eq!(waited.waited(), millis(140));
    assert_eq!(WaitReason::ALL.map(|reason| waited.waited_for(reason)), [millis(80), millis(60), millis(0)]);
}

// V1: a hundred thousand who wait for two days have waited longer than 64 bits of nanoseconds can say.
#[tokio::test(start_paused = true)]
async fn the_time_of_many_for_long_is_summed_in_full() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let year = secs(365 * 24 * 3_600);
    let permit = slots.try_acquire("a").unwrap();
    let waiters: Vec<_> = (0..1_000).map(|_| queued(&slots, "a")).collect();
    advance(year).await;
    assert_eq!(stats(&slots, "a").times.concurrency, 1_000 * year);
    drop(waiters);
    assert_eq!(stats(&slots, "a").times.waited(), 1_000 * year);
    drop(permit);
    advance(secs(60)).await;
    slots.retain_recent();
    let recycled = slots.snapshot().recycled;
    assert_eq!((recycled.slots, recycled.times.concurrency, recycled.longest.body), (1, 1_000 * year, year));
}

// V1
#[tokio::test(start_paused = true)]
async fn all_who_stand_behind_the_first_wait_for_what_it_waits_for() {
    let slots = slots(SlotConfig::builder().concurrency(1).delay(millis(100)));
    let permit = slots.try_acquire("a").unwrap();
    let mut waiters: Vec<_> = (0..3).map(|_| queued(&slots, "a")).collect();
    advance(millis(40)).await;
    assert_eq!(stats(&slots, "a").reason, Some(WaitReason::Concurrency));
    drop(permit);
    assert_pending!(waiters[0].poll());
    assert_eq!(stats(&slots, "a").reason, Some(WaitReason::Pace));
    advance(millis(50)).await;
    assert_eq!(times(&slots, "a"), [120, 150, 0, 0, 40]);
    advance(millis(10)).await;
    let permit = assert_ready_ok!(waiters[0].poll());
    // The next one waits for the permit before it waits for the pace.
    assert_eq!(stats(&slots, "a").reason, Some(WaitReason::Concurrency));
    advance(millis(5)).await;
    assert_eq!(times(&slots, "a"), [130, 180, 0, 0, 45]);
    drop(permit);
}

// V1
#[tokio::test(start_paused = true)]
async fn the_longest_stay_in_each_phase_is_kept() {
    let slots = slots(SlotConfig::builder().concurrency(1).delay(millis(100)).total_concurrency(1));
    let service = SlotLayer::with_slots(slots.clone()).layer(service_fn(answer));
    let longest = || phases(stats(&slots, "a.test").longest);
    let mut first = spawn(service.clone().oneshot(request("http://a.test/slow")));
    assert_pending!(first.poll());
    advance(millis(7)).await;
    let first = assert_ready_ok!(first.poll());
    let mut second = spawn(service.clone().oneshot(request("http://a.test/ok")));
    assert_pending!(second.poll());
    advance(millis(23)).await;
    drop(first);
    assert_pending!(second.poll());
    let other = slots.try_acquire("b").unwrap();
    advance(millis(70)).await;
    assert_pending!(second.poll());
    // Nobody has left the queue.
    assert_eq!(longest(), [0, 0, 0, 7, 23]);
    advance(millis(5)).await;
    drop(other);
    let second = assert_ready_ok!(second.poll());
    advance(millis(1)).await;
    drop(second);
    assert_eq!(longest(), [23, 70, 5, 7, 23]);
    // Those who leave without a start were there too.
    let mut gone = spawn(service.oneshot(request("http://a.test/ok")));
    assert_pending!(gone.poll());
    advance(millis(80)).await;
    drop(gone);
    assert_eq!(longest(), [23, 80, 5, 7, 23]);
}

// --- what a slot looks like

// V1, L6
#[tokio::test(start_paused = true)]
async fn stats_tell_limits_ages_next_start_and_pause() {
    let slots = slots(SlotConfig::builder().concurrency(2).delay(millis(50)).wait_timeout(millis(500)));
    assert!(slots.stats("a").is_none());
    assert_eq!(slots.len(), 0, "looking makes no slot");
    let begin = Instant::now();
    let first = slots.try_acquire("a").unwrap();
    let seen = stats(&slots, "a");
    assert_eq!(seen.key, SlotKey::new("a"));
    assert_eq!((seen.limits.concurrency, seen.limits.delay), (Some(2), millis(50)));
    assert_eq!((seen.in_flight, seen.waiting, seen.reason), (1, 0, None));
    assert_eq!((seen.oldest_permit, seen.oldest_waiter, seen.stalled), (Some(millis(0)), None, None));
    assert_eq!((seen.next_start, seen.paused_until), (Some(begin + millis(50)), None));

    advance(millis(20)).await;
    let mut second = queued(&slots, "a");
    advance(millis(5)).await;
    let third = queued(&slots, "a");
    let seen = stats(&slots, "a");
    assert_eq!((seen.in_flight, seen.waiting, seen.reason), (1, 2, Some(WaitReason::Pace)));
    assert_eq!((seen.oldest_permit, seen.oldest_waiter), (Some(millis(25)), Some(millis(5))));

    advance(millis(25)).await;
    assert_eq!(stats(&slots, "a").next_start, None, "it may start now");
    let second = assert_ready_ok!(second.poll());
    let seen = stats(&slots, "a");
    assert_eq!((seen.in_flight, seen.waiting, seen.reason), (2, 1, Some(WaitReason::Concurrency)));
    assert_eq!((seen.oldest_permit, seen.oldest_waiter), (Some(millis(50)), Some(millis(25))));
    assert_eq!(seen.next_start, Some(begin + millis(100)));
    drop(first);
    assert_eq!(stats(&slots, "a").oldest_permit, Some(millis(0)), "the first one is back");

    slots.pause("a", begin + millis(300));
    let seen = stats(&slots, "a");
    assert_eq!((seen.next_start, seen.paused_until), (Some(begin + millis(300)), Some(begin + millis(300))));
    slots.configure("a", SlotLimits::new().delay(millis(1_000)).concurrency(3)).unwrap();
    let seen = stats(&slots, "a");
    assert_eq!((seen.limits.concurrency, seen.limits.delay), (Some(3), millis(1_000)));
    assert_eq!(seen.limits.wait_timeout, Some(millis(500)));
    assert_eq!(
        (seen.next_start, seen.paused_until),
        (Some(begin + millis(1_050)), Some(begin + millis(300)))
    );
    advance(millis(250)).await;
    assert_eq!(stats(&slots, "a").paused_until, None, "the pause is past");
    drop((second, third));
}

// V1
#[tokio::test(start_paused = true)]
async fn the_reason_goes_with_the_last_one_who_waits() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let permit = slots.try_acquire("a").unwrap();
    let first = queued(&slots, "a");
    assert_eq!(stats(&slots, "a").reason, Some(WaitReason::Concurrency));
    drop(first);
    let seen = stats(&slots, "a");
    assert_eq!((seen.in_flight, seen.waiting, seen.reason), (1, 0, None));
    drop(permit);
}

// V1, Q6
#[tokio::test(start_paused = true)]
async fn a_first_waiter_that_was_woken_and_is_not_polled_shows_as_stalled() {
    let slots = slots(SlotConfig::builder().concurrency(1).total_concurrency(2));
    slots.configure("paced", SlotLimits::new().concurrency(2).delay(millis(100))).unwrap();
    let stalled = |key: &str| stats(&slots, key).stalled;

    // Woken by a release.
    let permit = slots.try_acquire("full").unwrap();
    let mut first = queued(&slots, "full");
    let second = queued(&slots, "full");
    advance(millis(10)).await;
    assert_eq!(stalled("full"), None, "asleep");
    drop(permit);
    assert_eq!(stalled("full"), Some(millis(0)));
    advance(millis(10)).await;
    assert_eq!(stalled("full"), Some(millis(10)));
    let permit = assert_ready_ok!(first.poll());
    assert_eq!(stalled("full"), None, "the next one is asleep");
    drop((second, permit));
    assert_eq!(stalled("full"), None, "nobody waits");

    // Its own timer went off.
    let permit = slots.try_acquire("paced").unwrap();
    let mut first = queued(&slots, "paced");
    advance(millis(100)).await;
    assert_eq!(stalled("paced"), Some(millis(0)));
    advance(millis(30)).await;
    assert_eq!(stalled("paced"), Some(millis(30)));
    drop((assert_ready_ok!(first.poll()), permit));
    advance(millis(100)).await;

    // Called at the total.
    let units = [slots.try_acquire("b").unwrap(), slots.try_acquire("c").unwrap()];
    let mut first = queued(&slots, "full");
    advance(millis(10)).await;
    assert_eq!(stalled("full"), None);
    drop(units);
    advance(millis(20)).await;
    assert_eq!(stalled("full"), Some(millis(20)));
    drop(assert_ready_ok!(first.poll()));
}

// V1, Q6
#[tokio::test(start_paused = true)]
async fn a_first_waiter_whose_timeout_is_past_shows_as_stalled() {
    for polled_again in [false, true] {
        let slots = slots(SlotConfig::builder().concurrency(1).wait_timeout(millis(100)));
        let permit = slots.try_acquire("a").unwrap();
        let mut first = queued(&slots, "a");
        advance(millis(60)).await;
        let second = queued(&slots, "a");
        if polled_again {
            assert_pending!(first.poll());
        }
        advance(millis(39)).await;
        assert_eq!(stats(&slots, "a").stalled, None);
        advance(millis(21)).await;
        assert!(first.is_woken());
        assert_eq!(stats(&slots, "a").stalled, Some(millis(20)), "its timer woke it");
        // The one behind it was not woken while it was second.
        assert_eq!(assert_ready_err!(first.poll()).kind(), SlotErrorKind::WaitTimeout);
        assert_eq!(stats(&slots, "a").stalled, None);
        drop((second, permit));
    }
}

// --- snapshot

// V1
#[tokio::test(start_paused = true)]
async fn a_snapshot_shows_every_slot_in_order_the_total_and_its_line() {
    let slots = slots(SlotConfig::builder().concurrency(1).total_concurrency(2));
    let permits = [slots.try_acquire("b").unwrap(), slots.try_acquire("a").unwrap()];
    let waits = [queued(&slots, "d"), queued(&slots, "c"), queued(&slots, "c"), queued(&slots, "a")];
    advance(millis(3)).await;
    let snapshot = slots.snapshot();
    assert_eq!(snapshot.at, Instant::now());
    let seen =
        snapshot.slots.iter().map(|slot| (slot.key.as_str(), slot.in_flight, slot.waiting, slot.reason));
    assert_eq!(
        seen.collect::<Vec<_>>(),
        [
            ("a", 1, 1, Some(WaitReason::Concurrency)),
            ("b", 1, 0, None),
            ("c", 0, 2, Some(WaitReason::Total)),
            ("d", 0, 1, Some(WaitReason::Total)),
        ]
    );
    assert_eq!(snapshot.slots.iter().map(|slot| phases(slot.times)[2]).collect::<Vec<_>>(), [0, 0, 6, 3]);
    let total = snapshot.total;
    assert_eq!((total.limit, total.in_flight, total.line), (Some(2), 2, 2));
    slots.configure_total(Some(5)).unwrap();
    let total = slots.snapshot().total;
    assert_eq!((total.limit, total.in_flight, total.line), (Some(5), 2, 2), "called, and not yet polled");
    drop(waits);
    slots.configure_total(None).unwrap();
    let total = slots.snapshot().total;
    assert_eq!((total.limit, total.in_flight, total.line), (None, 2, 0));
    drop(permits);
    assert_eq!(slots.snapshot().total.in_flight, 0);
}

// V1
#[tokio::test(start_paused = true)]
async fn without_a_cap_the_total_in_flight_is_that_of_all_slots() {
    let slots = slots(SlotConfig::builder());
    let permits: Vec<_> = ["a", "a", "b"].map(|key| slots.try_acquire(key).unwrap()).into();
    let total = slots.snapshot().total;
    assert_eq!((total.limit, total.in_flight, total.line), (None, 3, 0));
    drop(permits);
}

// V1, G1
#[tokio::test(start_paused = true)]
async fn what_recycled_slots_counted_is_added_up_and_never_lost() {
    let slots = slots(
        SlotConfig::builder().concurrency(1).max_slots(3).idle_timeout(millis(1_000)).queue_capacity(1),
    );
    for (key, held) in [("a", 10), ("b", 20), ("c", 5)] {
        let permit = slots.try_acquire(key).unwrap();
        let mut waits = queued(&slots, key);
        slots.try_acquire(key).unwrap_err();
        advance(millis(held)).await;
        drop(permit);
        let permit = assert_ready_ok!(waits.poll());
        advance(millis(2)).await;
        drop(permit);
    }
    let recycled = slots.snapshot().recycled;
    assert_eq!((recycled.slots, row(recycled.counts), phases(recycled.times)), (0, [0; 8], [0; 5]));
    // "c" goes on.
    advance(millis(990)).await;
    drop(slots.try_acquire("c").unwrap());
    advance(millis(10)).await;
    slots.retain_recent();
    let snapshot = slots.snapshot();
    assert_eq!(snapshot.slots.iter().map(|slot| slot.key.as_str()).collect::<Vec<_>>(), ["c"]);
    let recycled = snapshot.recycled;
    assert_eq!(recycled.slots, 2);
    assert_eq!(row(recycled.counts), [6, 4, 2, 0, 0, 4, 0, 0]);
    assert_eq!(phases(recycled.times), [30, 0, 0, 0, 34]);
    assert_eq!(recycled.longest.body, millis(20));
    // The same name again: a new slot with counts of its own.
    drop(slots.try_acquire("a").unwrap());
    assert_eq!(row(stats(&slots, "a").counts), [1, 1, 0, 0, 0, 1, 0, 0]);
    advance(millis(1_000)).await;
    slots.retain_recent();
    let recycled = slots.snapshot().recycled;
    assert_eq!(recycled.slots, 4);
    assert_eq!(row(recycled.counts), [11, 8, 3, 0, 0, 8, 0, 0]);
    assert_eq!(phases(recycled.times), [35, 0, 0, 0, 41]);
    // Refused before there was a slot.
    let permits = ["a", "b", "c"].map(|key| slots.try_acquire(key).unwrap());
    slots.try_acquire("d").unwrap_err();
    let recycled = slots.snapshot().recycled;
    assert_eq!((recycled.slots, row(recycled.counts)), (4, [12, 8, 4, 0, 0, 8, 0, 0]));
    drop(permits);
}

// --- without statistics

// V1, G1, L3: what the slots do, and all counts and ages, are the same.
#[tokio::test(start_paused = true)]
async fn without_statistics_only_the_times_after_the_start_are_missing() {
    let run = async |on: bool| {
        let config = SlotConfig::builder().concurrency(1).delay(millis(10)).idle_timeout(millis(500));
        let slots = slots(config.statistics(on));
        let service = SlotLayer::with_slots(slots.clone()).layer(service_fn(answer));
        let first = service.clone().oneshot(request("http://a.test/slow")).await.unwrap();
        let mut second = spawn(service.clone().oneshot(request("http://a.test/ok")));
        assert_pending!(second.poll());
        advance(millis(30)).await;
        let held = stats(&slots, "a.test");
        let ages = (held.oldest_permit, held.oldest_waiter, held.in_flight, held.waiting);
        drop(first);
        let body = assert_ready_ok!(second.poll()).into_body();
        advance(millis(4)).await;
        body.collect().await.unwrap();
        let by_hand = slots.acquire("b").await.unwrap();
        advance(millis(5)).await;
        drop((by_hand, service));
        let told = (row(stats(&slots, "a.test").counts), row(stats(&slots, "b").counts), ages);
        let times = ["a.test", "b"].map(|key| (times(&slots, key), phases(stats(&slots, key).longest)));
        // Nothing that comes later turns it on or off.
        slots.reload(SlotConfig::builder().idle_timeout(millis(500)).statistics(!on).build().unwrap());
        drop(slots.acquire("b").await.unwrap());
        let left = || {
            slots.retain_recent();
            slots.len()
        };
        advance(millis(499)).await;
        let kept = left();
        advance(millis(1)).await;
        (told, times, kept, left())
    };
    let (told, times, kept, gone) = run(true).await;
    let (of_a, of_b) = ([30, 0, 0, 7, 34], [0, 0, 0, 0, 5]);
    assert_eq!(times, [(of_a, [30, 0, 0, 7, 30]), (of_b, of_b)]);
    let without = run(false).await;
    assert_eq!(without.1, [([30, 0, 0, 0, 0], [30, 0, 0, 0, 0]), ([0; 5], [0; 5])]);
    assert_eq!((without.0, without.2, without.3), (told, kept, gone));
}

// --- timings of one response

// V2
#[tokio::test(start_paused = true)]
async fn a_response_carries_its_own_timings_when_asked() {
    let slots = slots(SlotConfig::builder().concurrency(1).delay(millis(100)));
    let layer = SlotLayer::with_slots(slots.clone());
    let silent = layer.layer(service_fn(answer));
    let service = layer.timings(true).layer(service_fn(answer));
    let response = silent.oneshot(request("http://a.test/ok")).await.unwrap();
    assert!(response.extensions().get::<SlotTimings>().is_none());
    let mut asked = spawn(service.clone().oneshot(request("http://a.test/slow")));
    assert_pending!(asked.poll());
    advance(millis(30)).await;
    drop(response);
    assert_pending!(asked.poll());
    advance(millis(70)).await;
    assert_pending!(asked.poll());
    advance(millis(7)).await;
    let response = assert_ready_ok!(asked.poll());
    let timings = response.extensions().get::<SlotTimings>().unwrap().clone();
    assert_eq!(timings.slot().as_str(), "a.test");
    assert_eq!(timings.waited(), millis(100));
    assert_eq!(WaitReason::ALL.map(|reason| timings.waited_for(reason)), [millis(30), millis(70), millis(0)]);
    assert_eq!(timings.to_headers(), millis(7));
    advance(millis(4)).await;
    assert_eq!(timings.body(), None, "it has not ended");
    drop(response);
    advance(millis(4)).await;
    assert_eq!(timings.body(), Some(millis(4)));

    // Without a permit the body's time is not measured.
    advance(millis(100)).await;
    let mut of_headers = request("http://a.test/ok");
    of_headers.extensions_mut().insert(Hold::Headers);
    let response = service.oneshot(of_headers).await.unwrap();
    let timings = response.extensions().get::<SlotTimings>().unwrap().clone();
    response.into_body().collect().await.unwrap();
    assert_eq!((timings.to_headers(), timings.body()), (millis(0), None));
}
