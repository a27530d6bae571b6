//! The layers that are compared, by name: one list for all who run them.

use std::fmt::Debug;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::Quota;
use http::{Request, Response};
use http_body::Body;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::{Layer, Service};
use tower_http::metrics::InFlightRequestsLayer;
use tower_slot::{SlotConfig, SlotConfigBuilder, SlotKey, SlotLayer, SlotService};

use crate::governed::GovernedLayer;
use crate::hand_written::PerHostLayer;
use crate::inner::Inner;
use crate::request::{one_at_once, request, uri};

/// How many hosts requests go round, unless said otherwise.
pub const HOSTS: usize = 64;

/// As high as governor can go: one request per nanosecond, which is a delay that nobody meets.
const NEVER_WAITS: (NonZeroU32, Duration) =
    (NonZeroU32::new(1_000_000_000).expect("not zero"), Duration::from_nanos(1));

pub struct Variant {
    pub name: &'static str,
    start: fn(usize) -> Run,
}

/// Runs so many requests, one after the other.
pub type Run = Box<dyn FnMut(usize)>;

/// With the feature `telemetry` every slot has both of it: a subscriber for none, and a recorder for the last one.
pub const VARIANTS: &[Variant] = &[
    Variant { name: "bare", start: |hosts| run(Inner, plain(hosts)) },
    Variant { name: "bare_keyed", start: |hosts| run(Inner, keyed(hosts)) },
    Variant {
        name: "tower",
        start: |hosts| run(GlobalConcurrencyLimitLayer::new(8).layer(Inner), plain(hosts)),
    },
    Variant {
        name: "in_flight",
        start: |hosts| run(InFlightRequestsLayer::pair().0.layer(Inner), plain(hosts)),
    },
    Variant { name: "hand", start: |hosts| run(PerHostLayer::new(8).layer(Inner), plain(hosts)) },
    Variant { name: "governor", start: |hosts| run(governed().layer(Inner), plain(hosts)) },
    Variant { name: "slot", start: |hosts| run(slot(|config| config), plain(hosts)) },
    Variant { name: "slot_keyed", start: |hosts| run(slot(|config| config), keyed(hosts)) },
    Variant {
        name: "slot_pace",
        start: |hosts| run(slot(|config| config.delay(NEVER_WAITS.1)), plain(hosts)),
    },
    Variant {
        name: "slot_total",
        start: |hosts| run(slot(|config| config.total_concurrency(64)), plain(hosts)),
    },
    Variant {
        name: "slot_no_statistics",
        start: |hosts| run(slot(|config| config.statistics(false)), plain(hosts)),
    },
    Variant { name: "slot_timings", start: |hosts| run(timed(), plain(hosts)) },
    #[cfg(feature = "telemetry")]
    Variant { name: "slot_recorded", start: recorded },
];

// === impl Variant ===

impl Variant {
    /// The variant of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        VARIANTS.iter().find(|variant| variant.name == name)
    }

    /// The one without a layer that makes the same requests.
    pub fn bare(&self) -> &'static str {
        if self.name.ends_with("_keyed") { "bare_keyed" } else { "bare" }
    }

    /// Every one of so many hosts has had a request then.
    pub fn start(&self, hosts: usize) -> Run {
        let mut run = (self.start)(hosts);
        run(hosts);
        run
    }
}

fn run<S, B>(mut service: S, mut make: impl FnMut() -> Request<()> + 'static) -> Run
where
    S: Service<Request<()>, Response = Response<B>> + 'static,
    S::Error: Debug,
    B: Body + Unpin,
    B::Error: Debug,
{
    Box::new(move |n| (0..n).for_each(|_| one_at_once(&mut service, make())))
}

// --- requests

fn plain(hosts: usize) -> impl FnMut() -> Request<()> {
    let uris: Vec<_> = (0..hosts).map(uri).collect();
    let mut order = order(hosts);
    move || request(uris[order.next().expect("no end")].clone())
}

fn keyed(hosts: usize) -> impl FnMut() -> Request<()> {
    let mut plain = plain(hosts);
    let keys: Vec<_> = (0..hosts).map(|n| SlotKey::new(format!("key-{n}"))).collect();
    let mut order = order(hosts);
    move || {
        let mut request = plain();
        request.extensions_mut().insert(keys[order.next().expect("no end")].clone());
        request
    }
}

/// All of them once, then again and again in another order: neighbours in memory are none in time.
fn order(hosts: usize) -> impl Iterator<Item = usize> {
    (0..hosts).chain((0..hosts).map(move |at| at * 7_919 % hosts).cycle())
}

// --- layers

fn governed() -> GovernedLayer {
    GovernedLayer::new(Quota::per_second(NEVER_WAITS.0))
}

fn layer(more: impl FnOnce(SlotConfigBuilder) -> SlotConfigBuilder) -> SlotLayer {
    SlotLayer::new(more(SlotConfig::builder().concurrency(8)).build().expect("limits that can be"))
}

fn slot(more: impl FnOnce(SlotConfigBuilder) -> SlotConfigBuilder) -> SlotService<Inner> {
    layer(more).layer(Inner)
}

fn timed() -> SlotService<Inner> {
    layer(|config| config).timings(true).layer(Inner)
}

/// A slot asks for its instruments once: at its first request, so that one has the recorder.
#[cfg(feature = "telemetry")]
fn recorded(hosts: usize) -> Run {
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    metrics::with_local_recorder(&recorder, || {
        let mut run = run(slot(|config| config), plain(hosts));
        run(hosts);
        run
    })
}
