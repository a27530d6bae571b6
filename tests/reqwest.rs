//! `reqwest::Client` as the inner service: what its responses tell, bodies that keep the permit, and bad servers.

#![allow(clippy::unwrap_used)]

mod loopback;

use bytes::Bytes;
use http::header::{HOST, LOCATION};
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use loopback::{BoxError, answer, bad, client, in_flight, serve, slots, storm, whole};
use reqwest::redirect::Policy;
use reqwest::{Body, Client, Response};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::follow_redirect::FollowRedirectLayer;
use tower_slot::reqwest::{ReqwestFuture, ReqwestService};
use tower_slot::{SlotError, SlotKey, SlotLayer, SlotService, Slots};

type Stack = SlotService<ReqwestService<Client>>;

fn stack(slots: &Slots, client: Client) -> Stack {
    SlotLayer::with_slots(slots.clone()).layer(ReqwestService::new(client))
}

async fn send<S, B>(stack: &S, request: reqwest::Request) -> Result<Response, BoxError>
where
    S: Service<Request<Body>, Response = http::Response<B>, Error = BoxError> + Clone,
    Body: From<B>,
{
    let mut stack = stack.clone();
    let response = stack.ready().await?.call(Request::try_from(request)?).await?;
    Ok(Response::from(response))
}

/// B1, B3, case 42.
#[tokio::test]
async fn response_stays_whole_over_http1() {
    let slots = slots(1);
    let stack = stack(&slots, client().build().unwrap());
    whole::whole(Version::HTTP_11, &slots, |request| send(&stack, request)).await;
}

/// B1, B3, case 42.
#[tokio::test]
async fn response_stays_whole_over_http2() {
    let slots = slots(1);
    let stack = stack(&slots, client().http2_prior_knowledge().build().unwrap());
    whole::whole(Version::HTTP_2, &slots, |request| send(&stack, request)).await;
}

/// B1, B5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_exchanges_never_exceed_the_limit_over_http1() {
    let slots = storm::slots();
    let stack = stack(&slots, client().build().unwrap());
    storm::storm(Version::HTTP_11, &slots, move |request| {
        let stack = stack.clone();
        async move { send(&stack, request).await }
    })
    .await;
}

/// B1, B5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_exchanges_never_exceed_the_limit_over_http2() {
    let slots = storm::slots();
    let stack = stack(&slots, client().http2_prior_knowledge().build().unwrap());
    storm::storm(Version::HTTP_2, &slots, move |request| {
        let stack = stack.clone();
        async move { send(&stack, request).await }
    })
    .await;
}

/// B1, B2, S3.
#[tokio::test]
async fn errors_of_bad_servers_reach_the_caller_and_free_the_slot() {
    let slots = slots(1);
    let bare = client().build().unwrap();
    let stack = stack(&slots, bare.clone());
    bad::faults(&slots, &bare, |request| send(&stack, request)).await;
}

/// B2, S3: reqwest takes no request without a scheme.
#[tokio::test]
async fn request_that_reqwest_refuses_gives_the_permit_back() {
    let slots = slots(1);
    let mut stack = stack(&slots, client().build().unwrap());
    let request = Request::get("/a").header(HOST, "a.test").body(Body::default()).unwrap();
    let mut future = spawn(stack.call(request));
    let error = assert_ready_err!(future.poll());
    assert!(error.downcast_ref::<reqwest::Error>().unwrap().is_builder());
    let stats = slots.stats("a.test").unwrap();
    assert_eq!((stats.in_flight, stats.counts.failed), (0, 1));
    assert_pending!(future.poll());
}

/// S3.
#[tokio::test]
async fn refusal_of_the_slot_is_one_downcast_away() {
    let slots = slots(1);
    slots.close();
    let stack = stack(&slots, client().build().unwrap());
    let request = reqwest::Request::new(http::Method::GET, "http://a.test/".parse().unwrap());
    let error = send(&stack, request).await.unwrap_err();
    assert_eq!(error.downcast_ref::<SlotError>().unwrap().slot().as_str(), "a.test");
}

/// S5: a future that has resolved is left alone.
#[test]
fn future_stays_pending_after_it_has_resolved() {
    let answers = service_fn(|_: reqwest::Request| {
        std::future::ready(Ok::<_, reqwest::Error>(Response::from(http::Response::new(""))))
    });
    let mut service = ReqwestService::new(answers);
    let mut future = spawn(service.call(Request::get("http://a.test").body(Body::default()).unwrap()));
    assert_ready_ok!(future.poll());
    assert_pending!(future.poll());
    let mut future = spawn(service.call(Request::get("/").body(Body::default()).unwrap()));
    assert!(assert_ready_err!(future.poll()).is_builder());
    assert_pending!(future.poll());
}

