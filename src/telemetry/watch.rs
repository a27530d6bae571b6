//! Looking at the slots every so often: gauges, and warnings about what only time can tell.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};

use crate::key::SlotKey;
use crate::slot::{Slots, WeakSlots};

/// What [`Slots::watch`] looks for.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Watch {
    period: Duration,
    old: Duration,
    growing: u32,
}

pin_project! {
    /// Looks at the slots every period; ends after the last handle to them is gone.
    ///
    /// # Cancel safety
    ///
    /// Dropping it at any time only ends the watch.
    ///
    /// # Panics
    ///
    /// Polling panics outside a tokio runtime with time enabled.
    #[must_use = "futures do nothing unless polled"]
    pub struct Watching {
        slots: WeakSlots,
        watch: Watch,
        // How many waited the last time, and how often in a row it was more than before.
        queues: HashMap<SlotKey, (usize, u32)>,
        #[pin]
        rest: Option<Sleep>,
    }
}

// === impl Watch ===

impl Watch {
    /// Looks every 10 s; warns of permits older than 60 s and of queues that have grown 6 times in a row.
    pub fn new() -> Self {
        Self { period: Duration::from_secs(10), old: Duration::from_secs(60), growing: 6 }
    }

    /// Looks every `period`, at least 1 ms; each warning comes at most once per period and slot.
    pub fn period(mut self, period: Duration) -> Self {
        self.period = period.max(Duration::from_millis(1));
        self
    }

    /// Warns when a slot's oldest permit is older than `age`, from its start.
    pub fn oldest_permit(mut self, age: Duration) -> Self {
        self.old = age;
        self
    }

    /// Warns when a queue was longer `times` times in a row than the time before; at least once.
    pub fn growing(mut self, times: u32) -> Self {
        self.growing = times.max(1);
        self
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Slots ===

impl Slots {
    /// Returns a future to spawn that sets the gauges and warns, every period. See [`telemetry`](crate::telemetry).
    pub fn watch(&self, watch: Watch) -> Watching {
        Watching { slots: self.downgrade(), watch, queues: HashMap::new(), rest: None }
    }

    /// Sets the gauges now.
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn report(&self) {
        self.common().telemetry.registry.report(&self.snapshot().slots);
    }
}

// === impl Watching ===

impl Future for Watching {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        while let Some(slots) = ready!(this.slots.poll_after(this.rest.as_mut(), cx)) {
            this.watch.look(&slots, this.queues);
            this.rest.set(Some(sleep(this.watch.period)));
        }
        Poll::Ready(())
    }
}

impl Watch {
    fn look(&self, slots: &Slots, queues: &mut HashMap<SlotKey, (usize, u32)>) {
        let snapshot = slots.snapshot();
        #[cfg(feature = "metrics")]
        slots.common().telemetry.registry.report(&snapshot.slots);
        let before = std::mem::take(queues);
        for slot in &snapshot.slots {
            if slot.oldest_permit.is_some_and(|oldest| oldest > self.old) {
                #[cfg(feature = "tracing")]
                tracing::warn!(
                    target: "tower_slot",
                    slot = slot.key.as_str(),
                    in_flight = slot.in_flight,
                    oldest = slot.oldest_permit.unwrap_or_default().as_secs_f64(),
                    "oldest permit is old: bodies not read?",
                );
            }
            if slot.waiting == 0 {
                continue;
            }
            let (last, times) = before.get(&slot.key).copied().unwrap_or_default();
            let times = if slot.waiting > last { times + 1 } else { 0 };
            if times >= self.growing {
                #[cfg(feature = "tracing")]
                tracing::warn!(
                    target: "tower_slot",
                    slot = slot.key.as_str(),
                    waiting = slot.waiting,
                    reason = slot.reason.map(|reason| reason.as_str()),
                    "queue only grows",
                );
            }
            queues.insert(slot.key.clone(), (slot.waiting, times));
        }
    }
}

impl fmt::Debug for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watching").field("watch", &self.watch).finish_non_exhaustive()
    }
}
