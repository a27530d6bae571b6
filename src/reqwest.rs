//! reqwest as the inner service: its client takes requests of its own kind, [`ReqwestService`] takes `http`'s.
//!
//! The rule people get wrong: a `reqwest::Response` that becomes an `http::Response` forgets its URL. Here the
//! URL travels in the extensions, so that `reqwest::Response::from` gives back what reqwest gave: `url()`,
//! `remote_addr()`, `content_length()`, `version()` and a body that keeps its place in the slot.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_slot::reqwest::ReqwestService;
//! use tower_slot::{SlotConfig, SlotLayer};
//!
//! # async fn run() -> Result<(), tower_slot::BoxError> {
//! let layer = SlotLayer::new(SlotConfig::builder().concurrency(4).build()?);
//! let mut client = ServiceBuilder::new().layer(layer).service(ReqwestService::new(reqwest::Client::new()));
//!
//! let request = http::Request::get("http://a.test/").body(reqwest::Body::default())?;
//! let response = reqwest::Response::from(client.ready().await?.call(request).await?);
//! println!("{} is {:?} bytes long", response.url(), response.content_length());
//! let page = response.bytes().await?; // the slot is free when the body has ended
//! # Ok(()) }
//! ```
//!
//! # Redirects
//!
//! A redirect that reqwest follows by itself is part of one request: it is counted once, in the slot of the first
//! host. To have each hop go through the slot of its own host, tell reqwest not to follow, and follow outside of
//! the slots:
//!
//! ```
//! use tower::ServiceBuilder;
//! use tower_http::follow_redirect::FollowRedirectLayer;
//! use tower_slot::reqwest::ReqwestService;
//! # use tower_slot::{SlotConfig, SlotLayer};
//!
//! # fn run() -> reqwest::Result<()> {
//! let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
//! let client = ServiceBuilder::new()
//!     .layer(FollowRedirectLayer::new()) // at most ten hops
//!     .layer(SlotLayer::new(SlotConfig::default()))
//!     .service(ReqwestService::new(client));
//! # Ok(()) }
//! ```
//!
//! # Errors of a body
//!
//! Converting a body there and back wraps its errors twice in a `reqwest::Error`. What `is_timeout()` and
//! `is_decode()` say stays the same, and so does the source at the end of the chain.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::Body as HttpBody;
use pin_project_lite::pin_project;
use reqwest::{Body, ResponseBuilderExt};
use tower_service::Service;

use crate::body::SlotBody;
use crate::error::BoxError;

/// A client that takes `http::Request`s: [`reqwest::Client`], or any other service that takes its requests.
#[derive(Clone, Debug, Default)]
pub struct ReqwestService<S = reqwest::Client> {
    inner: S,
}

pin_project! {
    /// Resolves with the response, whose extensions keep its URL. Once it has resolved it stays pending.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future cancels the request.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ReqwestFuture<F, E = reqwest::Error> {
        #[pin]
        future: Option<F>,
        // Set if the request was none that reqwest takes.
        refused: Option<E>,
    }
}

// === impl ReqwestService ===

impl<S> ReqwestService<S> {
    /// Wraps a client.
    #[must_use]
    pub const fn new(inner: S) -> Self {
        Self { inner }
    }

    /// Returns the client.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the client.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Unwraps the client.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S> Service<http::Request<Body>> for ReqwestService<S>
where
    S: Service<reqwest::Request, Response = reqwest::Response>,
    S::Error: From<reqwest::Error>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = ReqwestFuture<S::Future, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let request = reqwest::Request::try_from(request);
        ReqwestFuture::new(request.map(|request| self.inner.call(request)))
    }
}

// === impl ReqwestFuture ===

impl<F, E: From<reqwest::Error>> ReqwestFuture<F, E> {
    pub(crate) fn new(future: reqwest::Result<F>) -> Self {
        match future {
            Ok(future) => Self { future: Some(future), refused: None },
            Err(error) => Self { future: None, refused: Some(error.into()) },
        }
    }
}

impl<F, E> Future for ReqwestFuture<F, E>
where
    F: Future<Output = Result<reqwest::Response, E>>,
{
    type Output = Result<http::Response<Body>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else {
            return this.refused.take().map_or(Poll::Pending, |error| Poll::Ready(Err(error)));
        };
        let response = ready!(future.poll(cx));
        this.future.set(None);
        Poll::Ready(response.map(keep_url))
    }
}

/// Converts a response without losing its URL; all else that reqwest tells is in the extensions already.
fn keep_url(response: reqwest::Response) -> http::Response<Body> {
    let mut url = http::response::Builder::new().url(response.url().clone());
    let mut response = http::Response::from(response);
    if let Some(url) = url.extensions_mut() {
        response.extensions_mut().extend(std::mem::take(url));
    }
    response
}

// === impl Body ===

impl<B> From<SlotBody<B>> for Body
where
    B: HttpBody + Send + Sync + 'static,
    B::Data: Into<<Body as HttpBody>::Data>,
    B::Error: Into<BoxError>,
{
    /// Wraps the body with its permit, so that `reqwest::Response::from` takes a response with a `SlotBody`.
    fn from(body: SlotBody<B>) -> Self {
        Self::wrap(body)
    }
}
