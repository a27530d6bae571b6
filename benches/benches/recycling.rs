//! A million idle slots that go while traffic comes: `cargo bench -p tower-slot-bench --bench recycling`.

use std::thread::sleep;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use hdrhistogram::Histogram;
use tower::Layer;
use tower_slot::{SlotConfig, SlotLayer, SlotService, Slots};
use tower_slot_bench::inner::Inner;
use tower_slot_bench::report::Report;
use tower_slot_bench::request::{one_at_once, request, uri};

const IDLE: usize = 1_000_000;

/// The hosts that the traffic goes to.
const BUSY: usize = 64;

/// How many requests are timed between two looks at how many slots there are.
const PIECE: usize = 256;

/// Longer than all of it takes: none goes before its time.
const LONG: Duration = Duration::from_secs(3_600);

/// The busy ones have a request far more often.
const SHORT: Duration = Duration::from_secs(1);

fn main() {
    let head =
        ["64 hosts, ns", "requests", "p50", "p99", "p99.99", "longest", "p99.99 on the CPU", "longest"];
    let mut report = Report::begin("Latency of a request while slots are recycled, one thread", head);
    let config = |timeout| SlotConfig::builder().idle_timeout(timeout).build().expect("limits that can be");
    let mut traffic = Traffic::new(SlotLayer::new(config(LONG)).layer(Inner));
    let mut beside = Traffic::new(SlotLayer::new(config(LONG)).layer(Inner));

    traffic.to(0..BUSY + IDLE);
    // As many requests as a million slots take at least.
    let least = IDLE / 64;
    let none = beside.timed(|requests, _| requests < least);
    let not_yet = traffic.timed(|requests, _| requests < least);
    assert_eq!(traffic.slots().len(), BUSY + IDLE);

    for slots in [traffic.slots(), beside.slots()] {
        slots.reload(config(SHORT));
    }
    sleep(SHORT);
    let recycled = traffic.timed(|_, slots| slots.len() > BUSY);
    let again = beside.timed(|requests, _| requests < recycled.wall.len() as usize);

    let rows = [
        ("nothing to recycle", none),
        ("a million idle slots that stay", not_yet),
        ("a million idle slots that go", recycled),
        ("nothing to recycle, as many requests", again),
    ];
    for (name, times) in rows {
        let Times { wall, cpu } = times;
        let [p50, p99, p9999] = [0.5, 0.99, 0.9999].map(|share| wall.value_at_quantile(share));
        let cells = [wall.len(), p50, p99, p9999, wall.max(), cpu.value_at_quantile(0.9999), cpu.max()];
        report.row(name, cells.map(|cell| cell.to_string()));
    }
    report.print();
}

struct Traffic {
    service: SlotService<Inner>,
}

struct Times {
    wall: Histogram<u64>,
    /// Without what else the machine did meanwhile, but with the look at the clock.
    cpu: Histogram<u64>,
}

// === impl Traffic ===

impl Traffic {
    fn new(service: SlotService<Inner>) -> Self {
        let mut traffic = Self { service };
        traffic.to(0..BUSY);
        traffic
    }

    fn slots(&self) -> &Slots {
        self.service.slots()
    }

    fn to(&mut self, hosts: impl IntoIterator<Item = usize>) {
        hosts.into_iter().for_each(|host| one_at_once(&mut self.service, request(uri(host))));
    }

    /// The times of the requests, as long as there is to be one more piece.
    fn timed(&mut self, more: impl Fn(usize, &Slots) -> bool) -> Times {
        let uris: Vec<_> = (0..BUSY).map(uri).collect();
        let [mut wall, mut cpu] = [(); 2].map(|()| Histogram::new(3).expect("a precision that can be"));
        let mut requests = 0;
        while more(requests, self.slots()) {
            for at in 0..PIECE {
                let request = request(uris[at % BUSY].clone());
                let (cpu_start, start) = (ThreadTime::now(), Instant::now());
                one_at_once(&mut self.service, request);
                wall += start.elapsed().as_nanos() as u64;
                cpu += cpu_start.elapsed().as_nanos() as u64;
            }
            requests += PIECE;
        }
        Times { wall, cpu }
    }
}
