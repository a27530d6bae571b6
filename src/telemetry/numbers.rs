//! Counters, histograms and gauges, one set per label.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use metrics::{Counter, Gauge, Histogram, Unit, counter, gauge, histogram};

use super::seconds;
use crate::config::SlotConfigBuilder;
use crate::error::{SlotErrorKind, WaitReason};
use crate::key::SlotKey;
use crate::slot::{Outcome, Phase};

/// How many slots have a label of their own unless said otherwise.
const LABELS: usize = 100;

/// The label of those that have none of their own.
const OTHER: &str = "other";

/// Which slots have a label of their own.
#[derive(Clone, Debug)]
pub(super) enum Labels {
    /// The first so many.
    First(usize),
    Named(Arc<HashSet<SlotKey>>),
}

/// The sets that were made so far.
#[derive(Debug)]
pub(super) struct Registry {
    labels: Labels,
    known: Mutex<HashMap<SlotKey, Arc<Lazy>>>,
    other: Lazy,
}

/// A set that is made when it is first needed.
type Lazy = OnceLock<Arc<Instruments>>;

/// What is counted and measured under one label.
pub(super) struct Instruments {
    started: Counter,
    finished: Counter,
    failed: Counter,
    cancelled: Counter,
    refused: Counter,
    timed_out: Counter,
    gone: Counter,
    waited: [Histogram; 3],
    not_waited: Histogram,
    connection: Histogram,
    headers: Histogram,
    body: Histogram,
    in_flight: Gauge,
    waiting: [Gauge; 3],
}

// === impl SlotConfigBuilder ===

impl SlotConfigBuilder {
    /// Gives the first `n` slots a metrics label of their own; all others share the label `other`. 100 unless said
    /// otherwise.
    #[must_use]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn metric_labels(mut self, n: usize) -> Self {
        self.config_mut().telemetry.labels = Labels::First(n);
        self
    }

    /// Gives these slots a metrics label of their own; all others share the label `other`.
    #[must_use]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn metric_slots<K: Into<SlotKey>>(mut self, slots: impl IntoIterator<Item = K>) -> Self {
        let slots = slots.into_iter().map(Into::into).collect();
        self.config_mut().telemetry.labels = Labels::Named(Arc::new(slots));
        self
    }
}

// === impl Labels ===

impl Default for Labels {
    fn default() -> Self {
        Self::First(LABELS)
    }
}

// === impl Registry ===

impl Registry {
    pub(super) fn new(labels: Labels) -> Self {
        Self { labels, known: Mutex::default(), other: Lazy::new() }
    }

    /// The set of a slot: its own, as long as there are labels left, or the one of all others.
    pub(super) fn of(&self, key: &SlotKey) -> Arc<Instruments> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let has_label = match &self.labels {
            _ if known.contains_key(key) => true,
            Labels::First(n) => known.len() < *n,
            Labels::Named(named) => named.contains(key),
        };
        let own = has_label.then(|| known.entry(key.clone()).or_default().clone());
        drop(known);
        // The recorder's code runs without our lock.
        match own {
            Some(own) => own.get_or_init(|| Arc::new(Instruments::new(key.as_str()))).clone(),
            None => self.other.get_or_init(|| Arc::new(Instruments::new(OTHER))).clone(),
        }
    }

    /// Sets the gauges.
    pub(super) fn report(&self, slots: &[crate::SlotStats]) {
        let mut sums: HashMap<Option<&SlotKey>, (f64, [f64; 3])> = HashMap::new();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for slot in slots {
            let label = Some(&slot.key).filter(|key| known.contains_key(*key));
            let (in_flight, waiting) = sums.entry(label).or_default();
            *in_flight += slot.in_flight as f64;
            if let Some(reason) = slot.reason {
                waiting[reason as usize] += slot.waiting as f64;
            }
        }
        let own = known.iter().filter_map(|(key, own)| Some((Some(key), own.get()?)));
        let other = self.other.get().map(|other| (None, other));
        for (key, instruments) in own.chain(other) {
            let (in_flight, waiting) = sums.get(&key).copied().unwrap_or_default();
            instruments.in_flight.set(in_flight);
            for (gauge, waiting) in instruments.waiting.iter().zip(waiting) {
                gauge.set(waiting);
            }
        }
    }
}

// === impl Instruments ===

