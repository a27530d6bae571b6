//! The handle: look at slots, change them, pause them, close them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep};

use super::Slot;
use super::acquire::Acquire;
use super::common::Common;
use super::drain::Drained;
use super::panics::{Panics, each};
use super::permit::SlotPermit;
use super::stats::{Recycled, SlotStats, Snapshot, TotalStats};
use super::sync::Ordering;
use super::table::Table;
use crate::config::{ConfigError, SlotConfig, pattern};
use crate::error::SlotError;
use crate::key::{KeyRef, SlotKey};
use crate::limits::{AT_LEAST_ONE, SlotLimits};

/// The slots of a layer, shared by all its services; cheap to clone.
///
/// It is usable on its own, for work that is not HTTP:
///
/// ```
/// # use tower_slot::{Slots, SlotConfig};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_slot::BoxError> {
/// let slots = Slots::new(SlotConfig::builder().concurrency(2).build()?);
/// let permit = slots.acquire("a.com").await?;
/// assert_eq!(slots.stats("a.com").map(|stats| stats.in_flight), Some(1));
/// drop(permit);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Slots {
    table: Arc<Table>,
}

/// A handle that keeps no slots.
#[derive(Clone, Debug)]
pub(crate) struct WeakSlots(Weak<Table>);

pin_project! {
    /// Recycles idle slots while there is no traffic to do it; ends after the last handle to the slots is gone.
    ///
    /// Spawn it if slots should go although no request comes.
    ///
    /// # Cancel safety
    ///
    /// Dropping it at any time only ends the sweeping.
    ///
    /// # Panics
    ///
    /// Polling panics outside a tokio runtime with time enabled.
    #[must_use = "futures do nothing unless polled"]
    pub struct Sweeper {
        slots: WeakSlots,
        #[pin]
        rest: Option<Sleep>,
    }
}

/// How long a sweeper rests at least, whatever the idle timeout.
const SHORTEST_REST: Duration = Duration::from_millis(1);

/// How long it rests at most, so that it notices soon that the slots are gone.
const LONGEST_REST: Duration = Duration::from_secs(10);

// === impl Slots ===

impl Slots {
    /// Creates slots that follow `config`.
    #[must_use]
    pub fn new(config: SlotConfig) -> Self {
        Self { table: Arc::new(Table::new(&config)) }
    }

