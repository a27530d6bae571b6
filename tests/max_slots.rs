//! The bound on the number of slots: it is never exceeded, and nothing that matters is evicted for it.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{HashSet, VecDeque};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use tokio::time::{Instant, advance};
use tokio_test::assert_pending;
use tokio_test::task::spawn;
use tower::{Layer, ServiceExt, service_fn};
use tower_slot::{
    BoxError, SlotConfig, SlotConfigBuilder, SlotError, SlotErrorKind, SlotLayer, SlotLimits, Slots,
    WaitReason,
};

const MS: Duration = Duration::from_millis(1);

fn slots(config: SlotConfigBuilder) -> Slots {
    Slots::new(config.build().unwrap())
}

/// Starts in the slot and is done.
fn use_slot(slots: &Slots, key: &str) {
    drop(slots.try_acquire(key).unwrap());
}

// G4
#[tokio::test(start_paused = true)]
async fn a_key_beyond_the_bound_gets_a_typed_error() {
    let slots = slots(SlotConfig::builder().max_slots(2));
    let permits = ["a", "b"].map(|key| slots.try_acquire(key).unwrap());
    for error in [slots.try_acquire("c").unwrap_err(), slots.acquire("c").await.unwrap_err()] {
        assert_eq!((error.kind(), error.slot().as_str()), (SlotErrorKind::TooManySlots, "c"));
        assert_eq!(error.to_string(), "slot \"c\": would be one slot too many");
    }
    let service = SlotLayer::with_slots(slots.clone())
        .layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(Response::new(String::new()))));
    let error = service.oneshot(Request::get("http://u:p@c/").body(()).unwrap()).await.unwrap_err();
    assert_eq!(error.downcast_ref::<SlotError>().unwrap().kind(), SlotErrorKind::TooManySlots);
    assert_eq!(error.to_string(), "slot \"c\": would be one slot too many");
    assert_eq!(slots.len(), 2);
    use_slot(&slots, "a");
    assert_eq!(slots.snapshot().recycled.counts.refused, 3);
    drop(permits);
}

// G4
#[tokio::test(start_paused = true)]
async fn a_new_key_takes_the_place_of_an_idle_slot() {
    let slots = slots(SlotConfig::builder().max_slots(3));
    let permits = ["a", "b"].map(|key| slots.try_acquire(key).unwrap());
    for n in 0..100 {
        use_slot(&slots, &n.to_string());
        assert_eq!(slots.len(), 3);
    }
    assert_eq!(slots.stats("a").unwrap().in_flight, 1);
    assert_eq!(slots.snapshot().recycled.slots, 99);
    drop(permits);
}

// G4
#[tokio::test(start_paused = true)]
async fn evicting_never_touches_a_slot_in_use_paused_or_with_a_next_start_to_come() {
    let config = SlotConfig::builder().max_slots(6).concurrency(1).idle_timeout(MS);
    let slots = slots(config.slot("*.slow", SlotLimits::new().delay(Duration::from_secs(60))));
    let permit = slots.try_acquire("in flight").unwrap();
    let handle = slots.acquire("handle");
    use_slot(&slots, "a.slow");
    use_slot(&slots, "paused");
    slots.pause("paused", Instant::now() + Duration::from_secs(30));
    let mut waiter = {
        use_slot(&slots, "waiting");
        slots.pause("waiting", Instant::now() + MS);
        spawn(slots.acquire("waiting"))
    };
    assert_pending!(waiter.poll());
    advance(MS).await;
    let last = slots.try_acquire("last").unwrap();
    let refused = |key: &str| {
        let error = slots.try_acquire(key).unwrap_err();
        assert_eq!(error.kind(), SlotErrorKind::TooManySlots);
        assert_eq!(slots.len(), 6);
    };
    for n in 0..100 {
        refused(&n.to_string());
    }
    // Whatever stops being in the way is what goes.
    drop(permit);
    let permit = slots.try_acquire("new 1").unwrap();
    assert!(slots.stats("in flight").is_none());
    refused("x");
    drop(handle);
    let handle = slots.try_acquire("new 2").unwrap();
    assert!(slots.stats("handle").is_none());
    refused("x");
    drop(waiter);
    let waiter = slots.try_acquire("new 3").unwrap();
    assert!(slots.stats("waiting").is_none());
    refused("x");
    advance(Duration::from_secs(30)).await;
    let paused = slots.try_acquire("new 4").unwrap();
    assert!(slots.stats("paused").is_none());
    refused("x");
    advance(Duration::from_secs(30)).await;
    let slow = slots.try_acquire("new 5").unwrap();
    assert!(slots.stats("a.slow").is_none());
    refused("x");
    drop((permit, handle, waiter, paused, slow, last));
}

