//! What must be true when all requests have ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tower_slot::{BoxError, Counts, SlotConfig, SlotErrorKind, Slots, WaitReason};

use crate::client::Seen;
use crate::hosts::{self, HOSTS};
use crate::ledger::Ledger;
use crate::watch::add_up;
use crate::{process, rule};

/// How many permits of each slot are taken at the end.
const EACH: usize = 3;

/// How long connections may take to close.
const LAST_CONNECTION: Duration = Duration::from_secs(10);

/// Nobody is in flight or waits, the counts are those of the client, all permits can be taken, and the slots can be
/// closed, drained and recycled.
pub(crate) async fn check(slots: &Slots, ledger: &Ledger, seen: &Seen) -> Result<(), BoxError> {
    let snapshot = slots.snapshot();
    let recycled = snapshot.recycled.counts;
    add_up("recycled slots", recycled, 0, 0);
    for slot in &snapshot.slots {
        rule!(slot.in_flight == 0 && slot.waiting == 0, "after the end: {slot:?}");
        add_up(slot.key.as_str(), slot.counts, 0, 0);
    }
    rule!(snapshot.total.in_flight == 0 && snapshot.total.line == 0, "after the end: {:?}", snapshot.total);
    rule!(ledger.in_flight() == 0, "after the end: {} in flight", ledger.in_flight());
    let sum = |count: fn(&Counts) -> u64| {
        snapshot.slots.iter().map(|slot| count(&slot.counts)).sum::<u64>() + count(&recycled)
    };
    same("starts", sum(|counts| counts.started), ledger.starts(), 0);
    same("timed out", sum(|counts| counts.timed_out), load(&seen.timed_out), 0);
    // Those who were not polled may have been one slot too many already.
    let unpolled = load(&seen.unpolled);
    same("refused", sum(|counts| counts.refused), load(&seen.refused), unpolled);
    same("asked", sum(|counts| counts.asked), load(&seen.requests), unpolled);

    let all = HOSTS * EACH;
    slots.reload(SlotConfig::builder().concurrency(EACH).total_concurrency(all).build()?);
    let mut permits = Vec::new();
    for name in (0..HOSTS).map(hosts::name) {
        slots.resume(name.as_str());
        for _ in 0..EACH {
            permits.push(slots.try_acquire(name.as_str())?);
        }
        let reason = slots.try_acquire(name.as_str()).err().and_then(|error| error.reason());
        rule!(reason == Some(WaitReason::Concurrency), "{name}: a permit too many, or {reason:?}");
    }
    let reason = slots.try_acquire("one more").err().and_then(|error| error.reason());
    rule!(reason == Some(WaitReason::Total), "all slots: a permit too many, or {reason:?}");

    slots.close();
    let early = timeout(Duration::from_millis(10), slots.drained()).await;
    rule!(early.is_err(), "drained with {all} permits out");
    drop(permits);
    let late = timeout(Duration::from_secs(1), slots.drained()).await;
    rule!(late.is_ok(), "not drained: {:?}", slots.snapshot().total);
    let kind = slots.acquire("one more").await.err().map(|error| error.kind());
    rule!(kind == Some(SlotErrorKind::Closed), "closed, and yet {kind:?}");
    slots.reload(SlotConfig::builder().idle_timeout(Duration::ZERO).build()?);
    slots.retain_recent();
    rule!(slots.is_empty(), "{} slots are never recycled: {:?}", slots.len(), slots.snapshot().slots);
    Ok(())
}

/// Waits until no more files are open than before.
pub(crate) async fn files(before: usize) -> Result<usize, BoxError> {
    let begin = Instant::now();
    loop {
        let now = process::open_files()?;
        if now <= before {
            return Ok(now);
        }
        rule!(begin.elapsed() < LAST_CONNECTION, "{now} files are open, before it were {before}");
        sleep(Duration::from_millis(20)).await;
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn same(what: &str, of_slots: u64, seen: u64, more: u64) {
    let range = seen..=seen + more;
    rule!(range.contains(&of_slots), "{what}: {of_slots} by the slots, {seen} were seen");
}
