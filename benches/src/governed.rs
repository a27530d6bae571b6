//! A pace per host by governor, as one would put it around a service. It limits starts, and nothing else.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use http::Request;
use tower::{Layer, Service};

#[derive(Clone)]
pub struct GovernedLayer {
    limiter: Arc<DefaultKeyedRateLimiter<String>>,
}

#[derive(Clone)]
pub struct Governed<S> {
    inner: S,
    limiter: Arc<DefaultKeyedRateLimiter<String>>,
}

impl GovernedLayer {
    pub fn new(quota: Quota) -> Self {
        Self { limiter: Arc::new(RateLimiter::keyed(quota)) }
    }
}

impl<S> Layer<S> for GovernedLayer {
    type Service = Governed<S>;

    fn layer(&self, inner: S) -> Governed<S> {
        Governed { inner, limiter: self.limiter.clone() }
    }
}

impl<S, B> Service<Request<B>> for Governed<S>
where
    S: Service<Request<B>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let host = request.uri().host().unwrap_or("").to_ascii_lowercase();
        let limiter = self.limiter.clone();
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            limiter.until_key_ready(&host).await;
            inner.call(request).await
        })
    }
}
