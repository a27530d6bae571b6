//! Other layers, inside and outside of the slot layer.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, Sleep, advance, sleep, timeout};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};
use tower::buffer::Buffer;
use tower::limit::ConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::retry::{Policy, RetryLayer};
use tower::timeout::TimeoutLayer;
use tower::timeout::error::Elapsed;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_http::cors::CorsLayer;
use tower_http::decompression::DecompressionLayer;
use tower_http::follow_redirect::policy::{Limited, Standard};
use tower_http::follow_redirect::{FollowRedirectLayer, RequestUri};
use tower_http::set_header::{SetRequestHeaderLayer, SetResponseHeaderLayer};
use tower_http::timeout::{ResponseBodyTimeoutLayer, TimeoutLayer as StatusTimeoutLayer};
use tower_http::trace::TraceLayer;
use tower_http::validate_request::ValidateRequestHeaderLayer;
use tower_slot::{BoxError, Hold, SlotConfig, SlotError, SlotErrorKind, SlotKey, SlotService, Slots};

use self::support::{
    Act, Answer, Answered, Broken, Inner, Script, comes, counts, ended, get, in_flight, layer, planned,
    waiting,
};

const SECOND: Duration = Duration::from_secs(1);

// --- limits inside, back-pressure outside

/// S1, case 12: five requests wait in one slot and hold nothing of what is inside.
#[tokio::test(start_paused = true)]
async fn those_who_wait_do_not_use_up_a_limit_of_the_inner_service() {
    async fn check<S, E>(inner: S)
    where
        S: Service<Request<()>, Response = Response<Script>, Error = E> + Clone,
        E: Into<BoxError>,
    {
        let layer = layer(SlotConfig::builder().concurrency(1));
        let mut client = layer.layer(inner);
        let held = layer.slots().try_acquire("a.test").unwrap();
        let mut calls: Vec<_> = (0..5).map(|_| spawn(client.call(get("a.test")))).collect();
        calls.iter_mut().for_each(|call| assert!(call.poll().is_pending()));
        let start = Instant::now();
        let other = timeout(SECOND, client.clone().oneshot(get("b.test"))).await;
        assert!(other.is_ok_and(|response| response.is_ok()));
        assert_eq!((start.elapsed(), waiting(layer.slots(), "a.test")), (Duration::ZERO, 5));
        drop(held);
        for call in calls {
            assert!(timeout(SECOND, call).await.is_ok_and(|response| response.is_ok()));
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
    check(ConcurrencyLimitLayer::new(3).layer(Inner::new())).await;
    check(Buffer::new(Inner::new(), 1)).await;
}

/// S1: a `LoadShed` outside sees no back-pressure; the queue's bound is the slot's own.
#[test]
fn a_load_shed_outside_sheds_nothing_and_the_queue_has_its_own_bound() {
    let layer = layer(SlotConfig::builder().concurrency(1).queue_capacity(1));
    let mut client = LoadShedLayer::new().layer(layer.layer(Inner::new()));
    let held = layer.slots().try_acquire("a.test").unwrap();
    let mut calls: Vec<_> = (0..2)
        .map(|_| {
            assert_ready_ok!(spawn(ServiceExt::<Request<()>>::ready(&mut client)).poll());
            spawn(client.call(get("a.test")))
        })
        .collect();
    assert_pending!(calls[0].poll());
    let error = assert_ready_err!(calls[1].poll());
    assert_eq!(error.downcast_ref::<SlotError>().unwrap().kind(), SlotErrorKind::QueueFull);
    drop(held);
    assert_ready_ok!(calls[0].poll());
}

/// S1, case 11.
#[tokio::test(start_paused = true)]
async fn call_all_runs_through_a_slot_one_by_one() {
    let layer = layer(SlotConfig::builder().concurrency(1));
    let requests = (1..=3).map(|n| planned("a.test", Answer::ok(Script::default()).after(n * SECOND)));
    let client = layer.layer(Inner::new());
    let start = Instant::now();
    let mut responses = client.call_all(futures_util::stream::iter(requests)).unordered();
    let mut answered = Vec::new();
    while let Some(response) = comes(futures_util::StreamExt::next(&mut responses)).await {
        response.unwrap();
        answered.push(start.elapsed());
    }
    assert_eq!(answered, [SECOND, 3 * SECOND, 6 * SECOND]);
}

// --- timeouts

/// S4, case 37: a timeout outside counts the wait, and takes the waiter out of the queue.
#[tokio::test(start_paused = true)]
async fn a_timeout_outside_counts_the_wait_and_takes_the_waiter_out_of_the_queue() {
    for (takes, in_time, answered) in [(1, true, 7), (3, false, 8)] {
        let (layer, inner) = (layer(SlotConfig::builder().concurrency(1)), Inner::new());
        let slots = layer.slots();
        let client =
            ServiceBuilder::new().layer(TimeoutLayer::new(5 * SECOND)).layer(&layer).service(inner.clone());
        let start = Instant::now();
        let held = slots.try_acquire("a.test").unwrap();
        let mut late = spawn(client.clone().oneshot(get("a.test")));
        assert_pending!(late.poll());
        advance(3 * SECOND).await;
        let mut next = spawn(
            client.clone().oneshot(planned("a.test", Answer::ok(Script::default()).after(takes * SECOND))),
        );
        assert_pending!(next.poll());
        advance(2 * SECOND).await;
        assert!(late.is_woken());
        assert!(assert_ready_err!(late.poll()).is::<Elapsed>());
        drop(late);
        assert_eq!((waiting(slots, "a.test"), counts(slots, "a.test").gone), (1, 1));
        advance(SECOND).await;
        drop(held);
        assert!(next.is_woken());
        // It has waited for 3 s, so there are 2 s left to answer.
        let response: Result<Answered, _> = comes(next).await;
        assert_eq!((response.is_ok(), start.elapsed()), (in_time, answered * SECOND));
        if let Err(error) = response {
            assert!(error.is::<Elapsed>());
        }
        let outcome = if in_time { [2, 0, 0] } else { [1, 0, 1] };
        assert_eq!((inner.called_at(start), ended(slots, "a.test")), (vec![6 * SECOND], outcome));
    }
}

/// S4, case 37: inside it runs from the start.
#[tokio::test(start_paused = true)]
async fn a_timeout_inside_does_not_count_the_wait() {
    let (layer, inner) = (layer(SlotConfig::builder().concurrency(1)), Inner::new());
    let slots = layer.slots();
    let client =
        ServiceBuilder::new().layer(&layer).layer(TimeoutLayer::new(5 * SECOND)).service(inner.clone());
    let start = Instant::now();
    let held = slots.try_acquire("a.test").unwrap();
    let answers = [4, 6].map(|time| planned("a.test", Answer::ok(Script::default()).after(time * SECOND)));
    let [mut fast, mut slow] = answers.map(|request| spawn(client.clone().oneshot(request)));
    assert_pending!(fast.poll());
    assert_pending!(slow.poll());
    advance(20 * SECOND).await;
    drop(held);
    assert!(comes(fast).await.is_ok());
    assert_eq!(start.elapsed(), 24 * SECOND);
    assert!(comes(slow).await.unwrap_err().is::<Elapsed>());
    assert_eq!(start.elapsed(), 29 * SECOND);
    assert_eq!(inner.called_at(start), [20 * SECOND, 24 * SECOND]);
    assert_eq!(ended(slots, "a.test"), [2, 1, 0]);
}

/// S4, cases 37 and 43: one that answers with a status needs a `Default` body.
#[tokio::test(start_paused = true)]
async fn a_timeout_that_answers_with_a_status_composes_on_the_outside() {
    let layer = layer(SlotConfig::builder().concurrency(1));
    let client = ServiceBuilder::new()
        .layer(StatusTimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, 5 * SECOND))
        .layer(&layer)
        .service(Inner::new());
    let held = layer.slots().try_acquire("a.test").unwrap();
    let start = Instant::now();
    let response: Answered = comes(client.clone().oneshot(get("a.test"))).await.unwrap();
    assert_eq!((response.status(), start.elapsed()), (StatusCode::REQUEST_TIMEOUT, 5 * SECOND));
    assert!(response.body().is_end_stream());
    assert_eq!((waiting(layer.slots(), "a.test"), counts(layer.slots(), "a.test").gone), (0, 1));
    drop(held);
    let response: Answered = comes(client.oneshot(get("a.test"))).await.unwrap();
    assert_eq!((response.status(), start.elapsed()), (StatusCode::OK, 5 * SECOND));
}

// --- retries

/// Retries whatever went wrong, after a pause.
#[derive(Clone)]
struct Again {
    times: usize,
    pause: Duration,
}

impl<B, E> Policy<Request<()>, Response<B>, E> for Again {
    type Future = Sleep;

    fn retry(&mut self, _: &mut Request<()>, result: &mut Result<Response<B>, E>) -> Option<Sleep> {
        let failed = result.as_ref().map_or(true, |response| response.status().is_server_error());
        self.times = self.times.checked_sub(1).filter(|_| failed)?;
        Some(sleep(self.pause))
    }

    fn clone_request(&mut self, request: &Request<()>) -> Option<Request<()>> {
        Some(request.clone())
    }
}

/// A service that fails twice, by error or by status, with a body that nobody reads, and then answers.
fn flaky(by_status: bool) -> Inner {
    let attempt = AtomicUsize::new(0);
    Inner::answering(move |_| match attempt.fetch_add(1, Ordering::Relaxed) {
        2.. => Answer::ok(Script::default()),
        _ if by_status => Answer::status(StatusCode::BAD_GATEWAY, Script::chunked(&["sorry"])),
        _ => Answer::Error,
    })
}

/// S4, case 38: each attempt takes the slot anew, and the permit is back before the back-off.
#[tokio::test(start_paused = true)]
async fn a_retry_outside_gives_the_slot_back_before_it_backs_off_and_obeys_the_pace() {
    for by_status in [false, true] {
        // The back-off is shorter than the delay, then longer.
        for (pause, starts) in [(SECOND, [0, 10, 20]), (15 * SECOND, [0, 15, 30])] {
            let layer = layer(SlotConfig::builder().concurrency(1).delay(10 * SECOND));
            let (slots, inner) = (layer.slots(), flaky(by_status));
            let retry = RetryLayer::new(Again { times: 2, pause });
            let client = ServiceBuilder::new().layer(retry).layer(&layer).service(inner.clone());
            let start = Instant::now();
            let mut call = spawn(client.oneshot(get("a.test")));
            let mut seen = Vec::new();
            let response = loop {
                match call.poll() {
                    Poll::Ready(response) => break response.unwrap(),
                    Poll::Pending => {
                        // It backs off, or waits in the slot; it never sits on a permit.
                        seen.push(in_flight(slots, "a.test"));
                        assert!(seen.len() <= 30, "it has its answer after 30 s");
                        advance(SECOND).await;
                    }
                }
            };
            assert_eq!(response.status(), StatusCode::OK);
            assert!(seen.len() >= 20 && seen.iter().all(|in_flight| *in_flight == 0), "{seen:?}");
            assert_eq!(inner.called_at(start), starts.map(|start| start * SECOND));
            let outcome = if by_status { [1, 0, 2] } else { [1, 2, 0] };
            assert_eq!(ended(slots, "a.test"), outcome, "by status: {by_status}");
        }
    }
}

/// S4: inside, all attempts share one permit, and the back-off counts as to the headers.
#[tokio::test(start_paused = true)]
async fn a_retry_inside_makes_all_its_attempts_with_one_permit() {
    for by_status in [false, true] {
        let layer = layer(SlotConfig::builder().concurrency(1).delay(10 * SECOND));
        let (slots, inner) = (layer.slots(), flaky(by_status));
        let retry = RetryLayer::new(Again { times: 2, pause: 4 * SECOND });
        let client = ServiceBuilder::new().layer(&layer).layer(retry).service(inner.clone());
        let start = Instant::now();
        let mut call = spawn(client.oneshot(get("a.test")));
        assert_pending!(call.poll());
        assert_eq!(in_flight(slots, "a.test"), 1);
        advance(4 * SECOND).await;
        assert_pending!(call.poll());
        assert_eq!(in_flight(slots, "a.test"), 1);
        advance(4 * SECOND).await;
        assert_ready_ok!(call.poll());
        assert_eq!(inner.called_at(start), [0, 4, 8].map(|start| start * SECOND));
        assert_eq!((counts(slots, "a.test").started, ended(slots, "a.test")), (1, [1, 0, 0]));
        assert_eq!(slots.stats("a.test").unwrap().times.headers, 8 * SECOND);
    }
}

// --- redirects

/// A service that sends `/` on to `to`, with that body, and answers everything else.
fn redirecting(to: &'static str, body: Script) -> Inner {
    Inner::answering(move |parts: &Parts| {
        if parts.uri.path() != "/" {
            return Answer::ok(Script::sized(&["here"]));
        }
        let mut response = Response::new(body.clone());
        *response.status_mut() = StatusCode::FOUND;
        response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(to));
        Answer::Response(response)
    })
}

