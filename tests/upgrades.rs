//! Upgrades and endless bodies on real connections: the permit goes where the work goes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/net.rs"]
mod net;

use std::convert::Infallible;
use std::future::{pending, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::sse::{Event, Sse};
use axum::routing::{any, get};
use axum::{Extension, Router};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, stream};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{self, protocol::Role};
use tower::{Layer, ServiceExt, service_fn};
use tower_slot::{BoxError, Hold, SlotConfig, SlotPermit, UpgradePermit, too_many_requests};

use self::net::{Page, Server, Wire, assert_free, in_flight, layer, stats, until, waiting};

type TestResult = Result<(), BoxError>;

/// What becomes of the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// The permit is taken before there is a response.
    InHandler,
    /// It is taken by the task, once the connection is there.
    InTask,
    /// The task keeps the handle and takes nothing.
    Kept,
    /// Nobody wants it.
    Never,
}

/// The two ways of asking for another protocol.
const KINDS: [Method; 2] = [Method::GET, Method::CONNECT];

/// Asks for the protocol `echo`, or for a tunnel.
fn ask(server: &Server, kind: &Method) -> Request<Full<Bytes>> {
    let mut request = server.get("a.test", "/");
    *request.method_mut() = kind.clone();
    if kind == Method::GET {
        request.headers_mut().insert(header::CONNECTION, "upgrade".parse().unwrap());
        request.headers_mut().insert(header::UPGRADE, "echo".parse().unwrap());
    }
    request
}

/// Agrees to what was asked for, and echoes.
fn agree(mut request: Request<Incoming>, taken: Taken) -> Response<Page> {
    let mut handle = request.extensions_mut().remove::<UpgradePermit>();
    let mut response = Page::sized().response();
    if request.method() == Method::GET {
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert(header::CONNECTION, "upgrade".parse().unwrap());
        response.headers_mut().insert(header::UPGRADE, "echo".parse().unwrap());
    }
    let mut permit: Option<SlotPermit> = None;
    match taken {
        Taken::InHandler => permit = handle.take().unwrap().take(),
        Taken::Never => handle = None,
        Taken::InTask | Taken::Kept => {}
    }
    // The task is there before the response is.
    tokio::spawn(async move {
        let stream = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
        if taken == Taken::InTask {
            permit = handle.as_ref().unwrap().take();
        }
        assert_eq!(permit.is_some(), matches!(taken, Taken::InHandler | Taken::InTask));
        let (mut reader, mut writer) = split(stream);
        let _ = copy(&mut reader, &mut writer).await;
        drop((permit, handle));
    });
    response
}

/// Sends something to and fro.
async fn ping(stream: &mut TokioIo<Upgraded>) -> TestResult {
    stream.write_all(b"ping").await?;
    let mut back = [0; 4];
    stream.read_exact(&mut back).await?;
    assert_eq!(&back, b"ping");
    Ok(())
}

/// B4, case 8: on a server. The permit lives as long as the task that has it, or the handle if nobody takes it.
#[tokio::test]
async fn a_servers_permit_lives_as_long_as_what_the_handler_started() -> TestResult {
    for kind in KINDS {
        for taken in [Taken::InHandler, Taken::InTask, Taken::Kept, Taken::Never] {
            let layer = layer(SlotConfig::builder().concurrency(1));
            let slots = layer.slots().clone();
            let handler = service_fn(move |request| ready(Ok::<_, Infallible>(agree(request, taken))));
            let server = Server::start(Wire::Http1, layer.layer(handler)).await;

            let response = server.client().request(ask(&server, &kind)).await?;
            let mut stream = TokioIo::new(hyper::upgrade::on(response).await?);
            ping(&mut stream).await?;
            if taken == Taken::Never {
                until("the last copy is gone with the response", || in_flight(&slots, "a.test") == 0).await;
                ping(&mut stream).await?;
            } else {
                assert_eq!(in_flight(&slots, "a.test"), 1, "{kind} {taken:?}");
                assert!(stats(&slots, "a.test").times.body > Duration::ZERO, "{kind} {taken:?}");
            }
            drop(stream);
            until("the task has ended", || in_flight(&slots, "a.test") == 0).await;
            assert_eq!(stats(&slots, "a.test").counts.finished, 1, "{kind} {taken:?}");
            assert_free(&slots, "a.test", 1);
        }
    }
    Ok(())
}

