//! Peers that break the rules: the error reaches the caller as it is, and the permit is back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/net.rs"]
mod net;

use std::convert::Infallible;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower::timeout::TimeoutLayer;
use tower::timeout::error::Elapsed;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_slot::{BoxError, SlotConfig, SlotError, SlotLayer, Slots, too_many_requests};

use self::net::{Client, Page, Server, Wire, assert_free, chain, in_flight, layer, stats, until};

type TestResult = Result<(), BoxError>;

/// What a server does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Sends what is no answer.
    Garbage,
    /// Resets the connection after the first bytes of the body.
    Reset,
    /// Closes the connection after fewer bytes than it has promised.
    Short,
    /// Does not listen.
    Refused,
    /// Has a certificate that the client does not trust.
    Untrusted,
    /// Does not speak TLS at all.
    NoTls,
}

/// Where an error came up, and what it says.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    NoResponse(Vec<String>),
    /// After so many bytes of the body.
    InBody(usize, Vec<String>),
}

/// The head of an answer of 100 bytes, and the first ten of them.
const PROMISE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n0123456789";

impl Fault {
    const ALL: [Self; 6] =
        [Self::Garbage, Self::Reset, Self::Short, Self::Refused, Self::Untrusted, Self::NoTls];

    /// On which wires it can happen.
    fn wires(self) -> &'static [Wire] {
        match self {
            Self::Garbage | Self::Reset | Self::Short | Self::Refused => &Wire::PLAIN,
            Self::Untrusted | Self::NoTls => &[Wire::Tls1, Wire::Tls2],
        }
    }

    /// A server that does it, once `seen` says that the client has got so far.
    async fn start(self, wire: Wire, seen: Arc<Notify>) -> Server {
        match (self, wire) {
            (Self::Refused, _) => Server::refusing(wire).await,
            (Self::Untrusted, _) => {
                Server::start(wire, service_fn(async |_| Ok::<_, Infallible>(Page::sized().response()))).await
            }
            (Self::Reset | Self::Short, Wire::Http2 | Wire::Tls2) => {
                let handler = service_fn(move |_| {
                    let seen = seen.clone();
                    let page = Page::chunked().data("0123456789").when(async move { seen.notified().await });
                    let mut response =
                        if self == Self::Reset { page.breaking() } else { page.data("") }.response();
                    response.headers_mut().insert(header::CONTENT_LENGTH, "100".parse().unwrap());
                    async { Ok::<_, Infallible>(response) }
                });
                Server::start(wire, handler).await
            }
            _ => {
                Server::raw(wire, move |mut stream| {
                    let seen = seen.clone();
                    async move {
                        let _ = stream.read(&mut [0; 1024]).await;
                        let answer = match self {
                            Self::Garbage | Self::NoTls => {
                                b"\xff\xff\xffthis is no answer\r\n\r\n".as_slice()
                            }
                            _ => PROMISE,
                        };
                        stream.write_all(answer).await.unwrap();
                        match self {
                            Self::Reset => {
                                seen.notified().await;
                                stream.set_zero_linger().unwrap();
                            }
                            Self::Short => {}
                            // Until the client has enough of it.
                            _ => while stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {},
                        }
                    }
                })
                .await
            }
        }
    }
}

/// Sends a request and reads what comes. Whatever is left of the response is handed back.
async fn attempt<S, B>(service: S, request: Request<Full<Bytes>>, seen: &Notify) -> (Seen, Option<B>)
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = legacy::Error>,
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    let mut body = match service.oneshot(request).await {
        Ok(response) => response.into_body(),
        Err(error) => return (Seen::NoResponse(chain(&error)), None),
    };
    let mut read = 0;
    loop {
        match body.frame().await.expect("it does not end well") {
            Ok(frame) => read += frame.data_ref().map_or(0, Bytes::len),
            Err(error) => return (Seen::InBody(read, chain(&error)), Some(body)),
        }
        seen.notify_one();
    }
}

/// Nobody is refused here. (A hyper body cannot be made by hand, so a responder has nothing to make it from.)
fn never(error: SlotError) -> Response<Incoming> {
    panic!("refused: {error}")
}

