//! `SlotMiddleware`: responses that stay whole, bad servers, and what stands inside or outside of it.

#![allow(clippy::unwrap_used, clippy::panic)]

mod ahead;
mod chain;
#[path = "../loopback/mod.rs"]
mod loopback;
mod request;
mod retry;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONNECTION, HOST, LOCATION, UPGRADE};
use http::{Extensions, HeaderValue, StatusCode, Version};
use http_body_util::{BodyExt, Empty, Full};
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Error, Middleware, Next, Result};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_ok};
use tower::{Service, ServiceBuilder, service_fn};
use tower_slot::reqwest_middleware::SlotMiddleware;
use tower_slot::{SlotConfig, SlotErrorKind, SlotKey, SlotLayer, SlotTimings, Slots, UpgradePermit};

use crate::chain::{Never, Panics, Script, chain, get, refusal};
use crate::loopback::{BoxError, Fed, answer, bad, client, in_flight, serve, slots, storm, whole};

/// Follows redirects, each hop a request of its own.
struct Follow;

#[async_trait]
impl Middleware for Follow {
    async fn handle(&self, mut request: Request, ext: &mut Extensions, next: Next<'_>) -> Result<Response> {
        loop {
            let mut again = request.try_clone().unwrap();
            let response = next.clone().run(request, ext).await?;
            let Some(location) = response.headers().get(LOCATION) else { return Ok(response) };
            *again.url_mut() = response.url().join(location.to_str().unwrap()).unwrap();
            request = again;
        }
    }
}

fn real(slots: &Slots, client: reqwest::Client) -> ClientWithMiddleware {
    ClientBuilder::new(client).with(SlotMiddleware::new(slots.clone())).build()
}

/// What a stack with other errors would say.
fn boxed(error: Error) -> BoxError {
    match error {
        Error::Reqwest(error) => error.into(),
        Error::Middleware(error) => error.into(),
    }
}

/// B1, B3, case 42.
#[tokio::test]
async fn response_stays_whole_over_http1() {
    let slots = slots(1);
    let client = real(&slots, client().build().unwrap());
    whole::whole(Version::HTTP_11, &slots, async |request| client.execute(request).await.map_err(boxed))
        .await;
}

/// B1, B3, case 42.
#[tokio::test]
async fn response_stays_whole_over_http2() {
    let slots = slots(1);
    let client = real(&slots, client().http2_prior_knowledge().build().unwrap());
    whole::whole(Version::HTTP_2, &slots, async |request| client.execute(request).await.map_err(boxed)).await;
}

/// B1, B5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_exchanges_never_exceed_the_limit_over_http1() {
    let slots = storm::slots();
    let client = real(&slots, client().build().unwrap());
    storm::storm(Version::HTTP_11, &slots, move |request| {
        let client = client.clone();
        async move { client.execute(request).await.map_err(boxed) }
    })
    .await;
}

/// B1, B5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_exchanges_never_exceed_the_limit_over_http2() {
    let slots = storm::slots();
    let client = real(&slots, client().http2_prior_knowledge().build().unwrap());
    storm::storm(Version::HTTP_2, &slots, move |request| {
        let client = client.clone();
        async move { client.execute(request).await.map_err(boxed) }
    })
    .await;
}

/// B1, B2.
#[tokio::test]
async fn errors_of_bad_servers_reach_the_caller_and_free_the_slot() {
    let slots = slots(1);
    let bare = client().build().unwrap();
    let client = real(&slots, bare.clone());
    bad::faults(&slots, &bare, async |request| client.execute(request).await.map_err(boxed)).await;
}

/// V2.
#[tokio::test]
async fn timings_are_in_the_response_when_asked_for() {
    let slots = slots(1);
    let send = |on| {
        let middleware = SlotMiddleware::new(slots.clone()).timings(on);
        let client = chain([Arc::new(middleware), Arc::new(Script::default())]);
        async move { client.execute(get("http://a.test/")).await.unwrap() }
    };
    assert!(send(false).await.extensions().get::<SlotTimings>().is_none());
    assert_eq!(send(true).await.extensions().get::<SlotTimings>().unwrap().slot().as_str(), "a.test");
}

/// B4: the permit is in the response's extensions, and outlives the body.
#[tokio::test]
async fn upgrade_takes_the_permit_along() {
    let addr = serve(|request| async {
        tokio::spawn(hyper::upgrade::on(request));
        let mut answer = answer(Empty::new());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        answer.headers_mut().insert(UPGRADE, HeaderValue::from_static("echo"));
        Ok(answer)
    })
    .await;
    let slots = slots(1);
    let client = real(&slots, client().build().unwrap());
    let request = client.get(format!("http://{addr}/")).header(CONNECTION, "upgrade").header(UPGRADE, "echo");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let permit = response.extensions().get::<UpgradePermit>().unwrap().clone();
    let upgraded = response.upgrade().await.unwrap();
    assert_eq!(in_flight(&slots), 1);
    drop(permit.take().unwrap());
    assert_eq!(in_flight(&slots), 0);
    drop(upgraded);
}