impl Instruments {
    fn new(label: &str) -> Self {
        describe();
        let slot = || label.to_owned();
        Self {
            started: counter!("tower_slot.requests.started", "slot" => slot()),
            finished: counter!("tower_slot.requests.finished", "slot" => slot()),
            failed: counter!("tower_slot.requests.failed", "slot" => slot()),
            cancelled: counter!("tower_slot.requests.cancelled", "slot" => slot()),
            refused: counter!("tower_slot.requests.refused", "slot" => slot()),
            timed_out: counter!("tower_slot.requests.timed_out", "slot" => slot()),
            gone: counter!("tower_slot.requests.gone", "slot" => slot()),
            waited: WaitReason::ALL.map(
                |reason| histogram!("tower_slot.wait.duration", "slot" => slot(), "reason" => reason.as_str()),
            ),
            not_waited: histogram!("tower_slot.wait.duration", "slot" => slot(), "reason" => "none"),
            connection: histogram!("tower_slot.connection.duration", "slot" => slot()),
            headers: histogram!("tower_slot.headers.duration", "slot" => slot()),
            body: histogram!("tower_slot.body.duration", "slot" => slot()),
            in_flight: gauge!("tower_slot.requests.in_flight", "slot" => slot()),
            waiting: WaitReason::ALL.map(
                |reason| gauge!("tower_slot.requests.waiting", "slot" => slot(), "reason" => reason.as_str()),
            ),
        }
    }

    pub(super) fn started(&self, waited: [u64; 3]) {
        self.started.increment(1);
        if waited == [0; 3] {
            self.not_waited.record(0.0);
        }
        for (histogram, nanos) in self.waited.iter().zip(waited).filter(|(_, nanos)| *nanos > 0) {
            histogram.record(seconds(nanos));
        }
    }

    pub(super) fn refused(&self, kind: SlotErrorKind) {
        let counter = if kind == SlotErrorKind::WaitTimeout { &self.timed_out } else { &self.refused };
        counter.increment(1);
    }

    pub(super) fn gone(&self) {
        self.gone.increment(1);
    }

    #[cfg(feature = "connection")]
    pub(super) fn connection(&self, nanos: u64) {
        self.connection.record(seconds(nanos));
    }

    pub(super) fn headers(&self, nanos: u64) {
        self.headers.record(seconds(nanos));
    }

    pub(super) fn ended(&self, outcome: Outcome, timed: Option<(Phase, u64)>) {
        let counter = match outcome {
            Outcome::Finished => &self.finished,
            Outcome::Failed => &self.failed,
            Outcome::Cancelled => &self.cancelled,
        };
        counter.increment(1);
        match timed {
            Some((Phase::Body, nanos)) => self.body.record(seconds(nanos)),
            Some((Phase::Connection, nanos)) => self.connection.record(seconds(nanos)),
            Some((_, nanos)) => self.headers.record(seconds(nanos)),
            None => {}
        }
    }
}

impl std::fmt::Debug for Instruments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instruments").finish_non_exhaustive()
    }
}

/// Says what the numbers mean, to a recorder that wants to know.
fn describe() {
    let counters = [
        ("tower_slot.requests.started", "requests that got a permit"),
        ("tower_slot.requests.finished", "requests whose body, or headers, ended well"),
        ("tower_slot.requests.failed", "requests that failed after the start"),
        ("tower_slot.requests.cancelled", "requests that were dropped after the start"),
        ("tower_slot.requests.refused", "requests that were turned away"),
        ("tower_slot.requests.timed_out", "requests that waited for as long as they may"),
        ("tower_slot.requests.gone", "requests that were dropped while they waited"),
    ];
    for (name, text) in counters {
        metrics::describe_counter!(name, Unit::Count, text);
    }
    metrics::describe_histogram!(
        "tower_slot.wait.duration",
        Unit::Seconds,
        "from the first poll to the start"
    );
    metrics::describe_histogram!(
        "tower_slot.connection.duration",
        Unit::Seconds,
        "from the start to a connection, where that is told apart"
    );
    metrics::describe_histogram!("tower_slot.headers.duration", Unit::Seconds, "from there to the headers");
    metrics::describe_histogram!(
        "tower_slot.body.duration",
        Unit::Seconds,
        "from the headers to the permit's return"
    );
    metrics::describe_gauge!("tower_slot.requests.in_flight", Unit::Count, "permits that are out");
    metrics::describe_gauge!("tower_slot.requests.waiting", Unit::Count, "requests that wait");
}
