//! Closing: everybody who waits is woken, those in flight finish, and whoever waits for the last one is told.

#![allow(clippy::unwrap_used, clippy::panic)]

mod by_hand;

use std::convert::Infallible;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, advance, timeout};
use tokio_test::task::{Spawn, spawn};
use tokio_test::{assert_pending, assert_ready, assert_ready_err};
use tower::{Layer, ServiceExt, service_fn};
use tower_slot::{Drained, SlotConfig, SlotError, SlotErrorKind, SlotLayer, SlotLimits, UpgradePermit};

use by_hand::{millis, queued, request, row, slots, stats};

async fn answer(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("body")))
}

fn is_closed(error: &SlotError, slot: &str, waited: Duration) -> bool {
    error.kind() == SlotErrorKind::Closed && error.slot().as_str() == slot && error.waited() == waited
}

// V3, Q5
#[tokio::test(start_paused = true)]
async fn closing_wakes_every_waiter_at_every_gate() {
    let slots = slots(SlotConfig::builder().concurrency(2).total_concurrency(4));
    slots.configure("paced", SlotLimits::new().delay(millis(1_000))).unwrap();
    slots.configure("full", SlotLimits::new().concurrency(1).queue_capacity(3)).unwrap();
    slots.configure("timed", SlotLimits::new().concurrency(1).wait_timeout(millis(1_000))).unwrap();
    slots.pause("paused", Instant::now() + millis(1_000));
    let permits = ["full", "paced", "timed", "free"].map(|key| slots.try_acquire(key).unwrap());
    let keys = ["full", "paced", "timed", "paused", "total", "more"];
    let mut waiters: Vec<_> =
        keys.iter().flat_map(|key| [(); 3].map(|()| (*key, queued(&slots, key)))).collect();
    let reasons = keys.map(|key| stats(&slots, key).reason.unwrap().as_str());
    assert_eq!(reasons, ["concurrency", "pace", "concurrency", "pace", "total", "total"]);
    advance(millis(5)).await;
    assert!(waiters.iter().all(|(_, waiter)| !waiter.is_woken()));
    assert!(!slots.is_closed());
    slots.close();
    assert!(slots.is_closed());
    assert!(waiters.iter().all(|(_, waiter)| waiter.is_woken()));
    assert_eq!(slots.snapshot().total.line, 0);
    // Also if they look late and in any order.
    waiters.reverse();
    for (key, waiter) in &mut waiters {
        let error = assert_ready_err!(waiter.poll());
        assert!(is_closed(&error, key, millis(5)), "{error:?}");
    }
    for key in keys {
        let seen = stats(&slots, key);
        assert_eq!((seen.waiting, seen.counts.refused, seen.counts.gone), (0, 3, 0), "{key}");
        assert_eq!(seen.times.waited(), millis(15), "{key}");
    }
    // Those in flight go on.
    assert_eq!(slots.snapshot().total.in_flight, 4);
    drop(permits);
    assert_eq!(slots.snapshot().total.in_flight, 0);
}

// V3
#[tokio::test(start_paused = true)]
async fn after_a_close_nobody_starts_and_nothing_undoes_it() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let service = SlotLayer::with_slots(slots.clone()).layer(service_fn(answer));
    let response = service.clone().oneshot(request("http://a.test/ok")).await.unwrap();
    let unpolled = slots.acquire("a.test");
    let mut first = queued(&slots, "a.test");
    drop(response);
    // It was woken to start, and comes too late.
    slots.close();
    assert!(is_closed(&assert_ready_err!(first.poll()), "a.test", millis(0)));
    slots.configure("a.test", SlotLimits::new().concurrency(9)).unwrap();
    slots.configure_default(SlotLimits::new().concurrency(9)).unwrap();
    slots.configure_total(Some(9)).unwrap();
    slots.resume("a.test");
    slots.close();
    assert!(is_closed(&unpolled.await.unwrap_err(), "a.test", millis(0)));
    for key in ["a.test", "new"] {
        assert!(is_closed(&slots.try_acquire(key).unwrap_err(), key, millis(0)));
        assert!(is_closed(&slots.acquire(key).await.unwrap_err(), key, millis(0)));
    }
    let error = service.oneshot(request("http://a.test/ok")).await.unwrap_err();
    let error = error.downcast_ref::<SlotError>().unwrap();
    assert!(is_closed(error, "a.test", millis(0)));
    assert_eq!(error.to_string(), "slot \"a.test\": closed");
    assert_eq!(slots.len(), 1, "no new slot was made");
    let snapshot = slots.snapshot();
    assert_eq!(row(snapshot.recycled.counts), [2, 0, 2, 0, 0, 0, 0, 0]);
    assert_eq!(row(stats(&slots, "a.test").counts), [6, 1, 5, 0, 0, 0, 0, 1]);
}

