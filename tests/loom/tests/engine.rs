//! The engine in every interleaving of a few threads, on loom's locks and atomics.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p tower-slot-loom`. Waiting sleeps until it is woken: a wakeup that is
//! lost is a deadlock, which loom reports. Nothing here waits for time.
#![cfg(loom)]

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use tower::{Layer, ServiceExt, service_fn};
use tower_slot::{
    Counts, SlotConfig, SlotConfigBuilder, SlotErrorKind, SlotLayer, SlotLimits, SlotStats, Slots,
};

/// Never above `limit` at once.
#[derive(Clone)]
struct Gauge {
    inside: Arc<AtomicUsize>,
    limit: usize,
}

impl Gauge {
    fn new(limit: usize) -> Self {
        Self { inside: Arc::new(AtomicUsize::new(0)), limit }
    }

    /// Takes a permit, is inside for a moment, and gives it back.
    fn visit(&self, slots: &Slots, key: &str) -> Result<(), SlotErrorKind> {
        let permit = block_on(slots.acquire(key)).map_err(|error| error.kind())?;
        let others = self.inside.fetch_add(1, Ordering::SeqCst);
        assert!(others < self.limit, "{} in flight, at most {} may be", others + 1, self.limit);
        self.inside.fetch_sub(1, Ordering::SeqCst);
        drop(permit);
        Ok(())
    }
}