    /// Waits for a permit in the slot `key`: its queue, its pace and the total are those of all who use it.
    ///
    /// # Errors
    ///
    /// The future fails with [`QueueFull`], [`WaitTimeout`], [`Closed`] or [`TooManySlots`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue.
    ///
    /// # Panics
    ///
    /// See [`Acquire`]: waiting for a moment needs a tokio runtime.
    ///
    /// [`QueueFull`]: crate::SlotErrorKind::QueueFull
    /// [`WaitTimeout`]: crate::SlotErrorKind::WaitTimeout
    /// [`Closed`]: crate::SlotErrorKind::Closed
    /// [`TooManySlots`]: crate::SlotErrorKind::TooManySlots
    #[inline]
    pub fn acquire<'a>(&self, key: impl Into<KeyRef<'a>>) -> Acquire {
        Acquire::new(self.table.slot(key.into()))
    }

    /// Takes a permit if one could start right now and nobody waits, in the slot or for the total.
    ///
    /// # Errors
    ///
    /// [`QueueFull`](crate::SlotErrorKind::QueueFull) with the reason if it would have to wait, else as for
    /// [`acquire`](Self::acquire).
    pub fn try_acquire<'a>(&self, key: impl Into<KeyRef<'a>>) -> Result<SlotPermit, SlotError> {
        let slot = self.table.slot(key.into())?;
        let place = slot.try_start().inspect_err(|error| slot.voice().refused(error))?;
        Ok(SlotPermit::new(slot, place).told([0; 3]).by_hand())
    }

    // --- look

    /// Returns how many slots there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are no slots.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks at one slot; `None` if there is none of that name just now.
    #[must_use]
    pub fn stats<'a>(&self, key: impl Into<KeyRef<'a>>) -> Option<SlotStats> {
        self.table.find(key.into()).map(|slot| slot.stats())
    }

    /// Looks at all slots, one after the other: each is consistent in itself.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let at = Instant::now();
        let mut slots = Vec::new();
        self.table.for_each(|slot| slots.push(slot.stats()));
        slots.sort_by(|a: &SlotStats, b| a.key.cmp(&b.key));
        // One that moved within its shard in between may have been seen twice.
        slots.dedup_by(|a, b| a.key == b.key);
        let (count, tally) = self.table.recycled();
        let standing = self.common().total.standing();
        let in_flight = match self.common().total.is_on() {
            true => standing.used,
            false => slots.iter().map(|slot| slot.in_flight).sum(),
        };
        Snapshot {
            slots,
            recycled: Recycled {
                slots: count,
                times: tally.times(self.common().epoch.now()),
                longest: tally.longest(),
                counts: tally.counts(0, 0),
            },
            total: TotalStats { limit: standing.limit, in_flight, line: standing.line },
            at,
        }
    }

    // --- change

    /// Changes limits of the slot `key`, or of all slots that match it if it is a pattern (`*.example.com`).
    /// What `limits` leaves open stays as it was.
    ///
    /// It counts at once: raising starts waiters, lowering lets those in flight finish and admits nobody until
    /// there is room. It is remembered for a slot that is not there yet, and across recycling.
    ///
    /// # Errors
    ///
    /// The first value that cannot be; nothing is changed then.
    pub fn configure(&self, key: impl Into<SlotKey>, limits: SlotLimits) -> Result<(), ConfigError> {
        let key = key.into();
        ConfigError::check_name(&key)?;
        ConfigError::check(Some(&key), &limits)?;
        self.table.set(|settings| settings.set(&key, &limits));
        if pattern(key.as_str()).is_some() {
            self.bring_limits();
        } else if let Some(slot) = self.table.find((&key).into()) {
            self.table.bring_limits(&slot);
        }
        Ok(())
    }

    /// Changes the defaults of all slots; what `limits` leaves open stays as it was.
    ///
    /// # Errors
    ///
    /// As for [`configure`](Self::configure).
    pub fn configure_default(&self, limits: SlotLimits) -> Result<(), ConfigError> {
        ConfigError::check(None, &limits)?;
        self.table.set(|settings| settings.set_defaults(&limits));
        self.bring_limits();
        Ok(())
    }

    /// Changes the cap over all slots; `None` is unlimited.
    ///
    /// When there was none before, those in flight are counted first, which takes one walk over the slots;
    /// nobody starts meanwhile.
    ///
    /// # Errors
    ///
    /// A cap of 0 is refused.
    pub fn configure_total(&self, limit: Option<usize>) -> Result<(), ConfigError> {
        if limit == Some(0) {
            return Err(ConfigError::new(None, "total_concurrency", AT_LEAST_ONE));
        }
        self.bring_total(limit);
        Ok(())
    }

    /// Takes all from `config` as if the slots had been made with it, and loses no state: those in flight, those who
    /// wait and their order, the last starts, pauses and counts stay.
    ///
    /// All that was set before by name, pattern or group is gone unless `config` says it again, changes by
    /// [`configure`](Self::configure) included; so are the defaults, the cap over all slots, the idle timeout, the number
    /// of slots and the overflow slot. It counts at once, with these bounds: who waits stays in the slot where it
    /// waits, although its host may belong to another group now; a wait timeout that has begun stays as it was; a slot
    /// that is there goes on to count against the number of slots, or not to, until it is recycled; and what was set
    /// for [telemetry](crate::telemetry) and [statistics](crate::SlotConfigBuilder::statistics) stays.
    pub fn reload(&self, config: SlotConfig) {
        self.table.replace_settings(&config);
        self.bring_limits();
        self.bring_total(config.total);
    }

    /// Holds starts in the slot `key` until `until`. Those in flight go on; an earlier pause that lasts longer
    /// stays. It is remembered for a slot that is not there yet. The key is an exact name: a pattern is none here.
    pub fn pause(&self, key: impl Into<SlotKey>, until: Instant) {
        let key = key.into();
        let epoch = self.common().epoch;
        let (until, now) = (epoch.tick(until), epoch.now());
        self.table.set(|settings| settings.pause(key.clone(), until, now));
        if let Some(slot) = self.table.find((&key).into()) {
            self.table.bring_pause(&slot);
        }
    }

    /// Ends any pause of the slot `key`.
    pub fn resume<'a>(&self, key: impl Into<KeyRef<'a>>) {
        let key = key.into().into_key();
        self.table.set(|settings| settings.resume(key.as_str()));
        if let Some(slot) = self.table.find((&key).into()) {
            self.table.bring_pause(&slot);
        }
    }

    // --- close

    /// Refuses newcomers and ends every wait with [`Closed`](crate::SlotErrorKind::Closed); those in flight
    /// finish. It cannot be undone.
    pub fn close(&self) {
        self.common().closed.store(true, Ordering::Relaxed);
        let mut panics = Panics::default();
        panics.catch(|| self.table.for_each(|slot| slot.close()));
        panics.catch(|| each(self.common().drain.counted().into_members(), Waker::wake));
        panics.resume();
    }

    /// Whether it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.common().is_closed()
    }

    /// Waits until the slots are closed and no permit is out, those that were moved elsewhere included.
    pub fn drained(&self) -> Drained {
        Drained::new(self.clone())
    }

    // --- recycle

    /// Recycles all slots that have been idle for the idle timeout, at once. Traffic does the same bit by bit.
    pub fn retain_recent(&self) {
        self.table.retain_recent();
    }

    /// Returns a future to spawn, if slots should be recycled although no request comes.
    pub fn sweeper(&self) -> Sweeper {
        Sweeper { slots: self.downgrade(), rest: None }
    }

    // --- within the crate

    pub(crate) fn slot(&self, key: KeyRef<'_>) -> Result<Arc<Slot>, SlotError> {
        self.table.slot(key)
    }

    pub(crate) fn downgrade(&self) -> WeakSlots {
        WeakSlots(Arc::downgrade(&self.table))
    }

    pub(crate) fn common(&self) -> &Common {
        self.table.common()
    }

    fn bring_total(&self, limit: Option<usize>) {
        let common = self.common();
        let wake = |slot: Arc<Slot>| slot.wake_first();
        if common.total.set_limit(limit, wake) {
            self.table.for_each(|slot| slot.adopt_units());
            common.total.counted(wake);
        }
    }

    fn bring_limits(&self) {
        self.table.for_each(|slot| self.table.bring_limits(slot));
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("len", &self.len()).finish_non_exhaustive()
    }
}

// === impl WeakSlots ===

impl WeakSlots {
    /// The slots once the `rest` is over, unless the last handle to them is gone.
    pub(crate) fn poll_after(
        &self,
        rest: Pin<&mut Option<Sleep>>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Slots>> {
        if let Some(rest) = rest.as_pin_mut() {
            ready!(rest.poll(cx));
        }
        Poll::Ready(self.0.upgrade().map(|table| Slots { table }))
    }
}

// === impl Sweeper ===

impl Future for Sweeper {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        while let Some(Slots { table }) = ready!(this.slots.poll_after(this.rest.as_mut(), cx)) {
            let rest = Duration::from_nanos(table.sweep_piece()).clamp(SHORTEST_REST, LONGEST_REST);
            this.rest.set(Some(sleep(rest)));
        }
        Poll::Ready(())
    }
}

impl fmt::Debug for Sweeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sweeper").finish_non_exhaustive()
    }
}
