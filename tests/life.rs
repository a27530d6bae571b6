//! Life of a slot: it goes when nobody needs it any more, and never before.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant as WallClock};

use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::runtime::Handle;
use tokio::time::{Instant, advance, sleep, sleep_until, timeout};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_ok};
use tower::{Layer, ServiceExt, service_fn};
use tower_slot::{
    BoxError, Jitter, SlotConfig, SlotConfigBuilder, SlotErrorKind, SlotLayer, SlotLimits, Slots, WaitReason,
};

const MS: Duration = Duration::from_millis(1);

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn slots(config: SlotConfigBuilder) -> Slots {
    Slots::new(config.build().unwrap())
}

/// Starts in the slot and is done.
fn use_slot(slots: &Slots, key: &str) {
    drop(slots.try_acquire(key).unwrap());
}

fn is_there(slots: &Slots, key: &str) -> bool {
    slots.retain_recent();
    slots.stats(key).is_some()
}

// --- when it goes (G1)

// G1
#[tokio::test(start_paused = true)]
async fn a_slot_goes_when_it_was_left_for_the_idle_timeout() {
    let slots = slots(SlotConfig::builder());
    assert!(slots.is_empty());
    let permit = slots.try_acquire("a").unwrap();
    assert!(!slots.is_empty());
    advance(secs(40)).await;
    drop(permit);
    advance(secs(60) - MS).await;
    assert!(is_there(&slots, "a"));
    advance(MS).await;
    assert!(!is_there(&slots, "a"));
    assert!(slots.is_empty());
    assert_eq!(slots.snapshot().recycled.slots, 1);
}

// G1
#[tokio::test(start_paused = true)]
async fn a_slot_stays_while_somebody_is_in_flight_waits_or_has_a_handle() {
    let slots = slots(SlotConfig::builder().concurrency(1).idle_timeout(Duration::ZERO));
    let permit = slots.try_acquire("a").unwrap();
    let mut waiter = spawn(slots.acquire("a"));
    assert_pending!(waiter.poll());
    assert!(is_there(&slots, "a"));
    drop(permit);
    assert!(is_there(&slots, "a"), "one was woken and has not started");
    let permit = assert_ready_ok!(waiter.poll());
    drop(waiter);
    assert!(is_there(&slots, "a"));
    let moved = std::thread::spawn(move || permit).join().unwrap();
    assert!(is_there(&slots, "a"));
    drop(moved);
    assert!(!is_there(&slots, "a"));
    let handle = slots.acquire("a");
    assert!(is_there(&slots, "a"), "not polled yet, but it will be");
    drop(handle);
    assert!(!is_there(&slots, "a"));
}

// G1, case 33
#[tokio::test(start_paused = true)]
async fn a_next_start_to_come_outlives_the_idle_timeout() {
    let slots = slots(SlotConfig::builder().delay(secs(900)).idle_timeout(secs(60)));
    let begin = Instant::now();
    use_slot(&slots, "a");
    advance(secs(300)).await;
    assert!(is_there(&slots, "a"));
    let permit = slots.acquire("a").await.unwrap();
    assert_eq!(begin.elapsed(), secs(900));
    drop(permit);
    advance(secs(900) - MS).await;
    assert!(is_there(&slots, "a"));
    advance(MS).await;
    assert!(!is_there(&slots, "a"), "nothing is left to remember");
    // A lower delay leaves less to remember.
    use_slot(&slots, "a");
    slots.configure_default(SlotLimits::new().delay(secs(90))).unwrap();
    advance(secs(90) - MS).await;
    assert!(is_there(&slots, "a"));
    advance(MS).await;
    assert!(!is_there(&slots, "a"));
}

// G1, L2
#[tokio::test(start_paused = true)]
async fn the_next_start_that_outlives_is_the_drawn_one() {
    let slots = slots(SlotConfig::builder().jitter(Jitter::up_to(secs(600))).idle_timeout(MS));
    for n in 0..20 {
        let key = n.to_string();
        use_slot(&slots, &key);
        let next = slots.stats(key.as_str()).unwrap().next_start.unwrap();
        assert!(next <= Instant::now() + secs(600));
        advance(next - Duration::from_nanos(1) - Instant::now()).await;
        if Instant::now() < next {
            assert!(is_there(&slots, &key));
        }
        advance(MS).await;
        assert!(!is_there(&slots, &key));
    }
}