/// S3.
#[tokio::test]
async fn refusal_is_one_downcast_away() {
    let slots = Slots::new(SlotConfig::builder().concurrency(1).queue_capacity(0).build().unwrap());
    let client = chain([Arc::new(SlotMiddleware::new(slots.clone())), Arc::new(Script::default())]);
    let _permit = slots.try_acquire("a.test").unwrap();
    let error = client.execute(get("http://a.test/")).await.unwrap_err();
    assert_eq!(refusal(&error).unwrap().kind(), SlotErrorKind::QueueFull);
    assert_eq!(refusal(&error).unwrap().slot().as_str(), "a.test");
}

/// S2, Q1: shared with a tower stack, first in, first out.
#[tokio::test]
async fn slots_are_shared_with_a_tower_stack() {
    let slots = slots(1);
    let client = chain([Arc::new(SlotMiddleware::new(slots.clone())), Arc::new(Script::default())]);
    let (feed, body) = Fed::new(None);
    let body = Mutex::new(Some(body));
    let mut tower = ServiceBuilder::new().layer(SlotLayer::with_slots(slots.clone())).service(service_fn(
        |_: http::Request<()>| {
            std::future::ready(Ok::<_, BoxError>(http::Response::new(body.lock().unwrap().take().unwrap())))
        },
    ));
    let request = http::Request::get("http://a.test/").body(()).unwrap();
    let response = assert_ready_ok!(spawn(tower.call(request)).poll());
    let mut second = spawn(client.execute(get("http://a.test/")));
    assert_pending!(second.poll());
    drop(feed);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "");
    assert!(second.is_woken());
    assert_ready_ok!(second.poll());
}

/// B2, case 6: an error, a panic, and a future dropped in the queue and while the chain runs.
#[tokio::test]
async fn permit_is_back_whatever_happens_to_the_request() {
    let slots = slots(1);
    let with = |end: Arc<dyn Middleware>| chain([Arc::new(SlotMiddleware::new(slots.clone())), end]);
    let counts = || {
        let stats = slots.stats("a.test").unwrap();
        let counts = stats.counts;
        (stats.in_flight, counts.failed, counts.cancelled, counts.gone)
    };
    let url = "http://a.test/";

    let script = Script::default().then(Err(Error::middleware(std::io::Error::other("fails"))));
    let error = with(Arc::new(script)).execute(get(url)).await.unwrap_err();
    assert_eq!(error.to_string(), "fails");
    assert_eq!(counts(), (0, 1, 0, 0));

    let panics = with(Arc::new(Panics));
    tokio::spawn(async move { panics.execute(get(url)).await }).await.unwrap_err();
    assert_eq!(counts(), (0, 2, 0, 0));

    let never = with(Arc::new(Never));
    let mut first = spawn(never.execute(get(url)));
    assert_pending!(first.poll());
    let mut second = spawn(never.execute(get(url)));
    assert_pending!(second.poll());
    assert_eq!(counts(), (1, 2, 0, 0));
    drop(second);
    assert_eq!(counts(), (1, 2, 0, 1));
    drop(first);
    assert_eq!(counts(), (0, 2, 1, 1));
}

/// S4, K3: each hop takes its own slot when the redirect is followed outside; all take the explicit one.
#[tokio::test]
async fn each_hop_takes_its_own_slot_when_a_middleware_outside_follows() {
    let addr = serve(|request| async move {
        let port = request.headers()[HOST].to_str()?.split_once(':').unwrap().1;
        let mut answer = answer(Full::new(Bytes::from(vec![b'x'; 100_000])));
        let to = match request.uri().path() {
            "/" => format!("http://b.test:{port}/again"),
            "/again" => "/end".to_owned(),
            _ => return Ok(answer),
        };
        *answer.status_mut() = StatusCode::FOUND;
        answer.headers_mut().insert(LOCATION, to.parse()?);
        Ok(answer)
    })
    .await;
    for (key, expected) in [(None, vec![("a.test", 1), ("b.test", 2)]), (Some("own"), vec![("own", 3)])] {
        let slots = slots(1);
        let client = client().redirect(reqwest::redirect::Policy::none());
        let client = client.resolve("a.test", addr).resolve("b.test", addr).build().unwrap();
        let client = ClientBuilder::new(client).with(Follow).with(SlotMiddleware::new(slots.clone())).build();
        let mut extensions = Extensions::new();
        key.map(|key| extensions.insert(SlotKey::new(key)));
        let request = get(&format!("http://a.test:{}/", addr.port()));
        let response = client.execute_with_extensions(request, &mut extensions).await.unwrap();
        assert_eq!(response.url().as_str(), format!("http://b.test:{}/end", addr.port()));
        assert_eq!(response.bytes().await.unwrap().len(), 100_000);
        let snapshot = slots.snapshot();
        let started: Vec<_> = snapshot.slots.iter().map(|s| (s.key.as_str(), s.counts.started)).collect();
        assert_eq!(started, expected);
    }
}
