//! Allocations: a request to a slot that is there and has room makes none, and what waits and what idles is small.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use allocation_counter::{AllocationInfo, measure};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use tower::{Layer, Service, service_fn};
use tower_slot::{
    Acquire, KeyRef, SlotConfig, SlotConfigBuilder, SlotKey, SlotLayer, SlotPermit, SlotService, Slots,
};

const NOTHING: AllocationInfo = AllocationInfo {
    count_total: 0,
    count_current: 0,
    count_max: 0,
    bytes_total: 0,
    bytes_current: 0,
    bytes_max: 0,
};

fn slots(config: SlotConfigBuilder) -> Slots {
    Slots::new(config.build().unwrap())
}

/// Limits of every kind, all of them with room.
fn all_limits() -> SlotConfigBuilder {
    let config = SlotConfig::builder().concurrency(1).total_concurrency(1).queue_capacity(1);
    config.wait_timeout(Duration::from_secs(1)).max_slots(10)
}

fn answer(_: Request<()>) -> Ready<Result<Response<Full<Bytes>>, Infallible>> {
    ready(Ok(Response::new(Full::from(Bytes::from_static(b"body")))))
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// One request, to the end of its body.
fn run<S>(service: &mut SlotService<S>, request: Request<()>)
where
    S: Service<Request<()>, Response = Response<Full<Bytes>>, Error = Infallible> + Clone,
{
    let Poll::Ready(Ok(response)) = poll(pin!(service.call(request))) else { unreachable!() };
    let mut body = response.into_body();
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(matches!(Pin::new(&mut body).poll_frame(cx), Poll::Ready(Some(Ok(_)))));
    assert!(matches!(Pin::new(&mut body).poll_frame(cx), Poll::Ready(None)));
}

/// A waiter that has been polled once, in vain.
fn wait(waiter: &mut Pin<Box<Acquire>>) {
    assert!(poll(waiter.as_mut()).is_pending());
}

fn waiters(slots: &Slots, n: usize) -> Vec<Pin<Box<Acquire>>> {
    (0..n).map(|_| Box::pin(slots.acquire("a"))).collect()
}

// --- none (K2, S5, V3)

// K1, K2, S5
#[test]
fn a_request_to_a_slot_that_is_there_and_has_room_allocates_nothing() {
    let get = |uri: &str| Request::get(uri).body(()).unwrap();
    let with_host = |host: &str| Request::get("/p").header("host", host).body(()).unwrap();
    let with_key = |key: &'static str| {
        let mut request = get("http://a.test/");
        request.extensions_mut().insert(SlotKey::new(key));
        request
    };
    let long = "A".repeat(253);
    let requests: [(&str, &dyn Fn() -> Request<()>); 9] = [
        ("host of the URI", &|| get("http://a.test/p")),
        ("upper case", &|| get("http://A.TEST/p")),
        ("user info, port and a dot", &|| get("https://u:p@a.test.:8443/p")),
        ("a long name", &|| get(&format!("http://{long}/"))),
        ("Host header", &|| with_host("a.test")),
        ("Host header in upper case", &|| with_host("A.TEST:8443")),
        ("no host", &|| get("/p")),
        ("explicit key", &|| with_key("a.test")),
        ("explicit key, another name", &|| with_key("Any Name")),
    ];
    for config in [SlotConfig::builder(), all_limits()] {
        let slots = slots(config);
        let mut service = SlotLayer::with_slots(slots.clone()).layer(service_fn(answer));
        for (what, request) in requests {
            // The first one makes the slot.
            run(&mut service, request());
            let (again, len) = (request(), slots.len());
            assert_eq!(measure(|| run(&mut service, again)).count_total, 0, "{what}");
            assert_eq!(slots.len(), len);
        }
        assert_eq!(slots.len(), 4);
    }
}

