//! 2,000 requests with random bodies, drops and errors, through hyper's client and through a server of axum: the
//! server's own count of open exchanges never exceeds the limit, and afterwards all is as in the beginning.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/net.rs"]
mod net;

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::get;
use bytes::Bytes;
use fastrand::Rng;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_slot::{BoxError, Counts, SlotConfig, too_many_requests};

use self::net::{
    Broken, Exchange, Exchanges, Page, Server, Wire, assert_free, in_flight, layer, stats, until,
};

/// How many may be in flight.
const LIMIT: usize = 8;

/// How many send at once.
const SENDERS: usize = 32;

const REQUESTS: Range<u64> = 0..2_000;

/// What both sides do with one request; it follows from the request's number.
#[derive(Debug)]
struct Plan {
    /// How long the head takes.
    head: Duration,
    frames: Vec<usize>,
    /// How long the body rests before its last frame.
    rest: Duration,
    length: Length,
    fault: Fault,
    /// How the client ends it.
    end: End,
}

#[derive(Clone, Copy, Debug)]
enum Length {
    Known,
    Unknown,
    /// Trailers come last.
    Trailers,
}

/// What the server does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    NoHead,
    Break,
    Stall,
}

/// When the client has enough.
#[derive(Clone, Copy, Debug)]
enum End {
    /// At the end, or at the error.
    Read,
    /// After so much time, wherever it is; at the head at the latest.
    Leave(Duration),
    /// After so many frames.
    Drop(usize),
    /// At the end, but the body is kept for a while.
    Keep,
}

impl Plan {
    fn of(id: u64) -> Self {
        let mut rng = Rng::with_seed(id);
        let micros = |rng: &mut Rng, most| Duration::from_micros(rng.u64(0..most));
        let head = if rng.u8(0..4) == 0 { micros(&mut rng, 2_000) } else { Duration::ZERO };
        let rest = if rng.u8(0..4) == 0 { micros(&mut rng, 2_000) } else { Duration::ZERO };
        let frames: Vec<_> = (0..rng.usize(0..5)).map(|_| rng.usize(1..5_000)).collect();
        let length = [Length::Known, Length::Unknown, Length::Trailers][rng.usize(0..3)];
        let fault = match rng.u8(0..16) {
            0 => Fault::NoHead,
            1 => Fault::Break,
            2 => Fault::Stall,
            _ => Fault::None,
        };
        let end = match rng.u8(0..8) {
            0 | 1 => End::Leave(micros(&mut rng, 1_500)),
            2 | 3 => End::Drop(rng.usize(0..3)),
            4 => End::Keep,
            // Whoever reads to the end of what has none never ends.
            _ if fault == Fault::Stall => End::Leave(micros(&mut rng, 1_500)),
            _ => End::Read,
        };
        Self { head, frames, rest, length, fault, end }
    }

    fn page(&self, exchange: Exchange) -> Page {
        let sized = matches!(self.length, Length::Known) && self.fault == Fault::None;
        let mut page = if sized { Page::sized() } else { Page::chunked() };
        for &len in &self.frames {
            page = page.data(vec![b'x'; len]);
        }
        if !self.rest.is_zero() {
            page = page.pause(self.rest).data("rested");
        }
        if matches!(self.length, Length::Trailers) {
            page = page.trailers();
        }
        match self.fault {
            Fault::None | Fault::NoHead => page,
            Fault::Break => page.breaking(),
            Fault::Stall => page.stall(),
        }
        .of(exchange)
    }
}

/// Sends one request and ends it as planned. Whatever is dropped leaves the table before it is.
async fn send<S, B>(service: S, request: Request<Full<Bytes>>, id: u64, exchanges: &Exchanges)
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>>,
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let plan = Plan::of(id);
    let patience = match plan.end {
        End::Leave(time) => time,
        // Stalls are over at some time, whatever else is planned.
        _ if plan.fault == Fault::Stall => Duration::from_millis(5),
        _ => Duration::from_secs(60),
    };
    let mut future = Box::pin(service.oneshot(request));
    let response = timeout(patience, &mut future).await;
    let Ok(Ok(response)) = response else {
        // Out of patience, or failed.
        exchanges.end(id);
        return;
    };
    let mut body = response.into_body();
    let most = match plan.end {
        End::Leave(_) => 0,
        End::Drop(frames) => frames,
        End::Read | End::Keep => usize::MAX,
    };
    let mut reading = pin!(async {
        for _ in 0..most {
            let Some(Ok(_)) = body.frame().await else { break };
        }
    });
    let _ = timeout(patience, &mut reading).await;
    if matches!(plan.end, End::Keep) {
        sleep(Duration::from_micros(500)).await;
    }
    exchanges.end(id);
}