// G4
#[tokio::test(start_paused = true)]
async fn slots_named_in_the_config_do_not_count_and_are_never_refused() {
    let named = ["named 1", "named 2", "named 3"];
    let limits = || SlotLimits::new().concurrency(9);
    let config = named.iter().fold(SlotConfig::builder().max_slots(1), |it, key| it.slot(*key, limits()));
    let slots = slots(config.slot("*.pattern", limits()));
    let permit = slots.try_acquire("a").unwrap();
    let permits = named.map(|key| slots.try_acquire(key).unwrap());
    assert_eq!(slots.len(), 4);
    let refused = |key| assert_eq!(slots.try_acquire(key).unwrap_err().kind(), SlotErrorKind::TooManySlots);
    refused("b");
    refused("c.pattern");
    slots.configure("b", limits()).unwrap();
    let later = slots.try_acquire("b").unwrap();
    assert_eq!(slots.len(), 5);
    refused("c");
    // Gone or not, they leave the place of the others alone.
    drop((permits, later));
    advance(Duration::from_secs(60)).await;
    slots.retain_recent();
    assert_eq!(slots.len(), 1);
    refused("c");
    let permits = named.map(|key| slots.try_acquire(key).unwrap());
    drop(permit);
    let permit = slots.try_acquire("c").unwrap();
    refused("d");
    assert_eq!(slots.len(), 4);
    drop((permits, permit));
}

// G4
#[tokio::test(start_paused = true)]
async fn an_idle_named_slot_is_not_evicted_in_place_of_one_that_counts() {
    // Where a slot lies in the table is random: try often enough to meet both orders.
    for _ in 0..50 {
        let limits = || SlotLimits::new().concurrency(9);
        let slots =
            slots(SlotConfig::builder().max_slots(1).slot("named 1", limits()).slot("named 2", limits()));
        for key in ["named 1", "a", "named 2"] {
            use_slot(&slots, key);
        }
        let permit = slots.try_acquire("b").unwrap();
        let left: Vec<_> = slots.snapshot().slots.into_iter().map(|slot| slot.key.to_string()).collect();
        assert_eq!(left, ["b", "named 1", "named 2"]);
        drop(permit);
    }
}

// G4
#[tokio::test(start_paused = true)]
async fn keys_beyond_the_bound_share_the_overflow_slot() {
    let config = SlotConfig::builder().max_slots(1).concurrency(2).overflow_slot("rest");
    let slots = slots(config.slot("rest", SlotLimits::new().concurrency(1).queue_capacity(1)));
    let permit = slots.try_acquire("a").unwrap();
    let overflow = slots.acquire("b").await.unwrap();
    assert_eq!(overflow.key().as_str(), "rest");
    let mut waiter = spawn(slots.acquire("c"));
    assert_pending!(waiter.poll());
    let error = slots.acquire("d").await.unwrap_err();
    assert_eq!((error.kind(), error.slot().as_str()), (SlotErrorKind::QueueFull, "rest"));
    assert_eq!((error.reason(), error.in_flight()), (Some(WaitReason::Concurrency), 1));
    assert_eq!(slots.len(), 2, "the overflow slot does not count");
    // Whoever has a slot keeps to it.
    assert_eq!(slots.try_acquire("a").unwrap().key().as_str(), "a");
    assert_eq!(slots.stats("rest").unwrap().counts.asked, 3);
    drop(permit);
    assert_eq!(slots.try_acquire("e").unwrap().key().as_str(), "e", "there was an idle one");
    drop((overflow, waiter));
}

