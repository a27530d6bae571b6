//! One waiter's side of the queue, and what a poll comes to.

use super::permit::Place;
use super::queue::Clocks;
use super::tick::Tick;
use crate::error::SlotError;

/// One waiter's side of the queue.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    /// Its place in the queue.
    pub(super) index: Option<u32>,
    pub(super) deadline: Option<Tick>,
    /// The queue's clocks when it came; once it has left, how long it waited by reason.
    pub(super) clocks: Clocks,
}

/// What a poll comes to.
#[derive(Debug)]
pub(crate) enum Step {
    Started(Place),
    /// Not yet. Poll again when woken, or at that moment.
    Wait(Option<Tick>),
    Refused(SlotError),
}

// === impl Ticket ===

impl Ticket {
    /// Whether it has not been in the queue yet.
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        self.index.is_none()
    }

    /// How long it waited by reason, in nanoseconds, once it has started.
    pub(crate) fn waited(&self) -> Clocks {
        self.clocks
    }
}

/// The earlier of two moments, where there is one.
pub(super) fn earlier(a: Option<Tick>, b: Option<Tick>) -> Option<Tick> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
