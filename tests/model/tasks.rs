//! Those who wait and those in flight, as a caller has them in hand.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};

use tower_slot::{Acquire, Drained, SlotPermit};

use crate::words::Id;

/// A future that has not resolved.
pub(crate) struct Task {
    pub(crate) id: Id,
    pub(crate) key: usize,
    pub(crate) future: Pin<Box<Acquire>>,
    pub(crate) ring: Ring,
    pub(crate) polled: bool,
    /// Since when it has been woken and not polled, and whether by its own timer alone.
    pub(crate) woken: Option<u64>,
    pub(crate) by_timer: bool,
}

pub(crate) struct Permit {
    pub(crate) id: Id,
    pub(crate) key: usize,
    pub(crate) permit: SlotPermit,
}

/// One who waits for the slots to be drained.
pub(crate) struct Waiting {
    pub(crate) future: Pin<Box<Drained>>,
    pub(crate) ring: Ring,
    pub(crate) polled: bool,
}

/// A waker that counts.
#[derive(Default)]
pub(crate) struct Ring(Arc<Bell>);

#[derive(Default)]
struct Bell(AtomicU64);

// === impl Ring ===

impl Ring {
    pub(crate) fn waker(&self) -> Waker {
        Waker::from(self.0.clone())
    }

    pub(crate) fn rung(&self) -> bool {
        self.0.0.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn take(&self) -> u64 {
        self.0.0.swap(0, Ordering::Relaxed)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
