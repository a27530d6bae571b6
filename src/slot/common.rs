//! What all slots of one table share.

use std::sync::Arc;

use super::Slot;
use super::drain::Drain;
use super::sync::{AtomicBool, AtomicU64, Ordering};
use super::tick::{Epoch, Tick};
use super::total::Total;
use crate::config::SlotConfig;
use crate::telemetry::Telemetry;

/// What all slots of one table share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) epoch: Epoch,
    pub(crate) closed: AtomicBool,
    /// The tick at which a piece of the table is due to be looked through; 0 when it is due now.
    pub(crate) sweep_at: AtomicU64,
    pub(crate) total: Total<Arc<Slot>>,
    pub(crate) drain: Drain,
    pub(crate) telemetry: Telemetry,
    /// Whether the phases after the start are timed.
    pub(crate) statistics: bool,
}

// === impl Common ===

impl Common {
    pub(crate) fn new(config: &SlotConfig) -> Self {
        Self {
            epoch: Epoch::new(),
            closed: AtomicBool::new(false),
            sweep_at: AtomicU64::new(u64::MAX),
            total: Total::new(config.total),
            drain: Drain::new(),
            telemetry: Telemetry::new(&config.telemetry),
            statistics: config.statistics,
        }
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Notes that a piece of the table is due; the next look-up pays for it.
    #[inline]
    pub(super) fn mind_sweep(&self, now: Tick) {
        let at = self.sweep_at.load(Ordering::Relaxed);
        if at != 0 && at <= now.nanos() {
            self.sweep_at.store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn is_sweep_due(&self) -> bool {
        self.sweep_at.load(Ordering::Relaxed) == 0
    }
}