/// B4, case 8: on a client, the permit of a tunnel lives as long as the one who has it.
#[tokio::test]
async fn a_clients_permit_can_be_moved_with_the_connection() -> TestResult {
    for kind in KINDS {
        for taken in [Taken::InTask, Taken::Kept, Taken::Never] {
            let handler = service_fn(|request| ready(Ok::<_, Infallible>(agree(request, Taken::Never))));
            let server = Server::start(Wire::Http1, handler).await;
            let layer = layer(SlotConfig::builder().concurrency(1));
            let slots = layer.slots();
            let client = layer.layer(server.client());

            let mut response = client.clone().oneshot(ask(&server, &kind)).await?;
            let mut handle = response.extensions_mut().remove::<UpgradePermit>();
            let mut stream = TokioIo::new(hyper::upgrade::on(response).await?);
            let permit = match taken {
                Taken::InTask => handle.take().and_then(|handle| handle.take()),
                _ => None,
            };
            assert_eq!(permit.is_some(), taken == Taken::InTask, "{kind} {taken:?}");
            if taken == Taken::Never {
                handle = None;
                assert_eq!(in_flight(slots, "a.test"), 0, "{kind} {taken:?}");
            } else {
                assert_eq!(in_flight(slots, "a.test"), 1, "{kind} {taken:?}");
                let next = tokio::spawn(client.clone().oneshot(server.get("a.test", "/")));
                until("another waits for the tunnel", || waiting(slots, "a.test") == 1).await;
                next.abort();
            }
            ping(&mut stream).await?;
            drop((stream, permit, handle));
            until("nobody waits", || waiting(slots, "a.test") == 0).await;
            assert_eq!(stats(slots, "a.test").counts.finished, 1, "{kind} {taken:?}");
            assert_free(slots, "a.test", 1);
        }
    }
    Ok(())
}

/// B4: a response that does not agree keeps its permit like any other.
#[tokio::test]
async fn an_upgrade_that_is_refused_is_a_response_like_any_other() -> TestResult {
    for kind in KINDS {
        let handler = service_fn(async |_: Request<Incoming>| {
            let mut response = Page::sized().data("no").response();
            *response.status_mut() = StatusCode::FORBIDDEN;
            Ok::<_, Infallible>(response)
        });
        let server = Server::start(Wire::Http1, handler).await;
        let layer = layer(SlotConfig::builder().concurrency(1));
        let response = layer.layer(server.client()).oneshot(ask(&server, &kind)).await?;
        assert!(response.extensions().get::<UpgradePermit>().is_none(), "{kind}");
        assert_eq!(in_flight(layer.slots(), "a.test"), 1, "{kind}");
        assert_eq!(response.into_body().collect().await?.to_bytes(), "no", "{kind}");
        assert_free(layer.slots(), "a.test", 1);
    }
    Ok(())
}