/// S1: readiness is asked of the client itself.
#[test]
fn service_is_ready_when_its_client_is() {
    let answers = service_fn(|_: reqwest::Request| std::future::pending::<reqwest::Result<Response>>());
    let mut service = ReqwestService::new(ConcurrencyLimit::new(answers, 1));
    assert_ready_ok!(spawn(()).enter(|cx, _| service.poll_ready(cx)));
    let call = service.call(Request::get("http://a.test").body(Body::default()).unwrap());
    assert_pending!(spawn(()).enter(|cx, _| service.poll_ready(cx)));
    drop(call);
    assert_ready_ok!(spawn(()).enter(|cx, _| service.poll_ready(cx)));
}

/// S5: no named type takes away what the client's own future is.
#[test]
fn future_and_service_are_send_and_sync() {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<ReqwestService>();
    is_send_and_sync::<<ReqwestService as Service<Request<Body>>>::Future>();
    is_send_and_sync::<ReqwestFuture<std::future::Ready<()>>>();
}

/// K3, S1: what a request says arrives, and its key is not written into it.
#[tokio::test]
async fn request_arrives_whole() {
    let addr = serve(|request| async {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let said = format!("{} {} {:?} {body:?}", parts.method, parts.uri, parts.headers["x-a"]);
        Ok(answer(Full::new(Bytes::from(said))))
    })
    .await;
    let slots = slots(1);
    let mut stack = stack(&slots, client().build().unwrap());
    let request = Request::put(format!("http://{addr}/a?b=c")).header("x-a", "1");
    let request = request.extension(SlotKey::new("own")).body(Body::from("body")).unwrap();
    let response = Response::from(stack.call(request).await.unwrap());
    assert_eq!(response.text().await.unwrap(), "PUT /a?b=c \"1\" b\"body\"");
    assert_eq!(slots.stats("own").unwrap().counts.finished, 1);
    assert_eq!(slots.len(), 1);
}

/// A server whose `/` redirects to another host, with a body that nobody reads, and the client that knows both.
async fn two_hosts(policy: Policy) -> (u16, Client) {
    let addr = serve(|request| async move {
        let mut answer = answer(Full::new(Bytes::from(vec![b'x'; 100_000])));
        let port = request.headers()[HOST].to_str()?.split_once(':').unwrap().1;
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
    let client = client().redirect(policy).resolve("a.test", addr).resolve("b.test", addr);
    (addr.port(), client.build().unwrap())
}

fn started(slots: &Slots) -> Vec<(String, u64)> {
    slots.snapshot().slots.iter().map(|slot| (slot.key.to_string(), slot.counts.started)).collect()
}

/// S4: redirects inside.
#[tokio::test]
async fn redirects_that_reqwest_follows_are_one_request() {
    let (port, client) = two_hosts(Policy::default()).await;
    let slots = slots(1);
    let url = format!("http://a.test:{port}/").parse().unwrap();
    let stack = stack(&slots, client);
    let response = send(&stack, reqwest::Request::new(http::Method::GET, url)).await.unwrap();
    assert_eq!(response.url().as_str(), format!("http://b.test:{port}/end"));
    assert_eq!(in_flight(&slots), 0);
    assert_eq!(slots.stats("a.test").unwrap().in_flight, 1);
    drop(response);
    assert_eq!(started(&slots), [("a.test".to_owned(), 1)]);
}

/// S4, K3, case 31: redirects outside.
#[tokio::test]
async fn each_hop_takes_its_own_slot_when_the_redirect_is_followed_outside() {
    let (port, client) = two_hosts(Policy::none()).await;
    let slots = slots(1);
    let stack = ServiceBuilder::new()
        .layer(FollowRedirectLayer::new())
        .layer(SlotLayer::with_slots(slots.clone()))
        .service(ReqwestService::new(client));
    let url = format!("http://a.test:{port}/").parse().unwrap();
    let response = send(&stack, reqwest::Request::new(http::Method::GET, url)).await.unwrap();
    assert_eq!(response.url().as_str(), format!("http://b.test:{port}/end"));
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(slots.stats("b.test").unwrap().in_flight, 1);
    assert_eq!(response.bytes().await.unwrap().len(), 100_000);
    assert_eq!(started(&slots), [("a.test".to_owned(), 1), ("b.test".to_owned(), 2)]);
    assert_eq!(slots.snapshot().total.in_flight, 0);
}