/// A request with a body that a redirect can send again.
fn fetch(uri: &str, key: Option<&str>) -> Request<Script> {
    let mut request = Request::get(uri).body(Script::default()).unwrap();
    if let Some(key) = key {
        request.extensions_mut().insert(SlotKey::from(key));
    }
    request
}

/// S4, K3, case 31: each hop goes through the slot of its own host, the first one's permit back before.
#[tokio::test(start_paused = true)]
async fn a_redirect_outside_gets_a_slot_per_hop() {
    // Read or not, the first hop's body is dropped.
    for (body, first) in [(Script::default(), [1, 0, 0]), (Script::chunked(&["moved"]), [0, 0, 1])] {
        let layer = layer(SlotConfig::builder().concurrency(1).total_concurrency(1));
        let (slots, inner) = (layer.slots(), redirecting("http://b.test/there", body));
        let client =
            ServiceBuilder::new().layer(FollowRedirectLayer::new()).layer(&layer).service(inner.clone());
        let response = timeout(SECOND, client.oneshot(fetch("http://a.test/", None))).await.unwrap().unwrap();
        assert_eq!(response.extensions().get::<RequestUri>().unwrap().0, "http://b.test/there");
        assert_eq!((in_flight(slots, "a.test"), in_flight(slots, "b.test")), (0, 1));
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "here");
        assert_eq!((ended(slots, "a.test"), ended(slots, "b.test")), (first, [1, 0, 0]));
        let hosts: Vec<_> = inner.called().into_iter().map(|called| (called.host, called.key)).collect();
        assert_eq!(hosts, [("a.test".to_owned(), None), ("b.test".to_owned(), None)]);
    }
}

