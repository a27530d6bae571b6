//! The queue of a slot: who waits, in order of arrival, and for what.
//!
//! Only the first waiter works: it stands at a gate, and all behind it stand there with it. For each gate a
//! clock runs while the queue stands at it; a waiter's time by reason is the difference of two readings.

use std::task::Waker;

use super::list::List;
use super::tally::Tally;
use super::tick::Tick;
use crate::error::WaitReason;

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) waiters: List<Waiter>,
    gate: WaitReason,
    /// Since when the queue has stood at `gate`.
    since: Tick,
    /// How long it stood at each gate before.
    stood: Clocks,
}

#[derive(Debug)]
pub(crate) struct Waiter {
    /// `None` once it was woken, until it is polled.
    pub(crate) waker: Option<Waker>,
    pub(crate) asked: Tick,
    /// Since when it should be polled: the moment it was woken, or the moment its timer goes off.
    pub(crate) ready_at: Option<Tick>,
}

/// Nanoseconds by reason.
pub(crate) type Clocks = [u64; 3];

// === impl Queue ===

impl Queue {
    pub(crate) fn new(gate: WaitReason, now: Tick) -> Self {
        Self { waiters: List::new(), gate, since: now, stood: [0; 3] }
    }

    pub(crate) fn gate(&self) -> WaitReason {
        self.gate
    }

    pub(crate) fn push(&mut self, waker: Waker, now: Tick, tally: &mut Tally) -> u32 {
        tally.enter(self.gate.into(), now);
        self.waiters.push(Waiter { waker: Some(waker), asked: now, ready_at: None })
    }

    pub(crate) fn remove(&mut self, index: u32, now: Tick, tally: &mut Tally) -> Option<Waiter> {
        let waiter = self.waiters.remove(index)?;
        tally.leave(self.gate.into(), now);
        Some(waiter)
    }

    /// The first waiter stands at `gate` from now on, and all others with it.
    pub(crate) fn stand_at(&mut self, gate: WaitReason, now: Tick, tally: &mut Tally) {
        if gate != self.gate {
            self.stood = self.clocks(now);
            tally.wait_for(self.gate, gate, self.waiters.len(), now);
            (self.gate, self.since) = (gate, now);
        }
    }

    /// Reads the clocks.
    pub(crate) fn clocks(&self, now: Tick) -> Clocks {
        let mut clocks = self.stood;
        clocks[self.gate as usize] += now.since(self.since);
        clocks
    }

    /// Takes the first waiter's waker, to be woken after the lock.
    ///
    /// Asleep => Woken. `None` if it was woken before and was not polled since: one wakeup is enough.
    pub(crate) fn wake_first(&mut self, now: Tick) -> Option<Waker> {
        self.waiters.front_mut()?.wake(now)
    }

    /// For how long the first waiter has been ready without being polled.
    pub(crate) fn stalled(&self, now: Tick) -> Option<u64> {
        let ready_at = self.waiters.front()?.ready_at?;
        (ready_at <= now).then(|| now.since(ready_at))
    }
}

// === impl Waiter ===

impl Waiter {
    pub(crate) fn wake(&mut self, now: Tick) -> Option<Waker> {
        let waker = self.waker.take()?;
        self.ready_at = Some(self.ready_at.map_or(now, |at| at.min(now)));
        Some(waker)
    }
}
