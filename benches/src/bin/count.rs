//! Runs N requests through one variant, to be counted by callgrind: `count VARIANT N HOSTS`, or `count --list`.
//!
//! With `--toggle-collect=*counted_requests*` nothing else is counted, and all of it is N requests.

use tower_slot_bench::variants::{HOSTS, Run, VARIANTS, Variant};

fn main() {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_default();
    if name == "--list" {
        return VARIANTS.iter().for_each(|variant| println!("{}", variant.name));
    }
    let mut number = |default| args.next().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (n, hosts) = (number(1_000), number(HOSTS));
    let Some(variant) = Variant::named(&name) else { panic!("unknown variant {name:?}") };
    counted_requests(&mut variant.start(hosts), n);
}

#[inline(never)]
fn counted_requests(run: &mut Run, n: usize) {
    run(n);
}