/// Case 31: limit 1 and unread bytes.
#[tokio::test(start_paused = true)]
async fn a_redirect_to_the_same_host_does_not_wait_for_itself() {
    for body in [Script::default(), Script::sized(&["a", "b"]), Script::chunked(&["a", "b"])] {
        let layer = layer(SlotConfig::builder().concurrency(1).delay(10 * SECOND));
        let inner = redirecting("http://A.test:80/there", body);
        let client =
            ServiceBuilder::new().layer(FollowRedirectLayer::new()).layer(&layer).service(inner.clone());
        let start = Instant::now();
        let call = timeout(60 * SECOND, client.oneshot(fetch("http://a.test/", None)));
        assert!(call.await.unwrap().is_ok());
        // The second hop is a start like any other.
        assert_eq!(inner.called_at(start), [Duration::ZERO, 10 * SECOND]);
        assert_eq!(layer.slots().len(), 1);
    }
}

/// K3, case 31: an explicit key goes where the extensions go.
#[tokio::test(start_paused = true)]
async fn an_explicit_key_follows_the_extensions_through_a_redirect() {
    async fn keys<P>(
        redirects: FollowRedirectLayer<P>,
        to: &'static str,
    ) -> (Vec<Option<SlotKey>>, Vec<String>)
    where
        P: tower_http::follow_redirect::policy::Policy<Script, BoxError> + Clone,
    {
        let layer = layer(SlotConfig::builder().concurrency(1));
        let inner = redirecting(to, Script::chunked(&["moved"]));
        let client = ServiceBuilder::new().layer(redirects).layer(&layer).service(inner.clone());
        let call = client.oneshot(fetch("http://a.test/", Some("mine")));
        assert!(timeout(SECOND, call).await.unwrap().is_ok());
        let slots = layer.slots().snapshot().slots;
        let called = inner.called().into_iter().map(|called| called.key);
        (called.collect(), slots.into_iter().map(|stats| stats.key.to_string()).collect())
    }
    let mine = Some(SlotKey::from("mine"));
    let (same, other) = ("http://a.test/there", "http://b.test/there");
    let standard = FollowRedirectLayer::<Standard>::new();
    let kept = (vec![mine.clone(), mine.clone()], vec!["mine".to_owned()]);
    assert_eq!(keys(standard.clone(), same).await, kept);
    assert_eq!(keys(FollowRedirectLayer::with_policy(Limited::new(3)), other).await, kept);
    // This policy keeps extensions from other origins: the hop is its host's again.
    let lost = (vec![mine.clone(), None], vec!["b.test".to_owned(), "mine".to_owned()]);
    assert_eq!(keys(standard.clone(), other).await, lost);
    assert_eq!(keys(standard.preserve_extensions(false), same).await.0, [mine, None]);
}

