//! Waiting for a permit: the engine's poll and one timer.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::time::{Sleep, sleep_until};

use super::Slot;
use super::permit::SlotPermit;
use super::queue::Clocks;
use super::slots::Slots;
use super::stats::Phase;
use super::tick::Tick;
use super::ticket::{Step, Ticket};
use crate::error::SlotError;
use crate::key::KeyFuture;

/// Resolves when the slot lets this one start.
///
/// The place in the queue is taken, and the wait begins, at the first poll.
///
/// # Cancel safety
///
/// Dropping this future gives up the place in the queue.
///
/// # Panics
///
/// Polling panics outside a tokio runtime with time enabled, but only if it has to wait for a moment (the pace, or a
/// wait timeout).
#[must_use = "futures do nothing unless polled"]
pub struct Acquire {
    state: State,
    ticket: Ticket,
    /// While there is a moment to wait for: one timer for the pace and the timeout. Few need it, and it is large.
    sleep: Option<Pin<Box<Sleep>>>,
}

enum State {
    // Resolving => (Waiting | Refused). No slot knows of it yet.
    Resolving(Box<(KeyFuture, Slots)>),
    // Refused => Done
    Refused(SlotError),
    // Waiting => (Refused | Done). In the queue from the first poll on.
    Waiting(Arc<Slot>),
    Done,
}

// === impl Acquire ===

impl Acquire {
    #[inline]
    pub(crate) fn new(slot: Result<Arc<Slot>, SlotError>) -> Self {
        let state = slot.map_or_else(State::Refused, State::Waiting);
        Self { state, ticket: Ticket::default(), sleep: None }
    }

    /// Waits for the key first.
    pub(crate) fn later(key: KeyFuture, slots: Slots) -> Self {
        let state = State::Resolving(Box::new((key, slots)));
        Self { state, ticket: Ticket::default(), sleep: None }
    }

    /// Polls for a permit whose `first` phase begins with its start.
    #[inline]
    pub(crate) fn poll_start(
        &mut self,
        first: Phase,
        cx: &mut Context<'_>,
    ) -> Poll<Result<SlotPermit, SlotError>> {
        match self.start_at_once(first, cx.waker()) {
            Ok(permit) => Poll::Ready(Ok(permit)),
            Err(step) => self.poll_step(step, first, cx),
        }
    }

    /// Starts at the first look if it can, else returns what that look came to, if there was one.
    #[inline]
    fn start_at_once(&mut self, first: Phase, waker: &Waker) -> Result<SlotPermit, Option<Step>> {
        let Self { state: State::Waiting(slot), ticket, .. } = self else { return Err(None) };
        if !ticket.is_new() {
            return Err(None);
        }
        let place = match slot.start_at_once(first) {
            Ok(place) => place,
            Err(locked) => {
                let epoch = slot.common().epoch;
                return Err(Some(slot.poll(Some(locked), ticket, first, || epoch.now(), waker)));
            }
        };
        match std::mem::replace(&mut self.state, State::Done) {
            State::Waiting(slot) => Ok(SlotPermit::new(slot, place).told([0; 3])),
            _ => Err(None),
        }
    }

    /// The same from the second look on.
    fn poll_step(
        &mut self,
        mut step: Option<Step>,
        first: Phase,
        cx: &mut Context<'_>,
    ) -> Poll<Result<SlotPermit, SlotError>> {
        // The timer may go by a clock that is ahead of ours: a moment it says has come has come.
        let mut come = Tick::FIRST;
        loop {
            let Self { state: State::Waiting(slot), ticket, sleep } = self else {
                if ready!(self.poll_key(cx)) {
                    continue;
                }
                return self.refuse();
            };
            let common = slot.common();
            let look = || slot.poll(None, ticket, first, || common.epoch.now().max(come), cx.waker());
            match step.take().unwrap_or_else(look) {
                Step::Started(place) => {
                    let waited = ticket.waited();
                    *sleep = None;
                    let State::Waiting(slot) = std::mem::replace(&mut self.state, State::Done) else {
                        return Poll::Pending;
                    };
                    return Poll::Ready(Ok(SlotPermit::new(slot, place).told(waited)));
                }
                Step::Refused(error) => {
                    slot.voice().refused(&error);
                    self.state = State::Refused(error);
                    self.sleep = None;
                }
                Step::Wait(None) => {
                    *sleep = None;
                    return Poll::Pending;
                }
                Step::Wait(Some(tick)) => {
                    let until = common.epoch.instant(tick);
                    let sleep = sleep.get_or_insert_with(|| Box::pin(sleep_until(until)));
                    if sleep.deadline() != until {
                        sleep.as_mut().reset(until);
                    }
                    // When the moment is there, look again.
                    ready!(sleep.as_mut().poll(cx));
                    come = tick;
                }
            }
        }
    }

    /// Resolving => (Waiting | Refused). Returns whether there is a slot to wait in now.
    #[cold]
    fn poll_key(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let State::Resolving(resolving) = &mut self.state else { return Poll::Ready(false) };
        let (future, slots) = &mut **resolving;
        let key = ready!(Pin::new(future).poll(cx));
        let no_key = |why| {
            let error = SlotError::no_key(why);
            slots.common().telemetry.refused_outside(&error);
            error
        };
        let slot = key.map_err(no_key).and_then(|key| slots.slot(key.into()));
        self.state = slot.map_or_else(State::Refused, State::Waiting);
        Poll::Ready(matches!(self.state, State::Waiting(_)))
    }

    /// (Refused | Done) => Done
    fn refuse(&mut self) -> Poll<Result<SlotPermit, SlotError>> {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Refused(error) => Poll::Ready(Err(error)),
            _ => Poll::Pending,
        }
    }

    /// How long it waited by reason, in nanoseconds, once it has started.
    #[inline]
    pub(crate) fn waited(&self) -> Clocks {
        self.ticket.waited()
    }
}

impl Future for Acquire {
    type Output = Result<SlotPermit, SlotError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_start(Phase::Body, cx).map_ok(SlotPermit::by_hand)
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Acquire");
        if let State::Waiting(slot) = &self.state {
            debug.field("slot", slot.key());
        }
        debug.finish_non_exhaustive()
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let State::Waiting(slot) = &self.state {
            slot.give_up(&mut self.ticket);
        }
    }
}
