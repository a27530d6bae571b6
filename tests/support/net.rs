//! Servers and clients on loopback, and the table of open exchanges that both sides share.
//!
//! No name is ever resolved: [`ToServer`] takes every host to the one local port. Nothing here sleeps to let things
//! settle: a body waits for what the test says, and [`until`] looks until something is so.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::fmt;
use std::future::{Future, pending};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::Service;
use tower_slot::{BoxError, Counts, SlotConfigBuilder, SlotLayer, SlotStats, Slots};

/// A client of one server, with a pool of its own.
pub type Client = legacy::Client<HttpsConnector<ToServer>, Full<Bytes>>;

/// What the client and the server speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Http1,
    /// With prior knowledge.
    Http2,
    Tls1,
    Tls2,
}

/// A server on a free port of loopback. Dropping it ends it with all its connections.
pub struct Server {
    pub address: SocketAddr,
    wire: Wire,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

/// Connects to one address, whatever host the URI names.
#[derive(Clone, Copy, Debug)]
pub struct ToServer {
    to: SocketAddr,
    /// The address that the server sees.
    from: Ipv4Addr,
}

/// A body that does, step by step, what it is told.
#[derive(Default)]
pub struct Page {
    steps: VecDeque<Step>,
    /// Whether it tells its length ahead, and its end with the last frame.
    sized: bool,
    /// Ends before the last frame leaves.
    exchange: Option<Exchange>,
}

enum Step {
    Frame(Frame<Bytes>),
    When(Pin<Box<dyn Future<Output = ()> + Send>>),
    Break,
}

/// What a page breaks with.
#[derive(Debug)]
pub struct Broken;

/// The exchanges of a server: open from the handler's start until the last frame is yielded, or until the client
/// has said that it drops the exchange.
#[derive(Clone, Debug, Default)]
pub struct Exchanges(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    /// By request, whether it is open. One that is not may never be open again.
    is_open: HashMap<u64, bool>,
    open: usize,
    peak: usize,
    served: usize,
}

/// An open exchange; it ends when it is dropped.
#[derive(Debug)]
pub struct Exchange {
    exchanges: Exchanges,
    id: u64,
}

/// The names that the certificate is good for.
const NAMES: [&str; 4] = ["a.test", "b.test", "c.test", "127.0.0.1"];

/// The server's certificate, and its key.
static CERTIFICATE: LazyLock<(CertificateDer<'static>, PrivateKeyDer<'static>)> = LazyLock::new(|| {
    let signed = rcgen::generate_simple_self_signed(NAMES.map(String::from)).unwrap();
    (signed.cert.der().clone(), PrivateKeyDer::try_from(signed.signing_key.serialize_der()).unwrap())
});

/// How long [`until`] looks before it says that it has seen enough.
const PATIENCE: Duration = Duration::from_secs(10);

/// Builds a layer.
pub fn layer(config: SlotConfigBuilder) -> SlotLayer {
    SlotLayer::new(config.build().unwrap())
}

/// Looks until it is so.
pub async fn until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(soon(is_so).await, "not so for {PATIENCE:?}: {what}");
}

/// Looks until it is so, or for as long as is reasonable. Returns whether it is.
pub async fn soon(mut is_so: impl FnMut() -> bool) -> bool {
    let looks = async {
        while !is_so() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, looks).await.is_ok()
}

/// The statistics of a slot, after its counts were seen to add up.
#[track_caller]
pub fn stats(slots: &Slots, key: &str) -> SlotStats {
    let stats = slots.stats(key).unwrap_or_else(|| panic!("no slot {key:?}"));
    let Counts { asked, started, refused, timed_out, gone, finished, failed, cancelled, .. } = stats.counts;
    assert_eq!(asked, started + refused + timed_out + gone + stats.waiting as u64, "asked adds up");
    assert_eq!(started, finished + failed + cancelled + stats.in_flight as u64, "started adds up");
    stats
}

/// How many are in flight in a slot; none if there is no such slot.
pub fn in_flight(slots: &Slots, key: &str) -> usize {
    slots.stats(key).map_or(0, |stats| stats.in_flight)
}

/// How many wait in a slot.
pub fn waiting(slots: &Slots, key: &str) -> usize {
    slots.stats(key).map_or(0, |stats| stats.waiting)
}

/// Asserts that nobody is in flight or waiting anywhere, and that `n` permits can be taken from a slot at once.
#[track_caller]
pub fn assert_free(slots: &Slots, key: &str, n: usize) {
    for slot in slots.snapshot().slots {
        assert_eq!((slot.in_flight, slot.waiting), (0, 0), "{:?}", slot.key);
    }
    let permits: Vec<_> = (0..n).map(|_| slots.try_acquire(key)).collect();
    assert!(permits.iter().all(Result::is_ok), "{n} permits at once: {permits:?}");
    assert!(slots.try_acquire(key).is_err(), "{n} permits and no more");
}

