//! The response future: waits for the slot, then has the inner service answer.
//!
//! It gives the permit back the moment it resolves with an error, not when it is dropped: callers keep finished
//! futures.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Method, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::body::SlotBody;
use crate::hold::Hold;
use crate::reject::Reject;
use crate::slot::{Acquire, Outcome, SlotPermit};
use crate::timings::SlotTimings;
use crate::upgrade::{self, UpgradePermit};

pin_project! {
    /// Resolves with the response, whose body keeps the permit. Once it has resolved it stays pending.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future gives up the place in the queue, or gives the permit back.
    ///
    /// # Panics
    ///
    /// Polling panics outside a tokio runtime with time enabled if the request has to wait for a moment (the pace,
    /// or a wait timeout).
    // Waiting => (Readying | Done)     The place in the queue is ours; nothing of `service` is held.
    // Readying => (Calling | Done)     Started: `held`; the inner service is not ready.
    // Calling => Done                  Started: `held`; `future` is there and `request` is not.
    // Done                             Neither `request` nor `future`.
    // These are fields and not variants, so that a step moves only what changes.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, B, F, R> {
        #[pin]
        acquire: Acquire,
        service: Option<S>,
        request: Option<Request<B>>,
        #[pin]
        future: Option<F>,
        held: Option<Held>,
        reject: R,
        with_timings: bool,
    }
}

/// A permit until the response is there.
enum Held {
    Own(SlotPermit),
    /// For a request that asks for an upgrade: whoever has a copy may take the permit away.
    Shared(Shared),
}

struct Shared {
    handle: UpgradePermit,
    to_connect: bool,
    hold: Hold,
    /// What the permit counts as if it goes now and nobody has taken it; `None` once it is the handle's alone.
    outcome: Option<Outcome>,
}

// === impl ResponseFuture ===

impl<S, B, F, R> ResponseFuture<S, B, F, R> {
    #[inline]
    pub(crate) fn new(
        acquire: Acquire,
        service: S,
        request: Request<B>,
        reject: R,
        with_timings: bool,
    ) -> Self {
        let (service, request) = (Some(service), Some(request));
        Self { acquire, service, request, future: None, held: None, reject, with_timings }
    }
}

