//! One thread beside two that use different slots: `cargo bench -p tower-slot-bench --bench scaling`.
//!
//! Plain threads that poll by hand. What the machine itself gives is the first row: nothing there is shared.

use std::fmt::Debug;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use http::{Request, Response};
use http_body::Body;
use tower::{Layer, Service};
use tower_slot::{SlotConfig, SlotLayer};
use tower_slot_bench::hand_written::PerHostLayer;
use tower_slot_bench::inner::Inner;
use tower_slot_bench::report::Report;
use tower_slot_bench::request::{one_at_once, request, uri};
use tower_slot_bench::rounds::rounds;

const ROUNDS: usize = 101;

/// So many that a round takes some milliseconds.
const REQUESTS: usize = 20_000;

/// What one of several threads does, so many times.
type Work = Box<dyn FnOnce(usize) + Send>;

fn main() {
    let head = ["each thread its own host", "1 thread, per second", "2 threads, per second", "ratio"];
    let mut report = Report::begin("Requests of two threads beside those of one", head);
    let config = || SlotConfig::builder().concurrency(8).build().expect("limits that can be");
    let [alu, bare, hand, slot]: [fn(&Layers) -> Works; 4] = [
        |_| [arithmetic(), arithmetic()],
        |_| [requests(Inner, 0), requests(Inner, 1)],
        |layers| [0, 1].map(|host| requests(layers.hand.layer(Inner), host)),
        |layers| [0, 1].map(|host| requests(layers.slot.layer(Inner), host)),
    ];
    // New layers in each round: whether two hosts are neighbours in a map is a matter of chance.
    let layers = || Layers { hand: PerHostLayer::new(8), slot: SlotLayer::new(config()) };
    let of = |works: fn(&Layers) -> Works, threads| {
        Box::new(move || rate(works(&layers()).into_iter().take(threads).collect()))
            as Box<dyn FnMut() -> f64>
    };
    let figures = rounds(
        ROUNDS,
        [
            of(alu, 1),
            of(alu, 2),
            of(bare, 1),
            of(bare, 2),
            of(hand, 1),
            of(hand, 2),
            of(slot, 1),
            of(slot, 2),
        ],
    );
    let names = ["arithmetic", "bare", "the hand-written layer", "`SlotLayer`"];
    for (name, pair) in names.into_iter().zip(figures.chunks(2)) {
        let rates = [0, 1].map(|at| format!("{:.0}", pair[at]));
        report.row(name, rates.into_iter().chain([pair[1].over(&pair[0]).to_string()]));
    }
    report.print();
}

struct Layers {
    hand: PerHostLayer,
    slot: SlotLayer,
}

type Works = [Work; 2];

/// How often all of them together do it in a second.
fn rate(works: Vec<Work>) -> f64 {
    let (threads, barrier) = (works.len(), &Barrier::new(works.len()));
    let spans: Vec<_> = thread::scope(|scope| {
        let run = |work: Work| {
            scope.spawn(move || {
                barrier.wait();
                let start = Instant::now();
                work(REQUESTS);
                (start, Instant::now())
            })
        };
        let threads: Vec<_> = works.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("nobody panics")).collect()
    });
    let start = spans.iter().map(|(start, _)| *start).min().expect("at least one");
    let end = spans.iter().map(|(_, end)| *end).max().expect("at least one");
    (threads * REQUESTS) as f64 / (end - start).as_secs_f64()
}

fn requests<S, B>(mut service: S, host: usize) -> Work
where
    S: Service<Request<()>, Response = Response<B>> + Send + 'static,
    S::Error: Debug,
    B: Body + Unpin,
    B::Error: Debug,
{
    let uri = uri(host);
    one_at_once(&mut service, request(uri.clone()));
    Box::new(move |n| (0..n).for_each(|_| one_at_once(&mut service, request(uri.clone()))))
}

/// About as long as a request, in registers alone.
fn arithmetic() -> Work {
    Box::new(|n| {
        let mut x = 1_u64;
        for _ in 0..n * 200 {
            x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
        }
        black_box(x);
    })
}