/// Sends all requests, so many at once.
async fn send_all<S, B>(
    make: impl Fn() -> S,
    request: impl Fn(u64) -> Request<Full<Bytes>> + Clone + Send + 'static,
    exchanges: &Exchanges,
) where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Future: Send, Error: Send>
        + Clone
        + Send
        + 'static,
    B: http_body::Body<Data = Bytes, Error: Send> + Unpin + Send + 'static,
{
    let next = Arc::new(AtomicU64::new(REQUESTS.start));
    let mut senders = JoinSet::new();
    for _ in 0..SENDERS {
        let (service, request, next, exchanges) = (make(), request.clone(), next.clone(), exchanges.clone());
        senders.spawn(async move {
            loop {
                let id = next.fetch_add(1, Ordering::Relaxed);
                if !REQUESTS.contains(&id) {
                    break;
                }
                send(service.clone(), request(id), id, &exchanges).await;
            }
        });
    }
    while let Some(sender) = senders.join_next().await {
        sender.unwrap();
    }
}

/// B1, B2, B5, case 10: the layer on the client.
async fn through_the_client(wire: Wire) {
    let exchanges = Exchanges::default();
    let begun = exchanges.clone();
    let handler = service_fn(move |request: Request<Incoming>| {
        let id = request.uri().path().trim_start_matches('/').parse().unwrap();
        let exchange = begun.begin(id);
        async move {
            let plan = Plan::of(id);
            if !plan.head.is_zero() {
                sleep(plan.head).await;
            }
            match plan.fault {
                Fault::NoHead => Err(BoxError::from(Broken)),
                _ => Ok(plan.page(exchange).response()),
            }
        }
    });
    let server = Server::start(wire, handler).await;
    let layer = layer(SlotConfig::builder().concurrency(LIMIT));
    let slots = layer.slots();
    let (client, address) = (layer.layer(server.client()), server.address);
    let request = move |id| {
        Request::get(format!("http://a.test:{}/{id}", address.port())).body(Full::default()).unwrap()
    };
    send_all(|| client.clone(), request, &exchanges).await;

    let counts = stats(slots, "a.test").counts;
    all_kinds(counts);
    few_at_once(&exchanges);
    assert_free(slots, "a.test", LIMIT);
}

/// B1, B2: the layer on the server, and as many connections as senders.
async fn through_the_server(wire: Wire) {
    let exchanges = Exchanges::default();
    let page = async |Path(id): Path<u64>, State(exchanges): State<Exchanges>| {
        let exchange = exchanges.begin(id);
        let plan = Plan::of(id);
        if !plan.head.is_zero() {
            sleep(plan.head).await;
        }
        Body::new(match plan.fault {
            Fault::NoHead => Page::chunked().breaking().of(exchange),
            _ => plan.page(exchange),
        })
    };
    let layer = layer(SlotConfig::builder().concurrency(LIMIT));
    let slots = layer.slots().clone();
    let app = Router::new().route("/{id}", get(page)).with_state(exchanges.clone());
    let server = Server::start(wire, app.layer(layer.reject_with(too_many_requests))).await;
    let address = server.address;
    let request = move |id| {
        Request::get(format!("http://a.test:{}/{id}", address.port())).body(Full::default()).unwrap()
    };
    send_all(|| server.client(), request, &exchanges).await;

    until("the server has noticed the last drop", || in_flight(&slots, "a.test") == 0).await;
    all_kinds(stats(&slots, "a.test").counts);
    few_at_once(&exchanges);
    assert_free(&slots, "a.test", LIMIT);
}

/// The rule; and that there were enough at once for it to mean something.
#[track_caller]
fn few_at_once(exchanges: &Exchanges) {
    let peak = exchanges.peak();
    assert!((LIMIT / 2..=LIMIT).contains(&peak), "{peak}");
}

/// Of everything there was enough for the test to mean something.
#[track_caller]
fn all_kinds(counts: Counts) {
    let Counts { asked, finished, failed, cancelled, gone, .. } = counts;
    assert!(asked <= REQUESTS.end, "{counts:?}");
    assert!(finished > 200 && failed > 20 && cancelled > 100 && gone > 10, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_never_opens_more_than_the_limit_over_http1() {
    through_the_client(Wire::Http1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_never_opens_more_than_the_limit_over_http2() {
    through_the_client(Wire::Http2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_never_opens_more_than_the_limit_over_http1() {
    through_the_server(Wire::Http1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_never_opens_more_than_the_limit_over_http2() {
    through_the_server(Wire::Http2).await;
}