// S5, S6
#[test]
fn acquiring_from_a_slot_that_is_there_and_has_room_allocates_nothing() {
    for config in [SlotConfig::builder(), all_limits()] {
        let slots = slots(config);
        let explicit = SlotKey::new("a.test");
        let keys = || [KeyRef::name("a.test"), KeyRef::from(&explicit), KeyRef::from(explicit.clone())];
        let keys =
            || keys().into_iter().chain([KeyRef::host("A.Test."), KeyRef::host("http://u:p@A.Test:80")]);
        keys().for_each(|key| drop(slots.try_acquire(key).unwrap()));
        for key in keys() {
            let (first, second) = (key.clone(), key);
            let acquired = || {
                let Poll::Ready(Ok(permit)) = poll(pin!(slots.acquire(first))) else { unreachable!() };
                permit
            };
            assert_eq!(measure(|| drop(acquired())), NOTHING);
            assert_eq!(measure(|| drop(slots.try_acquire(second).unwrap())), NOTHING);
        }
        assert_eq!(measure(|| drop(slots.acquire("a.test"))), NOTHING, "not polled");
    }
}

// B1, S5
#[test]
fn as_many_permits_as_there_were_at_once_need_nothing_new() {
    let slots = slots(SlotConfig::builder().concurrency(32));
    let mut permits: Vec<SlotPermit> = Vec::with_capacity(32);
    let mut all_at_once = || {
        permits.extend((0..32).map(|_| slots.try_acquire("a").unwrap()));
        permits.clear();
    };
    all_at_once();
    assert_eq!(measure(all_at_once), NOTHING);
}

// V3
#[test]
fn whoever_waits_for_the_end_costs_a_request_nothing_before_the_close() {
    let slots = slots(SlotConfig::builder());
    let mut drained = pin!(slots.drained());
    assert!(poll(drained.as_mut()).is_pending());
    drop(slots.try_acquire("a").unwrap());
    assert_eq!(measure(|| drop(slots.try_acquire("a").unwrap())), NOTHING);
}

// --- few bytes

/// From the first who had to wait on, the slot has statistics of it.
fn wait_in_vain(slots: &Slots, key: &SlotKey) {
    let permit = slots.try_acquire(key).unwrap();
    wait(&mut Box::pin(slots.acquire(key)));
    drop(permit);
}

// Q1
#[test]
fn an_idle_slot_keeps_no_storage_of_a_past_queue() {
    for config in [SlotConfig::builder().concurrency(1), all_limits().unbounded_queue().no_wait_timeout()] {
        let slots = slots(config);
        wait_in_vain(&slots, &"a".into());
        let mut waiters = waiters(&slots, 1_000);
        // Half of them start, half of them go away.
        let came_and_went = measure(|| {
            let permit = slots.try_acquire("a").unwrap();
            waiters.iter_mut().for_each(wait);
            drop(permit);
            for waiter in &mut waiters[..500] {
                assert!(matches!(poll(waiter.as_mut()), Poll::Ready(Ok(_))));
            }
        });
        assert_eq!(slots.stats("a").unwrap().waiting, 500);
        let queue = came_and_went.bytes_current;
        assert!(queue > 500 * 16, "{queue} bytes");
        // The futures are not the slot's, and free their own storage.
        let futures = measure(|| drop(waiters)).bytes_current;
        let own = -(size_of::<Acquire>() as i64 * 1_000 + 1_000 * 8);
        assert_eq!(queue + futures, own);
        assert_eq!(slots.stats("a").unwrap().counts.gone, 500 + 1);
    }
}

// Q1
#[test]
fn a_busy_slot_keeps_no_storage_of_a_long_queue_either() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let permit = slots.try_acquire("a").unwrap();
    let mut waiters = waiters(&slots, 10_000);
    let queue = measure(|| waiters.iter_mut().for_each(wait)).bytes_current;
    assert!(queue > 10_000 * 16, "{queue} bytes");
    let futures = measure(|| drop(waiters)).bytes_current;
    let left = queue + futures + (size_of::<Acquire>() as i64 + 8) * 10_000;
    println!("a busy slot keeps {left} bytes for its queue");
    assert!(left <= 1_024);
    drop(permit);
}

