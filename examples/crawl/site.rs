//! A small site on loopback: one server that answers under every host name, and keeps a log of what it saw.
//!
//! All times of the scenes are read from this log: what counts is what reaches the server, not what the client meant
//! to do. No name is ever resolved; [`Connector`] takes every host to the one local port.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, Uri, header::HOST};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Empty;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::{
    net::{TcpListener, TcpStream},
    time::{Instant, Sleep},
};
use tower::Service;

/// What every body of the site consists of.
const CONTENT: &[u8] = b"a page of the site\n";

/// A client of the site, with a connection pool of its own.
pub(crate) type SiteClient = Client<Connector, Empty<Bytes>>;

/// A running server and its log.
#[derive(Clone)]
pub(crate) struct Site {
    address: SocketAddr,
    log: Log,
}

/// One request as the server saw it.
#[derive(Clone)]
pub(crate) struct Visit {
    /// The `Host` header, without a port.
    host: String,
    /// When the handler started.
    pub(crate) arrived: Instant,
    /// When the body had yielded its last frame, or was dropped before that; `None` while it is open.
    pub(crate) ended: Option<Instant>,
}

/// Connects to the site, whatever host the URI names.
#[derive(Clone)]
pub(crate) struct Connector {
    address: SocketAddr,
}

/// Visits in the order of their arrival.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Visit>>>);

/// An entry in the log that gets its end when this is dropped.
struct OpenVisit {
    log: Log,
    index: usize,
}

/// A body of one frame, which comes `rest` after the request.
struct TimedBody {
    /// `None` for a body that is there at once.
    rest: Option<Pin<Box<Sleep>>>,
    /// Held until the frame is yielded; `None` afterwards.
    visit: Option<OpenVisit>,
}

// === impl Site ===

impl Site {
    /// Starts the server on a free port; it runs until the runtime ends.
    pub(crate) async fn open() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let site = Self { address: listener.local_addr()?, log: Log::default() };
        let log = site.log.clone();
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        tokio::spawn(serve(stream, log.clone()));
                    }
                    // Out of descriptors, most likely: a connection that closes will give one back.
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        });
        Ok(site)
    }

    /// Creates a client whose every host is this site.
    pub(crate) fn client(&self) -> SiteClient {
        Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            // A request that the client sent twice by itself would be counted twice at the server.
            .retry_canceled_requests(false)
            .build(Connector { address: self.address })
    }

    /// Copies out the visits to `domain` and to all hosts below it.
    pub(crate) fn visits(&self, domain: &str) -> Vec<Visit> {
        let below =
            |host: &str| host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        self.log.lock().iter().filter(|visit| below(&visit.host)).cloned().collect()
    }
}

/// Answers the requests of one connection: `/50` is a page whose body takes 50 ms.
async fn serve(stream: TcpStream, log: Log) {
    // Without it a small answer may wait for the acknowledgement of the one before.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let handler = service_fn(move |request: Request<Incoming>| {
        let visit = log.arrival(&request);
        let millis = request.uri().path().trim_start_matches('/').parse().unwrap_or(0);
        let body = TimedBody {
            rest: (millis > 0).then(|| Box::pin(tokio::time::sleep(Duration::from_millis(millis)))),
            visit: Some(visit),
        };
        async move { Ok::<_, Infallible>(Response::new(body)) }
    });
    // A client that goes away is no fault of the site; the visit has its end from the drop.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), handler).await;
}

/// Returns the largest number of `visits` that were open at one time.
pub(crate) fn peak(visits: &[Visit]) -> usize {
    let mut steps = Vec::with_capacity(visits.len() * 2);
    for visit in visits {
        steps.push((visit.arrived, 1));
        steps.extend(visit.ended.map(|ended| (ended, -1)));
    }
    // An end and an arrival of the same instant: the end sorts first, as -1 is below 1.
    steps.sort_unstable();
    let (mut open, mut peak) = (0_isize, 0);
    for (_, step) in steps {
        open += step;
        peak = open.max(peak);
    }
    peak.unsigned_abs()
}

/// Returns the time from the first arrival to the last one.
pub(crate) fn span(visits: &[Visit]) -> Duration {
    let arrivals = || visits.iter().map(|visit| visit.arrived);
    arrivals().max().zip(arrivals().min()).map_or(Duration::ZERO, |(last, first)| last - first)
}

/// Returns the time from the first arrival to the end of the last body.
pub(crate) fn span_to_end(visits: &[Visit]) -> Duration {
    let first = visits.iter().map(|visit| visit.arrived).min();
    let last = visits.iter().filter_map(|visit| visit.ended).max();
    last.zip(first).map_or(Duration::ZERO, |(last, first)| last - first)
}

// === impl Log ===

impl Log {
    fn lock(&self) -> MutexGuard<'_, Vec<Visit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrival<B>(&self, request: &Request<B>) -> OpenVisit {
        let arrived = Instant::now();
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let mut visits = self.lock();
        visits.push(Visit {
            host: host.split(':').next().unwrap_or_default().to_owned(),
            arrived,
            ended: None,
        });
        OpenVisit { log: self.clone(), index: visits.len() - 1 }
    }
}

impl Drop for OpenVisit {
    fn drop(&mut self) {
        let ended = Instant::now();
        if let Some(visit) = self.log.lock().get_mut(self.index) {
            visit.ended = Some(ended);
        }
    }
}

// === impl TimedBody ===

impl Body for TimedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(rest) = &mut self.rest {
            ready!(rest.as_mut().poll(cx));
            self.rest = None;
        }
        // The visit ends here, before the frame leaves: whoever has seen the frame comes after the end.
        Poll::Ready(self.visit.take().map(|_ended| Ok(Frame::data(Bytes::from_static(CONTENT)))))
    }

    fn is_end_stream(&self) -> bool {
        self.visit.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.visit.as_ref().map_or(0, |_| CONTENT.len() as u64))
    }
}

// === impl Connector ===

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let address = self.address;
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        })
    }
}
