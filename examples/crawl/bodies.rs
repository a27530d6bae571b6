//! Bodies: a limit that lasts until the body has ended, and beside it tower's own, which ends with the headers.
//!
//! A body is open at the server from the start of the handler until it has yielded its last frame.

use std::time::Duration;

use tower::{ServiceBuilder, limit::ConcurrencyLimitLayer};
use tower_slot::{BoxError, SlotConfig, SlotLayer};

use crate::{
    report::{Row, Verdict},
    scenes::{Ask, Stage, drive},
    site::{peak, span_to_end},
};

pub(crate) const SLOTS: &str = "2 downloads at a time";
pub(crate) const TOWER: &str = "with tower's ConcurrencyLimit";

const LIMIT: usize = 2;
const DOWNLOADS: usize = 20;
const BODY: Duration = Duration::from_millis(50);

/// 20 downloads in a slot of 2: ten rounds of 50 ms.
pub(crate) async fn with_slots(stage: &Stage) -> Result<Row, BoxError> {
    let config = SlotConfig::builder().concurrency(LIMIT).build()?;
    let service =
        ServiceBuilder::new().layer(SlotLayer::new(config).timings(true)).service(stage.site.client());
    drive(service, downloads("bodies.test"), stage.bar(SLOTS, DOWNLOADS)).await?;

    let visits = stage.site.visits("bodies.test");
    let (open, took) = (peak(&visits), span_to_end(&visits));
    Ok(Row {
        scene: SLOTS,
        expected: "at most 2 bodies open, done in 0.50 s".to_owned(),
        measured: format!("{open} open, {:.3} s", took.as_secs_f64()),
        verdict: Verdict::at_most(open, LIMIT).and(Verdict::time(took, BODY * 10, BODY * 10)),
    })
}

/// The same downloads under a limit that is free again once the headers are there.
pub(crate) async fn with_tower(stage: &Stage) -> Result<Row, BoxError> {
    let service = ServiceBuilder::new().layer(ConcurrencyLimitLayer::new(LIMIT)).service(stage.site.client());
    drive(service, downloads("tower.test"), stage.bar(TOWER, DOWNLOADS)).await?;

    let visits = stage.site.visits("tower.test");
    Ok(Row {
        scene: TOWER,
        expected: "more: it ends with the headers".to_owned(),
        measured: format!("{} open, {:.3} s", peak(&visits), span_to_end(&visits).as_secs_f64()),
        verdict: Verdict::Shown,
    })
}

/// The headers of each come at once, its body takes its time.
fn downloads(host: &str) -> Vec<Ask> {
    Ask::to(host).lasting(BODY).times(DOWNLOADS)
}
