//! The layer on the requests of an axum server: one limit for all routes and connections, per tenant, per host or per
//! peer; refusals that are responses; and a shutdown that waits for the last body.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/net.rs"]
mod net;

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use axum::routing::{MethodRouter, get};
use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use http::{Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_http::cors::CorsLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::validate_request::ValidateRequestHeaderLayer;
use tower_slot::{
    BoxError, PeerKey, RejectWith, SlotConfig, SlotConfigBuilder, SlotError, SlotKey, SlotLayer, SlotLimits,
    service_unavailable, too_many_requests,
};

use self::net::{
    Client, Exchanges, Page, Server, Wire, assert_free, in_flight, stats, trailers, until, waiting,
};

type TestResult = Result<(), BoxError>;

/// A gate that bodies wait at.
#[derive(Clone)]
struct Gate(watch::Receiver<bool>);

impl Gate {
    fn new() -> (watch::Sender<bool>, Self) {
        let (opens, gate) = watch::channel(false);
        (opens, Self(gate))
    }

    /// A page that ends when the gate opens.
    async fn page(State(Self(mut gate)): State<Self>) -> Body {
        let opened = async move { drop(gate.wait_for(|is_open| *is_open).await) };
        Body::new(Page::chunked().data("begun").when(opened))
    }
}

/// `axum::serve`, with the address of the peer.
async fn serve(app: Router) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    (address, tokio::spawn(async move { axum::serve(listener, app).await.unwrap() }))
}

fn request(address: SocketAddr, host: &str) -> Request<Full<Bytes>> {
    Request::get(format!("http://{host}:{}/", address.port())).body(Full::default()).unwrap()
}

/// Sends a request that a full slot refuses, and returns the answer's status and `Retry-After`.
async fn refused(client: &Client, request: Request<Full<Bytes>>) -> (u16, String) {
    let response = client.request(request).await.unwrap();
    let status = response.status().as_u16();
    let after = response.headers()[header::RETRY_AFTER].to_str().unwrap().to_owned();
    assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty());
    (status, after)
}

// --- one limit

type OneLimit = SlotLayer<fn(&Request<Body>) -> SlotKey, RejectWith<fn(SlotError) -> Response<Body>>>;

/// Puts the layer somewhere.
type Place<'a> = &'a dyn Fn(MethodRouter, OneLimit) -> Router;

fn one(_: &Request<Body>) -> SlotKey {
    SlotKey::from("one")
}

