//! Runs N requests through one variant, to be counted by callgrind: `count VARIANT N`.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use http::Request;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::{Layer, Service};
use tower_slot::{SlotConfig, SlotKey, SlotLayer};
use tower_slot_bench::hand_written::PerHostLayer;
use tower_slot_bench::{HOSTS, Inner, one, request, uris};

/// Everything here is ready at once: no runtime takes part.
fn run<S, B>(mut service: S, n: usize, make: impl Fn(usize) -> Request<()>)
where
    S: Service<Request<()>, Response = http::Response<B>>,
    S::Error: std::fmt::Debug,
    B: http_body::Body + Unpin,
    B::Error: std::fmt::Debug,
{
    for at in 0..n + HOSTS {
        let request = make(at % HOSTS);
        let done = pin!(one(&mut service, request)).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(done, Poll::Ready(()));
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let variant = args.next().unwrap_or_default();
    let n: usize = args.next().and_then(|n| n.parse().ok()).unwrap_or(1_000);
    let uris = uris(HOSTS);
    let keys: Vec<SlotKey> = (0..HOSTS).map(|n| SlotKey::new(format!("key-{n}"))).collect();
    let plain = |at: usize| request(&uris[at]);
    let keyed = |at: usize| {
        let mut request = request(&uris[at]);
        request.extensions_mut().insert(keys[at].clone());
        request
    };
    let config = SlotConfig::builder().concurrency(8);
    let layer = |config: tower_slot::SlotConfigBuilder| SlotLayer::new(config.build().expect("config"));
    match variant.as_str() {
        "bare" => run(Inner, n, plain),
        "bare_keyed" => run(Inner, n, keyed),
        "tower" => run(GlobalConcurrencyLimitLayer::new(8).layer(Inner), n, plain),
        "hand" => run(PerHostLayer::new(8).layer(Inner), n, plain),
        "slot" => run(layer(config).layer(Inner), n, plain),
        "slot_keyed" => run(layer(config).layer(Inner), n, keyed),
        "slot_total" => run(layer(config.total_concurrency(64)).layer(Inner), n, plain),
        other => panic!("unknown variant {other:?}"),
    }
}
