//! Every layer of tower and tower-http that people put beside this one, outside and inside: what the slot counts.
//!
//! The table in the crate's documentation says the same in words.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/net.rs"]
mod net;

use std::convert::Infallible;
use std::fmt::Write;
use std::future::{Future, Ready, pending, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tower::buffer::BufferLayer;
use tower::limit::ConcurrencyLimitLayer;
use tower::load_shed::{LoadShedLayer, error::Overloaded};
use tower::retry::{Policy, RetryLayer};
use tower::timeout::{TimeoutLayer, error::Elapsed};
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::compression::CompressionLayer;
use tower_http::decompression::DecompressionLayer;
use tower_http::follow_redirect::FollowRedirectLayer;
use tower_http::follow_redirect::policy::{Limited, Standard};
use tower_http::set_header::SetRequestHeaderLayer;
use tower_http::timeout::{ResponseBodyTimeoutLayer, TimeoutLayer as HttpTimeoutLayer};
use tower_http::trace::{DefaultMakeSpan, HttpMakeClassifier, OnRequest, TraceLayer};
use tower_slot::{BoxError, SlotConfig, SlotKey, SlotLayer, Slots};

use self::net::{Exchanges, Page, Server, Wire, assert_free, in_flight, layer, soon};

type TestResult = Result<(), BoxError>;
type Req = Request<Full<Bytes>>;
type Res = Response<UnsyncBoxBody<Bytes, BoxError>>;
type Stack = BoxCloneSyncService<Req, Res, BoxError>;

/// One order of layers, what is sent through it, and what is to be seen.
struct Row {
    name: &'static str,
    stack: fn(&Bench) -> Stack,
    scene: Scene,
    /// What can be seen while the server waits for its gate; empty if it does not.
    during: &'static str,
    /// What becomes of the requests, in the order in which they were sent.
    outcomes: &'static [&'static str],
    /// What the slots have counted when all is over.
    after: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum Scene {
    /// The slot is full: its one request was sent by somebody else and is in its body, at the gate. So many are sent.
    Behind(usize),
    /// So many are sent; the server answers when the gate opens.
    Slow(usize),
    /// The first attempt is never answered.
    StallsOnce,
    /// The first two attempts get 503.
    FailsTwice,
    /// The headers come, the body does not. The body is kept when it has failed.
    StallsInBody,
    /// `a.test` sends on to `b.test`.
    Redirect,
    /// A long page in one short frame of gzip; it is left unread after its first frame, and read when the gate opens.
    Zipped,
}

/// What a row works with.
struct Bench {
    server: Server,
    exchanges: Exchanges,
    slots: Slots,
    /// Opens when something is sent.
    gate: watch::Sender<bool>,
    limit: usize,
    /// How often a layer has said that it saw a request.
    marks: Arc<AtomicUsize>,
}

/// A policy that sends again whatever has failed, so many times, at once.
#[derive(Clone, Debug)]
struct AtOnce(usize);

/// Marks each request that a trace layer sees.
#[derive(Clone, Debug)]
struct Mark(Arc<AtomicUsize>);

/// How long the timeouts of the rows are. Everything else takes no time worth mentioning.
const TIMEOUT: Duration = Duration::from_millis(300);

/// How long the zipped page is.
const LONG: usize = 1 << 18;

/// A stack with a layer outside of the slot, or inside.
// Closures that capture nothing, so that they are plain functions.
macro_rules! stack {
    (slot) => {
        |bench: &Bench| boxed(bench.slot().layer(bench.client()))
    };
    ($outer:expr, slot) => {
        |bench: &Bench| boxed(ServiceBuilder::new().layer($outer).layer(bench.slot()).service(bench.client()))
    };
    (slot, $inner:expr) => {
        |bench: &Bench| boxed(ServiceBuilder::new().layer(bench.slot()).layer($inner).service(bench.client()))
    };
    ($first:expr, $second:expr, slot) => {
        |bench: &Bench| {
            let outer = ServiceBuilder::new().layer($first).layer($second);
            boxed(outer.layer(bench.slot()).service(bench.client()))
        }
    };
    ($first:expr, slot, $second:expr) => {
        |bench: &Bench| {
            let outer = ServiceBuilder::new().layer($first).layer(bench.slot());
            boxed(outer.layer($second).service(bench.client()))
        }
    };
    (slot, $first:expr, $second:expr) => {
        |bench: &Bench| {
            let outer = ServiceBuilder::new().layer(bench.slot()).layer($first);
            boxed(outer.layer($second).service(bench.client()))
        }
    };
}

#[rustfmt::skip]
fn rows() -> Vec<Row> {
    use Scene::{Behind, FailsTwice, Redirect, Slow, StallsInBody, StallsOnce, Zipped};
    vec![
        row("alone", Behind(1), stack!(slot), "a.test 1 in flight 1 waiting, 1 open", &["200"], "a.test 2 finished"),
        // --- timeouts: S4, case 37
        row("timeout, slot", Behind(1), stack!(timeout(), slot), "a.test 1 in flight 1 gone, 1 open", &["elapsed"], "a.test 1 finished 1 gone"),
        row("slot, timeout", Behind(1), stack!(slot, timeout()), "a.test 1 in flight 1 waiting, 1 open", &["200"], "a.test 2 finished"),
        row("timeout, slot", StallsOnce, stack!(timeout(), slot), "", &["elapsed"], "a.test 1 cancelled"),
        row("slot, timeout", StallsOnce, stack!(slot, timeout()), "", &["elapsed"], "a.test 1 failed"),
        row("http timeout, slot", Behind(1), stack!(http_timeout(), slot), "a.test 1 in flight 1 gone, 1 open", &["504"], "a.test 1 finished 1 gone"),
        row("slot, http timeout", Behind(1), stack!(slot, http_timeout()), "a.test 1 in flight 1 waiting, 1 open", &["200"], "a.test 2 finished"),
        row("http timeout, slot", StallsOnce, stack!(http_timeout(), slot), "", &["504"], "a.test 1 cancelled"),
        row("slot, http timeout", StallsOnce, stack!(slot, http_timeout()), "", &["504"], "a.test 1 finished"),
        row("body timeout, slot", StallsInBody, stack!(body_timeout(), slot), "a.test 1 in flight, 1 open", &["200 broken"], "a.test 1 cancelled"),
        row("slot, body timeout", StallsInBody, stack!(slot, body_timeout()), "a.test 1 failed, 1 open", &["200 broken"], "a.test 1 failed"),
        // --- retry, and with a timeout in every order
        row("retry, slot", FailsTwice, stack!(RetryLayer::new(AtOnce(2)), slot), "", &["200"], "a.test 3 finished"),
        row("slot, retry", FailsTwice, stack!(slot, RetryLayer::new(AtOnce(2))), "", &["200"], "a.test 1 finished"),
        row("retry, timeout, slot", StallsOnce, stack!(RetryLayer::new(AtOnce(2)), timeout(), slot), "", &["200"], "a.test 1 finished 1 cancelled"),
        row("retry, slot, timeout", StallsOnce, stack!(RetryLayer::new(AtOnce(2)), slot, timeout()), "", &["200"], "a.test 1 finished 1 failed"),
        row("slot, retry, timeout", StallsOnce, stack!(slot, RetryLayer::new(AtOnce(2)), timeout()), "", &["200"], "a.test 1 finished"),
        row("timeout, retry, slot", StallsOnce, stack!(timeout(), RetryLayer::new(AtOnce(2)), slot), "", &["elapsed"], "a.test 1 cancelled"),
        row("timeout, slot, retry", StallsOnce, stack!(timeout(), slot, RetryLayer::new(AtOnce(2))), "", &["elapsed"], "a.test 1 cancelled"),
        row("slot, timeout, retry", StallsOnce, stack!(slot, timeout(), RetryLayer::new(AtOnce(2))), "", &["elapsed"], "a.test 1 failed"),
        // --- redirects: case 31
        row("redirect, slot", Redirect, stack!(FollowRedirectLayer::new(), slot), "", &["200"], "a.test 1 cancelled; b.test 1 finished"),
        row("slot, redirect", Redirect, stack!(slot, FollowRedirectLayer::new()), "", &["200"], "a.test 1 finished"),
        // --- what sheds and queues: S1, case 12
        row("buffer, slot", Behind(5), stack!(BufferLayer::new(1), slot), "a.test 1 in flight 5 waiting, 1 open", &["200"; 5], "a.test 6 finished"),
        row("slot of 2, buffer", Slow(3), stack!(slot, BufferLayer::new(1)), "a.test 2 in flight 1 waiting, 2 open", &["200"; 3], "a.test 3 finished"),
        row("load shed, slot", Behind(5), stack!(LoadShedLayer::new(), slot), "a.test 1 in flight 5 waiting, 1 open", &["200"; 5], "a.test 6 finished"),
        row("slot of 2, load shed, limit of 1", Slow(3), stack!(slot, LoadShedLayer::new(), ConcurrencyLimitLayer::new(1)), "a.test 1 in flight 2 failed, 1 open", &["200", "overloaded", "overloaded"], "a.test 1 finished 2 failed"),
        row("limit of 2, slot", Behind(5), stack!(ConcurrencyLimitLayer::new(2), slot), "a.test 1 in flight 2 waiting, 1 open", &["200"; 5], "a.test 6 finished"),
        row("slot of 2, limit of 1", Slow(3), stack!(slot, ConcurrencyLimitLayer::new(1)), "a.test 2 in flight 1 waiting, 1 open", &["200"; 3], "a.test 3 finished"),
        // --- what looks at requests and bodies
        row("trace, slot", Behind(1), |bench| stack!(trace(bench), slot)(bench), "a.test 1 in flight 1 waiting, 1 open, 1 marks", &["200"], "a.test 2 finished, 1 marks"),
        row("slot, trace", Behind(1), |bench| stack!(slot, trace(bench))(bench), "a.test 1 in flight 1 waiting, 1 open", &["200"], "a.test 2 finished, 1 marks"),
        row("decompression, slot", Zipped, stack!(DecompressionLayer::new(), slot), "a.test 1 finished", &["200 long"], "a.test 1 finished"),
        row("slot, decompression", Zipped, stack!(slot, DecompressionLayer::new()), "a.test 1 in flight", &["200 long"], "a.test 1 finished"),
        row("set header, slot of the tenant", FailsTwice, |bench| {
            let slot = bench.slot().key_extractor(tenant);
            boxed(ServiceBuilder::new().layer(set_tenant()).layer(slot).service(bench.client()))
        }, "", &["503"], "t1 1 finished"),
        row("slot of the tenant, set header", FailsTwice, |bench| {
            let slot = bench.slot().key_extractor(tenant);
            boxed(ServiceBuilder::new().layer(slot).layer(set_tenant()).service(bench.client()))
        }, "", &["503"], "nobody 1 finished"),
    ]
}

fn timeout() -> TimeoutLayer {
    TimeoutLayer::new(TIMEOUT)
}

fn http_timeout() -> HttpTimeoutLayer {
    HttpTimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, TIMEOUT)
}