impl<S, B, F, R, ResBody> Future for ResponseFuture<S, B, F, R>
where
    S: Service<Request<B>, Response = Response<ResBody>, Future = F>,
    F: Future<Output = Result<Response<ResBody>, S::Error>>,
    ResBody: Body,
    R: Reject<ResBody, S::Error>,
{
    type Output = Result<Response<SlotBody<ResBody>>, R::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let (Some(service), Some(request)) = (this.service.as_mut(), this.request.as_mut()) {
            if this.held.is_none() {
                match this.acquire.as_mut().poll_start(cx) {
                    // Waiting => Readying
                    Poll::Ready(Ok(permit)) => *this.held = Some(Held::Own(permit)),
                    Poll::Ready(Err(error)) => {
                        // Waiting => Done
                        (*this.service, *this.request) = (None, None);
                        return Poll::Ready(match this.reject.refuse(error) {
                            Ok(response) => Ok(response.map(SlotBody::free)),
                            Err(error) => Err(error),
                        });
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
            let Some(held) = this.held.take() else { return Poll::Pending };
            // Out of the future while the inner service runs: a panic drops it here, as a failure.
            let mut held = held.with(Outcome::Failed);
            match service.poll_ready(cx) {
                Poll::Ready(Ok(())) => {
                    held = held.look_at(request);
                    let Some(request) = this.request.take() else { return Poll::Pending };
                    // Readying => Calling
                    this.future.set(Some(service.call(request)));
                    *this.service = None;
                    *this.held = Some(held.with(Outcome::Cancelled));
                }
                Poll::Ready(Err(error)) => {
                    // Readying => Done
                    drop(held);
                    (*this.service, *this.request) = (None, None);
                    return Poll::Ready(Err(this.reject.inner(error)));
                }
                Poll::Pending => {
                    *this.held = Some(held.with(Outcome::Cancelled));
                    return Poll::Pending;
                }
            }
        }
        let Some(future) = this.future.as_mut().as_pin_mut() else { return Poll::Pending };
        let Some(held) = this.held.take() else { return Poll::Pending };
        let held = held.with(Outcome::Failed);
        match future.poll(cx) {
            Poll::Pending => {
                *this.held = Some(held.with(Outcome::Cancelled));
                Poll::Pending
            }
            Poll::Ready(Ok(response)) => {
                // Calling => Done
                this.future.set(None);
                Poll::Ready(Ok(held.respond(response, this.acquire.waited(), *this.with_timings)))
            }
            Poll::Ready(Err(error)) => {
                // Calling => Done. The permit goes now, whoever keeps this future or the error, but after what the
                // inner future holds.
                this.future.set(None);
                drop(held);
                Poll::Ready(Err(this.reject.inner(error)))
            }
        }
    }
}

impl<S, B, F, R> fmt::Debug for ResponseFuture<S, B, F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (&self.request, &self.future, &self.held) {
            (Some(_), _, None) => "Waiting",
            (Some(_), _, Some(_)) => "Readying",
            (None, Some(_), _) => "Calling",
            (None, None, _) => "Done",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}

// === impl Held ===

impl Held {
    /// Says what it counts as if it is dropped now.
    #[inline]
    fn with(mut self, outcome: Outcome) -> Self {
        match &mut self {
            Self::Own(permit) => permit.set_outcome(outcome),
            Self::Shared(shared) => shared.outcome = Some(outcome),
        }
        self
    }

    /// Takes note of what the request says about the permit, just before the call.
    #[inline]
    fn look_at<B>(self, request: &mut Request<B>) -> Self {
        let Self::Own(mut permit) = self else { return self };
        if let Some(hold) = request.extensions().get::<Hold>() {
            permit.set_hold(*hold);
        }
        if !upgrade::is_asked(request) {
            return Self::Own(permit);
        }
        let (hold, outcome) = (permit.hold(), Some(permit.outcome()));
        let handle = UpgradePermit::new(permit);
        request.extensions_mut().insert(handle.clone());
        Self::Shared(Shared { handle, to_connect: *request.method() == Method::CONNECT, hold, outcome })
    }

    /// Hands the permit on to whatever keeps it after the headers.
    #[inline]
    fn respond<B: Body>(
        self,
        mut response: Response<B>,
        waited: [u64; 3],
        with_timings: bool,
    ) -> Response<SlotBody<B>> {
        let mut permit = match self {
            Self::Own(permit) => permit,
            Self::Shared(shared) => return shared.respond(response, waited, with_timings),
        };
        permit.set_outcome(Outcome::Cancelled);
        let timings = with_timings.then(|| SlotTimings::new(permit.key().clone(), waited, permit.headers()));
        if let Some(timings) = &timings {
            response.extensions_mut().insert(timings.clone());
        }
        if permit.hold() == Hold::Headers {
            permit.end(Outcome::Finished);
            return response.map(SlotBody::free);
        }
        let (parts, body) = response.into_parts();
        Response::from_parts(parts, SlotBody::holding(body, permit, timings))
    }
}

// === impl Shared ===

impl Shared {
    #[cold]
    fn respond<B: Body>(
        mut self,
        mut response: Response<B>,
        waited: [u64; 3],
        with_timings: bool,
    ) -> Response<SlotBody<B>> {
        if upgrade::is_agreed(&response, self.to_connect) {
            if self.hold == Hold::Body {
                // Calling => Done, and the permit stays where it is: somebody may be taking it right now.
                self.handle.agree();
                self.outcome = None;
            }
            response.extensions_mut().insert(self.handle.clone());
        }
        match self.outcome.and_then(|_| self.handle.take_back()) {
            // No upgrade: as for any other request.
            Some(permit) => Held::Own(permit).respond(response, waited, with_timings),
            None => {
                if with_timings {
                    response.extensions_mut().insert(self.handle.timings(waited));
                }
                response.map(SlotBody::free)
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(permit) = self.outcome.and_then(|_| self.handle.take_back()) {
            permit.end(self.outcome.unwrap_or(Outcome::Cancelled));
        }
    }
}
