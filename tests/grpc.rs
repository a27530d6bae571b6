//! gRPC: the layer between a tonic client and its channel, and on a tonic server; what tonic reads from the trailers
//! comes through.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/net.rs"]
mod net;

use std::convert::Infallible;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut};
use futures_util::stream::{self, BoxStream, StreamExt};
use http::uri::PathAndQuery;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use tower::{Layer, Service, service_fn};
use tower_slot::{
    BoxError, SlotConfig, SlotError, SlotKey, SlotLayer, SlotService, Slots, too_many_requests,
};

use self::net::{assert_free, in_flight, layer, stats, until, waiting};

type TestResult = Result<(), BoxError>;

/// How a server's slot answers those whom it refuses.
type Refuse = fn(SlotError) -> http::Response<Body>;

/// Messages are texts as they are.
#[derive(Clone, Copy, Debug, Default)]
struct Text;

/// A service written by hand: no compiler of protocols takes part.
#[derive(Clone)]
struct Greeter {
    gate: watch::Receiver<bool>,
}

/// A server and a channel to it, each with the layer, and the gate that streams wait at.
struct Bench {
    near: Slots,
    far: Slots,
    address: SocketAddr,
    channel: Channel,
    gate: watch::Sender<bool>,
    server: JoinHandle<()>,
}

/// The slot that the server sees: the host of its own address.
const FAR: &str = "127.0.0.1";

fn path(method: &'static str) -> PathAndQuery {
    PathAndQuery::from_static(method)
}

fn request(text: &str) -> Request<String> {
    Request::new(text.to_owned())
}

/// Reads a stream to its end.
async fn all(stream: &mut Streaming<String>) -> Result<Vec<String>, Status> {
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await? {
        messages.push(message);
    }
    Ok(messages)
}

/// B1, B3, S2: one message each way, and the status in the trailers.
#[tokio::test]
async fn a_unary_call_gives_both_permits_back_at_its_trailers() -> TestResult {
    let bench = Bench::new(1, 1, too_many_requests).await;
    let mut client = bench.client("near.test");
    for name in ["Ada", "Bob"] {
        client.ready().await?;
        let answer = client.unary(request(name), path("/test.Greeter/Hello"), Text).await?;
        assert_eq!(answer.metadata().get("x-greeter").unwrap(), "here");
        assert_eq!(answer.metadata().get("grpc-status").unwrap(), "0", "it is in the trailers");
        assert_eq!(answer.into_inner(), format!("hello {name}"));
        assert_eq!(in_flight(&bench.near, "near.test"), 0);
    }
    until("the server is done", || in_flight(&bench.far, FAR) == 0).await;
    assert_eq!(stats(&bench.near, "near.test").counts.finished, 2);
    assert_eq!(stats(&bench.far, FAR).counts.finished, 2);

    let status = client.unary(request("nobody"), path("/test.Greeter/Hello"), Text).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "no such name"));
    assert_eq!(status.metadata().get("x-checked").unwrap(), "yes");
    assert_eq!(in_flight(&bench.near, "near.test"), 0);
    Ok(())
}

/// B1, B3: a stream holds both permits until its trailers, not until it is dropped.
#[tokio::test]
async fn a_stream_holds_both_permits_until_its_trailers() -> TestResult {
    let bench = Bench::new(1, 1, too_many_requests).await;
    let mut client = bench.client("near.test");
    client.ready().await?;
    let answer = client.server_streaming(request("3"), path("/test.Greeter/Count"), Text).await?;
    let mut stream = answer.into_inner();
    assert_eq!(stream.message().await?.as_deref(), Some("0"));
    assert_eq!((in_flight(&bench.near, "near.test"), in_flight(&bench.far, FAR)), (1, 1));
    let mut other = bench.client("near.test");
    let second = tokio::spawn(async move {
        other.ready().await.unwrap();
        other.unary(request("Ada"), path("/test.Greeter/Hello"), Text).await
    });
    until("another call waits", || waiting(&bench.near, "near.test") == 1).await;

    bench.gate.send(true)?;
    assert_eq!(all(&mut stream).await?, ["1", "2"]);
    assert_eq!(stream.trailers().await?.unwrap().get("grpc-status").unwrap(), "0");
    assert_eq!(second.await??.into_inner(), "hello Ada");
    assert_free(&bench.near, "near.test", 1);
    until("the server is done", || in_flight(&bench.far, FAR) == 0).await;
    assert_eq!(stats(&bench.far, FAR).counts.finished, 2);
    drop(stream);
    Ok(())
}

