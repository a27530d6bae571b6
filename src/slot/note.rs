//! A note: a moment that a permit tells its slot without taking the slot's lock.

use super::sync::{AtomicU64, Ordering};
use super::tick::Tick;

/// When the headers came for the one who has the place of its own in [`Flights`](super::flights::Flights).
///
/// Whoever looks at phases under the lock, or ends that one's, takes the note first: so to all who look it is as if the
/// lock had been taken. Who starts, or passes on another one, has no need to.
#[derive(Debug)]
pub(super) struct Note(AtomicU64);

// === impl Note ===

impl Note {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Only by the one in that place, and once: nothing is there that could be overwritten.
    #[inline]
    pub(super) fn put(&self, now: Tick) {
        self.0.store(now.nanos(), Ordering::Release);
    }

    /// Only under the lock.
    #[inline]
    pub(super) fn take(&self) -> Option<Tick> {
        let noted = Tick::from_nanos(self.0.load(Ordering::Acquire))?;
        self.0.store(0, Ordering::Relaxed);
        Some(noted)
    }
}