/// B1, B2, S3: with `reject_with` the error has the client's own type, by what `attempt` asks for, and says the same.
#[tokio::test]
async fn the_error_is_the_clients_own_and_the_permit_is_back() {
    for fault in Fault::ALL {
        for &wire in fault.wires() {
            let seen = Arc::new(Notify::new());
            let server = fault.start(wire, seen.clone()).await;
            let client = || match fault {
                Fault::Untrusted => net::client_trusting(&net::other_certificate(), wire, server.address),
                _ => server.client(),
            };
            let request = || server.get("a.test", "/");
            let (bare, _) = attempt::<Client, Incoming>(client(), request(), &seen).await;

            let layer = layer(SlotConfig::builder().concurrency(1));
            let inside = layer.clone().reject_with(never).layer(client());
            let (layered, kept) = attempt(inside, request(), &seen).await;
            assert_eq!(in_flight(layer.slots(), "a.test"), 0, "{fault:?} {wire:?}: while the body is kept");
            assert_eq!(layered, bare, "{fault:?} {wire:?}");
            assert_eq!(stats(layer.slots(), "a.test").counts.failed, 1, "{fault:?} {wire:?}");
            match fault {
                Fault::Reset | Fault::Short => {
                    assert!(matches!(layered, Seen::InBody(10, _)), "{fault:?} {wire:?}: {layered:?}");
                }
                _ => assert!(matches!(layered, Seen::NoResponse(_)), "{fault:?} {wire:?}: {layered:?}"),
            }
            drop(kept);
            assert_free(layer.slots(), "a.test", 1);
        }
    }
}

/// S3: without it the error is in a box, and one downcast finds it.
#[tokio::test]
async fn a_boxed_error_is_the_clients_own_inside() {
    let server = Server::refusing(Wire::Http1).await;
    let layer = layer(SlotConfig::builder());
    let error = layer.layer(server.client()).oneshot(server.get("a.test", "/")).await.unwrap_err();
    assert!(error.downcast::<legacy::Error>().unwrap().is_connect());
    assert_free(layer.slots(), "a.test", 8);
}

/// B1, S4: a server that stalls costs as much time as the timeout outside gives it, and then nothing.
#[tokio::test]
async fn a_server_that_stalls_gives_the_permit_back_at_the_timeout() -> TestResult {
    let short = Duration::from_millis(50);
    for wire in Wire::PLAIN {
        let server = Server::start(
            wire,
            service_fn(async |request: Request<Incoming>| {
                if request.uri().path() == "/head" {
                    pending::<()>().await;
                }
                Ok::<_, Infallible>(Page::chunked().data("begun").stall().response())
            }),
        )
        .await;
        let layer = layer(SlotConfig::builder().concurrency(1));

        let client = ServiceBuilder::new()
            .layer(TimeoutLayer::new(short))
            .layer(layer.clone())
            .service(server.client());
        let error = client.oneshot(server.get("a.test", "/head")).await.unwrap_err();
        assert!(error.is::<Elapsed>(), "{wire:?}: {error}");
        assert_eq!(stats(layer.slots(), "a.test").counts.cancelled, 1, "{wire:?}");
        assert_free(layer.slots(), "a.test", 1);

        let mut body = layer.layer(server.client()).oneshot(server.get("a.test", "/body")).await?.into_body();
        assert_eq!(body.frame().await.unwrap()?.into_data().unwrap(), "begun", "{wire:?}");
        let reading = timeout(short, body.collect());
        assert_eq!(in_flight(layer.slots(), "a.test"), 1, "{wire:?}");
        assert!(reading.await.is_err(), "{wire:?}");
        assert_eq!(stats(layer.slots(), "a.test").counts.cancelled, 2, "{wire:?}");
        assert_free(layer.slots(), "a.test", 1);
    }
    Ok(())
}

// --- the same on a server

/// A server of axum with the layer, limit 1, under a timeout of 50 ms for what is asked of `/impatient`.
async fn axum_server() -> (std::net::SocketAddr, Slots, JoinHandle<()>) {
    let config = SlotConfig::builder().concurrency(1).build().unwrap();
    let layer = SlotLayer::new(config).reject_with(too_many_requests);
    let slots = layer.slots().clone();
    let is_late = tower_http::timeout::TimeoutLayer::with_status_code(
        StatusCode::REQUEST_TIMEOUT,
        Duration::from_millis(50),
    );
    let upload = || post(async |body: Bytes| body.len().to_string());
    let patient = Router::new()
        .route("/upload", upload())
        .route("/stall", get(async || pending::<String>().await))
        .route("/endless", get(async || axum::body::Body::new(Page::chunked().data("begun").stall())))
        .layer(layer.clone());
    let app = patient.merge(Router::new().route("/impatient", upload()).layer(layer).layer(is_late));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (address, slots, tokio::spawn(async move { axum::serve(listener, app).await.unwrap() }))
}