/// S2, case 39.
#[tokio::test]
async fn three_routes_and_twenty_connections_share_one_limit() {
    let routes = |page: MethodRouter| {
        Router::new().route("/a", page.clone()).route("/b", page.clone()).route("/c", page)
    };
    let placed: [(&str, Place<'_>); 3] = [
        ("Router::layer", &|page, layer| routes(page).layer(layer)),
        ("Router::route_layer", &|page, layer| routes(page).route_layer(layer)),
        ("MethodRouter::layer", &|page, layer| routes(page.layer(layer))),
    ];
    for (name, place) in placed {
        for wire in Wire::PLAIN {
            let exchanges = Exchanges::default();
            let (begun, ids) = (exchanges.clone(), Arc::new(AtomicU64::new(0)));
            let page = get(move || {
                let exchange = begun.begin(ids.fetch_add(1, Ordering::Relaxed));
                async { Body::new(Page::sized().pause(Duration::from_millis(5)).data("fine").of(exchange)) }
            });
            let config = SlotConfig::builder().concurrency(3).build().unwrap();
            let layer: OneLimit =
                SlotLayer::new(config).key_extractor(one as _).reject_with(too_many_requests as _);
            let slots = layer.slots().clone();

            let server = Server::start(wire, place(page, layer)).await;
            let clients: Vec<_> = (0..20).map(|_| server.client()).collect();
            let answers = clients.iter().enumerate().map(async |(n, client)| {
                let response = client.request(server.get("a.test", ["/a", "/b", "/c"][n % 3])).await.unwrap();
                response.into_body().collect().await.unwrap().to_bytes()
            });
            assert!(join_all(answers).await.iter().all(|body| body == "fine"), "{name} {wire:?}");
            assert_eq!(server.connections(), 20, "{name} {wire:?}");
            let seen = (exchanges.served(), exchanges.peak(), exchanges.open());
            assert_eq!(seen, (20, 3, 0), "{name} {wire:?}");
            assert_eq!(stats(&slots, "one").counts.finished, 20, "{name} {wire:?}");
            assert_free(&slots, "one", 3);
        }
    }
}

// --- whose limit

fn tenant(request: &Request<Body>) -> SlotKey {
    let tenant = request.headers().get("x-tenant").and_then(|tenant| tenant.to_str().ok());
    SlotKey::from(tenant.unwrap_or("nobody"))
}

/// K1, S3: each of two who hold their slot is refused another request there; neither stands in the other's way.
#[tokio::test]
async fn a_slot_is_a_tenants_or_a_hosts_or_a_peers() -> TestResult {
    let two = || {
        let config = SlotConfig::builder().concurrency(1).queue_capacity(0).build().unwrap();
        SlotLayer::new(config)
    };
    let (opens, gate) = Gate::new();
    let routes = || Router::new().route("/", get(Gate::page)).with_state(gate.clone());
    let peer = PeerKey::new(|peer: &ConnectInfo<SocketAddr>| peer.0);

    for wire in Wire::PLAIN {
        let (by_tenant, by_host, by_peer) = (two(), two(), two());
        let apps = [
            (
                by_tenant.slots().clone(),
                "t1",
                "t2",
                routes().layer(by_tenant.key_extractor(tenant).reject_with(too_many_requests)),
            ),
            (
                by_host.slots().clone(),
                "a.test",
                "b.test",
                routes().layer(by_host.reject_with(too_many_requests)),
            ),
            (
                by_peer.slots().clone(),
                "127.0.0.2",
                "127.0.0.3",
                routes().layer(by_peer.key_extractor(peer.clone()).reject_with(too_many_requests)),
            ),
        ];
        for (slots, first, second, app) in apps {
            let (address, server) = serve(app).await;
            let send = |name: &str| {
                let from = name.parse().unwrap_or(Ipv4Addr::LOCALHOST);
                let host = if name.ends_with(".test") { name } else { "c.test" };
                let mut request = request(address, host);
                request.headers_mut().insert("x-tenant", name.parse().unwrap());
                // Headers that anybody can set name no slot.
                request.headers_mut().insert("x-forwarded-host", "d.test".parse().unwrap());
                (net::client_from(from, wire, address), request)
            };
            let mut held = Vec::new();
            for name in [first, second] {
                let (client, request) = send(name);
                let mut body = client.request(request).await?.into_body();
                assert_eq!(body.frame().await.unwrap()?.into_data().unwrap(), "begun");
                held.push(body);
            }
            for name in [first, second] {
                let (client, request) = send(name);
                assert_eq!(refused(&client, request).await, (429, "1".to_owned()), "{name} {wire:?}");
                assert_eq!(in_flight(&slots, name), 1, "{name} {wire:?}");
            }
            let keys: Vec<_> = slots.snapshot().slots.into_iter().map(|slot| slot.key.to_string()).collect();
            assert_eq!(keys, [first, second], "{wire:?}");
            server.abort();
        }
    }
    drop(opens);
    Ok(())
}

// --- refusals

/// A status and a `Retry-After`.
type Refusal = (u16, &'static str);

/// Why a server with a request in flight refuses a second one, and how either responder says so.
fn refusals() -> Vec<(&'static str, SlotConfigBuilder, [Refusal; 2])> {
    let config = || SlotConfig::builder().concurrency(1).queue_capacity(0);
    let long = Duration::from_millis(1_500);
    vec![
        ("queue full, concurrency", config(), [(429, "1"), (503, "1")]),
        ("queue full, pace", config().concurrency(2).delay(long), [(429, "2"), (503, "2")]),
        ("queue full, total", config().concurrency(2).total_concurrency(1), [(503, "1"), (503, "1")]),
        (
            "wait timeout",
            config().unbounded_queue().wait_timeout(Duration::from_millis(20)),
            [(429, "1"), (503, "1")],
        ),
        (
            "wait timeout, total",
            config()
                .unbounded_queue()
                .concurrency(2)
                .total_concurrency(1)
                .wait_timeout(Duration::from_millis(20)),
            [(503, "1"), (503, "1")],
        ),
        (
            "wait timeout, pace",
            config()
                .unbounded_queue()
                .concurrency(2)
                .delay(Duration::from_secs(2))
                .wait_timeout(Duration::from_millis(20)),
            [(429, "2"), (503, "2")],
        ),
        ("too many slots", config().max_slots(1), [(503, "1"), (503, "1")]),
        ("closed", config(), [(503, "1"), (503, "1")]),
    ]
}

/// S3, case 39: `Retry-After` is rounded up and at least 1; the status says whose fault it is.
#[tokio::test]
async fn refusals_are_responses_with_the_time_to_come_back() -> TestResult {
    let (_opens, gate) = Gate::new();
    let routes = || Router::new().route("/", get(Gate::page)).with_state(gate.clone());
    for (index, _) in [429, 503].into_iter().enumerate() {
        for (name, config, expected) in refusals() {
            let layer = SlotLayer::new(config.build()?);
            let slots = layer.slots().clone();
            let app = match index {
                0 => routes().layer(layer.reject_with(too_many_requests)),
                _ => routes().layer(layer.reject_with(service_unavailable)),
            };
            let (address, server) = serve(app).await;
            let client = net::client(Wire::Http1, address);
            let held = client.request(request(address, "a.test")).await?;
            if name == "closed" {
                slots.close();
            }
            let host = if name == "too many slots" { "b.test" } else { "a.test" };
            let (status, after) = refused(&client, request(address, host)).await;
            assert_eq!((status, after.as_str()), expected[index], "{name}");
            drop(held);
            server.abort();
        }
    }
    Ok(())
}

/// S3: `Infallible` stays `Infallible`, so no layer is needed to handle errors; and a closure may say more than the
/// responder that it starts from.
#[tokio::test]
async fn a_closure_may_answer_and_errors_stay_infallible() -> TestResult {
    fn infallible<S: Service<Request<Body>, Error = Infallible>>(service: S) -> S {
        service
    }
    let config =
        SlotConfig::builder().slot("a.test", SlotLimits::new().concurrency(1).queue_capacity(0)).build()?;
    let answer = |error: SlotError| {
        let body = Body::from(error.to_string());
        too_many_requests::<()>(error).map(|()| body)
    };
    let layer = SlotLayer::new(config).reject_with(answer);
    let app: Router = Router::new().route("/", get(async || "fine"));
    let service = infallible(layer.layer(app));
    let _permit = layer.slots().try_acquire("a.test")?;
    let response = service.oneshot(Request::get("http://a.test/").body(Body::empty())?).await?;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    let text = response.into_body().collect().await?.to_bytes();
    assert!(text.starts_with(b"slot \"a.test\": queue is full"), "{text:?}");
    Ok(())
}

// --- bodies

/// B3, case 40: what a client reads off the wire, header by header.
#[tokio::test]
async fn lengths_are_told_as_without_the_layer() -> TestResult {
    let config = SlotConfig::builder().build()?;
    let app = Router::new()
        .route("/", get(async || "12345"))
        .route("/none", get(async || StatusCode::NO_CONTENT))
        .layer(SlotLayer::new(config).reject_with(too_many_requests));
    let (address, server) = serve(app).await;
    for (method, body) in [("GET", "12345"), ("HEAD", "")] {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("{method} / HTTP/1.1\r\nhost: a.test\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, rest) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("\r\ncontent-length: 5"), "{method}: {head}");
        assert!(!head.contains("transfer-encoding"), "{method}: {head}");
        assert_eq!(rest, body, "{method}");
    }
    let client = net::client(Wire::Http2, address);
    for method in [Method::GET, Method::HEAD] {
        let mut request = request(address, "a.test");
        *request.method_mut() = method.clone();
        let response = client.request(request).await?;
        assert_eq!(response.headers()[header::CONTENT_LENGTH], "5", "{method}");
    }
    // The server says with the headers that nothing follows.
    let uri = format!("http://a.test:{}/none", address.port());
    let response = client.request(Request::get(uri).body(Full::default())?).await?;
    assert!(response.body().is_end_stream());
    server.abort();
    Ok(())
}

/// B3, case 41, from the server's side.
#[tokio::test]
async fn trailers_and_empty_frames_leave_the_server() -> TestResult {
    let page = async || {
        let body = Body::new(Page::chunked().data("one").data("").data("two").trailers());
        ([(header::TRAILER, "x-checked")], body)
    };
    let layer = SlotLayer::new(SlotConfig::default());
    let slots = layer.slots().clone();
    let app = Router::new().route("/", get(page)).layer(layer.reject_with(too_many_requests));
    let (address, server) = serve(app).await;
    for wire in Wire::PLAIN {
        let mut request = request(address, "a.test");
        request.headers_mut().insert(header::TE, "trailers".parse()?);
        let body = net::client(wire, address).request(request).await?.into_body().collect().await?;
        assert_eq!(body.trailers(), Some(&trailers()), "{wire:?}");
        assert_eq!(body.to_bytes(), "onetwo", "{wire:?}");
    }
    until("both are over", || in_flight(&slots, "a.test") == 0).await;
    assert_eq!(stats(&slots, "a.test").counts.finished, 2);
    server.abort();
    Ok(())
}

/// S3, case 43: these layers make a body by `Default` when they answer in the service's stead.
#[tokio::test]
async fn layers_that_need_a_default_body_stand_outside() -> TestResult {
    let config = SlotConfig::builder().concurrency(1).build()?;
    let layer = SlotLayer::new(config).reject_with(too_many_requests);
    let slots = layer.slots().clone();
    let (_opens, gate) = Gate::new();
    let layers = ServiceBuilder::new()
        .layer(CorsLayer::permissive())
        .layer(ValidateRequestHeaderLayer::accept("text/plain"))
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_millis(50)))
        .layer(layer);
    let app = Router::new().route("/", get(Gate::page)).with_state(gate).layer(layers);
    let server = Server::start(Wire::Http1, app).await;
    let send = async |method: Method, accept: &str| {
        let mut request = server.get("a.test", "/");
        *request.method_mut() = method;
        let headers = request.headers_mut();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        headers.insert(header::ORIGIN, "http://c.test".parse().unwrap());
        headers.insert(header::ACCESS_CONTROL_REQUEST_METHOD, "GET".parse().unwrap());
        server.client().request(request).await
    };
    assert_eq!(send(Method::OPTIONS, "text/plain").await?.status(), StatusCode::OK);
    assert_eq!(send(Method::GET, "image/png").await?.status(), StatusCode::NOT_ACCEPTABLE);
    assert!(slots.is_empty(), "neither has reached a slot");
    let held = send(Method::GET, "text/plain").await?;
    assert_eq!(held.status(), StatusCode::OK);
    assert!(held.headers().contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
    assert_eq!(send(Method::GET, "text/plain").await?.status(), StatusCode::GATEWAY_TIMEOUT);
    let slot = stats(&slots, "a.test");
    assert_eq!((slot.in_flight, slot.waiting, slot.counts.gone), (1, 0, 1));
    Ok(())
}

// --- the end

/// V3: who is in flight finishes, who waits or comes is told so, and then the server ends.
#[tokio::test]
async fn a_graceful_shutdown_waits_for_the_last_body() -> TestResult {
    for wire in Wire::PLAIN {
        let layer = SlotLayer::new(SlotConfig::builder().concurrency(2).build()?);
        let slots = layer.slots().clone();
        let (opens, gate) = Gate::new();
        let app = Router::new()
            .route("/", get(Gate::page))
            .with_state(gate)
            .layer(layer.reject_with(too_many_requests));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (stop, closing) = (Arc::new(Notify::new()), slots.clone());
        let stopped = stop.clone();
        let server = tokio::spawn(async move {
            let drained = async move {
                stopped.notified().await;
                closing.close();
                // Newcomers are told to come back later for as long as there is somebody to wait for.
                closing.drained().await;
            };
            axum::serve(listener, app).with_graceful_shutdown(drained).await.unwrap();
        });

        let client = net::client(wire, address);
        let held = try_join_all((0..2).map(|_| client.request(request(address, "a.test")))).await?;
        let waiter = tokio::spawn({
            let client = client.clone();
            async move { refused(&client, request(address, "a.test")).await }
        });
        until("the third waits", || waiting(&slots, "a.test") == 1).await;
        stop.notify_one();
        assert_eq!(waiter.await?, (503, "1".to_owned()), "{wire:?}");
        assert_eq!(refused(&client, request(address, "b.test")).await, (503, "1".to_owned()), "{wire:?}");
        assert_eq!(in_flight(&slots, "a.test"), 2, "{wire:?}");
        assert!(!server.is_finished(), "{wire:?}");

        opens.send(true)?;
        for held in held {
            assert_eq!(held.into_body().collect().await?.to_bytes(), "begun", "{wire:?}");
        }
        slots.drained().await;
        server.await?;
        assert_eq!(stats(&slots, "a.test").counts.finished, 2, "{wire:?}");
        assert!(client.request(request(address, "a.test")).await.is_err(), "{wire:?}");
    }
    Ok(())
}