// V3
#[tokio::test(start_paused = true)]
async fn drained_waits_for_the_last_permit_wherever_it_was_moved() {
    let slots = slots(SlotConfig::builder().concurrency(2));
    let service = SlotLayer::with_slots(slots.clone()).layer(service_fn(async |mut request: Request<()>| {
        let upgrade = request.extensions_mut().remove::<UpgradePermit>();
        let body = Full::<Bytes>::from("body");
        let mut response = Response::new(body);
        if let Some(permit) = upgrade.and_then(|upgrade| upgrade.take()) {
            // A permit is no `Clone`; an extension has to be.
            response.extensions_mut().insert(Arc::new(permit));
        }
        Ok::<_, Infallible>(response)
    }));
    let response = service.clone().oneshot(request("http://a.test/")).await.unwrap();
    let connect = Request::builder().method(Method::CONNECT).uri("b.test:443").body(()).unwrap();
    let moved = service.clone().oneshot(connect).await.unwrap();
    let by_hand = slots.try_acquire("c").unwrap();
    let unpolled = slots.acquire("c");

    let mut early = [(); 3].map(|()| spawn(slots.drained()));
    for drained in &mut early {
        assert_pending!(drained.poll());
    }
    drop(response);
    let response = service.oneshot(request("http://a.test/")).await.unwrap();
    assert!(early.iter().all(|drained| !drained.is_woken()), "not closed yet");
    slots.close();
    let mut late = spawn(slots.drained());
    assert_pending!(late.poll());
    let thread = std::thread::spawn(move || drop(by_hand));
    thread.join().unwrap();
    assert_pending!(late.poll());
    response.into_body().collect().await.unwrap();
    assert_pending!(late.poll());
    assert_eq!(stats(&slots, "b.test").in_flight, 1);
    // One of those who wait goes away: it takes nobody's wakeup along.
    let [gone, mut second, mut third] = early;
    drop(gone);
    assert!(!second.is_woken() && !third.is_woken() && !late.is_woken());
    drop(moved);
    assert!(second.is_woken() && third.is_woken() && late.is_woken());
    assert_ready!(second.poll());
    assert_ready!(third.poll());
    assert_ready!(late.poll());
    assert_ready!(spawn(slots.drained()).poll());
    drop(unpolled);
}

// V3
#[tokio::test(start_paused = true)]
async fn drained_ends_with_the_close_when_no_permit_is_out() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let mut drained = spawn(slots.drained());
    assert_pending!(drained.poll());
    drop(slots.try_acquire("a").unwrap());
    assert!(!drained.is_woken());
    let permit = slots.try_acquire("a").unwrap();
    let waits = queued(&slots, "a");
    drop(permit);
    // It waits, but it has no permit.
    slots.close();
    assert!(drained.is_woken());
    assert_ready!(drained.poll());
    assert_ready!(spawn(slots.drained()).poll());
    drop(waits);
}

// V3
#[tokio::test(start_paused = true)]
async fn drained_wakes_whoever_polled_it_last() {
    let slots = slots(SlotConfig::builder());
    let permit = slots.try_acquire("a").unwrap();
    slots.close();
    let drained = Arc::new(tokio::sync::Mutex::new(Box::pin(slots.drained())));
    let poll = |drained: Arc<tokio::sync::Mutex<_>>| {
        spawn(async move {
            let mut drained = drained.lock().await;
            std::future::poll_fn(|cx| {
                let drained: &mut Pin<Box<Drained>> = &mut drained;
                Poll::Ready(drained.as_mut().poll(cx).is_ready())
            })
            .await
        })
    };
    let (mut before, mut after) = (poll(drained.clone()), poll(drained.clone()));
    assert!(!assert_ready!(before.poll()));
    assert!(!assert_ready!(after.poll()));
    drop(permit);
    assert!(!before.is_woken());
    assert!(after.is_woken());
}