/// What the slot of the host has counted: asked, finished, failed, cancelled.
fn ended(slots: &Slots) -> [u64; 4] {
    let counts = stats(slots, "a.test").counts;
    [counts.asked, counts.finished, counts.failed, counts.cancelled]
}

/// How much has been added since the last look.
fn gained(slots: &Slots, last: &mut [u64; 4]) -> [u64; 4] {
    let before = std::mem::replace(last, ended(slots));
    std::array::from_fn(|index| last[index] - before[index])
}

/// Sends that and waits until one is in flight.
async fn start(address: std::net::SocketAddr, slots: &Slots, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    until("it is in flight", || in_flight(slots, "a.test") == 1).await;
    stream
}

async fn idle(slots: &Slots) {
    until("nobody is in flight", || in_flight(slots, "a.test") == 0).await;
}

const UPLOAD: &str = "POST /upload HTTP/1.1\r\nhost: a.test\r\ncontent-length: 100\r\n\r\n0123456789";

/// B1, S4: whatever a client does wrong, its permit comes back.
#[tokio::test]
async fn clients_that_break_the_rules_leave_the_slot_free() -> TestResult {
    // What is no request reaches no slot.
    let (address, slots, server) = axum_server().await;
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"\x00\x07this is no request\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(slots.is_empty());

    // An upload that is reset in the middle: the handler may or may not have answered before it is dropped.
    let mut last = [0; 4];
    let stream = start(address, &slots, UPLOAD).await;
    stream.set_zero_linger()?;
    drop(stream);
    idle(&slots).await;
    let [asked, finished, failed, cancelled] = gained(&slots, &mut last);
    assert_eq!([asked, finished + cancelled, failed], [1, 1, 0]);

    // One that is shorter than it says, by a client that still listens.
    let mut stream = start(address, &slots, UPLOAD).await;
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    idle(&slots).await;
    assert_eq!(gained(&slots, &mut last), [1, 1, 0, 0]);

    // A client that goes while the handler works, and one that goes in the middle of the answer.
    for path in ["/stall", "/endless"] {
        let stream = start(address, &slots, &format!("GET {path} HTTP/1.1\r\nhost: a.test\r\n\r\n")).await;
        drop(stream);
        idle(&slots).await;
        assert_eq!(gained(&slots, &mut last), [1, 0, 0, 1], "{path}");
    }

    // An upload that stalls for ever, under a timeout outside.
    let mut stream = start(address, &slots, &UPLOAD.replace("upload", "impatient")).await;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await?;
    assert_eq!(&answer, b"HTTP/1.1 408");
    idle(&slots).await;
    assert_eq!(gained(&slots, &mut last), [1, 0, 0, 1]);
    assert_free(&slots, "a.test", 1);
    server.abort();
    Ok(())
}

/// B1: over HTTP/2 a client that drops a stream leaves the others as they are.
#[tokio::test]
async fn streams_that_a_client_drops_leave_the_slot_free() -> TestResult {
    let (address, slots, server) = axum_server().await;
    let client = net::client(Wire::Http2, address);
    let send = |path: &str| -> Box<dyn Future<Output = _> + Send + Unpin> {
        let uri = format!("http://a.test:{}{path}", address.port());
        Box::new(client.request(Request::get(uri).body(Full::default()).unwrap()))
    };
    let stalled = tokio::spawn(send("/stall"));
    until("it is in flight", || in_flight(&slots, "a.test") == 1).await;
    stalled.abort();
    idle(&slots).await;
    assert_eq!(ended(&slots), [1, 0, 0, 1]);

    let mut response = send("/endless").await?;
    assert_eq!(response.body_mut().frame().await.unwrap()?.into_data().unwrap(), "begun");
    assert_eq!(in_flight(&slots, "a.test"), 1);
    drop(response);
    idle(&slots).await;
    assert_free(&slots, "a.test", 1);
    server.abort();
    Ok(())
}
