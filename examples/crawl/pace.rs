//! Pace: hosts with slots of their own, merged into one, one host split in two, and a slot with another delay.
//!
//! The time to the last start is taken at the server. The shortest gap is taken between the stamps of the starts,
//! where nothing on the way to the server can blur it, and is judged to the microsecond.

use std::time::Duration;

use tower::ServiceBuilder;
use tower_slot::{BoxError, SlotConfig, SlotLayer, SlotLimits};

use crate::{
    report::{Row, Verdict},
    scenes::{Ask, Stage, drive},
    site::{Visit, span},
    stamp::{Stamped, Starts},
};

/// The delay of every slot that is not named.
const DELAY: Duration = Duration::from_millis(200);
/// The delay of the slot "api".
const API_DELAY: Duration = Duration::from_millis(50);
/// Where the median gap of the slot "api" should lie: a timer that counts in milliseconds adds up to two of them.
const API_MEDIAN: (Duration, Duration) = (API_DELAY, Duration::from_millis(52));

pub(crate) const OWN: &str = "two hosts, own slots";
pub(crate) const MERGED: &str = "two hosts, one slot";
pub(crate) const SPLIT: &str = "one host, two slots";
pub(crate) const FASTER: &str = "a slot with its own delay";

/// What a paced scene leaves behind.
struct Played {
    visits: Vec<Visit>,
    shortest: Duration,
}

/// 20 requests to each of two hosts: 19 gaps side by side.
pub(crate) async fn own(stage: &Stage) -> Result<Row, BoxError> {
    let asks = [Ask::to("a.own.test").times(20), Ask::to("b.own.test").times(20)].concat();
    let played = play(stage, OWN, "own.test", asks).await?;
    Ok(played.row(OWN, 19))
}

/// The same 40 requests, all in the slot "shared": 39 gaps in one line.
pub(crate) async fn merged(stage: &Stage) -> Result<Row, BoxError> {
    let hosts = ["a.merged.test", "b.merged.test"];
    let asks = hosts.map(|host| Ask::to(host).in_slot("shared").times(20)).concat();
    let played = play(stage, MERGED, "merged.test", asks).await?;
    Ok(played.row(MERGED, 39))
}

/// 40 requests to one host, every other one in the slot "even": 19 gaps side by side.
pub(crate) async fn split(stage: &Stage) -> Result<Row, BoxError> {
    let slots = ["even", "odd"].into_iter().cycle().take(40);
    let asks = slots.map(|slot| Ask::to("split.test").in_slot(slot)).collect();
    let played = play(stage, SPLIT, "split.test", asks).await?;
    Ok(played.row(SPLIT, 19))
}

/// 20 requests in the slot "api", whose delay is a quarter of the others'.
pub(crate) async fn faster(stage: &Stage) -> Result<Row, BoxError> {
    let played = play(stage, FASTER, "api", Ask::to("api").times(20)).await?;
    let median = median_gap(&played.visits);
    let (low, high) = API_MEDIAN;
    Ok(Row {
        scene: FASTER,
        expected: "median gap 50 to 52 ms, none under 50 ms".to_owned(),
        measured: format!("median {:.2} ms, shortest {:.2} ms", millis(median), millis(played.shortest)),
        verdict: Verdict::time(median, low, high)
            .and(Verdict::at_least(median, low))
            .and(Verdict::at_least(played.shortest, API_DELAY)),
    })
}

async fn play(stage: &Stage, scene: &'static str, domain: &str, asks: Vec<Ask>) -> Result<Played, BoxError> {
    let config =
        SlotConfig::builder().delay(DELAY).slot("api", SlotLimits::new().delay(API_DELAY)).build()?;
    let starts = Starts::default();
    let service = ServiceBuilder::new()
        .layer(SlotLayer::new(config).timings(true))
        .service(Stamped::new(stage.site.client(), starts.clone()));
    let bar = stage.bar(scene, asks.len());
    drive(service, asks, bar).await?;
    Ok(Played { visits: stage.site.visits(domain), shortest: starts.shortest_gap() })
}

/// Returns the middle one of the gaps between arrivals.
fn median_gap(visits: &[Visit]) -> Duration {
    let mut gaps: Vec<_> = visits.windows(2).map(|pair| pair[1].arrived - pair[0].arrived).collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied().unwrap_or_default()
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

// === impl Played ===

impl Played {
    /// Judges a scene that has `gaps` of the common delay one after the other.
    fn row(&self, scene: &'static str, gaps: u32) -> Row {
        let expected = DELAY * gaps;
        let measured = span(&self.visits);
        Row {
            scene,
            expected: format!("last start after {:.1} s, no gap under 200 ms", expected.as_secs_f64()),
            measured: format!(
                "{:.3} s, shortest gap {:.2} ms",
                measured.as_secs_f64(),
                millis(self.shortest)
            ),
            verdict: Verdict::time(measured, expected, expected).and(Verdict::at_least(self.shortest, DELAY)),
        }
    }
}