/// What an error says, and what the errors behind it say.
pub fn chain(error: &(dyn Error + 'static)) -> Vec<String> {
    std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source())
        .map(ToString::to_string)
        .collect()
}

// === impl Wire ===

impl Wire {
    pub const ALL: [Self; 4] = [Self::Http1, Self::Http2, Self::Tls1, Self::Tls2];
    pub const PLAIN: [Self; 2] = [Self::Http1, Self::Http2];

    pub fn is_tls(self) -> bool {
        matches!(self, Self::Tls1 | Self::Tls2)
    }

    pub fn version(self) -> Version {
        match self {
            Self::Http1 | Self::Tls1 => Version::HTTP_11,
            Self::Http2 | Self::Tls2 => Version::HTTP_2,
        }
    }
}

// === impl Server ===

impl Server {
    /// Serves, in HTTP/1 and HTTP/2, with TLS if the wire has it.
    pub async fn start<S, B>(wire: Wire, service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let acceptor = wire.is_tls().then(tls_acceptor);
        Self::raw(wire, move |stream| {
            let (service, acceptor) = (TowerToHyperService::new(service.clone()), acceptor.clone());
            async move {
                let mut builder = auto::Builder::new(TokioExecutor::new());
                // Clients here drop what they like, and a server that hangs up on them for it would be another test.
                builder
                    .http2()
                    .max_pending_accept_reset_streams(usize::MAX)
                    .max_local_error_reset_streams(None);
                // A client that goes away is no fault of the server.
                let _ = match acceptor {
                    None => builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await,
                    Some(acceptor) => match acceptor.accept(stream).await {
                        Ok(stream) => {
                            builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await
                        }
                        Err(_) => Ok(()),
                    },
                };
            }
        })
        .await
    }

    /// Does with each connection what `serve` does.
    pub async fn raw<F, Fut>(wire: Wire, mut serve: F) -> Self
    where
        F: FnMut(TcpStream) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        let task = tokio::spawn(async move {
            let mut tasks = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                tasks.spawn(serve(stream));
            }
        });
        Self { address, wire, connections, task }
    }

    /// Is not there: its port refuses every connection.
    pub async fn refusing(wire: Wire) -> Self {
        let server = Self::raw(wire, |_| pending()).await;
        server.task.abort();
        until("the listener is gone", || server.task.is_finished()).await;
        server
    }

    /// Creates a client whose every host is this server.
    pub fn client(&self) -> Client {
        client(self.wire, self.address)
    }

    /// Returns how many connections there were so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// A GET of `path` at `host`.
    pub fn get(&self, host: &str, path: &str) -> Request<Full<Bytes>> {
        Request::get(self.uri(host, path)).body(Full::default()).unwrap()
    }

    pub fn uri(&self, host: &str, path: &str) -> Uri {
        let scheme = if self.wire.is_tls() { "https" } else { "http" };
        format!("{scheme}://{host}:{}{path}", self.address.port()).parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Creates a client that speaks like `wire` to `address`, whatever the host.
pub fn client(wire: Wire, address: SocketAddr) -> Client {
    client_from(Ipv4Addr::LOCALHOST, wire, address)
}

/// The same, from another address of loopback.
pub fn client_from(from: Ipv4Addr, wire: Wire, to: SocketAddr) -> Client {
    build(wire, ToServer { to, from }, &CERTIFICATE.0)
}

/// The same, trusting that certificate alone.
pub fn client_trusting(certificate: &CertificateDer<'static>, wire: Wire, to: SocketAddr) -> Client {
    build(wire, ToServer { to, from: Ipv4Addr::LOCALHOST }, certificate)
}

fn build(wire: Wire, connector: ToServer, certificate: &CertificateDer<'static>) -> Client {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    let secure = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    let is_http2 = wire.version() == Version::HTTP_2;
    let connector = if is_http2 {
        secure.enable_http2().wrap_connector(connector)
    } else {
        secure.enable_http1().wrap_connector(connector)
    };
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        // A request that the client sends twice by itself would be counted twice at the server.
        .retry_canceled_requests(false)
        .http2_only(is_http2)
        .build(connector)
}

fn tls_acceptor() -> TlsAcceptor {
    let (certificate, key) = &*CERTIFICATE;
    let mut config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key.clone_key())
            .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// A certificate that no server has.
pub fn other_certificate() -> CertificateDer<'static> {
    rcgen::generate_simple_self_signed(NAMES.map(String::from)).unwrap().cert.der().clone()
}

