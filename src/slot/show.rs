//! Statistics as text.

use std::fmt;
use std::time::Duration;

use super::stats::{Phases, SlotStats, Snapshot};

/// Columns of the table: title, and what stands there.
type Column = (&'static str, fn(&SlotStats) -> String);

const CONNECTION: &str = "connection";

const COLUMNS: [Column; 12] = [
    ("slot", |slot| format!("{:?}", slot.key)),
    ("in flight", |slot| match slot.limits.concurrency {
        Some(limit) => format!("{}/{limit}", slot.in_flight),
        None => slot.in_flight.to_string(),
    }),
    ("waiting", |slot| match slot.reason {
        Some(reason) => format!("{} ({reason})", slot.waiting),
        None => slot.waiting.to_string(),
    }),
    ("oldest", |slot| slot.oldest_permit.map_or_else(String::new, short)),
    ("concurrency", |slot| short(slot.times.concurrency)),
    ("pace", |slot| short(slot.times.pace)),
    ("total", |slot| short(slot.times.total)),
    (CONNECTION, |slot| short(slot.times.connection)),
    ("headers", |slot| short(slot.times.headers)),
    ("body", |slot| short(slot.times.body)),
    ("started", |slot| slot.counts.started.to_string()),
    ("not started", |slot| (slot.counts.refused + slot.counts.timed_out + slot.counts.gone).to_string()),
];

// === impl Phases ===

impl Phases {
    /// The phases by name, in the order in which a request passes them.
    #[must_use]
    pub fn by_name(&self) -> [(&'static str, Duration); 6] {
        [
            ("concurrency", self.concurrency),
            ("pace", self.pace),
            ("total", self.total),
            (CONNECTION, self.connection),
            ("headers", self.headers),
            ("body", self.body),
        ]
    }

    /// Returns the phase in which most time went, and its share in per cent, rounded; `None` if none went.
    #[must_use]
    pub fn longest(&self) -> Option<(&'static str, u32)> {
        let phases = self.by_name();
        let all: f64 = phases.iter().map(|(_, time)| time.as_secs_f64()).sum();
        // The first of several that are equal.
        let (name, time) = phases.into_iter().rev().max_by_key(|(_, time)| *time)?;
        (!time.is_zero()).then(|| (name, (100.0 * time.as_secs_f64() / all).round() as u32))
    }
}

// === impl SlotStats ===

/// One line that names the phase in which most time went: `a.com: 83 % in pace`.
impl fmt::Display for SlotStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.times.longest() {
            Some((phase, share)) => write!(f, "{}: {share} % in {phase}", self.key),
            None => write!(f, "{}: nothing yet", self.key),
        }
    }
}

// === impl Snapshot ===

/// A table, a line per slot, with times since the slot was made; below it what all slots together have.
impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Few have clients that tell when they are connected.
        let is_shown =
            |title| title != CONNECTION || self.slots.iter().any(|slot| !slot.times.connection.is_zero());
        let columns: Vec<_> = COLUMNS.iter().filter(|(title, _)| is_shown(*title)).collect();
        let titles = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
        let cells = |slot| columns.iter().map(|(_, cell)| cell(slot)).collect();
        let rows: Vec<Vec<String>> = std::iter::once(titles).chain(self.slots.iter().map(cells)).collect();
        let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..columns.len()).map(width).collect();
        for row in &rows {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // Names to the left, numbers to the right.
                match at {
                    0 => line.push_str(&format!("{cell:<width$}")),
                    _ => line.push_str(&format!("  {cell:>width$}")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        let total = &self.total;
        match total.limit {
            Some(limit) => {
                write!(f, "total: {}/{limit} in flight, {} slots in line", total.in_flight, total.line)?
            }
            None => write!(f, "total: {} in flight", total.in_flight)?,
        }
        write!(f, "; {} slots recycled, {} requests in them", self.recycled.slots, self.recycled.counts.asked)
    }
}

/// A duration in a few characters.
fn short(time: Duration) -> String {
    match time {
        Duration::ZERO => "0".into(),
        _ if time < Duration::from_millis(10) => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        _ if time < Duration::from_secs(1) => format!("{} ms", time.as_millis()),
        _ if time < Duration::from_secs(600) => format!("{:.1} s", time.as_secs_f64()),
        _ => format!("{} min", time.as_secs() / 60),
    }
}
