//! The layer: makes services that share slots.

use tower_layer::Layer;

use crate::config::SlotConfig;
use crate::extract::ExtensionOrHost;
use crate::future::Wanted;
use crate::reject::{Fail, RejectWith};
use crate::service::SlotService;
use crate::slot::Slots;

/// Sends every request through a slot and keeps its place there until the response body has ended.
///
/// All services that one layer makes, and all their clones, share its slots; two layers made by
/// [`new`](Self::new) share nothing.
///
/// ```
/// use tower::ServiceBuilder;
/// use tower_slot::{SlotConfig, SlotLayer};
/// # use http::{Request, Response};
/// # let client = tower::service_fn(async |_: Request<()>| Ok::<_, tower_slot::BoxError>(Response::new(String::new())));
///
/// let config = SlotConfig::builder().concurrency(4).build()?;
/// let client = ServiceBuilder::new().layer(SlotLayer::new(config)).service(client);
/// # Ok::<(), tower_slot::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SlotLayer<K = ExtensionOrHost, R = Fail> {
    slots: Slots,
    key_extractor: K,
    reject: R,
    wanted: Wanted,
}

// === impl SlotLayer ===

impl SlotLayer {
    /// Creates a layer whose slots follow `config`.
    #[must_use]
    pub fn new(config: SlotConfig) -> Self {
        Self::with_slots(Slots::new(config))
    }

    /// Creates a layer that uses slots which others use too.
    #[must_use]
    pub fn with_slots(slots: Slots) -> Self {
        Self { slots, key_extractor: ExtensionOrHost, reject: Fail, wanted: Wanted::default() }
    }
}

impl<K, R> SlotLayer<K, R> {
    /// Says which slot a request goes through.
    #[must_use]
    pub fn key_extractor<K2>(self, key_extractor: K2) -> SlotLayer<K2, R> {
        let Self { slots, reject, wanted, .. } = self;
        SlotLayer { slots, key_extractor, reject, wanted }
    }

    /// Turns the slot's refusals into responses. Errors then keep the inner service's type, so `Infallible` stays
    /// `Infallible`.
    ///
    /// [`too_many_requests`](crate::too_many_requests) and [`service_unavailable`](crate::service_unavailable)
    /// are there to be handed over; so is any closure from a [`SlotError`](crate::SlotError) to a response.
    ///
    /// ```
    /// # use tower_slot::{SlotConfig, SlotLayer};
    /// let config = SlotConfig::builder().concurrency(4).queue_capacity(16).build()?;
    /// let layer = SlotLayer::new(config).reject_with(tower_slot::too_many_requests::<String>);
    /// # Ok::<(), tower_slot::ConfigError>(())
    /// ```
    #[must_use]
    pub fn reject_with<F>(self, f: F) -> SlotLayer<K, RejectWith<F>> {
        let Self { slots, key_extractor, wanted, .. } = self;
        SlotLayer { slots, key_extractor, reject: RejectWith(f), wanted }
    }

    /// Puts [`SlotTimings`](crate::SlotTimings) into every response's extensions. Off by default; it costs an
    /// allocation per response.
    #[must_use]
    pub fn timings(mut self, on: bool) -> Self {
        self.wanted.timings = on;
        self
    }

    /// Tells the time to a connection (pool, name, TCP, proxy, TLS) apart from the time to the headers, in
    /// [`Phases`](crate::Phases) and [`SlotTimings`](crate::SlotTimings). Off by default; it costs three allocations
    /// per request.
    ///
    /// The inner service has to be hyper-util's legacy client, or hand the request's extensions on to one: it tells when
    /// it has a connection. Where nobody tells, and for requests that ask for an upgrade, all counts as to the headers.
    #[cfg(feature = "connection")]
    #[cfg_attr(docsrs, doc(cfg(feature = "connection")))]
    #[must_use]
    pub fn connection_times(mut self, on: bool) -> Self {
        self.wanted.connection = on;
        self
    }

    /// Returns the slots: to look at, change, pause and close them.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        &self.slots
    }
}

impl<S, K: Clone, R: Clone> Layer<S> for SlotLayer<K, R> {
    type Service = SlotService<S, K, R>;

    fn layer(&self, inner: S) -> Self::Service {
        let Self { slots, key_extractor, reject, wanted } = self.clone();
        SlotService { inner, slots, key_extractor, reject, wanted }
    }
}
