//! The time to a connection apart from the time to the headers: told by hyper-util's client.
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_slot::{Phases, SlotConfig, SlotLayer, SlotTimings, Slots};

const SECOND: Duration = Duration::from_secs(1);

fn layer() -> SlotLayer {
    SlotLayer::new(SlotConfig::default()).connection_times(true).timings(true)
}

fn get() -> Request<Empty<Bytes>> {
    Request::get("http://a.test/").body(Empty::new()).unwrap()
}

fn times(slots: &Slots) -> Phases {
    slots.stats("a.test").unwrap().times
}

/// To a connection, to the headers, in the body.
fn parts(times: Phases) -> [Duration; 3] {
    [times.connection, times.headers, times.body]
}

/// Reads up to the empty line that ends a head.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// One end of a pipe, as a connection.
struct Pipe(DuplexStream);

impl Connection for Pipe {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Connects in 2 s, answers in 3 s and sends the body 4 s later, to every request on the connection.
async fn connect(_: http::Uri) -> io::Result<TokioIo<Pipe>> {
    sleep(2 * SECOND).await;
    let (near, mut far) = duplex(1024);
    tokio::spawn(async move {
        loop {
            read_head(&mut far).await;
            sleep(3 * SECOND).await;
            far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n").await.unwrap();
            sleep(4 * SECOND).await;
            far.write_all(b"hello").await.unwrap();
        }
    });
    Ok(TokioIo::new(Pipe(near)))
}

/// V1, V2: exact, and the whole of the request's life; a connection from the pool is there at once.
#[tokio::test(start_paused = true)]
async fn the_time_to_a_connection_is_told_apart() {
    let layer = layer();
    let slots = layer.slots().clone();
    let client =
        layer.layer(Client::builder(TokioExecutor::new()).build(service_fn(|uri| Box::pin(connect(uri)))));
    let expected = [(2, [2, 3, 4]), (0, [2, 6, 8])];
    for (connection, sums) in expected {
        let start = Instant::now();
        let response = client.clone().oneshot(get()).await.unwrap();
        let timings = response.extensions().get::<SlotTimings>().unwrap().clone();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
        assert_eq!(timings.to_connection(), Some(connection * SECOND));
        assert_eq!((timings.to_headers(), timings.body()), (3 * SECOND, Some(4 * SECOND)));
        assert_eq!(start.elapsed(), (connection + 7) * SECOND);
        assert_eq!(parts(times(&slots)), sums.map(|n| n * SECOND));
        // The client's task takes the connection back to the pool.
        tokio::task::yield_now().await;
    }
    let (times, longest) = ([2, 6, 8].map(|n| n * SECOND), [2, 3, 4].map(|n| n * SECOND));
    assert_eq!(parts(slots.stats("a.test").unwrap().longest), longest);
    // They outlive the slot.
    advance(60 * SECOND).await;
    slots.retain_recent();
    let recycled = slots.snapshot().recycled;
    assert_eq!((parts(recycled.times), parts(recycled.longest)), (times, longest));
}

/// V1: without the switch all of it counts as to the headers.
#[tokio::test(start_paused = true)]
async fn it_is_not_told_apart_unless_asked() {
    let layer = layer().connection_times(false);
    let client =
        layer.layer(Client::builder(TokioExecutor::new()).build(service_fn(|uri| Box::pin(connect(uri)))));
    let response = client.oneshot(get()).await.unwrap();
    let timings = response.extensions().get::<SlotTimings>().unwrap();
    assert_eq!((timings.to_connection(), timings.to_headers()), (None, 5 * SECOND));
    assert_eq!(parts(times(layer.slots()))[..2], [Duration::ZERO, 5 * SECOND]);
}

/// V2: the timings of a response are told also where the slots keep no times.
#[tokio::test(start_paused = true)]
async fn timings_need_no_statistics() {
    let layer = SlotLayer::new(SlotConfig::builder().statistics(false).build().unwrap());
    let layer = layer.connection_times(true).timings(true);
    let client =
        layer.layer(Client::builder(TokioExecutor::new()).build(service_fn(|uri| Box::pin(connect(uri)))));
    let response = client.oneshot(get()).await.unwrap();
    let timings = response.extensions().get::<SlotTimings>().unwrap().clone();
    response.into_body().collect().await.unwrap();
    assert_eq!((timings.to_connection(), timings.to_headers()), (Some(2 * SECOND), 3 * SECOND));
    assert_eq!(timings.body(), Some(4 * SECOND));
    assert_eq!(times(layer.slots()), Phases::default());
}

/// V1: and the other way round.
#[tokio::test(start_paused = true)]
async fn statistics_need_no_timings() {
    let layer = layer().timings(false);
    let client =
        layer.layer(Client::builder(TokioExecutor::new()).build(service_fn(|uri| Box::pin(connect(uri)))));
    let response = client.oneshot(get()).await.unwrap();
    assert!(response.extensions().get::<SlotTimings>().is_none());
    response.into_body().collect().await.unwrap();
    assert_eq!(parts(times(layer.slots())), [2, 3, 4].map(|n| n * SECOND));
}

/// V1, V2: what nobody would be told is not asked for; the question goes to the client with the request.
#[tokio::test]
async fn the_client_is_asked_only_where_somebody_wants_to_know() {
    let questions = service_fn(async |request: Request<Empty<Bytes>>| {
        Ok::<_, io::Error>(Response::new(request.extensions().len().to_string()))
    });
    for (statistics, timings, expected) in
        [(false, false, "0"), (false, true, "1"), (true, false, "1"), (true, true, "1")]
    {
        let config = SlotConfig::builder().statistics(statistics).build().unwrap();
        let layer = SlotLayer::new(config).connection_times(true).timings(timings);
        let response = layer.layer(questions).oneshot(get()).await.unwrap();
        let asked = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(asked, expected, "statistics {statistics}, timings {timings}");
    }
}

/// B2, V1: a connection that never comes is what the time went to, while it lasts and afterwards.
#[tokio::test(start_paused = true)]
async fn a_failed_connection_counts_as_waiting_for_it() {
    async fn fail() -> io::Result<TokioIo<Pipe>> {
        sleep(2 * SECOND).await;
        Err(io::ErrorKind::ConnectionRefused.into())
    }
    let refuse = service_fn(|_: http::Uri| Box::pin(fail()));
    let layer = layer();
    let slots = layer.slots().clone();
    let client = layer.layer(Client::builder(TokioExecutor::new()).build(refuse));
    let request = tokio::spawn(client.oneshot(get()));
    sleep(SECOND).await;
    assert_eq!(parts(times(&slots)), [SECOND, Duration::ZERO, Duration::ZERO]);
    assert_eq!(slots.stats("a.test").unwrap().to_string(), "a.test: 100 % in connection");
    request.await.unwrap().unwrap_err();
    assert_eq!(parts(times(&slots)), [2 * SECOND, Duration::ZERO, Duration::ZERO]);
    assert_eq!(slots.stats("a.test").unwrap().counts.failed, 1);
}

/// V1: a service that tells nothing has no connection to tell apart.
#[tokio::test(start_paused = true)]
async fn where_nobody_tells_all_counts_as_to_the_headers() {
    let silent = service_fn(async |_: Request<Empty<Bytes>>| {
        sleep(2 * SECOND).await;
        Ok::<_, io::Error>(Response::new(Empty::<Bytes>::new()))
    });
    let layer = layer();
    let mut call = tokio_test::task::spawn(layer.layer(silent).call(get()));
    assert!(call.poll().is_pending());
    advance(2 * SECOND).await;
    let response = call.await.unwrap();
    let timings = response.extensions().get::<SlotTimings>().unwrap();
    assert_eq!((timings.to_connection(), timings.to_headers()), (None, 2 * SECOND));
    assert_eq!(parts(times(layer.slots())), [Duration::ZERO, 2 * SECOND, Duration::ZERO]);
}

/// Does it, for at least so long.
async fn hold<T>(go: oneshot::Sender<()>, f: impl Future<Output = T>) -> (Duration, T) {
    let start = Instant::now();
    sleep(Duration::from_millis(60)).await;
    let held = start.elapsed();
    go.send(()).unwrap();
    (held, f.await)
}

/// V1, V2, over real sockets: a proxy that is slow to accept, a server that is slow to answer and slow to send.
#[tokio::test]
async fn a_slow_proxy_a_slow_answer_and_a_slow_body_are_three_things() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let ((accept, may_accept), (answer, may_answer), (send, may_send)) =
        (oneshot::channel(), oneshot::channel(), oneshot::channel());
    let ((asked, is_asked), (called, is_called)) = (oneshot::channel(), oneshot::channel());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(read_head(&mut stream).await.starts_with("CONNECT a.test"));
        asked.send(()).unwrap();
        may_accept.await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        assert!(read_head(&mut stream).await.starts_with("GET / "));
        called.send(()).unwrap();
        may_answer.await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n").await.unwrap();
        may_send.await.unwrap();
        stream.write_all(b"hello").await.unwrap();
    });
    let layer = layer();
    let slots = layer.slots().clone();
    let tunnel = Tunnel::new(proxy, HttpConnector::new());
    let client = layer.layer(Client::builder(TokioExecutor::new()).build(tunnel));

    let start = Instant::now();
    let request = tokio::spawn(client.oneshot(get()));
    is_asked.await.unwrap();
    let (connecting, _) = hold(accept, is_called).await;
    let so_far = times(&slots);
    let (answering, response) = hold(answer, request).await;
    let response = response.unwrap().unwrap();
    let timings = response.extensions().get::<SlotTimings>().unwrap().clone();
    let (sending, body) = hold(send, response.into_body().collect()).await;
    assert_eq!(body.unwrap().to_bytes(), "hello");
    let life = start.elapsed();

    // Each is where it was held up, and none has more than is left.
    let [to_connection, to_headers, in_body] =
        [timings.to_connection().unwrap(), timings.to_headers(), timings.body().unwrap()];
    let said = format!("{to_connection:?} {to_headers:?} {in_body:?} of {life:?}");
    assert!(to_connection >= connecting && to_headers >= answering && in_body >= sending, "{said}");
    assert!(to_connection + to_headers + in_body <= life, "{said}");
    let [connection, headers, body] = parts(times(&slots));
    // The permit is back a moment after the timings have the time of the body.
    assert_eq!((connection, headers), (to_connection, to_headers));
    assert!((in_body..life).contains(&body), "{body:?} {said}");
    // It was known before the headers were there.
    assert_eq!(so_far.connection, to_connection);
}
