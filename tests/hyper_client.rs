//! hyper's client inside the layer: HTTP/1 with keep-alive, HTTP/2 with prior knowledge, and both in TLS.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/net.rs"]
mod net;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use http::{Method, Request, Response, StatusCode, Version, header};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::sync::Notify;
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_slot::{BoxError, SlotConfig, SlotKey};

use self::net::{
    Exchanges, Page, Server, Wire, assert_free, in_flight, layer, stats, trailers, until, waiting,
};

type TestResult = Result<(), BoxError>;

/// The number at the end of a request's path.
fn id<B>(request: &Request<B>) -> u64 {
    request.uri().path().trim_start_matches('/').parse().unwrap()
}

/// B1, B3, B5: all is as it is without the layer, and connections are used again.
#[tokio::test]
async fn answers_come_through_every_wire_over_connections_that_are_used_again() -> TestResult {
    for wire in Wire::ALL {
        let server = Server::start(
            wire,
            service_fn(async |request: Request<Incoming>| {
                let text = format!("{} {}", request.method(), request.uri().path());
                Ok::<_, Infallible>(Page::sized().data(text).response())
            }),
        )
        .await;
        let layer = layer(SlotConfig::builder().concurrency(1));
        let client = layer.layer(server.client());
        for n in 0..10 {
            let response = client.clone().oneshot(server.get("a.test", &format!("/{n}"))).await?;
            assert_eq!(response.version(), wire.version(), "{wire:?}");
            let text = format!("GET /{n}");
            assert_eq!(response.headers()[header::CONTENT_LENGTH], text.len().to_string(), "{wire:?}");
            assert_eq!(response.body().size_hint().exact(), Some(text.len() as u64), "{wire:?}");
            assert_eq!(response.into_body().collect().await?.to_bytes(), text, "{wire:?}");
        }
        let connections = server.connections();
        match wire {
            // The permit is back before the pool has the connection back, so a second one may be opened now and then.
            Wire::Http1 | Wire::Tls1 => assert!(connections < 10, "{wire:?}: {connections}"),
            Wire::Http2 | Wire::Tls2 => assert_eq!(connections, 1, "{wire:?}"),
        }
        assert_eq!(stats(layer.slots(), "a.test").counts.finished, 10, "{wire:?}");
        assert_free(layer.slots(), "a.test", 1);
    }
    Ok(())
}

/// B1, case 5.
#[tokio::test]
async fn twenty_bodies_that_take_50_ms_are_open_two_at_a_time() {
    let download = async |wire| {
        let exchanges = Exchanges::default();
        let handler = exchanges.clone();
        let server = Server::start(
            wire,
            service_fn(move |request: Request<Incoming>| {
                let page = Page::sized().pause(Duration::from_millis(50)).data("a page");
                let page = page.of(handler.begin(id(&request)));
                async { Ok::<_, Infallible>(page.response()) }
            }),
        )
        .await;
        let layer = layer(SlotConfig::builder().concurrency(2));
        let client = layer.layer(server.client());
        let began = Instant::now();
        let answers = (0..20).map(async |n| {
            let response = client.clone().oneshot(server.get("a.test", &format!("/{n}"))).await?;
            response.into_body().collect().await.map(|body| body.to_bytes()).map_err(BoxError::from)
        });
        let bodies = try_join_all(answers).await.unwrap();
        assert!(began.elapsed() >= 10 * Duration::from_millis(50), "{wire:?}: {:?}", began.elapsed());
        assert!(bodies.iter().all(|body| body == "a page"), "{wire:?}");
        assert_eq!((exchanges.served(), exchanges.peak(), exchanges.open()), (20, 2, 0), "{wire:?}");
        assert_free(layer.slots(), "a.test", 2);
    };
    join_all(Wire::ALL.map(download)).await;
}

