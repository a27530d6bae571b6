//! Recycling: slots that nobody has used for a while go, one by one, down to none.
//!
//! Traffic does it in small pieces; where the traffic ends, as here, somebody has to spawn `Slots::sweeper`.

use std::time::Duration;

use tokio::time::Instant;
use tower::ServiceBuilder;
use tower_slot::{BoxError, SlotConfig, SlotLayer, Slots};

use crate::{
    report::{Row, Verdict},
    scenes::{Ask, Stage, drive},
    site::Visit,
};

pub(crate) const NAME: &str = "idle slots go";

const DOMAIN: &str = "idle.test";
const IDLE: Duration = Duration::from_secs(2);
/// How long a sweeper takes to look at every slot once.
const ROUND: Duration = Duration::from_secs(1);
const HOSTS: u32 = 4;
/// Between the first use of one slot and of the next; also between two samples that are shown.
const STEP: Duration = Duration::from_millis(500);
/// Between two looks at the table, so that the end is known more closely than the samples show it.
const LOOK: Duration = Duration::from_millis(10);

/// The number of slots at one time.
struct Look {
    /// Right before counting.
    before: Instant,
    slots: usize,
    /// Right after it.
    after: Instant,
}

/// One request to each of four hosts, half a second apart, then nothing more.
pub(crate) async fn idle(stage: &Stage) -> Result<Row, BoxError> {
    let layer = SlotLayer::new(SlotConfig::builder().idle_timeout(IDLE).build()?).timings(true);
    let slots = layer.slots().clone();
    // It ends by itself, with the last handle.
    tokio::spawn(slots.sweeper());
    let service = ServiceBuilder::new().layer(layer).service(stage.site.client());

    let begin = Instant::now();
    let bar = stage.bar(NAME, HOSTS as usize);
    let uses = async {
        for host in 0..HOSTS {
            tokio::time::sleep_until(begin + STEP * host).await;
            let ask = Ask::to(&format!("{host}.{DOMAIN}"));
            drive(service.clone(), vec![ask], bar.clone()).await?;
        }
        Ok::<_, BoxError>(())
    };
    let (looks, used) = tokio::join!(watch(&slots, begin), uses);
    used?;

    let visits = stage.site.visits(DOMAIN);
    let last_use = visits.iter().filter_map(|visit| visit.ended).max().unwrap_or(begin);
    let gone = looks.last().map_or(Duration::ZERO, |last| last.after - last_use);
    let early = looks.iter().any(|look| too_early(look, &visits));
    Ok(Row {
        scene: NAME,
        expected: "each gone 2 to 3 s after its use, none left".to_owned(),
        measured: format!("{} slots; last gone after {:.3} s", samples(&looks, begin), gone.as_secs_f64()),
        verdict: Verdict::time(gone, IDLE, IDLE + ROUND).and(if early {
            Verdict::TooEarly
        } else {
            Verdict::Kept(0.0)
        }),
    })
}

/// Counts the slots until all were used and all are gone, or far too late.
async fn watch(slots: &Slots, begin: Instant) -> Vec<Look> {
    let last_use = begin + STEP * HOSTS;
    let mut looks = Vec::new();
    loop {
        let before = Instant::now();
        let slots = slots.len();
        looks.push(Look { before, slots, after: Instant::now() });
        if (slots == 0 && before > last_use) || before > last_use + IDLE * 2 {
            return looks;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Returns whether a slot was missing that had been used, and whose idle time was not over yet.
///
/// The server's end of a body comes before the client's, and so before the slot is idle.
fn too_early(look: &Look, visits: &[Visit]) -> bool {
    let there = |ended: Instant| ended < look.before && look.after < ended + IDLE;
    look.slots < visits.iter().filter(|visit| visit.ended.is_some_and(there)).count()
}

/// Returns the number of slots in the middle of each step.
fn samples(looks: &[Look], begin: Instant) -> String {
    let mut next = begin + STEP / 2;
    let mut samples = Vec::new();
    for look in looks {
        if look.before >= next || look.slots == 0 && look.before > begin + STEP * HOSTS {
            samples.push(look.slots.to_string());
            next += STEP;
        }
    }
    samples.join(" ")
}
