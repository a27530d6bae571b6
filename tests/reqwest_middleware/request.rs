//! Whose slot a request takes and how long it keeps it, and that nothing else of it changes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Extensions, HeaderValue, Version};
use http_body_util::Full;
use reqwest::{Body, Method, Request};
use tower_slot::reqwest_middleware::SlotMiddleware;
use tower_slot::{Hold, SlotKey};

use crate::chain::{Script, chain, get, says_part};
use crate::loopback::slots;

/// K1, K2, K3.
#[tokio::test]
async fn key_is_the_middlewares_then_the_requests_then_the_host() {
    let keyed = |key: &'static str| {
        let request = http::Request::get("http://a.test/").extension(SlotKey::new(key));
        Request::try_from(request.body("").unwrap()).unwrap()
    };
    for (middleware, request, expected) in [
        (Some("middleware"), keyed("request"), "middleware"),
        (None, keyed("request"), "request"),
        (Some("middleware"), get("http://a.test/"), "middleware"),
        (None, get("http://u:p@A.Test.:81/x"), "a.test"),
        (None, get("http://[0:0:0:0:0:0:0:1]:81/"), "::1"),
        (None, get("data:text"), ""),
    ] {
        let slots = slots(1);
        let client = chain([Arc::new(SlotMiddleware::new(slots.clone())), Arc::new(Script::default())]);
        let mut extensions = Extensions::new();
        middleware.map(|key| extensions.insert(SlotKey::new(key)));
        client.execute_with_extensions(request, &mut extensions).await.unwrap();
        let keys: Vec<_> = slots.snapshot().slots.iter().map(|slot| slot.key.to_string()).collect();
        assert_eq!(keys, [expected]);
        // It stays where it was, for the next attempt, and a derived one is not written back.
        assert_eq!(extensions.get::<SlotKey>().map(SlotKey::as_str), middleware);
    }
}

/// B4: a `Hold` is found in either extensions; the middleware's comes first.
#[tokio::test]
async fn hold_is_the_middlewares_then_the_requests() {
    let slots = slots(1);
    let script = Script::default();
    let client = chain([Arc::new(SlotMiddleware::new(slots.clone())), Arc::new(script.clone())]);
    for (middleware, request, held) in [
        (None, None, 1),
        (Some(Hold::Headers), None, 0),
        (None, Some(Hold::Headers), 0),
        (Some(Hold::Body), Some(Hold::Headers), 1),
        (Some(Hold::Headers), Some(Hold::Body), 0),
    ] {
        let (_feed, answer) = says_part(200);
        script.answers.lock().unwrap().push_back(Ok(answer));
        let mut own = http::Request::get("http://a.test/");
        let mut extensions = Extensions::new();
        middleware.map(|hold| extensions.insert(hold));
        request.map(|hold| own.extensions_mut().unwrap().insert(hold));
        let request = Request::try_from(own.body("").unwrap()).unwrap();
        let response = client.execute_with_extensions(request, &mut extensions).await.unwrap();
        assert_eq!(slots.stats("a.test").unwrap().in_flight, held, "{middleware:?}");
        drop(response);
    }
}

/// K3: reading the request's extensions changes nothing of the request.
#[tokio::test]
async fn request_reaches_the_rest_of_the_chain_unchanged() {
    let slots = slots(1);
    let script = Script::default();
    let client = chain([Arc::new(SlotMiddleware::new(slots.clone())), Arc::new(script.clone())]);
    let url = "http://u:p@a.test:81/%7Bx%7D|y?z#fragment";
    let mut request = http::Request::put("http://elsewhere/").extension(7_u8).body("").unwrap();
    request.headers_mut().insert(HOST, HeaderValue::from_static("own"));
    let mut request = Request::try_from(request).unwrap();
    *request.url_mut() = url.parse().unwrap();
    *request.body_mut() = None;
    *request.version_mut() = Version::HTTP_2;
    *request.timeout_mut() = Some(Duration::from_secs(7));
    client.execute(request).await.unwrap();
    let mut streamed = get(url);
    *streamed.body_mut() = Some(Body::wrap(Full::new(Bytes::from("streamed"))));
    client.execute(streamed).await.unwrap();

    let mut requests = script.requests.lock().unwrap();
    let (_, streamed) = requests.pop().unwrap();
    assert!(streamed.try_clone().is_none());
    assert_eq!(streamed.url().as_str(), url);
    let (_, mut request) = requests.pop().unwrap();
    assert_eq!(request.url().as_str(), url);
    assert_eq!((request.method(), request.version()), (&Method::PUT, Version::HTTP_2));
    assert_eq!(request.headers().iter().collect::<Vec<_>>(), [(&HOST, &HeaderValue::from_static("own"))]);
    assert!(request.body().is_none());
    assert_eq!(request.timeout(), Some(&Duration::from_secs(7)));
    *request.url_mut() = "http://a.test/".parse().unwrap();
    let request = http::Request::try_from(request).unwrap();
    assert_eq!(request.extensions().get(), Some(&7_u8));
    assert!(request.extensions().get::<SlotKey>().is_none());
}
