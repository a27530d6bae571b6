//! Closing: how many slots still have permits out after a close, and who waits for the last one.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::list::List;
use super::slots::Slots;
use super::sync::Mutex;

#[derive(Debug)]
pub(crate) struct Drain(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Whether every slot has been closed, so that `out` counts all of them.
    counted: bool,
    /// Closed slots in which somebody is in flight.
    out: usize,
    waiters: List<Waker>,
}

/// Resolves when the slots are closed and no permit is out any more.
///
/// # Cancel safety
///
/// Dropping it forgets nothing; ask for another one at any time.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Drained {
    slots: Slots,
    index: Option<u32>,
}

// === impl Drain ===

impl Drain {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State { counted: false, out: 0, waiters: List::new() }))
    }

    /// A slot was closed with somebody in flight.
    pub(crate) fn enter(&self) {
        self.0.lock().out += 1;
    }

    /// The last permit of a closed slot came back. Returns whom to wake.
    pub(crate) fn leave(&self) -> List<Waker> {
        let mut state = self.0.lock();
        state.out = state.out.saturating_sub(1);
        state.done()
    }

    /// Every slot was closed. Returns whom to wake.
    pub(crate) fn counted(&self) -> List<Waker> {
        let mut state = self.0.lock();
        state.counted = true;
        state.done()
    }

    fn poll(&self, index: &mut Option<u32>, waker: &Waker) -> Poll<()> {
        let waker = waker.clone();
        let mut state = self.0.lock();
        if state.is_done() {
            // The list was given away when it was done.
            *index = None;
            drop(state);
            return Poll::Ready(());
        }
        let old = match *index {
            Some(index) => state.waiters.get_mut(index).map(|known| std::mem::replace(known, waker)),
            None => {
                *index = Some(state.waiters.push(waker));
                None
            }
        };
        drop(state);
        drop(old);
        Poll::Pending
    }

    fn forget(&self, index: u32) {
        let mut state = self.0.lock();
        let waker = if state.is_done() { None } else { state.waiters.remove(index) };
        drop(state);
        drop(waker);
    }
}

// === impl State ===

impl State {
    fn is_done(&self) -> bool {
        self.counted && self.out == 0
    }

    fn done(&mut self) -> List<Waker> {
        if self.is_done() { std::mem::replace(&mut self.waiters, List::new()) } else { List::new() }
    }
}

// === impl Drained ===

impl Drained {
    pub(crate) fn new(slots: Slots) -> Self {
        Self { slots, index: None }
    }
}

impl Future for Drained {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.slots.common().drain.poll(&mut this.index, cx.waker())
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            self.slots.common().drain.forget(index);
        }
    }
}