// --- tower-http on the outside

/// Case 43, B1: a body goes through whatever is outside, and the permit comes back at its end, while it is kept.
async fn passes<L, B>(name: &str, outside: L)
where
    L: Layer<SlotService<Inner>>,
    L::Service: Service<Request<Script>, Response = Response<B>>,
    B: Body<Data = Bytes>,
{
    let layer = layer(SlotConfig::builder().concurrency(1));
    let slots = layer.slots().clone();
    let script = || Script::chunked(&["one", "two"]).then(Act::Trailers);
    let inner = Inner::answering(move |_| Answer::ok(script()));
    let mut service = outside.layer(layer.layer(inner));
    for round in 1..=2 {
        let request = fetch("http://a.test/", None);
        let call = std::future::poll_fn(|cx: &mut Context<'_>| service.poll_ready(cx)).await;
        assert!(call.is_ok(), "{name}");
        let Ok(Ok(response)) = timeout(SECOND, service.call(request)).await else {
            unreachable!("{name}: no response");
        };
        assert_eq!(response.status(), StatusCode::OK, "{name}");
        let mut body = Box::pin(response.into_body());
        let mut seen = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { unreachable!("{name}: the body has no error") };
            // Only the trailers are the end.
            let is_end = frame.is_trailers();
            assert_eq!(in_flight(&slots, "a.test"), usize::from(!is_end), "{name}");
            seen.push(frame.into_data().unwrap_or_else(|_| "trailers".into()));
        }
        assert_eq!(seen, ["one", "two", "trailers"], "{name}");
        assert_eq!(ended(&slots, "a.test"), [round, 0, 0], "{name}");
    }
}

