//! Servers on loopback, and what every stack with reqwest is put through.

#![allow(dead_code, reason = "each test crate uses its part")]

pub(crate) mod bad;
pub(crate) mod storm;
pub(crate) mod whole;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tower_slot::{SlotConfig, Slots};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// Starts a server for HTTP/1 and HTTP/2 that answers with what `handler` says.
pub(crate) async fn serve<F, Fut>(handler: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Answer, BoxError>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = hyper::service::service_fn(handler.clone());
            tokio::spawn(async move {
                // How a connection ends is what some of the tests are about.
                let server = auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
            });
        }
    });
    addr
}

/// An answer with that body.
pub(crate) fn answer<B>(body: B) -> Answer
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Response::new(body.map_err(Into::into).boxed_unsync())
}

/// A body that yields what it is fed, and ends with the last sender.
#[derive(Debug)]
pub(crate) struct Fed {
    frames: mpsc::UnboundedReceiver<Frame<Bytes>>,
    left: Option<u64>,
}

impl Fed {
    /// A body of `length` bytes, or of one that nobody knows.
    pub(crate) fn new(length: Option<u64>) -> (mpsc::UnboundedSender<Frame<Bytes>>, Self) {
        let (feed, frames) = mpsc::unbounded_channel();
        (feed, Self { frames, left: length })
    }
}

impl Body for Fed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(self.frames.poll_recv(cx));
        if let (Some(data), Some(left)) = (frame.as_ref().and_then(Frame::data_ref), &mut self.left) {
            *left -= data.len() as u64;
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// Slots with that concurrency and nothing else.
pub(crate) fn slots(concurrency: usize) -> Slots {
    Slots::new(SlotConfig::builder().concurrency(concurrency).build().unwrap())
}

/// How many are in flight in the slot of the server's host.
pub(crate) fn in_flight(slots: &Slots) -> usize {
    slots.stats("127.0.0.1").map_or(0, |stats| stats.in_flight)
}

/// A builder of clients that need no environment and trust nobody.
pub(crate) fn client() -> reqwest::ClientBuilder {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().tls_certs_only([])
}