// G1, L6
#[tokio::test(start_paused = true)]
async fn a_pause_outlives_the_idle_timeout() {
    let slots = slots(SlotConfig::builder().idle_timeout(secs(60)));
    let begin = Instant::now();
    use_slot(&slots, "a");
    slots.pause("a", begin + secs(300));
    advance(secs(300) - MS).await;
    assert!(is_there(&slots, "a"));
    assert_eq!(slots.try_acquire("a").unwrap_err().earliest_start(), Some(begin + secs(300)));
    advance(MS).await;
    assert!(!is_there(&slots, "a"));
    use_slot(&slots, "a");
    slots.pause("a", Instant::now() + secs(300));
    advance(secs(60)).await;
    slots.resume("a");
    assert!(!is_there(&slots, "a"), "a pause that was ended is past");
}

// G1
#[tokio::test(start_paused = true)]
async fn limits_and_pauses_set_by_name_do_not_go_with_the_slot() {
    let slots = slots(SlotConfig::builder().slot("a", SlotLimits::new().concurrency(3)));
    slots.configure("b", SlotLimits::new().concurrency(4)).unwrap();
    use_slot(&slots, "a");
    use_slot(&slots, "b");
    slots.configure("a", SlotLimits::new().delay(secs(1))).unwrap();
    advance(secs(60)).await;
    slots.retain_recent();
    assert!(slots.is_empty());
    // Set while there is no slot: the longer pause wins here too.
    let begin = Instant::now();
    slots.pause("a", begin + secs(20));
    slots.pause("a", begin + secs(10));
    slots.pause("b", begin + secs(20));
    slots.resume("b");
    use_slot(&slots, "b");
    assert_eq!(slots.stats("b").unwrap().limits.concurrency, Some(4));
    let error = slots.try_acquire("a").unwrap_err();
    assert_eq!((error.reason(), error.earliest_start()), (Some(WaitReason::Pace), Some(begin + secs(20))));
    let seen = slots.stats("a").unwrap();
    assert_eq!((seen.limits.concurrency, seen.limits.delay), (Some(3), secs(1)));
    assert_eq!(seen.paused_until, Some(begin + secs(20)));
}

// G1, B1, case 34
#[tokio::test(start_paused = true)]
async fn a_body_held_open_for_longer_than_the_idle_timeout_keeps_its_slot() {
    let slots = slots(SlotConfig::builder().concurrency(1).idle_timeout(300 * MS));
    let sweeper = tokio::spawn(slots.sweeper());
    let begin = Instant::now();
    let service = SlotLayer::with_slots(slots.clone()).layer(service_fn(async |_: Request<()>| {
        Ok::<_, BoxError>(Response::new(Full::<&[u8]>::from("body".as_bytes())))
    }));
    let ask = || service.clone().oneshot(Request::get("http://a.test/").body(()).unwrap());
    let held = ask().await.unwrap();
    tokio::spawn(async move {
        sleep_until(begin + secs(2)).await;
        held.into_body().collect().await
    });
    let ended = tokio::spawn({
        let slots = slots.clone();
        async move {
            // Traffic elsewhere recycles what it can.
            while begin.elapsed() < secs(3) {
                use_slot(&slots, &format!("{:?}", begin.elapsed()));
                let in_flight = slots.stats("a.test").map_or(0, |stats| stats.in_flight);
                assert!(in_flight <= 1);
                sleep(MS).await;
            }
        }
    });
    sleep_until(begin + 1_200 * MS).await;
    let second = ask().await.unwrap();
    assert_eq!(begin.elapsed(), secs(2));
    assert_eq!(slots.stats("a.test").unwrap().counts.started, 2, "it is the same slot");
    drop(second);
    ended.await.unwrap();
    assert!(slots.snapshot().recycled.slots > 1_000);
    sweeper.abort();
}

// --- who pays for it (G3)

// G1, G3
#[tokio::test(start_paused = true)]
async fn traffic_recycles_within_half_an_idle_timeout_more_be_there_few_slots_or_many() {
    for many in [5, 500] {
        let slots = slots(SlotConfig::builder());
        for n in 0..many {
            use_slot(&slots, &n.to_string());
        }
        let begin = Instant::now();
        use_slot(&slots, "busy");
        while slots.len() > 1 {
            assert!(begin.elapsed() >= secs(60) || slots.len() == many + 1, "{:?}", begin.elapsed());
            assert!(begin.elapsed() <= secs(60 + 30 + 5), "{} are still there", slots.len());
            advance(100 * MS).await;
            use_slot(&slots, "busy");
        }
        assert_eq!(slots.snapshot().slots[0].key.as_str(), "busy");
    }
}

