//! The middleware for `reqwest-middleware`, which shares its slots with any other stack.
//!
//! The rule people get wrong: middlewares that were added first stand outside. A [`SlotMiddleware`] that was
//! added after a retry sees every attempt; one that was added before it sees one request.
//!
//! ```
//! use reqwest_middleware::ClientBuilder;
//! use tower_slot::reqwest_middleware::SlotMiddleware;
//! use tower_slot::{SlotConfig, SlotKey, Slots};
//!
//! # async fn run() -> Result<(), tower_slot::BoxError> {
//! let slots = Slots::new(SlotConfig::builder().concurrency(4).build()?);
//! let client = ClientBuilder::new(reqwest::Client::new()).with(SlotMiddleware::new(slots.clone())).build();
//!
//! let page = client.get("http://a.test/").send().await?; // in the slot of its host
//! let photo = client.get("http://a.test/photo").with_extension(SlotKey::new("photos")).send().await?;
//! # Ok(()) }
//! ```
//!
//! # Errors
//!
//! What reqwest or a middleware inside says goes on unchanged. The slot's own refusal is a
//! [`SlotError`] inside `Error::Middleware`:
//!
//! ```
//! use reqwest_middleware::Error;
//! use tower_slot::SlotError;
//!
//! fn refusal(error: &Error) -> Option<&SlotError> {
//!     match error {
//!         Error::Middleware(error) => error.downcast_ref(),
//!         Error::Reqwest(_) => None,
//!     }
//! }
//! ```
//!
//! A `RetryTransientMiddleware` outside wraps every error in a `RetryError`; the refusal is in there. It does not
//! retry one.
//!
//! # Retry
//!
//! Inside of a retry, every attempt takes the slot anew and obeys its pace. Outside of it, all attempts and the
//! back-offs between them share one permit. Neither deadlocks, at a limit of 1 either.
//!
//! reqwest-retry keeps a failed response alive while it sleeps. As long as that response has a body that was not
//! read to its end, its exchange is open and its permit is out: nobody else starts during the back-off. A body
//! that is empty, and an error, give the permit back before. For the rest there is
//! [`finish_failed`](SlotMiddleware::finish_failed), which ends such responses first. What remains: a failed body
//! over its limit keeps the permit through the back-off, as does any response that a strategy of your own retries
//! with another status.
//!
//! # Redirects
//!
//! A redirect that reqwest follows by itself is part of one request: it is counted once, in the slot of the first
//! host. To have each hop go through the slot of its own host, tell reqwest not to follow, and follow in a
//! middleware outside of this one:
//!
//! ```
//! use http::{Extensions, header::LOCATION};
//! use reqwest::{Request, Response};
//! use reqwest_middleware::{Error, Middleware, Next, Result};
//!
//! struct Follow;
//!
//! #[async_trait::async_trait]
//! impl Middleware for Follow {
//!     async fn handle(&self, mut request: Request, ext: &mut Extensions, next: Next<'_>) -> Result<Response> {
//!         for _ in 0..10 {
//!             let again = request.try_clone();
//!             let response = next.clone().run(request, ext).await?;
//!             let location = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
//!             let (true, Some(location), Some(again)) = (response.status().is_redirection(), location, again)
//!             else {
//!                 return Ok(response);
//!             };
//!             request = again;
//!             *request.url_mut() = response.url().join(location).map_err(Error::middleware)?;
//!         } // the response is dropped here, and its permit is back before the next hop
//!         Err(Error::middleware(std::io::Error::other("too many redirects")))
//!     }
//! }
//! ```
//!
//! (A real one also looks at the status, and drops credentials when the host changes.) Or use
//! [`ReqwestService`](crate::reqwest::ReqwestService) and tower-http's `FollowRedirect`. An explicit key goes
//! where the extensions go: to every hop.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use http::{Extensions, StatusCode};
use reqwest::{Body, Request, Response, Url};
use reqwest_middleware::{Error, Middleware, Next, Result};
use tower_service::Service;

use crate::ahead::Ahead;
use crate::error::SlotError;
use crate::future::{ResponseFuture, Wanted};
use crate::hold::Hold;
use crate::key::{KeyRef, SlotKey};
use crate::reject::Reject;
use crate::reqwest::ReqwestFuture;
use crate::slot::Slots;

