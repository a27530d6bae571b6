//! What became of each request, in time: the slots with their requests, and how many were in each phase when.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::time::Instant;
use tower_slot::{SlotKey, SlotTimings, WaitReason};

/// The phases of a request in their order: waiting by reason, to the headers, in the body.
pub(crate) const PHASES: usize = 5;
const HEADERS: usize = 3;
const BODY: usize = 4;
const REASONS: [WaitReason; HEADERS] = [WaitReason::Concurrency, WaitReason::Pace, WaitReason::Total];

/// Collects requests as they end; clones collect into the same.
#[derive(Clone, Default)]
pub(crate) struct Timeline(Arc<Mutex<Vec<(Instant, SlotTimings)>>>);

/// One request, in seconds since the first one was asked for.
#[derive(Clone, Copy)]
pub(crate) struct Bar {
    pub(crate) asked: f64,
    pub(crate) started: f64,
    headers: f64,
    pub(crate) ended: f64,
    /// How long it waited for each reason.
    waited: [f64; HEADERS],
}

/// A part of the time and the phase it was spent in.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) phase: usize,
    pub(crate) from: f64,
    pub(crate) to: f64,
}

/// One slot and its requests, in the order of their starts.
pub(crate) struct Lane {
    pub(crate) name: String,
    pub(crate) bars: Vec<Bar>,
    /// What the slot's first waiter waited for, and with it all the others: one after the other, with gaps where nobody
    /// waited.
    waits: Vec<Span>,
}

// === impl Timeline ===

impl Timeline {
    /// Adds a request whose body has ended.
    pub(crate) fn add(&self, asked: Instant, timings: SlotTimings) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((asked, timings));
    }

    /// Returns the slots, in the order of their first requests.
    pub(crate) fn lanes(&self) -> Vec<Lane> {
        let requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = requests.iter().map(|(asked, _)| *asked).min();
        let mut lanes: BTreeMap<&SlotKey, Vec<Bar>> = BTreeMap::new();
        for (asked, timings) in requests.iter() {
            let asked = begin.map_or(0.0, |begin| (*asked - begin).as_secs_f64());
            let started = asked + timings.waited().as_secs_f64();
            let headers = started + timings.to_headers().as_secs_f64();
            lanes.entry(timings.slot()).or_default().push(Bar {
                asked,
                started,
                headers,
                ended: headers + timings.body().unwrap_or_default().as_secs_f64(),
                waited: REASONS.map(|reason| timings.waited_for(reason).as_secs_f64()),
            });
        }
        let mut lanes: Vec<_> =
            lanes.into_iter().map(|(slot, bars)| Lane::new(slot.to_string(), bars)).collect();
        lanes.sort_by(|a, b| a.begin().total_cmp(&b.begin()));
        lanes
    }
}

// === impl Span ===

impl Span {
    /// The part of it that lies between `from` and `to`, if there is any.
    fn within(self, from: f64, to: f64) -> Option<Self> {
        let part = Self { phase: self.phase, from: self.from.max(from), to: self.to.min(to) };
        (part.from < part.to).then_some(part)
    }
}

// === impl Lane ===

impl Lane {
    /// A request knows how long it waited for each reason, but not when. The slot's queue knows: it is first in, first
    /// out, so what a request waited for up to the start of the one before it is known from that one, and then it was
    /// itself the first and went through the gates in order.
    fn new(name: String, mut bars: Vec<Bar>) -> Self {
        bars.sort_by(|a, b| a.started.total_cmp(&b.started));
        let mut waits: Vec<Span> = Vec::new();
        let mut known = 0.0_f64;
        for bar in &bars {
            let mut left = bar.waited;
            for span in waits.iter().rev().map_while(|span| span.within(bar.asked, known)) {
                left[span.phase] -= span.to - span.from;
            }
            let mut from = known.max(bar.asked);
            for (phase, left) in left.into_iter().enumerate() {
                let to = (from + left.max(0.0)).min(bar.started);
                match waits.last_mut() {
                    _ if to <= from => continue,
                    Some(last) if last.phase == phase && from - last.to < 1e-6 => last.to = to,
                    _ => waits.push(Span { phase, from, to }),
                }
                from = to;
            }
            known = bar.started;
        }
        Self { name, bars, waits }
    }

    fn begin(&self) -> f64 {
        self.bars.iter().map(|bar| bar.asked).fold(f64::MAX, f64::min)
    }

    fn time(&self) -> f64 {
        self.bars.iter().map(|bar| bar.ended - bar.asked).sum()
    }

    /// Returns what `bar` did when.
    pub(crate) fn spans(&self, bar: &Bar) -> impl Iterator<Item = Span> {
        let first = self.waits.partition_point(|span| span.to <= bar.asked);
        let Bar { asked, started, headers, ended, .. } = *bar;
        let waits = self.waits[first..].iter().map_while(move |span| span.within(asked, started));
        let works = [(HEADERS, started, headers), (BODY, headers, ended)];
        waits.chain(works.map(|(phase, from, to)| Span { phase, from, to }))
    }

    /// Puts the bars into as few rows as can hold them without one hiding another; `gap` seconds stay between two.
    ///
    /// Returns the row of each bar.
    pub(crate) fn rows(&self, gap: f64) -> Vec<usize> {
        let mut free_from: Vec<f64> = Vec::new();
        let row = |bar: &Bar| {
            let row = free_from.iter().position(|free| *free <= bar.asked).unwrap_or(free_from.len());
            free_from.resize(free_from.len().max(row + 1), 0.0);
            free_from[row] = bar.ended + gap;
            row
        };
        self.bars.iter().map(row).collect()
    }

    /// Returns how many requests were in each phase, on average over each of `count` steps of `step` seconds.
    pub(crate) fn counts(&self, step: f64, count: usize) -> Vec<[f64; PHASES]> {
        let mut counts = vec![[0.0; PHASES]; count];
        for bar in &self.bars {
            let ends = [
                (0, bar.asked, bar.started),
                (HEADERS, bar.started, bar.headers),
                (BODY, bar.headers, bar.ended),
            ];
            for (phase, from, to) in ends {
                spread(Span { phase, from, to }, step, &mut counts);
            }
        }
        // So far all who wait are in one; they are all there for the same reason.
        let mut reasons = vec![[0.0; PHASES]; count];
        self.waits.iter().for_each(|span| spread(*span, step, &mut reasons));
        for (count, reasons) in counts.iter_mut().zip(reasons) {
            let (waiting, all) = (count[0], reasons.iter().sum::<f64>());
            if all > 0.0 {
                for (count, share) in count.iter_mut().zip(reasons).take(HEADERS) {
                    *count = waiting * share / all;
                }
            }
        }
        counts
    }
}

/// Adds to each step the share of it that `span` covers.
fn spread(span: Span, step: f64, sums: &mut [[f64; PHASES]]) {
    let first = (span.from / step) as usize;
    for (at, sum) in sums.iter_mut().enumerate().skip(first) {
        match span.within(at as f64 * step, (at + 1) as f64 * step) {
            Some(part) => sum[span.phase] += (part.to - part.from) / step,
            None => return,
        }
    }
}

/// Leaves the `most` slots in which most time went, in the order in which they were.
pub(crate) fn busiest(mut lanes: Vec<Lane>, most: usize) -> Vec<Lane> {
    let mut times: Vec<_> = lanes.iter().map(Lane::time).collect();
    times.sort_by(|a, b| b.total_cmp(a));
    let least = times.get(most.saturating_sub(1)).copied().unwrap_or_default();
    lanes.retain(|lane| lane.time() >= least);
    lanes.truncate(most);
    lanes
}