// G4, case 36
#[tokio::test(start_paused = true)]
async fn fifty_thousand_hosts_in_a_second_never_exceed_the_bound_nor_lose_a_pace() {
    const MAX: usize = 10_000;
    for overflow in [false, true] {
        let config = SlotConfig::builder().max_slots(MAX).slot("named", SlotLimits::new().delay(MS));
        let config = config.slot("*.slow", SlotLimits::new().delay(Duration::from_secs(60)));
        let slots = slots(if overflow { config.overflow_slot("rest") } else { config });
        let (mut slow, mut beyond) = (HashSet::new(), 0);
        let begin = Instant::now();
        for n in 0..50_000 {
            let key = format!("{n}.{}", if n % 2 == 0 { "slow" } else { "fast" });
            match slots.try_acquire(key.as_str()) {
                Ok(permit) if permit.key().as_str() == "rest" => beyond += 1,
                Ok(_) => drop(key.ends_with("slow").then(|| slow.insert(key))),
                Err(error) => {
                    assert_eq!((error.kind(), overflow), (SlotErrorKind::TooManySlots, false));
                    assert_eq!(error.slot().as_str(), key);
                    beyond += 1;
                }
            }
            let apart =
                usize::from(slots.stats("named").is_some()) + usize::from(slots.stats("rest").is_some());
            assert!(slots.len() <= MAX + apart);
            if n % 50 == 0 {
                advance(MS).await;
            }
            if n % 5_000 == 0 {
                use_slot(&slots, "named");
            }
        }
        assert_eq!(begin.elapsed(), Duration::from_secs(1));
        // All the slow ones that ever got in are there, with their pace; the fast ones made room for them.
        assert!(slow.len() > MAX * 9 / 10, "{}", slow.len());
        assert!(beyond > 0);
        for key in &slow {
            let seen = slots.stats(key.as_str()).unwrap();
            assert_eq!(seen.counts.started, 1);
            assert!(seen.next_start.unwrap() > begin + Duration::from_secs(60) - MS);
        }
        let recycled = slots.snapshot().recycled.counts.refused;
        let shared = slots.stats("rest").map_or(0, |rest| rest.counts.started);
        assert_eq!((recycled, shared), if overflow { (0, beyond) } else { (beyond, 0) });
        // When their pace is past they are in nobody's way.
        advance(Duration::from_secs(60)).await;
        let permits: Vec<_> = (0..MAX).map(|n| slots.try_acquire(format!("new {n}")).unwrap()).collect();
        assert!(permits.iter().all(|permit| permit.key().as_str() != "rest"));
    }
}

// G4, on real threads
#[test]
fn eight_threads_never_exceed_the_bound() {
    const MAX: usize = 64;
    const THREADS: usize = 8;
    let slots = slots(SlotConfig::builder().max_slots(MAX).idle_timeout(Duration::ZERO));
    let (held, peak, refused) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (slots, held, peak, refused, start) = (&slots, &held, &peak, &refused, &start);
            scope.spawn(move || {
                let mut mine = VecDeque::new();
                start.wait();
                for n in 0..5_000 {
                    // A permit keeps its slot, and no two are for the same key: as many slots as permits.
                    match slots.try_acquire(format!("{thread} {n}")) {
                        Ok(permit) => {
                            let now = held.fetch_add(1, Ordering::SeqCst) + 1;
                            assert!(now <= MAX, "{now} slots");
                            peak.fetch_max(now, Ordering::SeqCst);
                            mine.push_back(permit);
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), SlotErrorKind::TooManySlots);
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    if mine.len() > n % (3 * MAX / THREADS) {
                        held.fetch_sub(1, Ordering::SeqCst);
                        drop(mine.pop_front());
                    }
                }
                held.fetch_sub(mine.len(), Ordering::SeqCst);
            });
        }
    });
    assert_eq!(peak.into_inner(), MAX, "the bound was reached");
    assert!(refused.into_inner() > 0);
    assert!(slots.len() <= MAX);
    // Nothing was lost on the way: as many fit as before.
    let permits: Vec<_> = (0..MAX).map(|n| slots.try_acquire(format!("new {n}")).unwrap()).collect();
    assert_eq!(slots.len(), MAX);
    slots.try_acquire("one more").unwrap_err();
    drop(permits);
}

// G2, G4, on real threads
#[test]
fn a_key_that_several_ask_for_while_it_is_recycled_finds_the_room_it_left() {
    let slots = slots(SlotConfig::builder().max_slots(2).idle_timeout(Duration::ZERO));
    let held = slots.try_acquire("held").unwrap();
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                start.wait();
                for _ in 0..20_000 {
                    use_slot(&slots, "a");
                    slots.retain_recent();
                }
            });
        }
    });
    assert_eq!(slots.len(), 1);
    drop(held);
}