/// B1, case 7: what has no body is over at the response, by what hyper's body says of itself.
#[tokio::test]
async fn a_response_without_a_body_gives_the_permit_back_although_it_is_kept() -> TestResult {
    let answer = async |request: Request<Incoming>| {
        let status = request.uri().path().trim_start_matches('/').parse::<StatusCode>().unwrap();
        let response = Response::builder().status(status);
        let is_short = request.method() == Method::GET && status == StatusCode::OK;
        Ok::<_, BoxError>(match request.method() {
            // As the length of the body that GET has.
            &Method::HEAD => response.header(header::CONTENT_LENGTH, 5).body(Page::sized())?,
            _ if is_short && request.headers().contains_key("x-full") => {
                response.body(Page::sized().data("12345"))?
            }
            _ => response.body(Page::sized())?,
        })
    };
    for wire in Wire::ALL {
        let server = Server::start(wire, service_fn(answer)).await;
        let layer = layer(SlotConfig::builder().concurrency(1));
        let client = layer.layer(server.client());
        let cases =
            [(Method::HEAD, "/200"), (Method::GET, "/204"), (Method::GET, "/304"), (Method::GET, "/200")];
        let mut kept = Vec::new();
        for (method, path) in cases {
            let mut request = server.get("a.test", path);
            *request.method_mut() = method.clone();
            let response = client.clone().oneshot(request).await?;
            assert_eq!(in_flight(layer.slots(), "a.test"), 0, "{wire:?} {method} {path}");
            assert!(response.body().is_end_stream(), "{wire:?} {method} {path}");
            kept.push(response);
        }
        assert_eq!(kept[0].headers()[header::CONTENT_LENGTH], "5", "{wire:?}: HEAD keeps the length");

        // And one with a body is not over before its last frame, but then it is, although the body is kept.
        let mut request = server.get("a.test", "/200");
        request.headers_mut().insert("x-full", "yes".parse()?);
        let mut response = client.clone().oneshot(request).await?;
        assert_eq!(in_flight(layer.slots(), "a.test"), 1, "{wire:?}");
        assert!(!response.body().is_end_stream(), "{wire:?}");
        let frame = response.body_mut().frame().await.unwrap()?;
        assert_eq!(frame.into_data().unwrap(), "12345", "{wire:?}");
        assert_eq!(in_flight(layer.slots(), "a.test"), 0, "{wire:?}");
        assert_eq!(stats(layer.slots(), "a.test").counts.finished, 5, "{wire:?}");
        drop(response);
    }
    Ok(())
}

/// B1, case 7: a body that tells its end only by an empty last frame is not over before that.
#[tokio::test]
async fn an_empty_body_of_unknown_length_is_over_when_its_end_was_seen() -> TestResult {
    for wire in Wire::ALL {
        let server =
            Server::start(wire, service_fn(async |_| Ok::<_, Infallible>(Page::chunked().response()))).await;
        let layer = layer(SlotConfig::builder().concurrency(1));
        let client = layer.layer(server.client());
        let mut response = client.oneshot(server.get("a.test", "/")).await?;
        assert_eq!(in_flight(layer.slots(), "a.test"), 1, "{wire:?}");
        match response.body_mut().frame().await.transpose()? {
            None => assert_eq!(wire.version(), Version::HTTP_11),
            Some(frame) => {
                assert_eq!(wire.version(), Version::HTTP_2);
                assert!(frame.into_data().unwrap().is_empty());
            }
        }
        assert_eq!(in_flight(layer.slots(), "a.test"), 0, "{wire:?}: whatever the end was, the body is kept");
        assert_eq!(stats(layer.slots(), "a.test").counts.finished, 1, "{wire:?}");
    }
    Ok(())
}

/// B1, case 10: the server resets the connection while 8 streams are open on it.
#[tokio::test]
async fn a_connection_that_is_reset_gives_eight_permits_back() -> TestResult {
    for wire in Wire::PLAIN {
        let reset = Arc::new(Notify::new());
        let heard = reset.clone();
        let server = Server::raw(wire, move |stream| {
            let heard = heard.clone();
            async move {
                let handler = TowerToHyperService::new(service_fn(async |_: Request<Incoming>| {
                    Ok::<_, Infallible>(Page::chunked().data("begun").stall().response())
                }));
                stream.set_zero_linger().unwrap();
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let connection = builder.serve_connection(TokioIo::new(stream), handler);
                tokio::select! {
                    _ = connection => {}
                    () = heard.notified() => {}
                }
            }
        })
        .await;
        let layer = layer(SlotConfig::builder().concurrency(8));
        let client = layer.layer(server.client());
        let mut bodies = Vec::new();
        for _ in 0..8 {
            let mut body = client.clone().oneshot(server.get("a.test", "/")).await?.into_body();
            assert_eq!(body.frame().await.unwrap()?.into_data().unwrap(), "begun", "{wire:?}");
            bodies.push(body);
        }
        let waiter = tokio::spawn(client.clone().oneshot(server.get("a.test", "/")));
        until("the ninth waits", || waiting(layer.slots(), "a.test") == 1).await;
        assert_eq!(in_flight(layer.slots(), "a.test"), 8, "{wire:?}");
        assert_eq!(server.connections(), if wire == Wire::Http2 { 1 } else { 8 }, "{wire:?}");

        reset.notify_waiters();
        for body in &mut bodies {
            assert!(body.frame().await.unwrap().is_err(), "{wire:?}");
        }
        // All bodies are kept: the error alone gave the permits back.
        let ninth = waiter.await??;
        assert_eq!(in_flight(layer.slots(), "a.test"), 1, "{wire:?}");
        drop(ninth);
        let counts = stats(layer.slots(), "a.test").counts;
        assert_eq!((counts.failed, counts.cancelled), (8, 1), "{wire:?}");
        assert_free(layer.slots(), "a.test", 8);
    }
    Ok(())
}