// G3, case 32
#[tokio::test(start_paused = true)]
async fn one_request_recycles_a_small_piece_and_the_next_ones_go_on() {
    const MANY: usize = 20_000;
    let slots = slots(SlotConfig::builder());
    for n in 0..MANY {
        use_slot(&slots, &n.to_string());
    }
    advance(secs(61)).await;
    let mut requests = 0;
    while slots.len() > 1 {
        let before = slots.len();
        use_slot(&slots, "busy");
        assert!(slots.len() + 64 >= before, "{} at once", before - slots.len());
        requests += 1;
        assert!(requests <= 2 * MANY / 64, "{} are still there", slots.len());
    }
}

// G3, S5
#[tokio::test(start_paused = true)]
async fn no_task_is_spawned() {
    let slots =
        slots(SlotConfig::builder().concurrency(1).delay(MS).total_concurrency(1).wait_timeout(secs(1)));
    let waits: Vec<_> = (0..10).map(|_| slots.acquire("a")).collect();
    for wait in waits {
        drop(wait.await.unwrap());
    }
    advance(secs(61)).await;
    use_slot(&slots, "b");
    slots.retain_recent();
    drop(slots.sweeper());
    slots.close();
    slots.drained().await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
}

// G3
#[tokio::test(start_paused = true)]
async fn a_sweeper_recycles_without_traffic() {
    let slots = slots(SlotConfig::builder());
    let sweeper = tokio::spawn(slots.sweeper());
    for n in 0..10_000 {
        use_slot(&slots, &n.to_string());
    }
    let held = slots.try_acquire("held").unwrap();
    sleep(secs(60) - MS).await;
    assert_eq!(slots.len(), 10_001);
    sleep(secs(30 + 5)).await;
    assert_eq!(slots.len(), 1);
    drop(held);
    sleep(secs(60 + 30 + 5)).await;
    assert!(slots.is_empty());
    assert!(!sweeper.is_finished());
    sweeper.abort();
}

// G3
#[tokio::test(start_paused = true)]
async fn a_sweeper_ends_with_the_last_handle() {
    for idle_timeout in [Duration::ZERO, secs(60), Duration::MAX] {
        let slots = slots(SlotConfig::builder().idle_timeout(idle_timeout));
        let sweeper = tokio::spawn(slots.sweeper());
        let service = SlotLayer::with_slots(slots.clone()).layer(());
        let permit = slots.try_acquire("a").unwrap();
        sleep(secs(15)).await;
        drop(slots);
        sleep(secs(15)).await;
        assert!(!sweeper.is_finished(), "the service has a handle");
        drop(service);
        timeout(secs(10) + MS, sweeper).await.expect("it ends soon").unwrap();
        // A permit is no handle, and is still good.
        assert_eq!(permit.key().as_str(), "a");
        drop(permit);
    }
}

// G3
#[tokio::test(start_paused = true)]
async fn retain_recent_recycles_all_that_is_idle_and_nothing_else() {
    let slots = slots(SlotConfig::builder().max_slots(30_000));
    let mut permits = Vec::new();
    for n in 0..10_000 {
        use_slot(&slots, &format!("old {n}"));
        permits.push(slots.try_acquire(format!("held {n}")).unwrap());
    }
    advance(secs(30)).await;
    for n in 0..10_000 {
        use_slot(&slots, &format!("young {n}"));
    }
    advance(secs(30)).await;
    slots.retain_recent();
    assert_eq!(slots.len(), 20_000);
    assert!(slots.snapshot().slots.iter().all(|slot| !slot.key.as_str().starts_with("old")));
    drop(permits);
    advance(secs(30)).await;
    slots.retain_recent();
    assert_eq!(slots.len(), 10_000);
    assert!(slots.snapshot().slots.iter().all(|slot| slot.key.as_str().starts_with("held")));
    advance(secs(30)).await;
    slots.retain_recent();
    assert!(slots.is_empty());
    assert_eq!(slots.snapshot().recycled.slots, 30_000);
}

// --- never two of one key (G2)