// V3
#[test]
fn drained_that_is_dropped_keeps_no_waker() {
    struct Asleep;
    impl Wake for Asleep {
        fn wake(self: Arc<Self>) {}
    }
    let slots = slots(SlotConfig::builder());
    let _permit = slots.try_acquire("a").unwrap();
    slots.close();
    let (waker, mut drained) = (Arc::new(Asleep), slots.drained());
    let polled = Pin::new(&mut drained).poll(&mut Context::from_waker(&waker.clone().into()));
    assert_pending!(polled);
    assert_eq!(Arc::strong_count(&waker), 2);
    drop(drained);
    assert_eq!(Arc::strong_count(&waker), 1);
}

// V3, on real threads
#[test]
fn whoever_comes_while_the_slots_are_closed_starts_before_or_is_refused() {
    // Fails instead of hanging when a wakeup is lost.
    let soon = Duration::from_secs(20);
    for round in 0..60_u64 {
        let slots = slots(SlotConfig::builder().concurrency(2).total_concurrency(3));
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let slots = slots.clone();
                std::thread::spawn(move || {
                    tokio_test::block_on(async {
                        for n in 0.. {
                            // Old slots and new ones.
                            let key = if n % 2 == 0 { "a".to_owned() } else { format!("{thread}-{n}") };
                            match timeout(soon, slots.acquire(key)).await.unwrap() {
                                Ok(permit) => drop(permit),
                                Err(error) => return error.kind(),
                            }
                        }
                        unreachable!()
                    })
                })
            })
            .collect();
        std::thread::sleep(Duration::from_micros(50 * (round % 10)));
        slots.close();
        tokio_test::block_on(async { timeout(soon, slots.drained()).await }).unwrap();
        let snapshot = slots.snapshot();
        assert!(snapshot.slots.iter().all(|slot| slot.in_flight == 0));
        assert_eq!(snapshot.total.in_flight, 0);
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(ends, [SlotErrorKind::Closed; 4]);
    }
}

/// Panics as it is woken.
struct Bomb;

impl std::task::Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic!("woken");
    }
}

// V3, Q5: a waker that panics keeps nobody from being told, in its own slot and in all others.
#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_keeps_nobody_from_hearing_of_a_close_or_a_change() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let keys: Vec<String> = (0..32).map(|n| format!("{n}.com")).collect();
    let permits: Vec<_> = keys.iter().map(|key| slots.try_acquire(key.as_str()).unwrap()).collect();
    let wait = |key: &String| spawn(slots.acquire(key.as_str()));
    let bomb = Arc::new(Bomb).into();
    let mut bombs: Vec<_> = keys[..16].iter().map(|key| Box::pin(slots.acquire(key.as_str()))).collect();
    for acquire in &mut bombs {
        assert_pending!(acquire.as_mut().poll(&mut Context::from_waker(&bomb)));
    }
    let mut waiters: Vec<_> = keys.iter().map(wait).collect();
    for waiter in &mut waiters {
        assert_pending!(waiter.poll());
    }
    let mut drained = spawn(slots.drained());
    assert_pending!(drained.poll());

    // The first of each slot is told of new limits, although they give no room.
    let told = || slots.configure_default(SlotLimits::new().delay(millis(1)));
    catch_unwind(AssertUnwindSafe(told)).unwrap_err();
    assert!(waiters[16..].iter().all(Spawn::is_woken));

    for acquire in &mut bombs {
        assert_pending!(acquire.as_mut().poll(&mut Context::from_waker(&bomb)));
    }
    catch_unwind(AssertUnwindSafe(|| slots.close())).unwrap_err();
    for waiter in &mut waiters {
        assert!(waiter.is_woken());
        assert_eq!(assert_ready_err!(waiter.poll()).kind(), SlotErrorKind::Closed);
    }
    drop(permits);
    assert!(drained.is_woken());
    assert_ready!(drained.poll());
}
