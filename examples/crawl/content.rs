//! What a lane of the picture shows: a bar per request, or for many how many were in each phase.

use std::ops::Range;

use plotters::prelude::*;
use tower_slot::BoxError;

use crate::{
    picture::Area,
    timeline::{Lane, PHASES},
};

/// The phases in words, and their colours, which colour-blind people can tell apart: Okabe and Ito's. What waits is
/// light, what works is dark.
pub(crate) const LEGEND: [(&str, RGBColor); PHASES] = [
    ("waiting: slot full", RGBColor(0xE6, 0x9F, 0x00)),
    ("waiting: pace", RGBColor(0x56, 0xB4, 0xE9)),
    ("waiting: total full", RGBColor(0xCC, 0x79, 0xA7)),
    ("to the headers", RGBColor(0xD5, 0x5E, 0x00)),
    ("in the body", RGBColor(0x00, 0x72, 0xB2)),
];

/// Up to so many requests have a bar each, of so many parts together.
const BARS: usize = 400;
const PARTS: usize = 4000;
// In pixels.
/// What all bars together should have, more or less.
const BARS_HEIGHT: usize = 900;
/// A lane of counts.
const COUNTS_HEIGHT: i32 = 64;
/// Room for a name.
pub(crate) const LEAST_HEIGHT: i32 = 20;
/// Above and below what a lane shows.
const PAD: i32 = 4;

/// What a lane shows, and how high that is.
pub(crate) enum Content {
    /// The row of each bar, and the height of a row.
    Bars { rows: Vec<usize>, row: i32 },
    /// For each step of time, how many were in each phase.
    Counts(Vec<[f64; PHASES]>),
}

/// Chooses what to show in each lane of `width` pixels.
pub(crate) fn choose(lanes: &[Lane], end: f64, width: usize) -> Vec<Content> {
    let bars = || lanes.iter().flat_map(|lane| lane.bars.iter().map(move |bar| (lane, bar)));
    if bars().count() > BARS || bars().map(|(lane, bar)| lane.spans(bar).count()).sum::<usize>() > PARTS {
        let steps = width / 4;
        let counts = |lane: &Lane| Content::Counts(lane.counts(end / steps as f64, steps));
        return lanes.iter().map(counts).collect();
    }
    let rows: Vec<_> = lanes.iter().map(|lane| lane.rows(2.0 * end / width as f64)).collect();
    let count = |rows: &[usize]| 1 + rows.iter().max().copied().unwrap_or_default();
    let all = rows.iter().map(|rows| count(rows)).sum::<usize>().max(1);
    let bars = |rows: Vec<usize>| {
        // What a name needs anyway is there for few bars too.
        let room = (LEAST_HEIGHT - 2 * PAD) as usize / count(&rows);
        Content::Bars { row: (BARS_HEIGHT / all).max(room).clamp(3, 12) as i32, rows }
    };
    rows.into_iter().map(bars).collect()
}

/// Returns the largest number of requests that were there in one step.
pub(crate) fn most(counts: &[[f64; PHASES]]) -> f64 {
    counts.iter().map(|count| count.iter().sum()).fold(0.0, f64::max)
}

// === impl Content ===

impl Content {
    pub(crate) fn height(&self) -> i32 {
        match self {
            Self::Bars { rows, row } => {
                let rows = rows.iter().max().map_or(0, |last| 1 + *last as i32);
                (rows * row + 2 * PAD).max(LEAST_HEIGHT)
            }
            Self::Counts(_) => COUNTS_HEIGHT,
        }
    }

    pub(crate) fn draw(
        &self,
        root: &Area<'_>,
        lane: &Lane,
        y: Range<i32>,
        x: Range<i32>,
        end: f64,
    ) -> Result<(), BoxError> {
        let at = |seconds: f64| x.start + (seconds / end * f64::from(x.end - x.start)).round() as i32;
        let y = y.start + PAD..y.end - PAD;
        match self {
            Self::Bars { rows, row } => {
                for (bar, index) in lane.bars.iter().zip(rows) {
                    let top = y.start + *index as i32 * row;
                    let rectangle = |from, to, phase: usize| {
                        Rectangle::new([(from, top), (to, top + row - 1)], LEGEND[phase].1.filled())
                    };
                    // However short its work was, that it started shows.
                    let started = at(bar.started);
                    let is_short = at(bar.ended) < started + 2;
                    for span in lane.spans(bar).filter(|span| !is_short || span.from < bar.started) {
                        let (from, to) = (at(span.from), at(span.to));
                        if from < to {
                            root.draw(&rectangle(from, to, span.phase))?;
                        }
                    }
                    if is_short {
                        root.draw(&rectangle(started, started + 2, PHASES - 1))?;
                    }
                }
            }
            Self::Counts(counts) => {
                let scale = f64::from(y.end - y.start) / most(counts).max(1.0);
                let step = end / counts.len() as f64;
                let mut floor = vec![0.0; counts.len()];
                // What works is below what waits.
                for phase in (0..PHASES).rev() {
                    let mut outline = Vec::new();
                    let mut back = Vec::new();
                    for (index, count) in counts.iter().enumerate() {
                        let sides = [at(step * index as f64), at(step * (index + 1) as f64)];
                        let level = |count: f64| y.end - (count * scale).round() as i32;
                        let ceiling = floor[index] + count[phase];
                        outline.extend(sides.map(|side| (side, level(ceiling))));
                        back.extend(sides.map(|side| (side, level(floor[index]))));
                        floor[index] = ceiling;
                    }
                    if outline.iter().ne(&back) {
                        outline.extend(back.into_iter().rev());
                        root.draw(&Polygon::new(outline, LEGEND[phase].1.filled()))?;
                    }
                }
            }
        }
        Ok(())
    }
}
