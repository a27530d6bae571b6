//! Looking at a slot, under its lock.

use std::time::Duration;

use tokio::time::Instant;

use super::Slot;
use super::state::State;
use super::stats::SlotStats;
use super::tally::Tally;
use super::tick::Tick;
use crate::error::{Details, SlotError, SlotErrorKind};
use crate::limits::Limits;

// === impl Slot ===

impl Slot {
    /// Whether it has been idle for `timeout` nanoseconds and has no pace to remember. Gives back what storage
    /// an idle slot can spare.
    pub(crate) fn is_idle(&self, now: Tick, timeout: u64) -> bool {
        let mut state = self.state.lock();
        let Some(since) = state.permits.rested_since().filter(|_| state.waiting() == 0) else { return false };
        let rested = now.since(since) >= timeout;
        if rested {
            state.permits.shrink();
        }
        rested && state.pace.next(&state.limits).is_none_or(|next| next <= now)
    }

    /// The tally of a slot that is no more.
    pub(crate) fn into_tally(self) -> Tally {
        std::mem::take(&mut self.state.lock().tally)
    }

    pub(crate) fn stats(&self) -> SlotStats {
        let epoch = self.common.epoch;
        let mut state = self.state.lock();
        self.settle(&mut state);
        let now = epoch.now();
        let (in_flight, waiting) = (state.permits.len(), state.waiting());
        let queue = state.queue.as_ref().filter(|_| waiting > 0);
        let reason = queue.map(|queue| queue.gate());
        SlotStats {
            key: self.key.clone(),
            limits: Limits::clone(&state.limits),
            in_flight,
            waiting,
            reason,
            oldest_permit: state.permits.oldest().map(|oldest| now.duration_since(oldest)),
            oldest_waiter: queue
                .and_then(|queue| queue.waiters.front())
                .map(|first| now.duration_since(first.asked)),
            next_start: state
                .pace
                .next(&state.limits)
                .filter(|next| *next > now)
                .map(|next| epoch.instant(next)),
            paused_until: state.pace.paused_until(now).map(|until| epoch.instant(until)),
            stalled: queue.and_then(|queue| queue.stalled(now)).map(Duration::from_nanos),
            times: state.tally.times(now),
            longest: state.tally.longest(),
            counts: state.tally.counts(in_flight, waiting),
        }
    }

    /// When the present phase of the permit at `index` began.
    pub(super) fn phase_began(&self, index: u32) -> Instant {
        let mut state = self.state.lock();
        self.settle(&mut state);
        let since = state.permits.since(index);
        self.common.epoch.instant(since.unwrap_or(Tick::FIRST))
    }

    /// How long the present phase of the permit at `index` has lasted, in nanoseconds.
    pub(super) fn phase_lasted(&self, index: u32) -> u64 {
        let mut state = self.state.lock();
        self.settle(&mut state);
        let now = self.common.epoch.now();
        state.permits.since(index).map_or(0, |since| now.since(since))
    }

    /// A refusal, of the waiter at `index` or of somebody who has not waited.
    pub(super) fn error(
        &self,
        state: &State,
        kind: SlotErrorKind,
        index: Option<u32>,
        now: Tick,
    ) -> SlotError {
        let queue = state.queue.as_ref().filter(|queue| !queue.waiters.is_empty());
        let waiter = index.and_then(|index| queue?.waiters.get(index));
        let next = state.pace.next(&state.limits).filter(|next| *next > now);
        SlotError(Box::new(Details {
            kind,
            slot: self.key.clone(),
            reason: queue.map(|queue| queue.gate()),
            waited: waiter.map_or(Duration::ZERO, |waiter| now.duration_since(waiter.asked)),
            in_flight: state.permits.len(),
            oldest: state.permits.oldest().map(|oldest| now.duration_since(oldest)),
            stalled: queue.and_then(|queue| queue.stalled(now)).map(Duration::from_nanos),
            earliest_start: next.map(|next| self.common.epoch.instant(next)),
            source: None,
        }))
    }
}
