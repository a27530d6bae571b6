//! Many tasks for one slot, on two threads: `cargo bench -p tower-slot-bench --bench contended`.
//!
//! Each task asks, keeps what it got for one turn of the scheduler, and asks again.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, yield_now};
use tower::{Layer, Service};
use tower_slot::{SlotConfig, SlotLayer, Slots};
use tower_slot_bench::counted::{Counted, Tally};
use tower_slot_bench::hand_written::PerHostLayer;
use tower_slot_bench::inner::Inner;
use tower_slot_bench::report::Report;
use tower_slot_bench::request::{request, uri};
use tower_slot_bench::rounds::rounds;

const ROUNDS: usize = 15;
const TASKS: usize = 64;
const LIMIT: usize = 8;

/// How often each task starts, so that a round takes some tenths of a second.
const STARTS: usize = 2_000;

fn main() {
    let head =
        ["64 tasks, limit 8, 2 threads", "starts per second", "beside the one above", "polls", "wakes"];
    let mut report = Report::begin("One slot that all want; polls and wakes per start", head);
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let config = || SlotConfig::builder().concurrency(LIMIT).build().expect("limits that can be");

    let semaphore: &'static Semaphore = Box::leak(Box::new(Semaphore::new(LIMIT)));
    let slots = Slots::new(config());
    let hand = PerHostLayer::new(LIMIT).layer(Inner);
    let slot = SlotLayer::new(config()).layer(Inner);
    let uri = uri(0);
    let (mut by_hand, mut by_slot) = (hand.clone(), slot.clone());
    let (of_hand, of_slot) = (uri.clone(), uri.clone());

    let (semaphore, of_semaphore) = contender(&runtime, move || semaphore.acquire());
    let (slots, of_slots) = contender(&runtime, move || slots.acquire("host-0.example.com"));
    let (hand, of_hand) = contender(&runtime, move || by_hand.call(request(of_hand.clone())));
    let (slot, of_slot) = contender(&runtime, move || by_slot.call(request(of_slot.clone())));
    let counts = [of_semaphore, of_slots, of_hand, of_slot];
    let names = ["`Semaphore::acquire`", "`Slots::acquire`", "the hand-written layer", "`SlotLayer`"];
    let figures = rounds(ROUNDS, [semaphore, slots, hand, slot]);
    for (at, name) in names.into_iter().enumerate() {
        let ratio = if at % 2 == 0 { "1".into() } else { figures[at].over(&figures[at - 1]).to_string() };
        let [polls, wakes] = counts[at].map(|count| format!("{count:.2}"));
        report.row(name, [format!("{:.0}", figures[at]), ratio, polls, wakes]);
    }
    report.print();
}

/// Its starts per second, and how often it is polled and woken for each.
fn contender<F, Fut>(runtime: &Runtime, mut ask: F) -> (Box<dyn FnMut() -> f64 + '_>, [f64; 2])
where
    F: FnMut() -> Fut + Clone + Send + 'static,
    Fut: Future<Output: Send> + Send + 'static,
{
    let tally = Arc::<Tally>::default();
    let (of_ask, mut uncounted) = (tally.clone(), ask.clone());
    runtime.block_on(storm(move || Counted::new(uncounted(), of_ask.clone())));
    let per_start = |count: usize| count as f64 / (TASKS * STARTS) as f64;
    let counts = [&tally.polls, &tally.wakes].map(|count| per_start(count.load(Ordering::Relaxed)));
    let rate = move || {
        let start = Instant::now();
        let ask = &mut ask;
        runtime.block_on(storm(ask.clone()));
        (TASKS * STARTS) as f64 / start.elapsed().as_secs_f64()
    };
    (Box::new(rate), counts)
}

async fn storm<F, Fut>(ask: F)
where
    F: FnMut() -> Fut + Clone + Send + 'static,
    Fut: Future<Output: Send> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let mut ask = ask.clone();
        tasks.spawn(async move {
            for _ in 0..STARTS {
                let held = ask().await;
                yield_now().await;
                drop(held);
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("nobody panics");
    }
}
