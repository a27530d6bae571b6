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

/// How many hosts requests go round.
const HOSTS: usize = 64;

/// As high as governor can go: one request per nanosecond, which is a delay that nobody meets.
const NEVER_WAITS: (NonZeroU32, Duration) =
    (NonZeroU32::new(1_000_000_000).expect("not zero"), Duration::from_nanos(1));

pub struct Variant {
    pub name: &'static str,
    start: fn() -> Run,
}

/// Runs so many requests, one after the other.
pub type Run = Box<dyn FnMut(usize)>;

/// With the feature `telemetry` every slot has both of it: a subscriber for none, and a recorder for the last one.
pub const VARIANTS: &[Variant] = &[
    Variant { name: "bare", start: || run(Inner, plain()) },
    Variant { name: "bare_keyed", start: || run(Inner, keyed()) },
    Variant { name: "tower", start: || run(GlobalConcurrencyLimitLayer::new(8).layer(Inner), plain()) },
    Variant { name: "in_flight", start: || run(InFlightRequestsLayer::pair().0.layer(Inner), plain()) },
    Variant { name: "hand", start: || run(PerHostLayer::new(8).layer(Inner), plain()) },
    Variant { name: "governor", start: || run(governed().layer(Inner), plain()) },
    Variant { name: "slot", start: || run(slot(|config| config), plain()) },
    Variant { name: "slot_keyed", start: || run(slot(|config| config), keyed()) },
    Variant { name: "slot_pace", start: || run(slot(|config| config.delay(NEVER_WAITS.1)), plain()) },
    Variant { name: "slot_total", start: || run(slot(|config| config.total_concurrency(64)), plain()) },
    Variant { name: "slot_no_statistics", start: || run(slot(|config| config.statistics(false)), plain()) },
    Variant { name: "slot_timings", start: || run(timed(), plain()) },
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

    /// Every host has had a request then.
    pub fn start(&self) -> Run {
        let mut run = (self.start)();
        run(HOSTS);
        run
    }
}

fn run<S, B>(mut service: S, make: impl Fn(usize) -> Request<()> + 'static) -> Run
where
    S: Service<Request<()>, Response = Response<B>> + 'static,
    S::Error: Debug,
    B: Body + Unpin,
    B::Error: Debug,
{
    Box::new(move |n| (0..n).for_each(|at| one_at_once(&mut service, make(at % HOSTS))))
}

// --- requests

fn plain() -> impl Fn(usize) -> Request<()> {
    let uris: Vec<_> = (0..HOSTS).map(uri).collect();
    move |at| request(uris[at].clone())
}

fn keyed() -> impl Fn(usize) -> Request<()> {
    let plain = plain();
    let keys: Vec<_> = (0..HOSTS).map(|n| SlotKey::new(format!("key-{n}"))).collect();
    move |at| {
        let mut request = plain(at);
        request.extensions_mut().insert(keys[at].clone());
        request
    }
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
fn recorded() -> Run {
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    metrics::with_local_recorder(&recorder, || {
        let mut run = run(slot(|config| config), plain());
        run(HOSTS);
        run
    })
}