fn body_timeout() -> ResponseBodyTimeoutLayer {
    ResponseBodyTimeoutLayer::new(TIMEOUT)
}

fn set_tenant() -> SetRequestHeaderLayer<http::HeaderValue> {
    SetRequestHeaderLayer::overriding("x-tenant".parse().unwrap(), "t1".parse().unwrap())
}

fn tenant(request: &Req) -> SlotKey {
    let tenant = request.headers().get("x-tenant").and_then(|tenant| tenant.to_str().ok());
    SlotKey::from(tenant.unwrap_or("nobody"))
}

fn row(
    name: &'static str,
    scene: Scene,
    stack: fn(&Bench) -> Stack,
    during: &'static str,
    outcomes: &'static [&'static str],
    after: &'static str,
) -> Row {
    Row { name, stack, scene, during, outcomes, after }
}

fn trace(bench: &Bench) -> TraceLayer<HttpMakeClassifier, DefaultMakeSpan, Mark> {
    TraceLayer::new_for_http().on_request(Mark(bench.marks.clone()))
}

/// Gives a service the types that all of them have here.
fn boxed<S, B>(service: S) -> Stack
where
    S: Service<Req, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let unify = |response: Response<B>| response.map(|body| body.map_err(Into::into).boxed_unsync());
    BoxCloneSyncService::new(service.map_response(unify).map_err(Into::into))
}