/// B1, B3: a status that comes after some messages, with its metadata.
#[tokio::test]
async fn a_stream_that_fails_says_so_in_its_trailers() -> TestResult {
    let bench = Bench::new(1, 1, too_many_requests).await;
    let mut client = bench.client("near.test");
    client.ready().await?;
    let answer = client.server_streaming(request("2"), path("/test.Greeter/Lose"), Text).await?;
    let mut stream = answer.into_inner();
    let status = all(&mut stream).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::DataLoss, "lost the rest"));
    assert_eq!(status.metadata().get("x-checked").unwrap(), "yes");
    assert_eq!(in_flight(&bench.near, "near.test"), 0, "while the stream is kept");
    assert_eq!(stats(&bench.near, "near.test").counts.finished, 1);
    Ok(())
}

/// B1, B5: messages both ways at once.
#[tokio::test]
async fn a_conversation_is_one_request() -> TestResult {
    let bench = Bench::new(1, 1, too_many_requests).await;
    let mut client = bench.client("near.test");
    client.ready().await?;
    let (say, heard) = tokio::sync::mpsc::channel::<String>(1);
    let said = stream::unfold(heard, async |mut heard| heard.recv().await.map(|text| (text, heard)));
    let answer = client.streaming(Request::new(said.boxed()), path("/test.Greeter/Echo"), Text).await?;
    let mut stream = answer.into_inner();
    for text in ["one", "two", "three"] {
        say.send(text.to_owned()).await?;
        assert_eq!(stream.message().await?.as_deref(), Some(text));
        assert_eq!((in_flight(&bench.near, "near.test"), in_flight(&bench.far, FAR)), (1, 1));
    }
    drop(say);
    assert_eq!(stream.message().await?, None);
    assert_free(&bench.near, "near.test", 1);
    until("the server is done", || in_flight(&bench.far, FAR) == 0).await;
    assert_free(&bench.far, FAR, 1);
    Ok(())
}

/// B1: a stream that is dropped in the middle is over on both sides.
#[tokio::test]
async fn a_stream_that_is_dropped_gives_both_permits_back() -> TestResult {
    let bench = Bench::new(1, 1, too_many_requests).await;
    let mut client = bench.client("near.test");
    client.ready().await?;
    let answer = client.server_streaming(request("3"), path("/test.Greeter/Count"), Text).await?;
    let mut stream = answer.into_inner();
    assert_eq!(stream.message().await?.as_deref(), Some("0"));
    drop(stream);
    assert_eq!(stats(&bench.near, "near.test").counts.cancelled, 1);
    assert_free(&bench.near, "near.test", 1);
    until("the server has noticed", || in_flight(&bench.far, FAR) == 0).await;
    assert_eq!(stats(&bench.far, FAR).counts.cancelled, 1);
    Ok(())
}

/// S3: a client of gRPC is told so by a status, of the server's choice or by what it makes of a 429.
#[tokio::test]
async fn a_refusal_is_a_status() -> TestResult {
    let in_words: Refuse = |error| Status::resource_exhausted(error.to_string()).into_http();
    for (refuse, code) in [(in_words, Code::ResourceExhausted), (too_many_requests, Code::Unavailable)] {
        let bench = Bench::new(2, 1, refuse).await;
        let held = bench.far.try_acquire(FAR)?;
        let mut client = bench.client("near.test");
        client.ready().await?;
        let status = client.unary(request("Ada"), path("/test.Greeter/Hello"), Text).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        if code == Code::ResourceExhausted {
            let text = "slot \"127.0.0.1\": queue is full";
            assert!(status.message().starts_with(text), "{status}");
        }
        drop(held);
        client.unary(request("Ada"), path("/test.Greeter/Hello"), Text).await?;
        assert_free(&bench.near, "near.test", 2);
    }
    Ok(())
}