/// Case 43.
#[tokio::test(start_paused = true)]
async fn layers_of_tower_http_compose_on_the_outside() {
    let timeout = || StatusTimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, 5 * SECOND);
    let set_response =
        || SetResponseHeaderLayer::overriding(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let set_request =
        || SetRequestHeaderLayer::overriding(header::USER_AGENT, HeaderValue::from_static("slots"));
    passes("timeout", timeout()).await;
    passes("body timeout", ResponseBodyTimeoutLayer::new(5 * SECOND)).await;
    passes("cors", CorsLayer::permissive()).await;
    passes("validate", ValidateRequestHeaderLayer::accept("text/plain")).await;
    passes("trace", TraceLayer::new_for_http()).await;
    passes("decompression", DecompressionLayer::new()).await;
    passes("set request header", set_request()).await;
    passes("set response header", set_response()).await;
    passes("redirects", FollowRedirectLayer::<Standard>::new()).await;
    let all = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(CorsLayer::permissive())
        .layer(ValidateRequestHeaderLayer::accept("text/plain"))
        .layer(set_request())
        .layer(set_response())
        .layer(FollowRedirectLayer::<Standard>::new())
        .layer(DecompressionLayer::new())
        .layer(timeout());
    passes("all", all).await;
}

/// Case 43: what they answer themselves has a body without a permit, and takes no slot.
#[tokio::test(start_paused = true)]
async fn an_answer_from_the_outside_takes_no_slot() {
    let layer = layer(SlotConfig::builder().concurrency(1));
    let (slots, inner): (&Slots, _) = (layer.slots(), Inner::new());
    let client = ServiceBuilder::new()
        .layer(CorsLayer::permissive())
        .layer(ValidateRequestHeaderLayer::accept("text/plain"))
        .layer(&layer)
        .service(inner.clone());
    let preflight = Request::options("http://a.test/")
        .header(header::ORIGIN, "http://b.test")
        .header(header::ACCESS_CONTROL_REQUEST_METHOD, "GET")
        .body(())
        .unwrap();
    let response: Answered = client.clone().oneshot(preflight).await.unwrap();
    assert_eq!((response.status(), response.body().is_end_stream()), (StatusCode::OK, true));
    let refused = Request::get("http://a.test/").header(header::ACCEPT, "image/png").body(()).unwrap();
    let refused: Answered = client.oneshot(refused).await.unwrap();
    assert_eq!((refused.status(), refused.body().is_end_stream()), (StatusCode::NOT_ACCEPTABLE, true));
    assert_eq!((slots.len(), inner.calls()), (0, 0));
}

