//! Who is woken, when and how often; and who is not polled although it was.

#![allow(clippy::unwrap_used)]

mod by_hand;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::{Barrier, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower_slot::{SlotConfig, SlotErrorKind, SlotLimits, WaitReason};

use by_hand::{Hand, Watch, Watched, in_flight, millis, queued, secs, slots, visit, waiting};

// --- wakeups

// Q5, case 13
#[test]
fn a_woken_waiter_that_goes_away_wakes_its_successor() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let a = slots.try_acquire("a").unwrap();
    let (b, mut c) = (queued(&slots, "a"), queued(&slots, "a"));
    drop(a);
    assert!(b.is_woken());
    assert!(!c.is_woken());
    drop(b);
    assert!(c.is_woken());
    drop(assert_ready_ok!(c.poll()));
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
    drop(assert_ready_ok!(c.poll()));
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
    drop(assert_ready_ok!(d.poll()));
}

// Q5
#[tokio::test(start_paused = true)]
async fn a_waiter_that_goes_away_from_a_full_slot_or_from_behind_wakes_nobody() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let a = slots.try_acquire("a").unwrap();
    let [b, mut c, mut d, e, f] = [(); 5].map(|()| queued(&slots, "a"));
    drop(b);
    drop(e);
    assert!(!c.is_woken() && !d.is_woken());
    // There is room, but it is the pace that they wait for.
    slots.configure("a", SlotLimits::new().concurrency(2).delay(secs(3_600))).unwrap();
    assert_pending!(c.poll());
    drop(f);
    assert!(!c.is_woken() && !d.is_woken());
    slots.configure("a", SlotLimits::new().delay(Duration::ZERO).concurrency(1)).unwrap();
    assert_pending!(c.poll());
    drop(a);
    drop(c);
    assert!(d.is_woken());
    drop(assert_ready_ok!(d.poll()));
}

// Q5, L6, case 18
#[tokio::test(start_paused = true)]
async fn a_release_wakes_nobody_whom_it_does_not_help() {
    let paced = slots(SlotConfig::builder().concurrency(2).delay(secs(10)));
    let permit = paced.try_acquire("a").unwrap();
    let waiter = queued(&paced, "a");
    drop(permit);
    assert!(!waiter.is_woken(), "it waits for the pace");

    let lowered = slots(SlotConfig::builder().concurrency(2));
    let [one, _other] = [0; 2].map(|_| lowered.try_acquire("a").unwrap());
    lowered.configure("a", SlotLimits::new().concurrency(1)).unwrap();
    let waiter = queued(&lowered, "a");
    drop(one);
    assert!(!waiter.is_woken(), "the slot is full");
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
        drop(permits.remove(0));
        let woken: Vec<_> =
            (0..CLONES).filter(|clone| clones[*clone].wakes() >= clones[*clone].polls).collect();
        assert_eq!(woken, [n]);
        permits.push(assert_ready_ok!(clones[n].poll()));
    }
    let polls: usize = clones.iter().map(|clone| clone.polls).sum();
    let wakes: usize = clones.iter().map(Hand::wakes).sum();
    assert_eq!((polls, wakes), (LIMIT + 2 * (CLONES - LIMIT), CLONES - LIMIT));
}

// Q5: a wakeup that is lost would leave somebody waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_is_left_waiting_when_waiters_come_and_go_on_real_threads() {
    let slots = slots(SlotConfig::builder().concurrency(2).total_concurrency(3));
    let mut tasks = JoinSet::new();
    // Miri takes hundreds of times as long.
    for n in 0..if cfg!(miri) { 36 } else { 900 } {
        let slots = slots.clone();
        tasks.spawn(async move {
            let key = ["a", "b", "c"][n % 3];
            // Those who go away, woken or not, before those who stay.
            for _ in 0..n % 4 {
                let mut waiter = Box::pin(slots.acquire(key));
                let _ = futures_util::poll!(&mut waiter);
                yield_now().await;
            }
            let permit = slots.acquire(key).await.unwrap();
            yield_now().await;
            drop(permit);
        });
    }
    timeout(secs(60), tasks.join_all()).await.expect("somebody waits although nobody runs");
    let total = slots.snapshot().total;
    assert_eq!((total.in_flight, total.line), (0, 0));
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
    drop(assert_ready_ok!(waiter.poll()));
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
    assert_pending!(first.poll());
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
        drop(slots.acquire("a").await.unwrap());
    }
    assert_eq!(begin.elapsed(), secs(7));
}
