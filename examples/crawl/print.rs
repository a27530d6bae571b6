//! What the downloader prints: a line per URL as it is done, and the slots at the end.

use std::{
    io::{self, Write},
    time::Duration,
};

use serde::Serialize;
use tower_slot::{Counts, Phases, SlotKey, Snapshot};

use crate::{
    report::{table, write_json},
    target::Refused,
};

/// What became of one URL.
pub(crate) struct Outcome {
    /// As it was asked for; of a line that is not a URL, the line.
    pub(crate) url: String,
    /// The name of its slot; `None` for a line that is not a URL.
    pub(crate) slot: Option<SlotKey>,
    pub(crate) part: Part,
    /// Why it did not come to the end of the body.
    pub(crate) error: Option<String>,
}

/// As much of an answer as there was.
#[derive(Default)]
pub(crate) struct Part {
    pub(crate) status: Option<u16>,
    pub(crate) bytes: u64,
    /// From asking for the slot to the start.
    pub(crate) waited: Option<Duration>,
    /// From the start to the headers.
    pub(crate) to_headers: Option<Duration>,
    /// From the headers to the end of the body.
    pub(crate) body: Option<Duration>,
}

/// Writes outcomes to `W`, and counts those that failed.
pub(crate) struct Printer<W> {
    out: W,
    json: bool,
    failed: usize,
}

#[derive(Serialize)]
struct UrlLine<'a> {
    url: &'a str,
    slot: Option<&'a str>,
    status: Option<u16>,
    bytes: u64,
    waited_s: Option<f64>,
    to_headers_s: Option<f64>,
    body_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct SlotsLine {
    slots: Vec<SlotRow>,
}

/// One slot, or all recycled ones; times are sums in seconds.
#[derive(Serialize)]
struct SlotRow {
    slot: Option<String>,
    /// Above 0 in the row of the recycled ones, which has no name.
    #[serde(skip_serializing_if = "is_zero")]
    recycled: u64,
    asked: u64,
    finished: u64,
    failed: u64,
    cancelled: u64,
    waited_for_concurrency_s: f64,
    waited_for_pace_s: f64,
    waited_for_total_s: f64,
    to_headers_s: f64,
    body_s: f64,
}

// === impl Outcome ===

impl Outcome {
    /// Creates the outcome of a line that is not a URL.
    pub(crate) fn refused(Refused { shown, why }: Refused) -> Self {
        Self { url: shown, slot: None, part: Part::default(), error: Some(why.to_owned()) }
    }
}

// === impl Printer ===

impl<W: Write> Printer<W> {
    pub(crate) fn new(out: W, json: bool) -> Self {
        Self { out, json, failed: 0 }
    }

    /// Returns how many URLs failed.
    pub(crate) fn failed(&self) -> usize {
        self.failed
    }

    /// Writes the line of one URL.
    pub(crate) fn line(&mut self, outcome: &Outcome) -> io::Result<()> {
        let Outcome { url, slot, part, error } = outcome;
        self.failed += usize::from(error.is_some());
        let slot = slot.as_ref().map(SlotKey::as_str);
        if self.json {
            let line = UrlLine {
                url,
                slot,
                status: part.status,
                bytes: part.bytes,
                waited_s: part.waited.map(seconds),
                to_headers_s: part.to_headers.map(seconds),
                body_s: part.body.map(seconds),
                error: error.as_deref(),
            };
            return write_json(&line, &mut self.out);
        }
        let status = part.status.map_or("---".to_owned(), |status| status.to_string());
        let [waited, headers, body] = [part.waited, part.to_headers, part.body].map(shown);
        write!(
            self.out,
            "{status} {:>10} B  waited {waited}  headers {headers}  body {body}  {}  {url}",
            part.bytes,
            slot.unwrap_or("-"),
        )?;
        match error {
            Some(error) => writeln!(self.out, "  failed: {error}"),
            None => writeln!(self.out),
        }
    }

    /// Writes the table of the slots, the recycled ones in a row of their own.
    pub(crate) fn slots(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let named = |key: &SlotKey| Some(key.to_string());
        let mut rows: Vec<_> = snapshot
            .slots
            .iter()
            .map(|slot| SlotRow::new(named(&slot.key), 0, &slot.counts, &slot.times))
            .collect();
        rows.sort_by(|a, b| a.slot.cmp(&b.slot));
        let recycled = &snapshot.recycled;
        if recycled.slots > 0 {
            rows.push(SlotRow::new(None, recycled.slots, &recycled.counts, &recycled.times));
        }
        if self.json {
            write_json(&SlotsLine { slots: rows }, &mut self.out)?;
        } else {
            self.table(&rows)?;
        }
        self.out.flush()
    }

    fn table(&mut self, rows: &[SlotRow]) -> io::Result<()> {
        let mut table = table([
            "slot",
            "asked",
            "finished",
            "failed",
            "waited: concurrency",
            "pace",
            "total",
            "to headers",
            "in body",
        ]);
        for row in rows {
            let name = row.slot.clone().unwrap_or_else(|| format!("({} recycled)", row.recycled));
            let counts = [row.asked, row.finished, row.failed + row.cancelled].map(|count| count.to_string());
            let times = [
                row.waited_for_concurrency_s,
                row.waited_for_pace_s,
                row.waited_for_total_s,
                row.to_headers_s,
                row.body_s,
            ];
            let times = times.map(|time| format!("{time:.3} s"));
            table.add_row([name].into_iter().chain(counts).chain(times));
        }
        writeln!(self.out, "{table}")
    }
}

// === impl SlotRow ===

impl SlotRow {
    fn new(slot: Option<String>, recycled: u64, counts: &Counts, times: &Phases) -> Self {
        Self {
            slot,
            recycled,
            asked: counts.asked,
            finished: counts.finished,
            failed: counts.failed,
            cancelled: counts.cancelled,
            waited_for_concurrency_s: seconds(times.concurrency),
            waited_for_pace_s: seconds(times.pace),
            waited_for_total_s: seconds(times.total),
            to_headers_s: seconds(times.headers),
            body_s: seconds(times.body),
        }
    }
}

/// Returns whole microseconds as seconds: what is beyond them is noise.
fn seconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e6
}

fn shown(time: Option<Duration>) -> String {
    time.map_or_else(|| format!("{:>9}", "-"), |time| format!("{:>7.3} s", time.as_secs_f64()))
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