/// S4, S1, cases 12, 31, 37, 43 (the layers that need a body to make are those of the HTTP timeout).
#[tokio::test]
async fn the_slot_counts_what_the_order_of_the_layers_says() {
    join_all(rows().iter().map(Row::check)).await;
}

// === impl Row ===

impl Row {
    async fn check(&self) {
        let bench = Bench::new(self.scene).await;
        let stack = (self.stack)(&bench);
        let name = format!("{} ({:?})", self.name, self.scene);

        let mut held = None;
        if let Scene::Behind(_) = self.scene {
            let direct = bench.slot().layer(bench.client());
            held = Some(direct.oneshot(bench.server.get("a.test", "/held")).await.unwrap());
        }
        let requests = match self.scene {
            Scene::Behind(n) | Scene::Slow(n) => n,
            _ => 1,
        };
        let is_kept = matches!(self.scene, Scene::StallsInBody | Scene::Zipped);
        let sent: Vec<_> = (0..requests)
            .map(|_| {
                let opens = bench.gate.subscribe();
                tokio::spawn(outcome(
                    stack.clone(),
                    bench.server.get("a.test", "/"),
                    is_kept.then_some(opens),
                ))
            })
            .collect();
        if !self.during.is_empty() {
            let mut seen = String::new();
            let is_seen = soon(|| {
                seen = bench.look(true);
                seen == self.during
            });
            assert!(is_seen.await, "{name}: {seen:?} instead of {:?}", self.during);
        }
        bench.gate.send(true).unwrap();
        if let Some(held) = held {
            held.into_body().collect().await.unwrap();
        }
        let outcomes: Vec<_> = join_all(sent).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(outcomes, self.outcomes, "{name}");
        assert_eq!(bench.look(false), self.after, "{name}");
        drop(stack);
        for slot in bench.slots.snapshot().slots {
            assert_free(&bench.slots, slot.key.as_str(), bench.limit);
        }
    }
}

