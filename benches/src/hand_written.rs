//! The pattern that most people write by hand: a map of semaphores, an owned permit, a guard in the body.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use dashmap::DashMap;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::{BoxError, Layer, Service};

#[derive(Clone)]
pub struct PerHostLayer {
    semaphores: Arc<DashMap<String, Arc<Semaphore>>>,
    limit: usize,
}

#[derive(Clone)]
pub struct PerHost<S> {
    inner: S,
    semaphores: Arc<DashMap<String, Arc<Semaphore>>>,
    limit: usize,
}

pin_project! {
    pub struct GuardBody<B> {
        #[pin]
        inner: B,
        permit: Option<OwnedSemaphorePermit>,
    }
}

impl PerHostLayer {
    pub fn new(limit: usize) -> Self {
        Self { semaphores: Arc::default(), limit }
    }
}

impl<S> Layer<S> for PerHostLayer {
    type Service = PerHost<S>;

    fn layer(&self, inner: S) -> PerHost<S> {
        PerHost { inner, semaphores: self.semaphores.clone(), limit: self.limit }
    }
}

impl<S, B, ResBody> Service<Request<B>> for PerHost<S>
where
    S: Service<Request<B>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Send + 'static,
{
    type Response = Response<GuardBody<ResBody>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let host = request.uri().host().unwrap_or("").to_ascii_lowercase();
        let limit = self.limit;
        let semaphore =
            self.semaphores.entry(host).or_insert_with(|| Arc::new(Semaphore::new(limit))).clone();
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let permit = semaphore.acquire_owned().await?;
            let response = inner.call(request).await.map_err(Into::into)?;
            Ok(response.map(|inner| GuardBody { inner, permit: Some(permit) }))
        })
    }
}

impl<B: Body> Body for GuardBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = this.inner.poll_frame(cx);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            *this.permit = None;
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