/// B4, case 8: a proxy with the layer, a tunnel through it, and HTTP in the tunnel.
#[tokio::test]
async fn a_tunnel_through_a_proxy_holds_a_permit_of_the_target() -> TestResult {
    let target = Server::start(
        Wire::Http1,
        service_fn(async |_| Ok::<_, Infallible>(Page::sized().data("from far away").response())),
    )
    .await;
    let address = target.address;
    let layer = layer(SlotConfig::builder().concurrency(1));
    let slots = layer.slots().clone();
    let dial = service_fn(move |mut request: Request<Incoming>| {
        let permit = request.extensions_mut().remove::<UpgradePermit>();
        tokio::spawn(async move {
            let _permit = permit.and_then(|permit| permit.take());
            let mut tunnel = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
            let mut far = TcpStream::connect(address).await.unwrap();
            let _ = copy_bidirectional(&mut tunnel, &mut far).await;
        });
        ready(Ok::<_, Infallible>(Page::sized().response()))
    });
    let proxy = Server::start(Wire::Http1, layer.layer(dial)).await;

    let request = Request::connect(format!("far.test:{}", address.port())).body(Full::<Bytes>::default())?;
    let response = proxy.client().request(request).await?;
    let tunnel = TokioIo::new(hyper::upgrade::on(response).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tunnel)).await?;
    let connection = tokio::spawn(connection);
    for _ in 0..3 {
        let request = Request::get("/").header(header::HOST, "far.test").body(Full::<Bytes>::default())?;
        sender.ready().await?;
        let body = sender.send_request(request).await?.into_body().collect().await?;
        assert_eq!(body.to_bytes(), "from far away");
        assert_eq!(in_flight(&slots, "far.test"), 1);
    }
    drop(sender);
    connection.await??;
    until("the tunnel is closed", || in_flight(&slots, "far.test") == 0).await;
    assert_eq!(stats(&slots, "far.test").counts.finished, 1);
    Ok(())
}

// --- with axum

async fn serve(app: Router) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (address, tokio::spawn(async move { axum::serve(listener, app).await.unwrap() }))
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(Message::Text(text))) = socket.recv().await {
        socket.send(Message::Text(text)).await.unwrap();
    }
}

fn websocket(address: SocketAddr, wire: Wire) -> Request<Full<Bytes>> {
    let request =
        Request::get(format!("http://a.test:{}/ws", address.port())).header("sec-websocket-version", "13");
    let request = match wire {
        Wire::Http2 => {
            request.method(Method::CONNECT).extension(hyper::ext::Protocol::from_static("websocket"))
        }
        _ => request
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, "websocket")
            .header("sec-websocket-key", "AAECAwQFBgcICQoLDA0ODw=="),
    };
    request.body(Full::default()).unwrap()
}

/// B4, case 8: axum's WebSockets, over HTTP/1 and as a stream of HTTP/2, with the layer on both sides.
#[tokio::test]
async fn a_websocket_holds_its_permits_until_it_is_closed() -> TestResult {
    let upgrade = any(async |ws: WebSocketUpgrade, Extension(permit): Extension<UpgradePermit>| {
        ws.on_upgrade(async move |socket| {
            let _permit = permit.take().expect("the permit is there");
            echo(socket).await;
        })
    });
    for wire in Wire::PLAIN {
        let near = layer(SlotConfig::builder().concurrency(1));
        let far = layer(SlotConfig::builder().concurrency(1));
        let app =
            Router::new().route("/ws", upgrade.clone()).layer(far.clone().reject_with(too_many_requests));
        let app = app.route("/", get(async || "fine"));
        let (address, server) = serve(app).await;
        let client = near.layer(net::client(wire, address));

        // Over HTTP/2 the server has to have said first that it knows of such streams.
        let hello = Request::get(format!("http://b.test:{}/", address.port())).body(Full::default())?;
        client.clone().oneshot(hello).await?.into_body().collect().await?;

        let mut response = client.oneshot(websocket(address, wire)).await?;
        let is_http2 = wire == Wire::Http2;
        let agreed = if is_http2 { StatusCode::OK } else { StatusCode::SWITCHING_PROTOCOLS };
        assert_eq!(response.status(), agreed, "{wire:?}");
        let permit = response.extensions_mut().remove::<UpgradePermit>().and_then(|permit| permit.take());
        assert!(permit.is_some(), "{wire:?}");
        let stream = TokioIo::new(hyper::upgrade::on(response).await?);
        let mut socket = WebSocketStream::from_raw_socket(stream, Role::Client, None).await;
        for text in ["one", "two"] {
            socket.send(tungstenite::Message::text(text)).await?;
            assert_eq!(socket.next().await.unwrap()?.to_text()?, text, "{wire:?}");
            assert_eq!(in_flight(near.slots(), "a.test"), 1, "{wire:?}");
            assert_eq!(in_flight(far.slots(), "a.test"), 1, "{wire:?}");
        }
        drop((socket, permit));
        until("the server's task has ended", || in_flight(far.slots(), "a.test") == 0).await;
        for slots in [near.slots(), far.slots()] {
            assert_eq!(stats(slots, "a.test").counts.finished, 1, "{wire:?}");
            assert_free(slots, "a.test", 1);
        }
        server.abort();
    }
    Ok(())
}

