//! Waiting for a permit: the engine's poll and one timer.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep_until};

use super::Slot;
use super::permit::SlotPermit;
use super::queue::Clocks;
use super::slots::Slots;
use super::tally::Phase;
use super::tick::Tick;
use super::ticket::{Step, Ticket};
use crate::error::SlotError;
use crate::key::KeyFuture;

pin_project! {
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
    /// Polling panics outside a tokio runtime with time enabled, but only if it has to wait for a moment (the
    /// pace, or a wait timeout).
    #[must_use = "futures do nothing unless polled"]
    pub struct Acquire {
        inner: Waiting,
        // Set while there is a moment to wait for: one timer for the pace and the timeout.
        #[pin]
        sleep: Option<Sleep>,
    }
}

/// The part that leaves the queue when it is dropped.
struct Waiting {
    state: State,
    ticket: Ticket,
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
        Self { inner: Waiting { state, ticket: Ticket::default() }, sleep: None }
    }

    /// Waits for the key first.
    pub(crate) fn later(key: KeyFuture, slots: Slots) -> Self {
        let state = State::Resolving(Box::new((key, slots)));
        Self { inner: Waiting { state, ticket: Ticket::default() }, sleep: None }
    }

    /// Polls for a permit whose `first` phase begins with its start.
    #[inline]
    pub(crate) fn poll_start(
        mut self: Pin<&mut Self>,
        first: Phase,
        cx: &mut Context<'_>,
    ) -> Poll<Result<SlotPermit, SlotError>> {
        match self.as_mut().project().inner.start_at_once(first, cx.waker()) {
            Ok(permit) => Poll::Ready(Ok(permit)),
            Err(step) => self.poll_step(step, first, cx),
        }
    }

    /// The same from the second look on.
    fn poll_step(
        self: Pin<&mut Self>,
        mut step: Option<Step>,
        first: Phase,
        cx: &mut Context<'_>,
    ) -> Poll<Result<SlotPermit, SlotError>> {
        let mut this = self.project();
        // The timer may go by a clock that is ahead of ours: a moment it says has come has come.
        let mut come = Tick::FIRST;
        loop {
            let Waiting { state: State::Waiting(slot), ticket } = &mut *this.inner else {
                if ready!(this.inner.poll_key(cx)) {
                    continue;
                }
                return this.inner.refuse();
            };
            let common = slot.common();
            let look = || slot.poll(None, ticket, first, || common.epoch.now().max(come), cx.waker());
            match step.take().unwrap_or_else(look) {
                Step::Started(place) => {
                    let waited = ticket.waited();
                    let State::Waiting(slot) = std::mem::replace(&mut this.inner.state, State::Done) else {
                        return Poll::Pending;
                    };
                    let permit = SlotPermit::new(slot, place);
                    this.sleep.set(None);
                    return Poll::Ready(Ok(permit.told(waited)));
                }
                Step::Refused(error) => {
                    slot.voice().refused(&error);
                    this.inner.state = State::Refused(error);
                    this.sleep.set(None);
                }
                Step::Wait(None) => {
                    this.sleep.set(None);
                    return Poll::Pending;
                }
                Step::Wait(Some(tick)) => {
                    let until = common.epoch.instant(tick);
                    match this.sleep.as_mut().as_pin_mut() {
                        None => this.sleep.set(Some(sleep_until(until))),
                        Some(sleep) if sleep.deadline() != until => sleep.reset(until),
                        Some(_) => {}
                    }
                    // When the moment is there, look again.
                    if let Some(sleep) = this.sleep.as_mut().as_pin_mut() {
                        ready!(sleep.poll(cx));
                        come = tick;
                    }
                }
            }
        }
    }

    /// How long it waited by reason, in nanoseconds, once it has started.
    #[inline]
    pub(crate) fn waited(&self) -> Clocks {
        self.inner.ticket.waited()
    }
}

impl Future for Acquire {
    type Output = Result<SlotPermit, SlotError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_start(Phase::Body, cx).map_ok(SlotPermit::by_hand)
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Acquire");
        if let State::Waiting(slot) = &self.inner.state {
            debug.field("slot", slot.key());
        }
        debug.finish_non_exhaustive()
    }
}

// === impl Waiting ===

impl Waiting {
    /// Starts at the first look if it can, else returns what that look came to, if there was one.
    #[inline]
    fn start_at_once(&mut self, first: Phase, waker: &Waker) -> Result<SlotPermit, Option<Step>> {
        let Self { state: State::Waiting(slot), ticket } = self else { return Err(None) };
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
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let State::Waiting(slot) = &self.state {
            slot.give_up(&mut self.ticket);
        }
    }
}