// === impl ToServer ===

impl Service<Uri> for ToServer {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { to, from } = *self;
        Box::pin(async move {
            let socket = TcpSocket::new_v4()?;
            socket.bind((from, 0).into())?;
            let stream = socket.connect(to).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        })
    }
}

// === impl Page ===

impl Page {
    /// A page that tells its length.
    pub fn sized() -> Self {
        Self { sized: true, ..Self::default() }
    }

    /// A page that does not.
    pub fn chunked() -> Self {
        Self::default()
    }

    pub fn data(mut self, data: impl Into<Bytes>) -> Self {
        self.steps.push_back(Step::Frame(Frame::data(data.into())));
        self
    }

    pub fn trailers(mut self) -> Self {
        self.steps.push_back(Step::Frame(Frame::trailers(trailers())));
        self
    }

    /// Goes on when `future` has ended.
    pub fn when(mut self, future: impl Future<Output = ()> + Send + 'static) -> Self {
        self.steps.push_back(Step::When(Box::pin(future)));
        self
    }

    pub fn pause(self, time: Duration) -> Self {
        self.when(async move { sleep(time).await })
    }

    /// Never ends.
    pub fn stall(self) -> Self {
        self.when(pending())
    }

    /// Fails.
    pub fn breaking(mut self) -> Self {
        self.steps.push_back(Step::Break);
        self
    }

    /// Lets the exchange end before the last frame leaves.
    pub fn of(mut self, exchange: Exchange) -> Self {
        self.exchange = Some(exchange);
        if self.is_end_stream() {
            self.exchange = None;
        }
        self
    }

    pub fn response(self) -> Response<Self> {
        Response::new(self)
    }
}

impl Body for Page {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        while let Some(Step::When(future)) = self.steps.front_mut() {
            ready!(future.as_mut().poll(cx));
            self.steps.pop_front();
        }
        let step = self.steps.pop_front();
        let is_last = match &step {
            Some(Step::Frame(frame)) => frame.is_trailers(),
            Some(Step::Break) => true,
            Some(Step::When(_)) | None => false,
        };
        if is_last || self.steps.is_empty() {
            // Whoever has seen the last frame comes after the end. Nothing comes after trailers.
            self.exchange = None;
        }
        Poll::Ready(match step {
            Some(Step::Frame(frame)) => Some(Ok(frame)),
            Some(Step::Break) => {
                self.steps.clear();
                Some(Err(Broken))
            }
            Some(Step::When(_)) | None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.sized && self.steps.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        if !self.sized {
            return SizeHint::default();
        }
        let data = |step: &Step| match step {
            Step::Frame(frame) => frame.data_ref().map_or(0, |data| data.len() as u64),
            Step::When(_) | Step::Break => 0,
        };
        SizeHint::with_exact(self.steps.iter().map(data).sum())
    }
}

/// The trailers that pages send.
pub fn trailers() -> HeaderMap {
    HeaderMap::from_iter([(HeaderName::from_static("x-checked"), HeaderValue::from_static("yes"))])
}

// === impl Broken ===

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the page broke")
    }
}

impl Error for Broken {}

// === impl Exchanges ===

impl Exchanges {
    /// The handler of a request has started.
    pub fn begin(&self, id: u64) -> Exchange {
        let mut table = self.0.lock().unwrap();
        table.served += 1;
        let is_new = !table.is_open.contains_key(&id);
        if is_new {
            table.is_open.insert(id, true);
            table.open += 1;
            table.peak = table.peak.max(table.open);
        }
        Exchange { exchanges: self.clone(), id }
    }

    /// The last frame is about to be yielded, or the client is about to drop the exchange.
    pub fn end(&self, id: u64) {
        let mut table = self.0.lock().unwrap();
        if table.is_open.insert(id, false) == Some(true) {
            table.open -= 1;
        }
    }

    pub fn open(&self) -> usize {
        self.0.lock().unwrap().open
    }

    pub fn peak(&self) -> usize {
        self.0.lock().unwrap().peak
    }

    /// How many handlers have started.
    pub fn served(&self) -> usize {
        self.0.lock().unwrap().served
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.exchanges.end(self.id);
    }
}

/// When each of a server's handlers started.
#[derive(Clone, Debug, Default)]
pub struct Arrivals(Arc<Mutex<Vec<Instant>>>);

impl Arrivals {
    pub fn note(&self) {
        self.0.lock().unwrap().push(Instant::now());
    }

    pub fn all(&self) -> Vec<Instant> {
        self.0.lock().unwrap().clone()
    }
}
