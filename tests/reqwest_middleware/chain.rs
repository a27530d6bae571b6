//! Chains without a server: middlewares at their end that answer by a script, never, or with a panic.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use http::Extensions;
use http_body::Frame;
use reqwest::{Body, Method, Request, Response};
use reqwest_middleware::{ClientWithMiddleware, Error, Middleware, Next, Result};
use tokio::time::Instant;
use tower_slot::SlotError;

use crate::loopback::{Fed, client};

/// The end of a chain: says what the script says, and notes what reached it.
#[derive(Clone, Default)]
pub(crate) struct Script {
    pub(crate) answers: Arc<Mutex<VecDeque<Result<Response>>>>,
    pub(crate) requests: Arc<Mutex<Vec<(Instant, Request)>>>,
}

/// Never answers.
pub(crate) struct Never;

pub(crate) struct Panics;

impl Script {
    pub(crate) fn then(self, answer: Result<Response>) -> Self {
        self.answers.lock().unwrap().push_back(answer);
        self
    }

    /// When the requests came, in milliseconds from `start`.
    pub(crate) fn times(&self, start: Instant) -> Vec<u128> {
        self.requests.lock().unwrap().iter().map(|(at, _)| (*at - start).as_millis()).collect()
    }
}

#[async_trait]
impl Middleware for Script {
    async fn handle(&self, request: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        self.requests.lock().unwrap().push((Instant::now(), request));
        self.answers.lock().unwrap().pop_front().unwrap_or_else(|| Ok(says(200, "")))
    }
}

#[async_trait]
impl Middleware for Never {
    async fn handle(&self, _: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        std::future::pending().await
    }
}

#[async_trait]
impl Middleware for Panics {
    async fn handle(&self, _: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        panic!("the chain panics")
    }
}

pub(crate) fn says(status: u16, body: impl Into<Body>) -> Response {
    http::Response::builder().status(status).body(body).unwrap().into()
}

/// A response whose body has said a part and goes on for as long as the sender lives.
pub(crate) fn says_part(status: u16) -> (tokio::sync::mpsc::UnboundedSender<Frame<Bytes>>, Response) {
    let (feed, body) = Fed::new(None);
    feed.send(Frame::data(Bytes::from("part"))).unwrap();
    (feed, says(status, Body::wrap(body)))
}

pub(crate) fn chain<const N: usize>(middlewares: [Arc<dyn Middleware>; N]) -> ClientWithMiddleware {
    ClientWithMiddleware::new(client().build().unwrap(), middlewares)
}

pub(crate) fn get(url: &str) -> Request {
    Request::new(Method::GET, url.parse().unwrap())
}

pub(crate) fn refusal(error: &Error) -> Option<&SlotError> {
    match error {
        Error::Middleware(error) => error.downcast_ref(),
        Error::Reqwest(_) => None,
    }
}