/// K1: a tonic client has no host unless it is given an origin, and a key in its request's extensions is a key.
#[tokio::test]
async fn the_slot_is_that_of_the_origin_or_of_the_key() -> TestResult {
    let bench = Bench::new(1, 1, too_many_requests).await;
    let inside = SlotLayer::with_slots(bench.near.clone()).layer(bench.channel.clone());
    let mut keyed = request("Ada");
    keyed.extensions_mut().insert(SlotKey::from("mine"));
    let calls = [
        (Grpc::new(inside), request("Ada")),
        (bench.client("near.test"), request("Ada")),
        (bench.client("near.test"), keyed),
    ];
    for (mut client, request) in calls {
        client.ready().await?;
        client.unary(request, path("/test.Greeter/Hello"), Text).await?;
    }
    let keys: Vec<_> = bench.near.snapshot().slots.into_iter().map(|slot| slot.key.to_string()).collect();
    assert_eq!(keys, ["", "mine", "near.test"]);
    Ok(())
}

// === impl Bench ===

impl Bench {
    /// Limits for the client's slots and for the server's, which have no queue.
    async fn new(near: usize, far: usize, refuse: Refuse) -> Self {
        let (gate, opens) = watch::channel(false);
        let far = layer(SlotConfig::builder().concurrency(far).queue_capacity(0));
        let near = layer(SlotConfig::builder().concurrency(near)).slots().clone();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let router =
            Server::builder().layer(far.clone().reject_with(refuse)).add_service(Greeter { gate: opens });
        let server = tokio::spawn(async move {
            router.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        Self { near, far: far.slots().clone(), address, channel, gate, server }
    }

    /// A client for which the server is that host.
    fn client(&self, host: &str) -> Grpc<SlotService<Channel>> {
        let origin = format!("http://{host}:{}", self.address.port()).parse().unwrap();
        let inside = SlotLayer::with_slots(self.near.clone()).layer(self.channel.clone());
        Grpc::with_origin(inside, origin)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.server.abort();
    }
}

// === impl Greeter ===

impl NamedService for Greeter {
    const NAME: &'static str = "test.Greeter";
}

impl Service<http::Request<Body>> for Greeter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let gate = self.gate.clone();
        let mut grpc = tonic::server::Grpc::new(Text);
        Box::pin(async move {
            Ok(match request.uri().path() {
                "/test.Greeter/Hello" => grpc.unary(service_fn(hello), request).await,
                "/test.Greeter/Count" => {
                    grpc.server_streaming(service_fn(move |request| count(request, gate.clone())), request)
                        .await
                }
                "/test.Greeter/Lose" => grpc.server_streaming(service_fn(lose), request).await,
                "/test.Greeter/Echo" => grpc.streaming(service_fn(echo), request).await,
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

type Texts = BoxStream<'static, Result<String, Status>>;

/// A status with something beside it.
fn status(code: Code, text: &str) -> Status {
    Status::with_metadata(code, text, MetadataMap::from_headers(net::trailers()))
}

async fn hello(request: Request<String>) -> Result<Response<String>, Status> {
    let name = request.into_inner();
    if name == "nobody" {
        return Err(status(Code::NotFound, "no such name"));
    }
    let mut response = Response::new(format!("hello {name}"));
    response.metadata_mut().insert("x-greeter", "here".parse().unwrap());
    Ok(response)
}

/// Counts; after the first number the gate has to open.
async fn count(request: Request<String>, gate: watch::Receiver<bool>) -> Result<Response<Texts>, Status> {
    let n: usize = request.into_inner().parse().unwrap();
    let opened = move |n: usize| {
        let mut gate = gate.clone();
        async move {
            if n > 0 {
                drop(gate.wait_for(|is_open| *is_open).await);
            }
            Ok(n.to_string())
        }
    };
    Ok(Response::new(stream::iter(0..n).then(opened).boxed()))
}

/// Counts, and fails.
async fn lose(request: Request<String>) -> Result<Response<Texts>, Status> {
    let n: usize = request.into_inner().parse().unwrap();
    let lost = stream::iter([Err(status(Code::DataLoss, "lost the rest"))]);
    Ok(Response::new(stream::iter(0..n).map(|n| Ok(n.to_string())).chain(lost).boxed()))
}

async fn echo(request: Request<Streaming<String>>) -> Result<Response<Texts>, Status> {
    Ok(Response::new(request.into_inner().boxed()))
}

// === impl Text ===

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(text.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining()).to_vec();
        String::from_utf8(bytes).map(Some).map_err(|_| Status::internal("no text"))
    }
}