/// Sends one request and says what came of it. If the body is to be kept, it is after its error, or after its first
/// frame, until the gate opens.
async fn outcome(stack: Stack, request: Req, kept: Option<watch::Receiver<bool>>) -> String {
    let response = match stack.oneshot(request).await {
        Ok(response) => response,
        Err(error) if error.is::<Elapsed>() => return "elapsed".to_owned(),
        Err(error) if error.is::<Overloaded>() => return "overloaded".to_owned(),
        Err(error) => return error.to_string(),
    };
    let mut outcome = response.status().as_u16().to_string();
    let mut body = response.into_body();
    let first = body.frame().await;
    if first.as_ref().is_some_and(Result::is_err) {
        outcome += " broken";
    }
    if let Some(mut opens) = kept {
        opens.wait_for(|is_open| *is_open).await.unwrap();
    }
    if let Some(Ok(first)) = first {
        let rest = body.collect().await.unwrap().to_bytes();
        if first.data_ref().map_or(0, Bytes::len) + rest.len() == LONG {
            outcome += " long";
        }
    }
    outcome
}

// === impl Bench ===

impl Bench {
    async fn new(scene: Scene) -> Self {
        let (gate, opens) = watch::channel(false);
        let exchanges = Exchanges::default();
        let (begun, zipped) = (exchanges.clone(), zipped().await);
        let attempts = Arc::new(AtomicUsize::new(0));
        let handler = service_fn(move |request: Request<Incoming>| {
            let attempt = attempts.fetch_add(1, Ordering::Relaxed);
            let exchange = begun.begin(attempt as u64);
            let (mut opens, zipped) = (opens.clone(), zipped.clone());
            async move {
                let mut opened = async move || drop(opens.wait_for(|is_open| *is_open).await);
                let host = request.headers()[header::HOST].to_str()?;
                let mut response = Page::sized().data("fine").response();
                match scene {
                    Scene::Behind(_) if request.uri().path() == "/held" => {
                        response =
                            Page::chunked().data("held").when(async move { opened().await }).response();
                    }
                    Scene::Behind(_) => {}
                    Scene::Slow(_) => opened().await,
                    Scene::StallsOnce if attempt == 0 => pending().await,
                    Scene::StallsOnce => {}
                    Scene::FailsTwice if attempt < 2 => {
                        response = Page::sized().response();
                        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                    }
                    Scene::FailsTwice => {}
                    Scene::StallsInBody => response = Page::sized().stall().data("never").response(),
                    Scene::Redirect if host.starts_with("a.test") => {
                        response = Page::sized().data("it is not here").response();
                        *response.status_mut() = StatusCode::FOUND;
                        let location = format!("http://{}/", host.replace("a.test", "b.test"));
                        response.headers_mut().insert(header::LOCATION, location.parse()?);
                    }
                    Scene::Redirect => {}
                    Scene::Zipped => {
                        response = Page::sized().data(zipped).response();
                        response.headers_mut().insert(header::CONTENT_ENCODING, "gzip".parse()?);
                    }
                }
                Ok::<_, BoxError>(response.map(|page| page.of(exchange)))
            }
        });
        let server = Server::start(Wire::Http1, handler).await;
        let limit = if let Scene::Slow(_) = scene { 2 } else { 1 };
        let slots = layer(SlotConfig::builder().concurrency(limit)).slots().clone();
        Self { server, exchanges, slots, gate, limit, marks: Arc::default() }
    }