// G2, V1, case 35, on real threads
#[test]
fn looking_up_and_recycling_never_make_two_slots_of_one_key() {
    const KEYS: usize = 4;
    const ROUNDS: usize = 5_000;
    let slots = slots(SlotConfig::builder().concurrency(1).idle_timeout(Duration::ZERO));
    let inside: [AtomicUsize; KEYS] = Default::default();
    let done = AtomicBool::new(false);
    let asked = std::thread::scope(|scope| {
        let users = [(); 4].map(|()| {
            scope.spawn(|| {
                let mut asked = 0;
                for round in 0..ROUNDS {
                    let key = round * 7 % KEYS;
                    let name = ["a", "b", "c", "d"][key];
                    asked += 1;
                    let permit = if round % 2 == 0 {
                        slots.try_acquire(name).ok()
                    } else {
                        slots.acquire(name).now_or_never().and_then(Result::ok)
                    };
                    if let Some(permit) = permit {
                        assert_eq!(inside[key].fetch_add(1, Ordering::SeqCst), 0, "two of {name}");
                        std::hint::spin_loop();
                        inside[key].fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                }
                asked
            })
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                slots.retain_recent();
                assert!(slots.snapshot().slots.iter().all(|slot| slot.in_flight <= 1));
            }
        });
        let asked: Result<Vec<u64>, _> = users.map(|user| user.join()).into_iter().collect();
        done.store(true, Ordering::Relaxed);
        asked.unwrap().into_iter().sum::<u64>()
    });
    // Whatever happened to the slots, everybody was counted once.
    slots.retain_recent();
    let recycled = slots.snapshot().recycled;
    assert!(slots.is_empty());
    assert!(recycled.slots > KEYS as u64);
    let counts = recycled.counts;
    assert_eq!(counts.asked, asked);
    assert_eq!(counts.asked, counts.started + counts.refused + counts.gone);
    assert_eq!(counts.started, counts.finished);
}

// G2, on real threads
#[test]
fn of_several_who_come_to_a_slot_that_is_not_there_one_starts() {
    const THREADS: usize = 4;
    let slots = slots(SlotConfig::builder().concurrency(1).idle_timeout(Duration::ZERO));
    let (started, turn) = (AtomicUsize::new(0), Barrier::new(THREADS));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 1..=3_000 {
                    turn.wait();
                    let permit = slots.try_acquire("a").ok();
                    started.fetch_add(usize::from(permit.is_some()), Ordering::SeqCst);
                    // Whoever started holds on to it until all have tried.
                    turn.wait();
                    let seen = started.load(Ordering::SeqCst);
                    drop(permit);
                    turn.wait();
                    slots.retain_recent();
                    if seen != round {
                        return assert_eq!(seen, round);
                    }
                }
            });
        }
    });
    assert_eq!(slots.snapshot().recycled.slots, 3_000);
}

// --- how long it takes to look at many

// V1
#[tokio::test(start_paused = true)]
async fn a_snapshot_of_a_hundred_thousand_slots_shows_each_once() {
    const MANY: usize = 100_000;
    let slots = slots(SlotConfig::builder());
    let permits: Vec<_> = (0..MANY).map(|n| slots.try_acquire(format!("{n:05}.test")).unwrap()).collect();
    let begin = WallClock::now();
    let snapshot = slots.snapshot();
    println!("a snapshot of {MANY} slots took {:?}", begin.elapsed());
    assert_eq!(snapshot.slots.len(), MANY);
    for (n, slot) in snapshot.slots.iter().enumerate() {
        assert_eq!(slot.key.as_str(), format!("{n:05}.test"));
        assert_eq!(slot.in_flight, 1);
    }
    assert_eq!(snapshot.total.in_flight, MANY);
    drop(permits);
    // Without the permits all of them can go; the table finds what is left.
    advance(secs(60)).await;
    use_slot(&slots, "00000.test");
    slots.retain_recent();
    assert_eq!(
        slots.snapshot().slots.iter().map(|slot| slot.key.as_str()).collect::<Vec<_>>(),
        ["00000.test"]
    );
    assert_eq!(slots.try_acquire("00001.test").map(|permit| permit.key().to_string()).unwrap(), "00001.test");
    let error = slots.try_acquire("00001.test").err().map(|error| error.kind());
    assert_eq!(error, None::<SlotErrorKind>);
}
