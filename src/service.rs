//! The service: finds the slot of each request and leaves the rest to the response future.

use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use crate::body::SlotBody;
use crate::extract::{ExtensionOrHost, Extracted, KeyExtractor};
use crate::future::{ResponseFuture, Wanted};
use crate::reject::{Fail, Reject};
use crate::slot::{Acquire, Slots};

/// Sends requests through slots; made by [`SlotLayer`](crate::SlotLayer).
///
/// It is always ready and reserves nothing: the slot is taken in the response future, and only then a clone of
/// the inner service is polled ready and called. So nothing of the inner service is held by those who wait, and
/// a `LoadShed` or `Buffer` outside sees no back-pressure; bound the wait with
/// [`queue_capacity`](crate::SlotLimits::queue_capacity) instead.
// A clone shares the slots but has no place in any queue.
#[derive(Clone, Debug)]
pub struct SlotService<S, K = ExtensionOrHost, R = Fail> {
    pub(crate) inner: S,
    pub(crate) slots: Slots,
    pub(crate) key_extractor: K,
    pub(crate) reject: R,
    pub(crate) wanted: Wanted,
}

// === impl SlotService ===

impl<S, K, R> SlotService<S, K, R> {
    /// Returns the slots.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Returns the inner service.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Unwraps the inner service.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, K, R, ReqBody, ResBody> Service<Request<ReqBody>> for SlotService<S, K, R>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    ResBody: http_body::Body,
    K: KeyExtractor<ReqBody>,
    R: Reject<ResBody, S::Error> + Clone,
{
    type Response = Response<SlotBody<ResBody>>;
    type Error = R::Error;
    type Future = ResponseFuture<S, ReqBody, S::Future, R>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let acquire = match self.key_extractor.extract(&request) {
            Extracted::Key(key) => self.slots.acquire(key),
            Extracted::Later(key) => Acquire::later(key, self.slots.clone()),
        };
        // The clone has not been polled ready: it holds nothing while the request waits.
        ResponseFuture::new(acquire, self.inner.clone(), request, self.reject.clone(), self.wanted)
    }
}