/// S1, case 12: those who wait hold nothing of the inner service.
#[tokio::test]
async fn waiters_of_one_slot_take_nothing_of_the_inner_service_from_another() -> TestResult {
    let gate = Arc::new(Notify::new());
    for is_buffer in [false, true] {
        let opened = gate.clone();
        let server = Server::start(
            Wire::Http1,
            service_fn(move |request: Request<Incoming>| {
                let page = Page::chunked().data("begun");
                let opened = opened.clone();
                let page = match request.uri().path() {
                    "/held" => page.when(async move { opened.notified().await }),
                    _ => page,
                };
                async { Ok::<_, Infallible>(page.response()) }
            }),
        )
        .await;
        let layer = layer(SlotConfig::builder().concurrency(1));
        let client = server.client();
        let client = match is_buffer {
            false => ServiceBuilder::new()
                .concurrency_limit(3)
                .service(client)
                .map_err(BoxError::from)
                .boxed_clone(),
            true => ServiceBuilder::new().buffer(1).service(client).boxed_clone(),
        };
        let client = layer.layer(client);

        let held = client.clone().oneshot(server.get("a.test", "/held")).await?;
        let waiters: Vec<_> =
            (0..5).map(|_| tokio::spawn(client.clone().oneshot(server.get("a.test", "/")))).collect();
        until("five wait", || waiting(layer.slots(), "a.test") == 5).await;
        // Clones that are ready and do nothing hold nothing either (case 11).
        let mut idle: Vec<_> = (0..10).map(|_| client.clone()).collect();
        for client in &mut idle {
            client.ready().await?;
        }
        let other = client.clone().oneshot(server.get("b.test", "/")).await?;
        assert_eq!(other.into_body().collect().await?.to_bytes(), "begun");
        assert_eq!(waiting(layer.slots(), "a.test"), 5);

        gate.notify_one();
        held.into_body().collect().await?;
        for waiter in waiters {
            waiter.await??.into_body().collect().await?;
        }
        assert_free(layer.slots(), "a.test", 1);
    }
    Ok(())
}

/// B3, case 41: what hyper's body yields comes out of the layer frame by frame.
#[tokio::test]
async fn trailers_and_empty_frames_pass() -> TestResult {
    for wire in Wire::ALL {
        let server = Server::start(
            wire,
            service_fn(async |_: Request<Incoming>| {
                let mut response = Page::chunked().data("one").data("").data("two").trailers().response();
                response.headers_mut().insert(header::TRAILER, "x-checked".parse()?);
                Ok::<_, BoxError>(response)
            }),
        )
        .await;
        let layer = layer(SlotConfig::builder().concurrency(1));
        let request = || {
            let mut request = server.get("a.test", "/");
            request.headers_mut().insert(header::TE, "trailers".parse().unwrap());
            request
        };
        let bare = collect(server.client().request(request()).await?.into_body()).await?;
        let mut body = layer.layer(server.client()).oneshot(request()).await?.into_body();
        let seen = collect(&mut body).await?;
        assert_eq!(seen, bare, "{wire:?}");
        assert_eq!(seen.last(), Some(&Err(trailers())), "{wire:?}");
        let data: Vec<_> = seen.iter().flatten().flatten().copied().collect();
        assert_eq!(data, b"onetwo", "{wire:?}");
        assert_eq!(in_flight(layer.slots(), "a.test"), 0, "{wire:?}: trailers are the end, the body is kept");
    }
    Ok(())
}

/// Frames up to the trailers or the end: data, or trailers as the error.
async fn collect<B>(mut body: B) -> Result<Vec<Result<Bytes, http::HeaderMap>>, B::Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut frames = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame?.into_data().map_err(|frame| frame.into_trailers().unwrap());
        let is_end = frame.is_err();
        frames.push(frame);
        if is_end {
            break;
        }
    }
    Ok(frames)
}

/// K1, K2: two hosts are two slots, a key in the extensions makes them one, and the port makes no difference.
#[tokio::test]
async fn slots_follow_the_host_or_the_key_of_each_request() -> TestResult {
    let server = Server::start(
        Wire::Http1,
        service_fn(async |_| Ok::<_, Infallible>(Page::sized().data("x").response())),
    )
    .await;
    let layer = layer(SlotConfig::builder().concurrency(1));
    let client = layer.layer(server.client());
    let send = async |host: &str, key: Option<&'static str>| {
        let mut request: Request<Full<Bytes>> = server.get(host, "/");
        request.extensions_mut().extend(
            key.map(|key| {
                let mut extensions = http::Extensions::new();
                extensions.insert(SlotKey::from(key));
                extensions
            })
            .unwrap_or_default(),
        );
        client.clone().oneshot(request).await?.into_body().collect().await.map_err(BoxError::from)
    };
    send("A.test", None).await?;
    send("a.TEST.", None).await?;
    send("b.test", None).await?;
    send("a.test", Some("both")).await?;
    send("b.test", Some("both")).await?;
    let asked: Vec<_> =
        layer.slots().snapshot().slots.iter().map(|slot| (slot.key.to_string(), slot.counts.asked)).collect();
    assert_eq!(asked, [("a.test".to_owned(), 2), ("b.test".to_owned(), 1), ("both".to_owned(), 2)]);
    Ok(())
}
