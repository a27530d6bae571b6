//! Failed responses whose body was read ahead.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::BodyExt;
use reqwest::Body;
use tower_slot::Hold;
use tower_slot::reqwest_middleware::SlotMiddleware;

use crate::chain::{Script, chain, get, says};
use crate::loopback::{BoxError, Fed, slots};

/// A body that says something and then fails.
#[derive(Default)]
pub(crate) struct Broken {
    said: bool,
}

impl http_body::Body for Broken {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let said = std::mem::replace(&mut self.said, true);
        Poll::Ready(Some(if said { Err("breaks".into()) } else { Ok(Frame::data("part".into())) }))
    }
}

/// B3: what was read ahead is read as it came.
#[tokio::test]
async fn failed_body_that_was_read_ahead_says_what_it_said_before() {
    let slots = slots(1);
    let script = Script::default();
    let middleware = SlotMiddleware::new(slots.clone()).finish_failed(10);
    let client = chain([Arc::new(middleware), Arc::new(script.clone())]);
    let send = async |answer| {
        script.answers.lock().unwrap().push_back(Ok(answer));
        client.execute(get("http://a.test/")).await.unwrap()
    };
    let in_flight = || slots.stats("a.test").unwrap().in_flight;

    // Frames and trailers.
    let (feed, body) = Fed::new(None);
    let sum = HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static("9"))]);
    for frame in [Frame::data("01234".into()), Frame::data("5678".into()), Frame::trailers(sum.clone())] {
        feed.send(frame).unwrap();
    }
    drop(feed);
    let response = send(says(503, Body::wrap(body))).await;
    assert_eq!((in_flight(), response.content_length()), (0, Some(9)));
    let body = http::Response::<Body>::from(response).into_body().collect().await.unwrap();
    assert_eq!(body.trailers(), Some(&sum));
    assert_eq!(body.to_bytes(), "012345678");

    // An error.
    let mut response = send(says(503, Body::wrap(Broken::default()))).await;
    assert_eq!(in_flight(), 0);
    assert_eq!(response.chunk().await.unwrap().unwrap(), "part");
    let error = response.chunk().await.unwrap_err();
    let root = std::iter::successors(Some(&error as &dyn std::error::Error), |&e| e.source()).last().unwrap();
    assert_eq!(root.to_string(), "breaks");
    assert_eq!(response.chunk().await.unwrap(), None);

    // More than the limit: the part that was read, then the rest.
    let (feed, body) = Fed::new(None);
    feed.send(Frame::data("01234567".into())).unwrap();
    feed.send(Frame::data("89abcdef".into())).unwrap();
    let mut response = send(says(503, Body::wrap(body))).await;
    assert_eq!((in_flight(), response.content_length()), (1, None));
    assert_eq!(response.chunk().await.unwrap().unwrap(), "01234567");
    feed.send(Frame::data("rest".into())).unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "89abcdef");
    assert_eq!(response.chunk().await.unwrap().unwrap(), "rest");
    assert_eq!(in_flight(), 1);
    drop(feed);
    assert_eq!(response.chunk().await.unwrap(), None);
    assert_eq!(in_flight(), 0);

    // The permit is back at the headers: nothing is to be gained.
    let (_feed, body) = Fed::new(Some(5));
    script.answers.lock().unwrap().push_back(Ok(says(503, Body::wrap(body))));
    let mut early = Extensions::new();
    early.insert(Hold::Headers);
    client.execute_with_extensions(get("http://a.test/"), &mut early).await.unwrap();

    // Known to be longer: nothing is read. No failure: nothing is read either.
    for (status, length) in [(503, 11), (200, 5), (404, 5)] {
        let (feed, body) = Fed::new(Some(length));
        let response = send(says(status, Body::wrap(body))).await;
        assert_eq!((in_flight(), response.content_length()), (1, Some(length)));
        drop((feed, response));
        assert_eq!(in_flight(), 0);
    }
}