// B1
#[test]
fn a_slot_keeps_no_storage_of_many_permits() {
    let slots = slots(SlotConfig::builder().unlimited_concurrency());
    let mut permits: Vec<SlotPermit> = Vec::with_capacity(10_000);
    drop(slots.try_acquire("a").unwrap());
    let left = measure(|| {
        permits.extend((0..10_000).map(|_| slots.try_acquire("a").unwrap()));
        permits.clear();
    });
    println!("a slot keeps {} bytes for its permits", left.bytes_current);
    assert!(left.bytes_max > 10_000 * 16);
    assert!(left.bytes_current <= 1_024);
}

// Q4
#[test]
fn the_line_at_the_total_keeps_no_storage_of_many_slots() {
    let slots = slots(SlotConfig::builder().total_concurrency(1));
    let keys: Vec<_> = (0..10_000).map(|n| SlotKey::from(n.to_string())).collect();
    keys.iter().for_each(|key| wait_in_vain(&slots, key));
    let permit = slots.try_acquire("a").unwrap();
    let mut waiters: Vec<_> = keys.iter().map(|key| Box::pin(slots.acquire(key))).collect();
    let line = measure(|| waiters.iter_mut().for_each(wait)).bytes_current;
    let ended = measure(|| {
        drop(permit);
        for waiter in &mut waiters {
            assert!(matches!(poll(waiter.as_mut()), Poll::Ready(Ok(_))));
        }
    });
    println!("the line keeps {} of {line} bytes", line + ended.bytes_current);
    assert!(line + ended.bytes_current <= 1_024);
}

// Q1
#[test]
fn a_waiter_takes_few_bytes_beyond_its_future() {
    const MANY: usize = 100_000;
    let slots = slots(SlotConfig::builder().concurrency(1));
    let permit = slots.try_acquire("a").unwrap();
    let mut waiters = waiters(&slots, MANY);
    let taken = measure(|| waiters.iter_mut().for_each(wait));
    assert_eq!(slots.stats("a").unwrap().waiting, MANY);
    println!(
        "a waiter takes {} bytes beyond its future of {}",
        taken.bytes_current / MANY as i64,
        size_of::<Acquire>()
    );
    assert!(taken.bytes_current <= 96 * MANY as i64);
    drop((waiters, permit));
}

// Q3
#[tokio::test(start_paused = true)]
async fn a_waiter_with_a_timer_takes_no_more() {
    const MANY: usize = 100_000;
    let slots = slots(SlotConfig::builder().concurrency(1).wait_timeout(Duration::from_secs(9)));
    let permit = slots.try_acquire("a").unwrap();
    let mut waiters = waiters(&slots, MANY);
    let taken = measure(|| waiters.iter_mut().for_each(wait));
    println!("a waiter with a timer takes {} bytes beyond its future", taken.bytes_current / MANY as i64);
    assert!(taken.bytes_current <= 96 * MANY as i64);
    drop((waiters, permit));
}

// G4
#[test]
fn an_idle_slot_takes_few_bytes() {
    const MANY: usize = 100_000;
    let key = |n| format!("{n:06}.example.com");
    let slots = slots(SlotConfig::builder().concurrency(1));
    let taken = measure(|| (0..MANY).for_each(|n| drop(slots.try_acquire(key(n)).unwrap()))).bytes_current;
    assert_eq!(slots.len(), MANY);
    println!("an idle slot takes {} bytes, its name of 18 included", taken / MANY as i64);
    assert!(taken <= 256 * MANY as i64);
    // Statistics of the rarer kind have to be kept from then on.
    let more = measure(|| (0..MANY).for_each(|n| wait_in_vain(&slots, &key(n).into()))).bytes_current;
    println!("and {} more if somebody had to wait in it", more / MANY as i64);
    assert!(taken + more <= 448 * MANY as i64);
}
