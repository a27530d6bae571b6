//! What the slots tell while they work: events through `tracing`, numbers through `metrics`. Each is behind the
//! feature of its name, and this is the only file that names either.
//!
//! The rule people get wrong: a label per host has no bound where strangers choose the hosts. Here the first 100 slots
//! have a label of their own (or those that `SlotConfigBuilder::metric_slots` names), and all
//! others share the label `other`.
//!
//! # Events
//!
//! Target `tower_slot`. Durations are seconds, as floating point. The names of the fields are part of the interface.
//!
//! | level | message | fields |
//! |---|---|---|
//! | debug | `started` | `slot`, `waited` and its parts `concurrency`, `pace`, `total` |
//! | debug | `refused` | `slot`, `kind`, `reason`, `waited`, `in_flight` |
//! | trace | `gone while waiting` | `slot` |
//! | trace | `connected` | `slot`, `connection` |
//! | trace | `headers` | `slot`, `headers` |
//! | trace | `ended` | `slot`, `outcome`, `lasted` (its last phase) |
//! | warn | `oldest permit is old: bodies not read?` | `slot`, `in_flight`, `oldest` |
//! | warn | `queue only grows` | `slot`, `waiting`, `reason` |
//!
//! The warnings come from `Slots::watch`.
//!
//! # Metrics
//!
//! All have the label `slot`. Install the recorder before the first request.
//!
//! | name | kind, unit | further labels |
//! |---|---|---|
//! | `tower_slot.requests.started`, `.finished`, `.failed`, `.cancelled`, `.refused`, `.timed_out`, `.gone` | counter | |
//! | `tower_slot.wait.duration` | histogram, seconds | `reason`: `concurrency`, `pace`, `total`, or `none` for a start without any wait |
//! | `tower_slot.connection.duration`, `tower_slot.headers.duration`, `tower_slot.body.duration` | histogram, seconds | |
//! | `tower_slot.requests.in_flight` | gauge | |
//! | `tower_slot.requests.waiting` | gauge | `reason` |
//!
//! The gauges are set by `Slots::watch`, or whenever
//! `Slots::report` is called, for example by whoever scrapes.

// With a feature off its half of each function is empty.
#![cfg_attr(not(all(feature = "tracing", feature = "metrics")), allow(unused_variables, dead_code))]

use crate::error::SlotError;
use crate::key::SlotKey;
use crate::slot::{Outcome, Phase};

#[cfg(feature = "metrics")]
mod numbers;
#[cfg(any(feature = "tracing", feature = "metrics"))]
mod watch;

#[cfg(any(feature = "tracing", feature = "metrics"))]
pub use self::watch::{Watch, Watching};

/// What was configured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    #[cfg(feature = "metrics")]
    labels: numbers::Labels,
}

/// What the slots of one table share.
#[derive(Debug)]
pub(crate) struct Telemetry {
    #[cfg(feature = "metrics")]
    registry: numbers::Registry,
}

/// What one slot keeps.
#[derive(Debug, Default)]
pub(crate) struct SlotTelemetry {
    #[cfg(feature = "metrics")]
    instruments: std::sync::OnceLock<std::sync::Arc<numbers::Instruments>>,
}

/// One slot's voice. Nothing of it may be called under a lock: it runs subscribers and recorders.
#[derive(Clone, Copy)]
pub(crate) struct Voice<'a> {
    pub(crate) key: &'a SlotKey,
    pub(crate) shared: &'a Telemetry,
    pub(crate) own: &'a SlotTelemetry,
}

// === impl Telemetry ===

impl Telemetry {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            registry: numbers::Registry::new(settings.labels.clone()),
        }
    }

    /// A request was refused before it had a slot.
    pub(crate) fn refused_outside(&self, error: &SlotError) {
        Voice { key: error.slot(), shared: self, own: &SlotTelemetry::default() }.refused(error);
    }
}

// === impl Voice ===

impl Voice<'_> {
    /// Whether anybody can hear it.
    pub(crate) const IS_HEARD: bool = cfg!(any(feature = "tracing", feature = "metrics"));

    #[cfg(feature = "metrics")]
    fn numbers(&self) -> &numbers::Instruments {
        self.own.instruments.get_or_init(|| self.shared.registry.of(self.key))
    }

    /// One started, having waited so long by reason, in nanoseconds.
    #[inline]
    pub(crate) fn started(&self, waited: [u64; 3]) {
        #[cfg(feature = "tracing")]
        {
            let [concurrency, pace, total] = waited.map(seconds);
            let waited = seconds(waited.iter().sum());
            tracing::debug!(target: "tower_slot", slot = self.key.as_str(), waited, concurrency, pace, total, "started");
        }
        #[cfg(feature = "metrics")]
        self.numbers().started(waited);
    }

    pub(crate) fn refused(&self, error: &SlotError) {
        #[cfg(feature = "tracing")]
        tracing::debug!(
            target: "tower_slot",
            slot = self.key.as_str(),
            kind = ?error.kind(),
            reason = error.reason().map(|reason| reason.as_str()),
            waited = error.waited().as_secs_f64(),
            in_flight = error.in_flight(),
            "refused",
        );
        #[cfg(feature = "metrics")]
        self.numbers().refused(error.kind());
    }

    pub(crate) fn gone(&self) {
        #[cfg(feature = "tracing")]
        tracing::trace!(target: "tower_slot", slot = self.key.as_str(), "gone while waiting");
        #[cfg(feature = "metrics")]
        self.numbers().gone();
    }

    #[cfg(feature = "connection")]
    pub(crate) fn connected(&self, nanos: u64) {
        #[cfg(feature = "tracing")]
        tracing::trace!(target: "tower_slot", slot = self.key.as_str(), connection = seconds(nanos), "connected");
        #[cfg(feature = "metrics")]
        self.numbers().connection(nanos);
    }

    #[inline]
    pub(crate) fn headers(&self, nanos: u64) {
        #[cfg(feature = "tracing")]
        tracing::trace!(target: "tower_slot", slot = self.key.as_str(), headers = seconds(nanos), "headers");
        #[cfg(feature = "metrics")]
        self.numbers().headers(nanos);
    }

    /// A permit is back, after its last phase, where that is timed, has lasted so many nanoseconds.
    #[inline]
    pub(crate) fn ended(&self, outcome: Outcome, timed: Option<(Phase, u64)>) {
        #[cfg(feature = "tracing")]
        tracing::trace!(
            target: "tower_slot",
            slot = self.key.as_str(),
            outcome = outcome.as_str(),
            lasted = timed.map(|(_, nanos)| seconds(nanos)),
            "ended",
        );
        #[cfg(feature = "metrics")]
        self.numbers().ended(outcome, timed);
    }
}

#[cfg(any(feature = "tracing", feature = "metrics"))]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