/// An endless stream of events: one, and then none for ever.
async fn events() -> Sse<impl futures_util::Stream<Item = Result<Event, Infallible>>> {
    Sse::new(stream::iter([Ok(Event::default().data("1"))]).chain(stream::once(pending())))
}

/// B4, case 9: on a client. Held to the headers it costs nothing; else it shows who holds the slot, and since when.
#[tokio::test]
async fn an_endless_body_holds_its_slot_unless_it_is_told_not_to() -> TestResult {
    let patience = Duration::from_millis(50);
    let (address, server) = serve(Router::new().route("/", get(events))).await;
    for wire in Wire::PLAIN {
        let layer = layer(SlotConfig::builder().concurrency(1).wait_timeout(patience));
        let slots = layer.slots();
        let client = layer.layer(net::client(wire, address));
        let request = |hold: Option<Hold>| {
            let request = Request::get(format!("http://a.test:{}/", address.port()));
            hold.into_iter()
                .fold(request, |request, hold| request.extension(hold))
                .body(Full::default())
                .unwrap()
        };
        let mut endless = Vec::new();
        for _ in 0..3 {
            let mut body = client.clone().oneshot(request(Some(Hold::Headers))).await?.into_body();
            assert_eq!(in_flight(slots, "a.test"), 0, "{wire:?}");
            assert_eq!(body.frame().await.unwrap()?.into_data().unwrap(), "data: 1\n\n", "{wire:?}");
            endless.push(body);
        }
        assert_eq!(stats(slots, "a.test").counts.finished, 3, "{wire:?}");

        let mut body = client.clone().oneshot(request(None)).await?.into_body();
        assert_eq!(body.frame().await.unwrap()?.into_data().unwrap(), "data: 1\n\n", "{wire:?}");
        let error = client.clone().oneshot(request(None)).await.unwrap_err();
        let error = error.downcast::<tower_slot::SlotError>().unwrap();
        assert_eq!(
            (error.kind(), error.in_flight()),
            (tower_slot::SlotErrorKind::WaitTimeout, 1),
            "{wire:?}"
        );
        assert!(error.oldest().unwrap() >= patience, "{wire:?}: {error}");
        assert!(stats(slots, "a.test").oldest_permit.unwrap() >= error.oldest().unwrap(), "{wire:?}");
        drop(body);
        assert_free(slots, "a.test", 1);
    }
    server.abort();
    Ok(())
}

/// B4, case 9: on a server, where a layer outside says it for a whole route.
#[tokio::test]
async fn a_route_of_events_holds_no_slot_when_a_layer_says_so() -> TestResult {
    let layer = layer(SlotConfig::builder().concurrency(1).queue_capacity(0));
    let slots = layer.slots().clone();
    let refusing = layer.reject_with(too_many_requests);
    let app = Router::new()
        .route("/events", get(events).layer((Extension(Hold::Headers), refusing.clone())))
        .route("/held", get(events).layer(refusing));
    let (address, server) = serve(app).await;
    for wire in Wire::PLAIN {
        let client = net::client(wire, address);
        let get = |path: &str| {
            let uri = format!("http://a.test:{}{path}", address.port());
            client.request(Request::get(uri).body(Full::default()).unwrap())
        };
        let mut open = Vec::new();
        for (path, status) in
            [("/events", 200), ("/events", 200), ("/held", 200), ("/events", 429), ("/held", 429)]
        {
            let response = get(path).await?;
            assert_eq!(response.status(), status, "{wire:?} {path}");
            open.push(response);
        }
        drop(open);
        until("the client is gone", || in_flight(&slots, "a.test") == 0).await;
    }
    server.abort();
    Ok(())
}
