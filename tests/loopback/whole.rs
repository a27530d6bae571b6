//! A response that went through the slots tells all that it told before, and its body streams.

use std::future::Future;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue, TE, TRAILER};
use http::{Method, Response, Version};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use hyper_util::client::legacy::connect::HttpInfo;
use tower_slot::Slots;

use super::{BoxError, Fed, answer, in_flight, serve};

/// Has one response come in pieces, with a known length, and one with trailers.
pub(crate) async fn whole<F, Fut>(version: Version, slots: &Slots, send: F)
where
    F: Fn(reqwest::Request) -> Fut,
    Fut: Future<Output = Result<reqwest::Response, BoxError>>,
{
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let of_handler = bodies.clone();
    let addr = serve(move |_| {
        let body: Fed = of_handler.lock().unwrap().pop().unwrap();
        let mut answer = answer(body);
        answer.headers_mut().insert(TRAILER, HeaderValue::from_static("x-sum"));
        async { Ok(answer) }
    })
    .await;
    let url = format!("http://{addr}/a%20b?c=d#e");
    let get = || {
        let mut request = reqwest::Request::new(Method::GET, url.parse().unwrap());
        *request.version_mut() = version;
        request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
        send(request)
    };

    let (feed, body) = Fed::new(Some(10));
    bodies.lock().unwrap().push(body);
    feed.send(Frame::data(Bytes::from("01234"))).unwrap();
    let mut response = get().await.unwrap();
    assert_eq!(response.url().as_str(), format!("http://{addr}/a%20b?c=d"));
    assert_eq!(response.remote_addr(), Some(addr));
    assert_eq!(response.content_length(), Some(10));
    assert_eq!(response.version(), version);
    assert!(response.extensions().get::<HttpInfo>().is_some());
    assert_eq!(response.headers()[TRAILER], "x-sum");

    // The second half is not sent before the first one was read.
    assert_eq!(response.chunk().await.unwrap().unwrap(), "01234");
    assert_eq!(in_flight(slots), 1);
    feed.send(Frame::data(Bytes::from("56789"))).unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "56789");
    assert_eq!(in_flight(slots), 0);
    assert_eq!(response.chunk().await.unwrap(), None);

    let (feed, body) = Fed::new(None);
    bodies.lock().unwrap().push(body);
    feed.send(Frame::data(Bytes::from("01234"))).unwrap();
    let response = get().await.unwrap();
    assert_eq!(response.content_length(), None);
    let mut body = Response::<reqwest::Body>::from(response).into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "01234");
    assert_eq!(in_flight(slots), 1);
    let sum = HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static("5"))]);
    feed.send(Frame::trailers(sum.clone())).unwrap();
    drop(feed);
    assert_eq!(body.frame().await.unwrap().unwrap().into_trailers().unwrap(), sum);
    assert_eq!(in_flight(slots), 0);
    assert!(body.frame().await.is_none());
    assert_eq!(body.size_hint().exact(), None);
}