/// `hello hello hello`, with gzip.
const GZIPPED: [u8; 28] = [
    31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 203, 72, 205, 201, 201, 87, 200, 64, 144, 0, 128, 136, 249, 229, 17, 0,
    0, 0,
];

/// Case 43, B1: the end of what is unpacked is the end of the slot's body.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_unpacked_outside_gives_the_permit_back_at_its_end() {
    let layer = layer(SlotConfig::builder().concurrency(1));
    let packed = tower::service_fn(|request: Request<()>| {
        assert!(request.headers()[header::ACCEPT_ENCODING].to_str().unwrap().contains("gzip"));
        let mut response = Response::new(Full::new(Bytes::from_static(&GZIPPED)));
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        std::future::ready(Ok::<_, Broken>(response))
    });
    let client = ServiceBuilder::new().layer(DecompressionLayer::new()).layer(&layer).service(packed);
    let response = client.oneshot(get("a.test")).await.unwrap();
    assert_eq!(in_flight(layer.slots(), "a.test"), 1);
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        text.extend_from_slice(&frame.unwrap().into_data().unwrap());
    }
    assert_eq!(text, b"hello hello hello");
    assert_eq!(ended(layer.slots(), "a.test"), [1, 0, 0]);
    drop(body);
}

/// B4: what is outside may say how long a request is held.
#[test]
fn a_layer_outside_can_say_what_is_held_and_in_which_slot() {
    let layer = layer(SlotConfig::builder());
    let mut client = ServiceBuilder::new()
        .map_request(|mut request: Request<()>| {
            request.extensions_mut().insert(Hold::Headers);
            request.extensions_mut().insert(SlotKey::from("events"));
            request
        })
        .layer(&layer)
        .service(Inner::new());
    let _kept =
        assert_ready_ok!(spawn(client.call(planned("a.test", Answer::ok(Script::chunked(&["x"]))))).poll());
    assert_eq!(ended(layer.slots(), "events"), [1, 0, 0]);
    assert!(layer.slots().stats("a.test").is_none());
}
