//! The time of one request, from its making to the end of its body: `cargo bench -p tower-slot-bench --bench request`.

use std::array;
use std::time::Instant;

use criterion::Criterion;
use tower_slot_bench::report::Report;
use tower_slot_bench::rounds::{nanos_each, rounds};
use tower_slot_bench::variants::{HOSTS, VARIANTS, Variant};

const ROUNDS: usize = 31;

/// A round of one variant: so many pieces of so many requests.
const PIECES: (usize, usize) = (10, 2_000);

fn main() {
    let head = ["variant", "ns", "beyond bare, ns", "beyond bare, beside the hand-written"];
    let report = Report::begin("Time per request, 64 hosts in turn, one thread", head);
    let mut criterion = Criterion::default().configure_from_args();
    each_by_itself(&mut criterion);
    criterion.final_summary();
    in_turns(report);
}

fn each_by_itself(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("request");
    for variant in VARIANTS {
        let mut run = variant.start(HOSTS);
        group.bench_function(variant.name, |bencher| {
            bencher.iter_custom(|n| {
                let start = Instant::now();
                run(n as usize);
                start.elapsed()
            })
        });
    }
}

fn in_turns(mut report: Report) {
    let figures = rounds::<{ VARIANTS.len() }>(
        ROUNDS,
        array::from_fn(|at| {
            let mut run = VARIANTS[at].start(HOSTS);
            Box::new(move || nanos_each(PIECES.0, PIECES.1, &mut run)) as Box<dyn FnMut() -> f64>
        }),
    );
    let beyond = |variant: &Variant| {
        let of = |name| &figures[VARIANTS.iter().position(|variant| variant.name == name).expect("listed")];
        of(variant.name).with(of(variant.bare()), |own, bare| own - bare)
    };
    let hand = beyond(Variant::named("hand").expect("listed"));
    for (variant, figures) in VARIANTS.iter().zip(&figures) {
        let beyond = beyond(variant);
        let ratio = format!("{:.2}", beyond.over(&hand));
        report.row(variant.name, [format!("{figures:.0}"), format!("{beyond:.0}"), ratio]);
    }
    report.print();
}
