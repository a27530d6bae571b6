//! The memory of idle slots: `cargo bench -p tower-slot-bench --bench memory`. Apart from the times, since the allocator
//! counts.

use std::fmt::Debug;

use allocation_counter::measure;
use http::{Request, Response};
use http_body::Body;
use tower::{Layer, Service};
use tower_slot::{SlotConfig, SlotLayer};
use tower_slot_bench::hand_written::PerHostLayer;
use tower_slot_bench::inner::Inner;
use tower_slot_bench::report::Report;
use tower_slot_bench::request::{one_at_once, request, uri};

fn main() {
    let head = ["hosts", "hand-written, bytes each", "slot, bytes each", "ratio"];
    let mut report = Report::begin("Memory of a host that had one request, its name included", head);
    for hosts in [1_000, 100_000, 1_000_000] {
        let hand = each(hosts, || PerHostLayer::new(8).layer(Inner));
        let slot = each(hosts, || SlotLayer::new(SlotConfig::default()).layer(Inner));
        let cells = [format!("{hand:.0}"), format!("{slot:.0}"), format!("{:.2}", slot / hand)];
        report.row(&hosts.to_string(), cells);
    }
    report.print();
}

/// The bytes that a layer has allocated for each of so many hosts.
fn each<S, B>(hosts: usize, layer: impl FnOnce() -> S) -> f64
where
    S: Service<Request<()>, Response = Response<B>>,
    S::Error: Debug,
    B: Body + Unpin,
    B::Error: Debug,
{
    let mut service = None;
    let taken = measure(|| {
        let service = service.insert(layer());
        (0..hosts).for_each(|host| one_at_once(service, request(uri(host))));
    });
    taken.bytes_current as f64 / hosts as f64
}
