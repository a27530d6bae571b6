//! The response future: waits for the slot, then has the inner service answer.
//!
//! It gives the permit back the moment it resolves with an error, not when it is dropped: callers keep finished
//! futures.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

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
    /// Resolves with the response, whose body keeps the permit.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future gives up the place in the queue, or gives the permit back.
    ///
    /// # Panics
    ///
    /// Polling panics outside a tokio runtime with time enabled if the request has to wait for a moment (the pace,
    /// or a wait timeout).
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, B, F, R> {
        #[pin]
        state: State<S, B, F>,
        reject: R,
        with_timings: bool,
        // How long it waited by reason, in nanoseconds.
        waited: [u64; 3],
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, F> {
        // Waiting => (Calling | Done)
        // Without a permit: the place in the queue is ours, and nothing of the inner service is held.
        // With one: started, and the inner service is not ready yet.
        Waiting { #[pin] acquire: Acquire, held: Option<Held>, call: Option<Call<S, B>> },
        // Calling => Done
        Calling { #[pin] future: F, held: Option<Held> },
        Done,
    }
}

/// What is to be called once the slot lets it.
struct Call<S, B> {
    service: S,
    request: Request<B>,
}

/// A permit until the response is there. Dropping it counts as `outcome`.
struct Held {
    place: Place,
    hold: Hold,
    outcome: Outcome,
}

enum Place {
    /// `None` only while it is being moved on.
    Own(Option<SlotPermit>),
    /// For a request that asks for an upgrade: whoever has a copy may take the permit away.
    Shared { permit: UpgradePermit, to_connect: bool },
}

// === impl ResponseFuture ===

impl<S, B, F, R> ResponseFuture<S, B, F, R> {
    pub(crate) fn new(
        acquire: Acquire,
        service: S,
        request: Request<B>,
        reject: R,
        with_timings: bool,
    ) -> Self {
        let state = State::Waiting { acquire, held: None, call: Some(Call { service, request }) };
        Self { state, reject, with_timings, waited: [0; 3] }
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
        loop {
            match this.state.as_mut().project() {
                StateProj::Waiting { mut acquire, held, call } => {
                    let mut risked = match held.take() {
                        Some(held) => held,
                        None => match ready!(acquire.as_mut().poll_start(cx)) {
                            Ok(permit) => {
                                *this.waited = acquire.waited();
                                Held::new(permit)
                            }
                            Err(error) => {
                                // Waiting => Done
                                this.state.set(State::Done);
                                return Poll::Ready(
                                    this.reject.refuse(error).map(|it| it.map(SlotBody::free)),
                                );
                            }
                        },
                    };
                    let Some(Call { service, .. }) = call else { return Poll::Pending };
                    // Out of the future while the inner service runs: a panic drops it here, as a failure.
                    risked.outcome = Outcome::Failed;
                    match service.poll_ready(cx) {
                        Poll::Ready(Ok(())) => {
                            let Some(Call { mut service, mut request }) = call.take() else {
                                return Poll::Pending;
                            };
                            risked.look_at(&mut request);
                            let future = service.call(request);
                            risked.outcome = Outcome::Cancelled;
                            // Waiting => Calling
                            this.state.set(State::Calling { future, held: Some(risked) });
                        }
                        Poll::Ready(Err(error)) => {
                            // Waiting => Done
                            this.state.set(State::Done);
                            drop(risked);
                            return Poll::Ready(Err(this.reject.inner(error)));
                        }
                        Poll::Pending => {
                            risked.outcome = Outcome::Cancelled;
                            *held = Some(risked);
                            return Poll::Pending;
                        }
                    }
                }
                StateProj::Calling { future, held } => {
                    let Some(mut risked) = held.take() else { return Poll::Pending };
                    risked.outcome = Outcome::Failed;
                    let result = future.poll(cx);
                    if result.is_pending() {
                        risked.outcome = Outcome::Cancelled;
                        *held = Some(risked);
                        return Poll::Pending;
                    }
                    // Calling => Done
                    this.state.set(State::Done);
                    return Poll::Ready(match ready!(result) {
                        Ok(response) => Ok(risked.respond(response, *this.waited, *this.with_timings)),
                        Err(error) => {
                            // The permit goes now, whoever keeps this future or the error.
                            drop(risked);
                            Err(this.reject.inner(error))
                        }
                    });
                }
                StateProj::Done => return Poll::Pending,
            }
        }
    }
}

impl<S, B, F, R> fmt::Debug for ResponseFuture<S, B, F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Waiting { .. } => "Waiting",
            State::Calling { .. } => "Calling",
            State::Done => "Done",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}

// === impl Held ===

impl Held {
    fn new(permit: SlotPermit) -> Self {
        let hold = permit.hold();
        Self { place: Place::Own(Some(permit)), hold, outcome: Outcome::Cancelled }
    }

    /// Takes note of what the request says about the permit, just before the call.
    fn look_at<B>(&mut self, request: &mut Request<B>) {
        if let Some(hold) = request.extensions().get::<Hold>() {
            self.hold = *hold;
        }
        if let (true, Some(permit)) = (upgrade::is_asked(request), self.take()) {
            let permit = UpgradePermit::new(permit);
            request.extensions_mut().insert(permit.clone());
            self.place = Place::Shared { permit, to_connect: *request.method() == Method::CONNECT };
        }
    }

    /// The permit, unless somebody took it away.
    fn take(&mut self) -> Option<SlotPermit> {
        match &mut self.place {
            Place::Own(permit) => permit.take(),
            Place::Shared { permit, .. } => permit.take_back(),
        }
    }

    /// Hands the permit on to whatever keeps it after the headers.
    fn respond<B: Body>(
        mut self,
        mut response: Response<B>,
        waited: [u64; 3],
        with_timings: bool,
    ) -> Response<SlotBody<B>> {
        self.outcome = Outcome::Finished;
        let Some(mut permit) = self.take() else { return response.map(SlotBody::free) };
        let timings =
            |permit: &mut SlotPermit| SlotTimings::new(permit.key().clone(), waited, permit.headers());
        let timings = with_timings.then(|| timings(&mut permit));
        if let Some(timings) = timings.clone() {
            response.extensions_mut().insert(timings);
        }
        if self.hold == Hold::Headers {
            permit.end(Outcome::Finished);
            return response.map(SlotBody::free);
        }
        if let Place::Shared { permit: handle, to_connect } = &self.place {
            if upgrade::is_agreed(&response, *to_connect) {
                handle.give(permit);
                response.extensions_mut().insert(handle.clone());
                return response.map(SlotBody::free);
            }
        }
        response.map(|body| SlotBody::holding(body, permit, timings))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(permit) = self.take() {
            permit.end(self.outcome);
        }
    }
}
