//! No head-of-line blocking: a slow host with a long queue does not hold up a fast one, under one cap over both.

use std::time::Duration;

use tower::ServiceBuilder;
use tower_slot::{BoxError, SlotConfig, SlotKey, SlotLayer, SlotLimits, Slots};

use crate::{
    report::{Row, Verdict},
    scenes::{Ask, Stage, drive},
    site::{peak, span_to_end},
};

pub(crate) const NAME: &str = "a fast host beside a slow one";

const SLOW: &str = "slow.line.test";
const FAST: &str = "fast.line.test";
const TOTAL: usize = 8;
const SLOW_LIMIT: usize = 2;
const SLOW_REQUESTS: usize = 100;
const SLOW_BODY: Duration = Duration::from_millis(80);
const FAST_REQUESTS: usize = 50;
const FAST_BODY: Duration = Duration::from_millis(40);

/// 100 requests to the slow host, all queued; then 50 to the fast one, which has at least 6 of the 8 places.
///
/// The fast host's own limit is the cap itself, so the two meet at the cap again and again: each time the slow host's
/// turn is one place, not its whole queue.
pub(crate) async fn no_head_of_line(stage: &Stage) -> Result<Row, BoxError> {
    let config = SlotConfig::builder()
        .concurrency(TOTAL)
        .total_concurrency(TOTAL)
        .slot(SLOW, SlotLimits::new().concurrency(SLOW_LIMIT))
        .build()?;
    let layer = SlotLayer::new(config).timings(true);
    let slots = layer.slots().clone();
    let service = ServiceBuilder::new().layer(layer).service(stage.site.client());
    let bar = stage.bar(NAME, SLOW_REQUESTS + FAST_REQUESTS);

    let slow = Ask::to(SLOW).lasting(SLOW_BODY).times(SLOW_REQUESTS);
    let slow = tokio::spawn(drive(service.clone(), slow, bar.clone()));
    while !slow.is_finished() && queued(&slots) < SLOW_REQUESTS - SLOW_LIMIT {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let fast = Ask::to(FAST).lasting(FAST_BODY).times(FAST_REQUESTS);
    drive(service, fast, bar).await?;
    let left = queued(&slots);
    let took = span_to_end(&stage.site.visits(FAST));
    slow.await??;

    let open = peak(&stage.site.visits("line.test"));
    let slow_open = peak(&stage.site.visits(SLOW));
    // At best all 8 places are the fast host's: 7 rounds. At worst 6 are: 9 rounds.
    let overtaken =
        if left > 0 { Verdict::Kept(0.0) } else { Verdict::Failed("the fast host came last".to_owned()) };
    Ok(Row {
        scene: NAME,
        expected: "fast done in 0.28 to 0.36 s, slow not; 8 open".to_owned(),
        measured: format!("{:.3} s, {left} slow ones queued; {open} open", took.as_secs_f64()),
        verdict: Verdict::time(took, FAST_BODY * 7, FAST_BODY * 9)
            .and(Verdict::at_most(open, TOTAL))
            .and(Verdict::at_most(slow_open, SLOW_LIMIT))
            .and(overtaken),
    })
}

/// Returns how many requests to the slow host wait.
fn queued(slots: &Slots) -> usize {
    slots.stats(SlotKey::host(SLOW)).map_or(0, |slot| slot.waiting)
}
