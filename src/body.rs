//! The response body, which holds the permit until it has ended.
//!
//! The rule people get wrong: a consumer that knows the length stops polling after the last data frame and may
//! keep the body alive. So the end is what the inner body says of itself after each frame, not only `None`.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::guard::{End, guard};
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
pub(crate) struct BodyHold {
    permit: SlotPermit,
    timings: Option<SlotTimings>,
}

// === impl SlotBody ===

impl<B> SlotBody<B> {
    #[inline]
    pub(crate) fn new(inner: B, held: Option<BodyHold>) -> Self {
        Self { inner, held }
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
        if this.held.is_none() {
            return this.inner.poll_frame(cx);
        }
        let frame = guard(this.held, || this.inner.as_mut().poll_frame(cx));
        let outcome = match &frame {
            Poll::Ready(None) => Some(Outcome::Finished),
            Poll::Ready(Some(Err(_))) => Some(Outcome::Failed),
            Poll::Ready(Some(Ok(frame))) => {
                let ended = frame.is_trailers() || guard(this.held, || this.inner.is_end_stream());
                ended.then_some(Outcome::Finished)
            }
            // Whatever the body claims about its end.
            Poll::Pending => None,
        };
        if let Some(outcome) = outcome {
            // Holding => Ended
            this.held.end(outcome);
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
    #[inline]
    pub(crate) fn new(permit: SlotPermit, timings: Option<SlotTimings>) -> Self {
        Self { permit, timings }
    }
}

impl End for Option<BodyHold> {
    #[inline(never)]
    fn end(&mut self, outcome: Outcome) {
        if let Some(mut held) = self.take() {
            held.permit.set_outcome(outcome);
        }
    }
}

impl Drop for BodyHold {
    #[inline]
    fn drop(&mut self) {
        if let Some(timings) = &self.timings {
            timings.body_ended(self.permit.lasted());
        }
    }
}
