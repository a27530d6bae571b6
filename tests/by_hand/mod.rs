//! What the tests of the engine share: short words for slots and what they tell, futures polled by hand whose wakeups
//! are counted, visits that note when they started, and a watchdog for what may deadlock.

#![allow(dead_code, reason = "every test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use http::Request;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_test::task::Spawn;
use tower_slot::{Acquire, Counts, SlotConfig, SlotConfigBuilder, SlotLimits, SlotPermit, SlotStats, Slots};

pub(crate) fn slots(config: SlotConfigBuilder) -> Slots {
    Slots::new(config.build().unwrap())
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A waiter of the slot `key` that has taken its place in the queue.
pub(crate) fn queued(slots: &Slots, key: &str) -> Spawn<Acquire> {
    let mut waiter = tokio_test::task::spawn(slots.acquire(key));
    tokio_test::assert_pending!(waiter.poll());
    waiter
}

/// Slots of which `n` permits are out in all; those are returned, all of slot "x".
pub(crate) fn taken(n: usize) -> (Slots, Vec<SlotPermit>) {
    let slots = slots(
        SlotConfig::builder().total_concurrency(n).slot("x", SlotLimits::new().unlimited_concurrency()),
    );
    let permits = (0..n).map(|_| slots.try_acquire("x").unwrap()).collect();
    (slots, permits)
}

/// Which of them were woken.
pub(crate) fn woken<const N: usize>(waiters: [&Spawn<Acquire>; N]) -> [bool; N] {
    waiters.map(Spawn::is_woken)
}

pub(crate) fn request(uri: &str) -> Request<()> {
    Request::get(uri).body(()).unwrap()
}

pub(crate) fn stats(slots: &Slots, key: &str) -> SlotStats {
    slots.stats(key).unwrap()
}

/// Asked, started, refused, timed out, gone, finished, failed, cancelled.
pub(crate) fn row(counts: Counts) -> [u64; 8] {
    let Counts { asked, started, refused, timed_out, gone, finished, failed, cancelled, .. } = counts;
    [asked, started, refused, timed_out, gone, finished, failed, cancelled]
}

/// How many wait in the slot `key`.
pub(crate) fn waiting(slots: &Slots, key: &str) -> usize {
    slots.stats(key).map_or(0, |stats| stats.waiting)
}

/// How many are in flight in the slot `key`.
pub(crate) fn in_flight(slots: &Slots, key: &str) -> usize {
    slots.stats(key).map_or(0, |stats| stats.in_flight)
}

/// How many slots stand in line for the total.
pub(crate) fn line(slots: &Slots) -> usize {
    slots.snapshot().total.line
}

// --- visits

/// Longer than any wait in a test: on a paused clock it makes a lost wakeup an error instead of a hang.
const FOR_EVER: Duration = secs(30 * 365 * 24 * 3_600);

/// Spawns somebody who asks for the slot `key`, stays in it for `stay`, and tells how long after now it started.
pub(crate) fn visit(slots: &Slots, key: &str, stay: Duration) -> JoinHandle<Duration> {
    let (asked, acquire) = (Instant::now(), slots.acquire(key));
    tokio::spawn(async move {
        let permit = timeout(FOR_EVER, acquire).await.expect("nobody woke it").unwrap();
        let started = asked.elapsed();
        sleep(stay).await;
        drop(permit);
        started
    })
}

/// Has `n` visit the slot `key` at the same time and tells how long after now each started, in order.
pub(crate) async fn visits(slots: &Slots, key: &str, n: usize, stay: Duration) -> Vec<Duration> {
    let visits: Vec<_> = (0..n).map(|_| visit(slots, key, stay)).collect();
    let mut started = Vec::new();
    for visit in visits {
        started.push(visit.await.unwrap());
    }
    started
}

// --- counting

/// A future polled by hand that counts its polls and wakeups, and notes when it was woken.
pub(crate) struct Hand<F> {
    future: Pin<Box<F>>,
    bell: Arc<Bell>,
    pub(crate) polls: usize,
}

#[derive(Default)]
struct Bell {
    rung: Mutex<Vec<Instant>>,
}

impl<F: Future> Hand<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Box::pin(future), bell: Arc::default(), polls: 0 }
    }

    pub(crate) fn poll(&mut self) -> Poll<F::Output> {
        self.polls += 1;
        self.future.as_mut().poll(&mut Context::from_waker(&Waker::from(self.bell.clone())))
    }

    /// How often it was woken.
    pub(crate) fn wakes(&self) -> usize {
        self.bell.rung.lock().unwrap().len()
    }

    /// When it was woken, each time.
    pub(crate) fn woken_at(&self) -> Vec<Instant> {
        self.bell.rung.lock().unwrap().clone()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.lock().unwrap().push(Instant::now());
    }
}

/// A future inside a task that counts its own polls and wakeups, whatever else happens in the task.
pub(crate) struct Watched<F> {
    future: Pin<Box<F>>,
    counts: Arc<Watch>,
    waker: Option<Waker>,
}

#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) polls: AtomicUsize,
    pub(crate) wakes: AtomicUsize,
}

struct Forward {
    to: Waker,
    counts: Arc<Watch>,
}

impl<F: Future> Watched<F> {
    pub(crate) fn new(future: F, counts: Arc<Watch>) -> Self {
        Self { future: Box::pin(future), counts, waker: None }
    }
}

impl<F: Future> Future for Watched<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        this.counts.polls.fetch_add(1, Ordering::SeqCst);
        let forward = || Arc::new(Forward { to: cx.waker().clone(), counts: this.counts.clone() });
        let waker = this.waker.get_or_insert_with(|| Waker::from(forward()));
        this.future.as_mut().poll(&mut Context::from_waker(waker))
    }
}

impl Wake for Forward {
    fn wake(self: Arc<Self>) {
        self.counts.wakes.fetch_add(1, Ordering::SeqCst);
        self.to.wake_by_ref();
    }
}

// --- watchdog

/// Longer than anything takes; Miri takes hundreds of times as long.
const ENOUGH: Duration = secs(if cfg!(miri) { 600 } else { 20 });

/// Runs `f` on a thread of its own and fails if it does not come to its end.
#[track_caller]
pub(crate) fn must_not_hang(f: impl FnOnce() + Send + 'static) {
    let (ended, end) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _ended = ended;
        f();
    });
    match end.recv_timeout(ENOUGH) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("deadlock"),
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}