    fn slot(&self) -> SlotLayer {
        SlotLayer::with_slots(self.slots.clone())
    }

    /// A client whose body has a default, as the HTTP timeout inside asks for.
    fn client(&self) -> Stack {
        boxed(self.server.client())
    }

    /// What there is to be seen; with `now`, also how many exchanges are open at the server.
    fn look(&self, now: bool) -> String {
        let mut text = String::new();
        for slot in self.slots.snapshot().slots {
            let separator = if text.is_empty() { "" } else { "; " };
            write!(text, "{separator}{}", slot.key).unwrap();
            let counts = slot.counts;
            for (n, word) in [
                (slot.in_flight as u64, "in flight"),
                (slot.waiting as u64, "waiting"),
                (counts.finished, "finished"),
                (counts.failed, "failed"),
                (counts.cancelled, "cancelled"),
                (counts.gone, "gone"),
                (counts.refused + counts.timed_out, "refused"),
            ] {
                if n > 0 {
                    write!(text, " {n} {word}").unwrap();
                }
            }
        }
        let open = if now { self.exchanges.open() } else { 0 };
        for (n, word) in [(open, "open"), (self.marks.load(Ordering::Relaxed), "marks")] {
            if n > 0 {
                write!(text, ", {n} {word}").unwrap();
            }
        }
        text
    }
}

/// A long page in a few bytes.
async fn zipped() -> Bytes {
    static ZIPPED: tokio::sync::OnceCell<Bytes> = tokio::sync::OnceCell::const_new();
    let zip = async || {
        let long = service_fn(async |_: Req| {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![0; LONG]))))
        });
        let request =
            Request::get("/").header(header::ACCEPT_ENCODING, "gzip").body(Full::default()).unwrap();
        let response = CompressionLayer::new().layer(long).oneshot(request).await.unwrap();
        response.into_body().collect().await.unwrap().to_bytes()
    };
    ZIPPED.get_or_init(zip).await.clone()
}

// === impl AtOnce ===

impl<B, E> Policy<Req, Response<B>, E> for AtOnce {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Req, result: &mut Result<Response<B>, E>) -> Option<Ready<()>> {
        let is_good = result.as_ref().is_ok_and(|response| response.status().is_success());
        self.0 = if is_good { 0 } else { self.0.checked_sub(1)? };
        (!is_good).then(|| ready(()))
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

// === impl Mark ===

impl<B> OnRequest<B> for Mark {
    fn on_request(&mut self, _: &Request<B>, _: &tracing::Span) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

// --- what a table cannot say

const BACK_OFF: Duration = Duration::from_millis(20);

/// A policy that backs off and looks at the slot meanwhile.
#[derive(Clone)]
struct BackOff {
    left: usize,
    slots: Slots,
    /// In flight when the policy is asked, and when the back-off is first polled.
    seen: Arc<Mutex<Vec<(usize, usize)>>>,
}

impl<B, E> Policy<Req, Response<B>, E> for BackOff {
    type Future = Pin<Box<dyn Future<Output = ()> + Send>>;

