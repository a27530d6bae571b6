//! Requests, and one of them from beginning to end.

use std::fmt::Debug;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use http::{Request, Response, Uri};
use http_body::Body;
use http_body_util::BodyExt;
use tower::Service;

/// The URI of one of the hosts.
pub fn uri(host: usize) -> Uri {
    format!("http://host-{host}.example.com/path").parse().expect("a URI")
}

pub fn request(uri: Uri) -> Request<()> {
    let mut request = Request::new(());
    *request.uri_mut() = uri;
    request
}

/// One request, its body read to the end.
pub async fn one<S, B>(service: &mut S, request: Request<()>)
where
    S: Service<Request<()>, Response = Response<B>>,
    S::Error: Debug,
    B: Body + Unpin,
    B::Error: Debug,
{
    std::future::poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
    let mut body = service.call(request).await.expect("response").into_body();
    while let Some(frame) = body.frame().await {
        frame.expect("frame");
    }
}

/// The same without a runtime, where all is ready at once.
pub fn one_at_once<S, B>(service: &mut S, request: Request<()>)
where
    S: Service<Request<()>, Response = Response<B>>,
    S::Error: Debug,
    B: Body + Unpin,
    B::Error: Debug,
{
    let done = pin!(one(service, request)).poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(done, Poll::Ready(()), "something had to wait");
}
