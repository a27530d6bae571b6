//! The response body, which holds the permit until it has ended.
//!
//! The rule people get wrong: a consumer that knows the length stops polling after the last data frame and may
//! keep the body alive. So the end is what the inner body says of itself after each frame, not only `None`.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::slot::{Outcome, SlotPermit};
use crate::timings::SlotTimings;

pin_project! {
    /// A response body that keeps its request's place in the slot.
    ///
    /// The permit is given back at the first of: the body was at its end from the beginning; `None`; an error;
    /// trailers; a frame after which the inner body is at its end; drop. Never while the inner body is pending.
    /// Frames and size hints are passed on unchanged.
    #[derive(Debug, Default)]
    pub struct SlotBody<B> {
        #[pin]
        inner: B,
        // Held from the grant until the body ends; `None` afterwards.
        held: Option<BodyHold>,
    }
}

/// The permit, and the timings that want to know when it goes.
#[derive(Debug)]
struct BodyHold {
    permit: SlotPermit,
    timings: Option<SlotTimings>,
}

// === impl SlotBody ===

impl<B> SlotBody<B> {
    /// A body that holds a permit, unless it has ended before anybody polled it.
    pub(crate) fn holding(inner: B, mut permit: SlotPermit, timings: Option<SlotTimings>) -> Self
    where
        B: Body,
    {
        // A panic here drops the permit, as a failure.
        permit.set_outcome(Outcome::Failed);
        let ended = inner.is_end_stream();
        permit.set_outcome(Outcome::Cancelled);
        if !ended {
            permit.headers();
        }
        let held = BodyHold { permit, timings };
        if ended {
            held.end(Outcome::Finished);
            return Self::free(inner);
        }
        Self { inner, held: Some(held) }
    }

    /// A body that holds none.
    pub(crate) fn free(inner: B) -> Self {
        Self { inner, held: None }
    }

    /// Whether it holds a permit still.
    #[cfg(feature = "reqwest-middleware")]
    pub(crate) fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    /// Returns the inner body.
    #[must_use]
    pub fn get_ref(&self) -> &B {
        &self.inner
    }

    /// Returns the inner body. Frames taken from it directly are not seen: the permit stays until drop.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut B {
        &mut self.inner
    }
}

impl<B: Body> Body for SlotBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let Some(mut held) = this.held.take() else { return this.inner.poll_frame(cx) };
        // Out of the body while its code runs: a panic drops it here, as a failure.
        held.permit.set_outcome(Outcome::Failed);
        let frame = this.inner.as_mut().poll_frame(cx);
        match &frame {
            // Holding => Ended
            Poll::Ready(None) => held.end(Outcome::Finished),
            Poll::Ready(Some(Err(_))) => held.end(Outcome::Failed),
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() || this.inner.is_end_stream() => {
                held.end(Outcome::Finished)
            }
            // Holding => Holding; while it is pending, whatever the body claims about its end.
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {
                held.permit.set_outcome(Outcome::Cancelled);
                *this.held = Some(held);
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

// === impl BodyHold ===

impl BodyHold {
    fn end(mut self, outcome: Outcome) {
        self.permit.set_outcome(outcome);
    }
}

impl Drop for BodyHold {
    fn drop(&mut self) {
        if let Some(timings) = &self.timings {
            timings.body_ended(self.permit.lasted());
        }
    }
}