/// Sends the requests of a `ClientWithMiddleware` through slots.
///
/// The slot is that of a [`SlotKey`] in the middleware's extensions, else in the request's, else that of the
/// URL's host, as [`SlotKey::host`] makes it. A [`Hold`] is found in either as well. The response's body keeps
/// the permit; its `url()`, `remote_addr()`, `content_length()`, `version()` and extensions stay what they were.
///
/// # Cancel safety
///
/// Dropping the future of a request gives up the place in the queue, or gives the permit back.
// A clone shares the slots.
#[derive(Clone, Debug)]
pub struct SlotMiddleware {
    slots: Slots,
    timings: bool,
    /// The longest body of a failed response that is read ahead, in bytes; 0 for none.
    failed: u64,
}

/// Calls the rest of the chain; all of it comes with the request.
#[derive(Debug)]
struct Chain;

/// What the call needs besides the request's extensions.
struct Sending<'a> {
    url: Url,
    body: Option<Body>,
    next: Next<'a>,
    extensions: &'a mut Extensions,
}

/// A refusal becomes an `Error::Middleware`.
#[derive(Debug)]
struct Refuse;

type Sent<'a> = Pin<Box<dyn Future<Output = Result<Response>> + Send + 'a>>;

// === impl SlotMiddleware ===

impl SlotMiddleware {
    /// Creates a middleware that uses `slots`; others may use them too.
    #[must_use]
    pub fn new(slots: Slots) -> Self {
        Self { slots, timings: false, failed: 0 }
    }

    /// Puts [`SlotTimings`](crate::SlotTimings) into every response's extensions. Off by default.
    #[must_use]
    pub fn timings(mut self, on: bool) -> Self {
        self.timings = on;
        self
    }

    /// Reads the body of a failed response (408, 429 or 5xx) before handing the response on, if it has at most
    /// `limit` bytes. Off by default.
    ///
    /// This is for a retry outside, which keeps the response while it sleeps: the permit is back before. Whoever
    /// gets the response at last reads the body from memory; an error of the body is found there too. Give the
    /// client a timeout, since a body that stalls holds up the retry.
    #[must_use]
    pub fn finish_failed(mut self, limit: usize) -> Self {
        self.failed = limit as u64;
        self
    }

    /// Returns the slots: to look at, change, pause and close them.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        &self.slots
    }
}

#[async_trait]
impl Middleware for SlotMiddleware {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        // reqwest shows a request's extensions only as `http::Request`. What that would change stays aside.
        let nowhere = Url::parse("http://a").map_err(Error::middleware)?;
        let url = std::mem::replace(request.url_mut(), nowhere);
        let body = request.body_mut().take();
        let mut request = http::Request::try_from(request)?;

        if let Some(hold) = extensions.get::<Hold>() {
            request.extensions_mut().insert(*hold);
        }
        let acquire = self.slots.acquire(key(extensions, request.extensions(), &url));
        let request = request.map(|_: Body| Sending { url, body, next, extensions });
        let wanted = Wanted { timings: self.timings, ..Wanted::default() };
        let response = ResponseFuture::new(acquire, Chain, request, Refuse, wanted).await?;

        if self.failed > 0 && is_failed(response.status()) && response.body().is_holding() {
            let (parts, body) = response.into_parts();
            let body = Body::wrap(Ahead::read(body, self.failed).await);
            return Ok(http::Response::from_parts(parts, body).into());
        }
        Ok(response.into())
    }
}

fn key<'a>(middleware: &'a Extensions, request: &'a Extensions, url: &'a Url) -> KeyRef<'a> {
    let key = middleware.get::<SlotKey>().or_else(|| request.get::<SlotKey>());
    key.map_or_else(|| KeyRef::host(url.host_str().unwrap_or("")), KeyRef::from)
}

/// Whether a retry is likely to throw the response away.
fn is_failed(status: StatusCode) -> bool {
    status.is_server_error() || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status)
}

// === impl Chain ===

impl<'a> Service<http::Request<Sending<'a>>> for Chain {
    type Response = http::Response<Body>;
    type Error = Error;
    type Future = ReqwestFuture<Sent<'a>, Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Sending<'a>>) -> Self::Future {
        let (parts, Sending { url, body, next, extensions }) = request.into_parts();
        let request = Request::try_from(http::Request::from_parts(parts, Body::default()));
        ReqwestFuture::new(request.map(|mut request| -> Sent<'a> {
            *request.url_mut() = url;
            *request.body_mut() = body;
            next.run(request, extensions)
        }))
    }
}

// === impl Refuse ===

impl Reject<Body, Error> for Refuse {
    type Error = Error;

    fn refuse(&self, error: SlotError) -> Result<http::Response<Body>> {
        Err(Error::middleware(error))
    }

    fn inner(&self, error: Error) -> Error {
        error
    }
}
