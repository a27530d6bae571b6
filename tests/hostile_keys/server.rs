//! The server: hyper with the layer inside, on one thread, and what it has seen.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;
use tower::{Layer, service_fn};
use tower_slot::{KeyRef, SlotConfig, SlotError, SlotErrorKind, SlotLayer, Slots, too_many_requests};

/// How long a request's head may be: two headers of 64 KiB, and more.
pub(crate) const LONGEST_HEAD: usize = 192 * 1024;

/// What the server has seen; a clone shares it.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) slots: Slots,
    shared: Arc<Shared>,
}

struct Shared {
    answered: AtomicUsize,
    peak_slots: AtomicUsize,
    refused: Mutex<HashMap<SlotErrorKind, usize>>,
    /// In flight now and at most, by the server's own count.
    in_flight: Mutex<HashMap<String, (usize, usize)>>,
    held: Semaphore,
    let_go: Semaphore,
}

/// Serves until it is told to stop and the last client has gone. No connection's task panics.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn serve(
    seen: &Seen,
    to_clients: &mpsc::Sender<SocketAddr>,
    mut stopped: oneshot::Receiver<()>,
) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    to_clients.send(listener.local_addr().unwrap()).unwrap();
    let layer = SlotLayer::with_slots(seen.slots.clone()).reject_with({
        let seen = seen.clone();
        move |error: SlotError| {
            seen.refuse(&error);
            too_many_requests(error)
        }
    });
    let service = layer.layer(service_fn({
        let seen = seen.clone();
        move |request| answer(seen.clone(), request)
    }));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.unwrap();
                stream.set_nodelay(true).unwrap();
                let service = TowerToHyperService::new(service.clone());
                connections.spawn(async move {
                    // A client that sends what is no request gets a 400 and an error here.
                    let _ = http1::Builder::new()
                        .max_buf_size(LONGEST_HEAD)
                        .pipeline_flush(true)
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
            Some(ended) = connections.join_next() => ended.unwrap(),
            _ = &mut stopped => break,
        }
    }
    while let Some(ended) = connections.join_next().await {
        ended.unwrap();
    }
}

async fn answer(seen: Seen, request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    seen.look();
    seen.shared.answered.fetch_add(1, Ordering::Relaxed);
    match request.uri().path() {
        "/hold" => {
            seen.enter("a.live.test");
            seen.shared.held.add_permits(1);
            let _ = seen.shared.let_go.acquire().await;
            seen.leave("a.live.test");
        }
        "/work" => {
            let host = request.headers()["host"].to_str().unwrap();
            let key = KeyRef::host(host).into_key();
            seen.enter(key.as_str());
            sleep(Duration::from_millis(1)).await;
            seen.leave(key.as_str());
        }
        // Others come meanwhile.
        _ => yield_now().await,
    }
    Ok(Response::new(Empty::new()))
}

// === impl Seen ===

impl Seen {
    pub(crate) fn new(config: SlotConfig) -> Self {
        let shared = Shared {
            answered: AtomicUsize::new(0),
            peak_slots: AtomicUsize::new(0),
            refused: Mutex::default(),
            in_flight: Mutex::default(),
            held: Semaphore::new(0),
            let_go: Semaphore::new(0),
        };
        Self { slots: Slots::new(config), shared: Arc::new(shared) }
    }

    /// Counts the slots. Whoever makes one does it on this thread, so nothing moves meanwhile.
    fn look(&self) {
        self.shared.peak_slots.fetch_max(self.slots.len(), Ordering::Relaxed);
    }

    fn refuse(&self, error: &SlotError) {
        self.look();
        *self.shared.refused.lock().unwrap().entry(error.kind()).or_default() += 1;
    }

    fn enter(&self, key: &str) {
        let mut in_flight = self.shared.in_flight.lock().unwrap();
        let (now, most) = in_flight.entry(key.into()).or_default();
        *now += 1;
        *most = (*most).max(*now);
    }

    fn leave(&self, key: &str) {
        self.shared.in_flight.lock().unwrap().get_mut(key).unwrap().0 -= 1;
    }

    // --- for the clients

    pub(crate) fn wait_for_hold(&self) {
        tokio_test::block_on(self.shared.held.acquire()).unwrap().forget();
    }

    pub(crate) fn let_go(&self) {
        self.shared.let_go.close();
    }

    // --- afterwards

    pub(crate) fn answered(&self) -> usize {
        self.shared.answered.load(Ordering::Relaxed)
    }

    pub(crate) fn peak_slots(&self) -> usize {
        self.shared.peak_slots.load(Ordering::Relaxed)
    }

    pub(crate) fn peak_in_flight(&self, key: &str) -> usize {
        self.shared.in_flight.lock().unwrap().get(key).map_or(0, |(_, most)| *most)
    }

    pub(crate) fn refused(&self) -> HashMap<SlotErrorKind, usize> {
        self.shared.refused.lock().unwrap().clone()
    }
}
