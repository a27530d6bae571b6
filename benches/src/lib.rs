//! What is measured: the same inner service under different layers.

pub mod hand_written;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::Service;

/// How many hosts requests go round.
pub const HOSTS: usize = 64;

/// The inner service: answers at once with a body of one frame.
#[derive(Clone, Debug)]
pub struct Inner;

impl Service<Request<()>> for Inner {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(Full::new(Bytes::from_static(b"hello")))))
    }
}

/// The requests' URIs, one per host.
pub fn uris(hosts: usize) -> Vec<http::Uri> {
    let uri = |n| format!("http://host-{n}.example.com/path").parse();
    (0..hosts).filter_map(|n| uri(n).ok()).collect()
}

pub fn request(uri: &http::Uri) -> Request<()> {
    let mut request = Request::new(());
    *request.uri_mut() = uri.clone();
    request
}

/// One request, body read to its end.
pub async fn one<S, B>(service: &mut S, request: Request<()>)
where
    S: Service<Request<()>, Response = Response<B>>,
    S::Error: std::fmt::Debug,
    B: http_body::Body + Unpin,
    B::Error: std::fmt::Debug,
{
    std::future::poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
    let mut body = service.call(request).await.expect("response").into_body();
    while let Some(frame) = body.frame().await {
        frame.expect("frame");
    }
}