    fn retry(&mut self, _: &mut Req, result: &mut Result<Response<B>, E>) -> Option<Self::Future> {
        let is_good = result.as_ref().is_ok_and(|response| response.status().is_success());
        self.left = if is_good { 0 } else { self.left.checked_sub(1)? };
        let (slots, seen) = (self.slots.clone(), self.seen.clone());
        let asked = in_flight(&slots, "a.test");
        (!is_good).then(|| -> Self::Future {
            Box::pin(async move {
                seen.lock().unwrap().push((asked, in_flight(&slots, "a.test")));
                sleep(BACK_OFF).await;
            })
        })
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

/// S4, L2, case 38: tower drops the failed response before the back-off, unread bytes or not.
#[tokio::test]
async fn a_failed_attempt_has_no_permit_during_the_back_off_and_the_next_one_keeps_the_pace() -> TestResult {
    let delay = Duration::from_millis(100);
    let attempts = Arc::new(AtomicUsize::new(0));
    let server = Server::start(
        Wire::Http1,
        service_fn(move |_: Request<Incoming>| {
            let attempt = attempts.fetch_add(1, Ordering::Relaxed);
            let mut response = Page::sized().data("a text that nobody reads").response();
            if attempt < 2 {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            ready(Ok::<_, Infallible>(response))
        }),
    )
    .await;
    let layer = layer(SlotConfig::builder().concurrency(1).delay(delay));
    let policy = BackOff { left: 2, slots: layer.slots().clone(), seen: Arc::default() };
    let seen = policy.seen.clone();
    let client =
        ServiceBuilder::new().layer(RetryLayer::new(policy)).layer(layer.clone()).service(server.client());

    let began = Instant::now();
    let response = client.oneshot(server.get("a.test", "/")).await?;
    assert_eq!(response.status(), StatusCode::OK);
    let took = began.elapsed();
    assert!(took >= 2 * delay, "{took:?}");
    assert_eq!(*seen.lock().unwrap(), [(1, 0), (1, 0)]);
    drop(response);
    let slot = net::stats(layer.slots(), "a.test");
    assert_eq!((slot.counts.started, slot.counts.cancelled), (3, 3));
    // Only what the back-off did not use up of the delay was waited for the pace.
    assert!(slot.times.pace <= took - 2 * BACK_OFF, "{took:?} {:?}", slot.times);
    Ok(())
}

/// K3, case 31: a redirect to the same host at limit 1 waits for nobody; an explicit key goes where the extensions go,
/// which is up to the policy.
#[tokio::test]
async fn each_hop_goes_through_the_slot_of_its_own_host_or_of_the_key_that_came_along() -> TestResult {
    for is_unread in [false, true] {
        let server = Server::start(
            Wire::Http1,
            service_fn(move |request: Request<Incoming>| {
                let port =
                    request.headers()[header::HOST].to_str().unwrap().rsplit(':').next().unwrap().to_owned();
                let location = match request.uri().path() {
                    "/1" => Some(format!("http://a.test:{port}/2")),
                    "/2" => Some(format!("http://b.test:{port}/3")),
                    _ => None,
                };
                let mut response =
                    if is_unread { Page::chunked().data("moved") } else { Page::sized() }.response();
                if let Some(location) = location {
                    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
                    response.headers_mut().insert(header::LOCATION, location.parse().unwrap());
                }
                ready(Ok::<_, Infallible>(response))
            }),
        )
        .await;
        // Standard leaves the extensions behind where another origin begins; Limited alone takes them along.
        for (keeps, keyed, expected) in
            [(false, false, "a.test 2, b.test 1"), (false, true, "b.test 1, mine 2"), (true, true, "mine 3")]
        {
            let layer = layer(SlotConfig::builder().concurrency(1));
            let inner = layer.layer(server.client());
            let mut request = server.get("a.test", "/1");
            if keyed {
                request.extensions_mut().insert(SlotKey::from("mine"));
            }
            let response = match keeps {
                false => {
                    FollowRedirectLayer::with_policy(Standard::default())
                        .layer(inner)
                        .oneshot(request)
                        .await?
                }
                true => {
                    FollowRedirectLayer::with_policy(Limited::new(5)).layer(inner).oneshot(request).await?
                }
            };
            assert_eq!(response.status(), StatusCode::OK);
            drop(response);
            let slots = layer.slots().snapshot().slots;
            let asked: Vec<_> =
                slots.iter().map(|slot| format!("{} {}", slot.key, slot.counts.asked)).collect();
            assert_eq!(asked.join(", "), expected, "{is_unread} {keeps} {keyed}");
            assert!(slots.iter().all(|slot| slot.in_flight == 0));
        }
    }
    Ok(())
}
