//! Requests to ever more hosts, in random order: `cargo bench -p tower-slot-bench --bench many_hosts`.
//!
//! All requests of a round are made beforehand, so that the harness runs through memory in order, however many hosts
//! there are: what grows is the layers' own. How much of that is the machine's memory shows beside it: one read at a
//! random place of a table with 512 bytes for each host, which waits for the read before it.

use std::cell::RefCell;
use std::fmt::Debug;
use std::hint::black_box;
use std::time::Duration;

use fastrand::Rng;
use http::{Request, Response};
use http_body::Body;
use tower::{Layer, Service};
use tower_slot::{SlotConfig, SlotLayer};
use tower_slot_bench::hand_written::PerHostLayer;
use tower_slot_bench::inner::Inner;
use tower_slot_bench::report::Report;
use tower_slot_bench::request::{one_at_once, request, uri};
use tower_slot_bench::rounds::{Figures, nanos_each, rounds};

const ROUNDS: usize = 11;
const HOSTS: [usize; 3] = [1_000, 100_000, 1_000_000];

/// A round of one layer: so many pieces of so many requests.
const PIECES: (usize, usize) = (50, 2_000);

/// Longer than all of it takes: no slot is recycled.
const IDLE: Duration = Duration::from_secs(3_600);

fn main() {
    let head = [
        "hosts",
        "a read, ns",
        "bare, ns",
        "hand-written, ns",
        "slot, ns",
        "slot beside hand-written, beyond bare",
    ];
    let mut report = Report::begin("Time per request to hosts in random order, one thread", head);
    let rng = RefCell::new(Rng::with_seed(7));
    // All are made before the first round, and each round goes through all sizes.
    let [r1, b1, h1, s1] = of(HOSTS[0], &rng);
    let [r2, b2, h2, s2] = of(HOSTS[1], &rng);
    let [r3, b3, h3, s3] = of(HOSTS[2], &rng);
    let figures = rounds(ROUNDS, [r1, b1, h1, s1, r2, b2, h2, s2, r3, b3, h3, s3]);
    let sizes: Vec<&[Figures]> = figures.chunks(4).collect();
    let beyond = |size: usize, of: usize| sizes[size][of].with(&sizes[size][1], |own, bare| own - bare);
    for (size, hosts) in HOSTS.into_iter().enumerate() {
        let times = sizes[size].iter().map(|figures| format!("{figures:.0}"));
        let ratio = beyond(size, 3).over(&beyond(size, 2)).to_string();
        report.row(&hosts.to_string(), times.chain([ratio]));
    }
    let ratios = (0..4).map(|of| sizes[2][of].over(&sizes[0][of]).to_string());
    report.row("last to first", ratios.chain([String::new()]));
    let ratios = [2, 3].map(|of| beyond(2, of).over(&beyond(0, of)).to_string());
    report.row("the same, beyond bare", [String::new(), String::new()].into_iter().chain(ratios));
    report.print();
}

/// The nanoseconds for so many hosts: a read, and a request bare, hand-written, and through a slot.
fn of(hosts: usize, rng: &RefCell<Rng>) -> [Box<dyn FnMut() -> f64 + '_>; 4] {
    let config = SlotConfig::builder().concurrency(8).idle_timeout(IDLE).build().expect("limits that can be");
    [
        reads(hosts),
        contender(Inner, hosts, rng),
        contender(PerHostLayer::new(8).layer(Inner), hosts, rng),
        contender(SlotLayer::new(config).layer(Inner), hosts, rng),
    ]
}

fn reads(hosts: usize) -> Box<dyn FnMut() -> f64> {
    let table: Vec<usize> = (0..hosts * 64).collect();
    let mut at = 1_usize;
    Box::new(move || {
        nanos_each(PIECES.0, PIECES.1, |n| {
            (0..n).for_each(|_| {
                at = table[at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) % table.len()]
                    .wrapping_add(at);
            });
            black_box(at);
        })
    })
}

fn contender<'a, S, B>(mut service: S, hosts: usize, rng: &'a RefCell<Rng>) -> Box<dyn FnMut() -> f64 + 'a>
where
    S: Service<Request<()>, Response = Response<B>> + 'a,
    S::Error: Debug,
    B: Body + Unpin,
    B::Error: Debug,
{
    (0..hosts).for_each(|host| one_at_once(&mut service, request(uri(host))));
    Box::new(move || {
        let rng = &mut rng.borrow_mut();
        let requests = (0..PIECES.0 * PIECES.1).map(|_| request(uri(rng.usize(..hosts))));
        let mut requests = requests.collect::<Vec<_>>().into_iter();
        nanos_each(PIECES.0, PIECES.1, |n| {
            requests.by_ref().take(n).for_each(|request| one_at_once(&mut service, request))
        })
    })
}
