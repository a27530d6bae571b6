//! The response future: waits for the slot, then has the inner service answer.
//!
//! It gives the permit back the moment it resolves with an error, not when it is dropped: callers keep finished
//! futures.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Method, Request, Response, response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::body::{BodyHold, SlotBody};
use crate::connection::Connecting;
use crate::guard::{End, guard};
use crate::hold::Hold;
use crate::reject::Reject;
use crate::slot::{Acquire, Outcome, Phase, SlotPermit};
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
    // Waiting => (Readying | Done)     `Start`: the place in the queue is ours; nothing of `service` is held.
    // Readying => (Calling | Done)     `Start` and `held`: the inner service is not ready.
    // Calling => Done                  `Call` and `held`.
    // Done                             None of it.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, B, F, R> {
        #[pin]
        stage: Stage<S, B, F>,
        held: Held,
        connecting: Connecting,
        timings: Option<SlotTimings>,
        reject: R,
        wanted: Wanted,
    }
}

pin_project! {
    /// What is polled; the one takes the other's place.
    #[project = StageProj]
    enum Stage<S, B, F> {
        // `request` is gone only if the call has panicked.
        Start { #[pin] acquire: Acquire, service: S, request: Option<Request<B>> },
        Call { #[pin] future: F },
        Done,
    }
}

/// What is to be told about each request, beyond what the slots count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) timings: bool,
    pub(crate) connection: bool,
}

/// A permit from the start until the response is there. Both are `None` before and after.
#[derive(Default)]
struct Held {
    permit: Option<SlotPermit>,
    /// Instead of it for a request that asks for an upgrade: whoever has a copy may take the permit away.
    shared: Option<Shared>,
}

struct Shared {
    handle: UpgradePermit,
    to_connect: bool,
    hold: Hold,
    /// Whether the permit is the handle's alone from now on.
    agreed: bool,
}

// === impl ResponseFuture ===

impl<S, B, F, R> ResponseFuture<S, B, F, R> {
    #[inline]
    pub(crate) fn new(acquire: Acquire, service: S, request: Request<B>, reject: R, wanted: Wanted) -> Self {
        let stage = Stage::Start { acquire, service, request: Some(request) };
        let (held, connecting) = (Held::default(), Connecting::default());
        Self { stage, held, connecting, timings: None, reject, wanted }
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
        if let StageProj::Start { mut acquire, service, request } = this.stage.as_mut().project() {
            if !this.held.is_held() {
                match ready!(acquire.as_mut().poll_start(Phase::Headers, cx)) {
                    // Waiting => Readying
                    Ok(permit) => {
                        if this.wanted.timings {
                            *this.timings = Some(SlotTimings::new(permit.key(), acquire.waited()));
                        }
                        this.held.permit = Some(permit);
                    }
                    Err(error) => {
                        // Waiting => Done
                        this.stage.set(Stage::Done);
                        return Poll::Ready(match this.reject.refuse(error) {
                            Ok(response) => Ok(response.map(SlotBody::free)),
                            Err(error) => Err(error),
                        });
                    }
                }
            }
            if let Err(error) = ready!(guard(this.held, || service.poll_ready(cx))) {
                // Readying => Done
                this.held.end(Outcome::Failed);
                this.stage.set(Stage::Done);
                return Poll::Ready(Err(this.reject.inner(error)));
            }
            if let Some(request) = request {
                this.held.look_at(request);
                if let (true, Some(permit)) = (this.wanted.connection, &mut this.held.permit) {
                    this.connecting.ask(request, permit, this.wanted.timings);
                }
            }
            let Some(request) = request.take() else { return Poll::Pending };
            // Readying => Calling
            let future = guard(this.held, || service.call(request));
            this.stage.set(Stage::Call { future });
        }
        let StageProj::Call { future } = this.stage.as_mut().project() else { return Poll::Pending };
        if !this.held.is_held() {
            // It has panicked.
            return Poll::Pending;
        }
        let answer = guard(this.held, || future.poll(cx));
        this.connecting.look(this.held.permit.as_mut(), this.timings.as_ref());
        match ready!(answer) {
            Ok(response) => {
                // Calling => Done
                this.stage.set(Stage::Done);
                this.connecting.end(this.held.permit.as_mut());
                let (mut head, body) = response.into_parts();
                let held = this.held.respond(&mut head, &body, this.timings.take());
                Poll::Ready(Ok(Response::from_parts(head, SlotBody::new(body, held))))
            }
            Err(error) => {
                // Calling => Done. The permit goes now, whoever keeps this future or the error, but after what the
                // inner future holds.
                this.stage.set(Stage::Done);
                this.held.end(Outcome::Failed);
                Poll::Ready(Err(this.reject.inner(error)))
            }
        }
    }
}

impl<S, B, F, R> fmt::Debug for ResponseFuture<S, B, F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (&self.stage, self.held.is_held()) {
            (Stage::Start { request: Some(_), .. }, false) => "Waiting",
            (Stage::Start { request: Some(_), .. }, true) => "Readying",
            (Stage::Call { .. }, _) => "Calling",
            (Stage::Start { .. } | Stage::Done, _) => "Done",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}

// === impl Held ===

impl Held {
    #[inline]
    fn is_held(&self) -> bool {
        self.permit.is_some() || self.shared.is_some()
    }

    /// Takes note of what the request says about the permit, just before the call.
    #[inline]
    fn look_at<B>(&mut self, request: &mut Request<B>) {
        if let (Some(permit), Some(hold)) = (&mut self.permit, request.extensions().get::<Hold>()) {
            permit.set_hold(*hold);
        }
        if upgrade::is_asked(request) {
            self.share(request);
        }
    }

    #[cold]
    fn share<B>(&mut self, request: &mut Request<B>) {
        let Some(permit) = self.permit.take() else { return };
        let hold = permit.hold();
        let handle = UpgradePermit::new(permit);
        request.extensions_mut().insert(handle.clone());
        let to_connect = *request.method() == Method::CONNECT;
        self.shared = Some(Shared { handle, to_connect, hold, agreed: false });
    }

    /// Hands the permit on to whatever keeps it after the headers: the body, if it has not ended.
    #[inline]
    fn respond<B: Body>(
        &mut self,
        head: &mut response::Parts,
        body: &B,
        timings: Option<SlotTimings>,
    ) -> Option<BodyHold> {
        if let Some(mut shared) = self.shared.take() {
            self.permit = shared.respond(head, timings.as_ref());
        }
        let permit = self.permit.as_mut()?;
        if let Some(timings) = &timings {
            timings.headers_came(permit.headers(true));
            head.extensions.insert(timings.clone());
        }
        if permit.hold() == Hold::Headers {
            self.end(Outcome::Finished);
            return None;
        }
        let ended = guard(self, || body.is_end_stream());
        let mut permit = self.permit.take()?;
        if !ended {
            permit.headers(false);
            return Some(BodyHold::new(permit, timings));
        }
        Some(BodyHold::new(permit, timings)).end(Outcome::Finished);
        None
    }
}

impl End for Held {
    #[inline]
    fn end(&mut self, outcome: Outcome) {
        if let Some(permit) = self.permit.take() {
            permit.end(outcome);
        }
        if let Some(shared) = self.shared.take() {
            shared.end(outcome);
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Returns the permit if there is no upgrade and nobody has taken it: then all goes as for any other request.
    #[cold]
    fn respond(&mut self, head: &mut response::Parts, timings: Option<&SlotTimings>) -> Option<SlotPermit> {
        if upgrade::is_agreed(head.status, self.to_connect) {
            if self.hold == Hold::Body {
                // Calling => Done, and the permit stays where it is: somebody may be taking it right now.
                self.handle.agree();
                self.agreed = true;
            }
            head.extensions.insert(self.handle.clone());
        }
        let permit = self.take_back();
        if let (None, Some(timings)) = (&permit, timings) {
            // Whoever has it: the headers are here.
            timings.headers_came(self.handle.since_start());
            head.extensions.insert(timings.clone());
        }
        permit
    }

    #[cold]
    fn end(self, outcome: Outcome) {
        if let Some(permit) = self.take_back() {
            permit.end(outcome);
        }
    }

    fn take_back(&self) -> Option<SlotPermit> {
        if self.agreed { None } else { self.handle.take_back() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        drop(self.take_back());
    }
}