/// Wakes a thread that sleeps in [`block_on`].
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Bell {
    fn wake(self: std::sync::Arc<Self>) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

/// Sleeps between polls until it is woken, and never wakes up by itself.
fn block_on<F: Future>(future: F) -> F::Output {
    let bell = std::sync::Arc::new(Bell { rung: Mutex::new(false), changed: Condvar::new() });
    let waker = Waker::from(bell.clone());
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let mut rung = bell.rung.lock().unwrap();
        while !*rung {
            rung = bell.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.max_branches = 100_000;
    builder.check(f);
}

fn slots(config: impl FnOnce(SlotConfigBuilder) -> SlotConfigBuilder) -> Slots {
    // Few shards, and no sweep that depends on the clock.
    let config =
        config(SlotConfig::builder().concurrency(1).max_slots(8).idle_timeout(Duration::from_secs(3600)));
    Slots::new(config.build().unwrap())
}

fn spawn(slots: &Slots, f: impl FnOnce(Slots) + 'static) -> thread::JoinHandle<()> {
    let slots = slots.clone();
    thread::spawn(move || f(slots))
}

/// Everything is back: a full set of permits can be taken at once.
fn assert_idle(slots: &Slots, key: &str) {
    let stats = slots.stats(key);
    assert!(stats.is_none_or(|stats| stats.in_flight == 0 && stats.waiting == 0));
    if !slots.is_closed() {
        assert!(slots.try_acquire(key).is_ok());
    }
}

/// Q5, L6
#[test]
fn a_release_starts_whoever_waits() {
    model(|| {
        let (slots, gauge) = (slots(|config| config), Gauge::new(1));
        let threads = [(); 2].map(|()| {
            let gauge = gauge.clone();
            spawn(&slots, move |slots| gauge.visit(&slots, "a").unwrap())
        });
        gauge.visit(&slots, "a").unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_idle(&slots, "a");
    });
}

/// Q5: a first waiter that goes away at any moment leaves its turn to the next one.
#[test]
fn a_waiter_that_goes_away_passes_its_turn_on() {
    model(|| {
        let slots = slots(|config| config);
        let held = slots.try_acquire("a").unwrap();
        let gone = spawn(&slots, |slots| {
            let mut acquire = pin!(slots.acquire("a"));
            let _ = acquire.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        });
        let waits = spawn(&slots, |slots| drop(block_on(slots.acquire("a")).unwrap()));
        drop(held);
        gone.join().unwrap();
        waits.join().unwrap();
        assert_idle(&slots, "a");
    });
}

/// L6: raising and lowering against grants and releases.
#[test]
fn limits_change_while_permits_come_and_go() {
    model(|| {
        let (slots, gauge) = (slots(|config| config), Gauge::new(2));
        let threads = [(); 2].map(|()| {
            let gauge = gauge.clone();
            spawn(&slots, move |slots| gauge.visit(&slots, "a").unwrap())
        });
        slots.configure("a", SlotLimits::new().concurrency(2)).unwrap();
        slots.configure("a", SlotLimits::new().concurrency(1)).unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_idle(&slots, "a");
        let _one = slots.try_acquire("a").unwrap();
        assert!(slots.try_acquire("a").is_err());
    });
}

/// G2: looking up and recycling exclude each other.
#[test]
fn there_are_never_two_slots_of_one_key() {
    model(|| {
        let (slots, gauge) = (slots(|config| config.idle_timeout(Duration::ZERO)), Gauge::new(1));
        let other = gauge.clone();
        let visits = spawn(&slots, move |slots| other.visit(&slots, "a").unwrap());
        let sweeps = spawn(&slots, |slots| slots.retain_recent());
        gauge.visit(&slots, "a").unwrap();
        visits.join().unwrap();
        sweeps.join().unwrap();
        assert!(slots.len() <= 1);
        assert_idle(&slots, "a");
    });
}

/// Q4: two slots and one unit.
#[test]
fn the_total_goes_round() {
    model(|| {
        let (slots, gauge) = (slots(|config| config.total_concurrency(1)), Gauge::new(1));
        let other = gauge.clone();
        let visits = spawn(&slots, move |slots| other.visit(&slots, "a").unwrap());
        gauge.visit(&slots, "b").unwrap();
        visits.join().unwrap();
        assert_eq!((slots.snapshot().total.in_flight, slots.snapshot().total.line), (0, 0));
    });
}

/// Q4, Q5: a waiter that goes away while its slot is called leaves the unit to somebody.
#[test]
fn a_unit_of_the_total_is_never_lost() {
    model(|| {
        let slots = slots(|config| config.total_concurrency(1));
        let held = slots.try_acquire("a").unwrap();
        let gone = spawn(&slots, |slots| {
            let mut acquire = pin!(slots.acquire("b"));
            let _ = acquire.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        });
        let waits = spawn(&slots, |slots| drop(block_on(slots.acquire("c")).unwrap()));
        drop(held);
        gone.join().unwrap();
        waits.join().unwrap();
        assert_eq!((slots.snapshot().total.in_flight, slots.snapshot().total.line), (0, 0));
    });
}

/// L6: a cap that comes while permits are out counts them.
#[test]
fn a_cap_that_comes_later_counts_those_in_flight() {
    model(|| {
        let slots = slots(|config| config);
        let first = spawn(&slots, |slots| drop(block_on(slots.acquire("a")).unwrap()));
        slots.configure_total(Some(1)).unwrap();
        let permit = block_on(slots.acquire("b")).unwrap();
        // With the only unit taken nobody else is in flight.
        assert!(slots.stats("a").is_none_or(|stats| stats.in_flight == 0));
        drop(permit);
        first.join().unwrap();
        assert_eq!(slots.snapshot().total.in_flight, 0);
    });
}

/// V3: close against a holder, a waiter and somebody who waits for the end.
#[test]
fn a_close_wakes_every_waiter_and_drains() {
    model(|| {
        let slots = slots(|config| config);
        let held = slots.try_acquire("a").unwrap();
        let waits = spawn(&slots, |slots| match block_on(slots.acquire("a")) {
            Ok(permit) => drop(permit),
            Err(error) => assert_eq!(error.kind(), SlotErrorKind::Closed),
        });
        let closes = spawn(&slots, |slots| slots.close());
        drop(held);
        block_on(slots.drained());
        let stats = slots.stats("a").unwrap();
        assert_eq!(stats.in_flight, 0);
        waits.join().unwrap();
        closes.join().unwrap();
        assert_eq!(slots.try_acquire("a").unwrap_err().kind(), SlotErrorKind::Closed);
        assert_idle(&slots, "a");
    });
}

/// Q7: trying never takes what somebody waits for, and leaves nothing behind.
#[test]
fn trying_takes_nothing_from_those_who_wait() {
    model(|| {
        let (slots, gauge) = (slots(|config| config), Gauge::new(1));
        let other = gauge.clone();
        let visits = spawn(&slots, move |slots| other.visit(&slots, "a").unwrap());
        if let Ok(permit) = slots.try_acquire("a") {
            assert_eq!(gauge.inside.fetch_add(1, Ordering::SeqCst), 0);
            gauge.inside.fetch_sub(1, Ordering::SeqCst);
            drop(permit);
        }
        visits.join().unwrap();
        assert!(matches!(
            pin!(slots.acquire("a")).poll(&mut Context::from_waker(Waker::noop())),
            Poll::Ready(Ok(_))
        ));
    });
}

/// Sends a request to the host "a", whose headers come at once, and lets its body go unread.
fn request(slots: &Slots) {
    let service = service_fn(|_| ready(Ok::<_, Infallible>(http::Response::new(String::from("body")))));
    let request = http::Request::get("http://a/").body(()).unwrap();
    drop(block_on(SlotLayer::with_slots(slots.clone()).layer(service).oneshot(request)).unwrap());
}

/// Looks at the slot "a", if it is there, and sees that its counts add up.
fn look(slots: &Slots) -> Option<SlotStats> {
    let stats = slots.stats("a")?;
    let Counts { asked, started, cancelled, .. } = stats.counts;
    assert_eq!((asked, started), (started + stats.waiting as u64, cancelled + stats.in_flight as u64));
    Some(stats)
}

/// V1: the headers come without the lock, while somebody looks and the permit goes back.
#[test]
fn whoever_looks_finds_each_moment_of_a_request_in_one_phase() {
    model(|| {
        let slots = slots(|config| config);
        let looks = {
            let slots = slots.clone();
            thread::spawn(move || look(&slots))
        };
        request(&slots);
        let seen = looks.join().unwrap();
        let after = look(&slots).unwrap();
        assert_eq!((after.counts.cancelled, after.times), (1, after.longest));
        let Some(seen) = seen.filter(|seen| seen.counts.started > 0) else { return };
        let times = seen.times;
        if seen.in_flight == 0 {
            assert_eq!(times, after.times);
            return;
        }
        assert_eq!(Some(times.headers + times.body), seen.oldest_permit);
        // Once in the body nothing is added to the time to the headers.
        assert!(times.body.is_zero() || times.headers == after.times.headers);
    });
}

/// V1: two requests, at the same time or one after the other, and whoever looks.
#[test]
fn times_of_two_requests_are_added_up_and_none_is_lost() {
    model(|| {
        let slots = slots(|config| config.concurrency(2));
        let other = spawn(&slots, |slots| request(&slots));
        let looks = spawn(&slots, |slots| drop(look(&slots)));
        request(&slots);
        other.join().unwrap();
        looks.join().unwrap();
        let SlotStats { counts, times, longest, .. } = look(&slots).unwrap();
        assert_eq!(counts.cancelled, 2);
        for (times, longest) in [(times.headers, longest.headers), (times.body, longest.body)] {
            assert!((longest..=2 * longest).contains(&times), "{times:?}, the longest {longest:?}");
        }
    });
}
