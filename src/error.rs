//! The slot's own failures.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::key::SlotKey;

/// Any error of the inner service or of the slot.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request that the slot did not let start.
///
/// [`SlotService`](crate::SlotService) puts it into a [`BoxError`]; one downcast finds it.
#[derive(Clone)]
pub struct SlotError(pub(crate) Box<Details>);

/// Why a request did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SlotErrorKind {
    /// It could not start at once, and the queue had no room for it.
    QueueFull,
    /// It waited for as long as it may.
    WaitTimeout,
    /// The slots were closed.
    Closed,
    /// Its key would have made one slot too many.
    TooManySlots,
    /// Its key could not be told. The [`source`](std::error::Error::source) says why, and no slot has seen it.
    NoKey,
}

/// What a request waits for in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// The slot is full.
    Concurrency,
    /// The delay, the jitter or a pause.
    Pace,
    /// The cap over all slots is reached.
    Total,
}

#[derive(Clone)]
pub(crate) struct Details {
    pub(crate) kind: SlotErrorKind,
    pub(crate) slot: SlotKey,
    pub(crate) reason: Option<WaitReason>,
    pub(crate) waited: Duration,
    pub(crate) in_flight: usize,
    pub(crate) oldest: Option<Duration>,
    pub(crate) stalled: Option<Duration>,
    pub(crate) earliest_start: Option<Instant>,
    pub(crate) source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

// === impl SlotError ===

impl SlotError {
    /// A failure that no slot has seen.
    pub(crate) fn outside(kind: SlotErrorKind, slot: SlotKey) -> Self {
        Self(Box::new(Details {
            kind,
            slot,
            reason: None,
            waited: Duration::ZERO,
            in_flight: 0,
            oldest: None,
            stalled: None,
            earliest_start: None,
            source: None,
        }))
    }

    /// A request whose key could not be told.
    pub(crate) fn no_key(why: BoxError) -> Self {
        let mut error = Self::outside(SlotErrorKind::NoKey, SlotKey::from(""));
        error.0.source = Some(why.into());
        error
    }

    /// Returns why.
    #[must_use]
    pub fn kind(&self) -> SlotErrorKind {
        self.0.kind
    }

    /// Returns the slot's key.
    #[must_use]
    pub fn slot(&self) -> &SlotKey {
        &self.0.slot
    }

    /// Returns what the slot was waiting for, if it was waiting.
    #[must_use]
    pub fn reason(&self) -> Option<WaitReason> {
        self.0.reason
    }

    /// Returns how long it waited, from the first poll.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.0.waited
    }

    /// Returns how many were in flight in the slot.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.in_flight
    }

    /// Returns how long ago the oldest of those in flight had started.
    #[must_use]
    pub fn oldest(&self) -> Option<Duration> {
        self.0.oldest
    }

    /// Returns for how long the first waiter had been woken without being polled.
    ///
    /// More than a few milliseconds mean that whoever should poll it does something else: see [the
    /// loop that waits for itself](crate#the-loop-that-waits-for-itself).
    #[must_use]
    pub fn stalled(&self) -> Option<Duration> {
        self.0.stalled
    }

    /// Returns the moment before which nothing can start in the slot, if one is known: the next start by the
    /// pace, or the end of a pause. It is a lower bound; others may be in front.
    #[must_use]
    pub fn earliest_start(&self) -> Option<Instant> {
        self.0.earliest_start
    }

    /// Returns how long it is until [`earliest_start`](Self::earliest_start), from now; zero when it is past.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.earliest_start.map(|start| start.saturating_duration_since(Instant::now()))
    }
}

impl fmt::Display for SlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Details { kind, slot, reason, waited, in_flight, oldest, stalled, .. } = &*self.0;
        write!(f, "slot {slot:?}: ")?;
        match kind {
            SlotErrorKind::QueueFull => f.write_str("queue is full")?,
            SlotErrorKind::WaitTimeout => write!(f, "no start within {waited:?}")?,
            SlotErrorKind::Closed => return f.write_str("closed"),
            SlotErrorKind::TooManySlots => return f.write_str("would be one slot too many"),
            SlotErrorKind::NoKey => return f.write_str("no key for the request"),
        }
        if let Some(reason) = reason {
            write!(f, ", waiting for {reason}")?;
        }
        write!(f, ", {in_flight} in flight")?;
        if let Some(oldest) = oldest {
            write!(f, ", the oldest for {oldest:?}")?;
        }
        if let Some(stalled) = stalled.filter(|stalled| !stalled.is_zero()) {
            write!(f, ", the first waiter woken {stalled:?} ago and not polled")?;
        }
        Ok(())
    }
}

impl fmt::Debug for SlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Details { kind, slot, reason, waited, in_flight, oldest, stalled, earliest_start, source } =
            &*self.0;
        f.debug_struct("SlotError")
            .field("kind", kind)
            .field("slot", slot)
            .field("reason", reason)
            .field("waited", waited)
            .field("in_flight", in_flight)
            .field("oldest", oldest)
            .field("stalled", stalled)
            .field("earliest_start", earliest_start)
            .field("source", source)
            .finish()
    }
}

impl std::error::Error for SlotError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

// === impl WaitReason ===

impl WaitReason {
    /// Every reason, in the order in which a request passes the gates.
    pub const ALL: [Self; 3] = [Self::Concurrency, Self::Pace, Self::Total];

    /// Returns the reason's word: `concurrency`, `pace` or `total`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Concurrency => "concurrency",
            Self::Pace => "pace",
            Self::Total => "total",
        }
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
