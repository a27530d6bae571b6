//! Requests to ever more hosts, in random order: `cargo bench -p tower-slot-bench --bench many_hosts`.
//!
//! All requests of a round are made beforehand, so that the harness runs through memory in order, however many hosts
//! there are: what grows is the layers' own.

use std::cell::RefCell;
use std::fmt::Debug;
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
use tower_slot_bench::rounds::{nanos_each, rounds};

const ROUNDS: usize = 11;
const HOSTS: [usize; 3] = [1_000, 100_000, 1_000_000];

/// A round of one layer: so many pieces of so many requests.
const PIECES: (usize, usize) = (50, 2_000);

/// Longer than all of it takes: no slot is recycled.
const IDLE: Duration = Duration::from_secs(3_600);

fn main() {
    let head = ["hosts", "bare, ns", "hand-written, ns", "slot, ns", "beyond bare, beside the hand-written"];
    let mut report = Report::begin("Time per request to hosts in random order, one thread", head);
    let rng = RefCell::new(Rng::with_seed(7));
    // Made before the first round, and a round of each size in turn.
    let [b1, h1, s1] = of(HOSTS[0], &rng);
    let [b2, h2, s2] = of(HOSTS[1], &rng);
    let [b3, h3, s3] = of(HOSTS[2], &rng);
    let figures = rounds(ROUNDS, [b1, h1, s1, b2, h2, s2, b3, h3, s3]);
    let beyond = |at: usize| figures[at].with(&figures[at / 3 * 3], |own, bare| own - bare);
    for (at, hosts) in HOSTS.into_iter().enumerate() {
        let times = [0, 1, 2].map(|of| format!("{:.0}", figures[3 * at + of]));
        let ratio = beyond(3 * at + 2).over(&beyond(3 * at + 1)).to_string();
        report.row(&hosts.to_string(), times.into_iter().chain([ratio]));
    }
    let last_to_first = [0, 1, 2].map(|of| figures[6 + of].over(&figures[of]).to_string());
    report.row("last to first", last_to_first.into_iter().chain([String::new()]));
    let beyond = [1, 2].map(|of| beyond(6 + of).over(&beyond(of)).to_string());
    report.row("the same, beyond bare", [String::new()].into_iter().chain(beyond).chain([String::new()]));
    report.print();
}

/// The time per request for so many hosts: bare, hand-written, slot.
fn of(hosts: usize, rng: &RefCell<Rng>) -> [Box<dyn FnMut() -> f64 + '_>; 3] {
    let config = SlotConfig::builder().concurrency(8).idle_timeout(IDLE).build().expect("limits that can be");
    [
        contender(Inner, hosts, rng),
        contender(PerHostLayer::new(8).layer(Inner), hosts, rng),
        contender(SlotLayer::new(config).layer(Inner), hosts, rng),
    ]
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
