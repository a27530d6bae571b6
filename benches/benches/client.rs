//! A whole client over loopback: `cargo bench -p tower-slot-bench --bench client`.
//!
//! The server has a thread of its own, the client another one; each of 64 tasks sends one request after the other to
//! its own host, over a connection that stays open.

use std::convert::Infallible;
use std::fmt::Debug;
use std::io;
use std::iter::once;
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tower::{Layer, Service};
use tower_slot::{SlotConfig, SlotLayer};
use tower_slot_bench::hand_written::PerHostLayer;
use tower_slot_bench::report::Report;
use tower_slot_bench::rounds::rounds;

const ROUNDS: usize = 31;
const HOSTS: usize = 64;

/// Per host, so that a round takes some tenths of a second.
const REQUESTS: usize = 300;

type Outgoing = Request<Empty<Bytes>>;

fn main() {
    let head = ["64 hosts, kept alive", "requests per second", "beside bare"];
    let mut report = Report::begin("hyper-util's client over loopback, HTTP/1, one thread", head);
    let addr = serve();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let config = SlotConfig::builder().concurrency(8).build().expect("limits that can be");
    let contenders = [
        contender(&runtime, addr.port(), client(addr)),
        contender(&runtime, addr.port(), cloned(client(addr))),
        contender(&runtime, addr.port(), PerHostLayer::new(8).layer(client(addr))),
        contender(&runtime, addr.port(), SlotLayer::new(config).layer(client(addr))),
    ];
    let figures = rounds(ROUNDS, contenders);
    for (name, rate) in
        ["bare", "a clone per request", "the hand-written layer", "`SlotLayer`"].into_iter().zip(&figures)
    {
        report.row(name, [format!("{rate:.0}"), format!("{:.3}", rate.over(&figures[0]))]);
    }
    report.print();
}

/// A client that finds every name at `addr`.
fn client(
    addr: SocketAddr,
) -> impl Service<Outgoing, Response = Response<Incoming>, Error = Error, Future: Send> + Clone + Send + 'static
{
    let resolver = tower::service_fn(move |_: Name| async move { Ok::<_, io::Error>(once(addr)) });
    Client::builder(TokioExecutor::new()).build(HttpConnector::new_with_resolver(resolver))
}

/// What a layer that waits before it calls cannot spare: a clone of the client for each request.
fn cloned<S>(
    client: S,
) -> impl Service<Outgoing, Response = S::Response, Error = S::Error, Future: Send> + Clone + Send + 'static
where
    S: Service<Outgoing, Error: Send, Response: Send, Future: Send> + Clone + Send + 'static,
{
    tower::service_fn(move |request| {
        let mut client = client.clone();
        async move { client.call(request).await }
    })
}

/// The requests per second of all hosts together.
fn contender<'a, S, B>(runtime: &'a Runtime, port: u16, service: S) -> Box<dyn FnMut() -> f64 + 'a>
where
    S: Service<Outgoing, Response = Response<B>, Error: Debug, Future: Send> + Clone + Send + 'static,
    B: Body<Data: Send, Error: Debug> + Send + 'static,
{
    Box::new(move || {
        let start = Instant::now();
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for host in 0..HOSTS {
                tasks.spawn(one_after_the_other(service.clone(), host, port));
            }
            tasks.join_all().await;
        });
        (HOSTS * REQUESTS) as f64 / start.elapsed().as_secs_f64()
    })
}

async fn one_after_the_other<S, B>(mut service: S, host: usize, port: u16)
where
    S: Service<Outgoing, Response = Response<B>, Error: Debug>,
    B: Body<Error: Debug>,
{
    let uri: http::Uri = format!("http://host-{host}.example.com:{port}/path").parse().expect("a URI");
    for _ in 0..REQUESTS {
        std::future::poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
        let request = Request::get(uri.clone()).body(Empty::new()).expect("a request");
        let response = service.call(request).await.expect("a response");
        response.into_body().collect().await.expect("a body");
    }
}

/// Starts a server that says hello to everybody, on a thread of its own.
fn serve() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let addr = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).expect("a socket");
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                let hello = service_fn(|_| async {
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello"))))
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), hello));
            }
        })
    });
    addr
}
