//! The inner service: it enters what it starts into the ledger, until the body has ended.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower::Service;
use tower_slot::Hold;

use crate::hosts;
use crate::ledger::{InFlight, Ledger};

#[derive(Clone, Debug)]
pub(crate) struct Counted<S> {
    inner: S,
    ledger: Arc<Ledger>,
}

pin_project! {
    pub(crate) struct CountedFuture<F> {
        // Dropped before the entry goes.
        #[pin]
        inner: F,
        entry: Option<InFlight>,
        hold: Hold,
    }
}

pin_project! {
    pub(crate) struct CountedBody<B> {
        #[pin]
        inner: B,
        entry: Option<InFlight>,
    }
}

// === impl Counted ===

impl<S> Counted<S> {
    pub(crate) fn new(inner: S, ledger: Arc<Ledger>) -> Self {
        Self { inner, ledger }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Counted<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: Body,
{
    type Response = Response<CountedBody<ResBody>>;
    type Error = S::Error;
    type Future = CountedFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let host = request.uri().host().and_then(hosts::index);
        let entry = host.map(|host| self.ledger.start(host));
        let hold = request.extensions().get().copied().unwrap_or_default();
        CountedFuture { inner: self.inner.call(request), entry, hold }
    }
}

// === impl CountedFuture ===

impl<F, B, E> Future for CountedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
{
    type Output = Result<Response<CountedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        let entry = this.entry.take();
        Poll::Ready(result.map(|response| {
            let has_ended = *this.hold == Hold::Headers || response.body().is_end_stream();
            response.map(|inner| CountedBody { inner, entry: entry.filter(|_| !has_ended) })
        }))
    }
}

// === impl CountedBody ===

impl<B: Body> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        match &frame {
            Some(Ok(frame)) if !frame.is_trailers() && !this.inner.is_end_stream() => {}
            _ => *this.entry = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
