//! How late starts come: `cargo bench -p tower-slot-bench --bench pace`.
//!
//! Waiters start one after the other in one slot; at the same time, and on the same thread, a plain loop sleeps
//! until its own last moment plus the delay. Both wait for tokio's timer, which goes by milliseconds.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tower_slot::{SlotConfig, Slots};
use tower_slot_bench::report::Report;
use tower_slot_bench::rounds::Figures;

/// Delays in milliseconds, and how many starts make some seconds of each.
const DELAYS: [(u64, usize); 4] = [(1, 2_000), (5, 800), (50, 100), (200, 50)];

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let head = [
        "delay",
        "earliest, ms",
        "`sleep_until`: late by, ms",
        "slot: late by, ms",
        "difference of the medians, ms",
        "`sleep_until`: rate beside the ideal",
        "slot: rate beside the ideal",
    ];
    let mut report = Report::begin("Starts at their pace, one slot, all wait from the beginning", head);
    for (millis, starts) in DELAYS {
        let delay = Duration::from_millis(millis);
        let (slot, plain) = tokio::join!(in_slot(delay, starts), asleep(delay, starts));
        let late = |pace: &Pace| pace.late.iter().map(|late| late * 1e3).collect::<Figures>();
        let earliest = slot.late.iter().copied().fold(f64::INFINITY, f64::min) * 1e3;
        let (of_slot, of_plain) = (late(&slot), late(&plain));
        let cells = [
            format!("{earliest:.3}"),
            format!("{of_plain:.3}"),
            format!("{of_slot:.3}"),
            format!("{:+.3}", of_slot.median() - of_plain.median()),
            format!("{:.3}", plain.rate * delay.as_secs_f64()),
            format!("{:.3}", slot.rate * delay.as_secs_f64()),
        ];
        report.row(&format!("{millis} ms"), cells);
        assert!(earliest >= 0.0, "a start came before its time");
    }
    report.print();
}

struct Pace {
    /// In seconds, for each start but the first.
    late: Vec<f64>,
    /// Starts per second.
    rate: f64,
}

async fn in_slot(delay: Duration, starts: usize) -> Pace {
    let slots = Slots::new(SlotConfig::builder().delay(delay).build().expect("limits that can be"));
    // Each waiter tells when it started, and when the next one is due.
    let mut waiters = JoinSet::new();
    for _ in 0..=starts {
        let slots = slots.clone();
        waiters.spawn(async move {
            let permit = slots.acquire("a").await.expect("nothing refuses");
            let now = Instant::now();
            let next = slots.stats(permit.key()).and_then(|stats| stats.next_start);
            (now, next.expect("it has a pace"))
        });
    }
    let started: Vec<_> = waiters.join_all().await;
    Pace::new(started)
}

async fn asleep(delay: Duration, starts: usize) -> Pace {
    let mut now = Instant::now();
    let mut woken = vec![(now, now + delay)];
    for _ in 0..starts {
        sleep_until(now + delay).await;
        now = Instant::now();
        woken.push((now, now + delay));
    }
    Pace::new(woken)
}

// === impl Pace ===

impl Pace {
    /// From each moment, and the one at which the next was due.
    fn new(mut moments: Vec<(Instant, Instant)>) -> Self {
        moments.sort();
        let late = |pair: &[(Instant, Instant)]| {
            let ((_, due), (now, _)) = (pair[0], pair[1]);
            now.saturating_duration_since(due).as_secs_f64()
                - due.saturating_duration_since(now).as_secs_f64()
        };
        let (first, last) = (moments[0].0, moments[moments.len() - 1].0);
        Self {
            late: moments.windows(2).map(late).collect(),
            rate: (moments.len() - 1) as f64 / (last - first).as_secs_f64(),
        }
    }
}
