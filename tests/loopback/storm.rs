//! 2,000 requests that are read, dropped or fail, and the server's own count of open exchanges.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use http::{Request, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep};
use tower_slot::Slots;

use super::{BoxError, answer, in_flight, serve};

const REQUESTS: u64 = 2_000;
const TASKS: u64 = 64;
const LIMIT: usize = 8;

/// What becomes of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    Read,
    /// The client drops the future, at some moment.
    DropFuture,
    DropResponse,
    DropInBody,
    FailedStatus,
    /// The server fails before the headers.
    ErrorAtOnce,
    ErrorInBody,
}

/// The exchanges that are open: from the handler's start until its last frame is yielded. One that the client
/// drops leaves before the drop.
#[derive(Debug)]
struct Table {
    state: Mutex<State>,
    /// Closed once as many are open as may be: nobody is answered before.
    is_full: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    open: HashSet<u64>,
    dropped: HashSet<u64>,
    peak: usize,
}

/// An exchange on the server's side.
#[derive(Debug)]
struct Exchange {
    id: u64,
    table: Arc<Table>,
}

/// A body of some bytes, in pieces, with a pause before some of them.
#[derive(Debug)]
struct Pieces {
    pause: Pin<Box<Sleep>>,
    left: u64,
    fails_at: Option<u64>,
    length_is_known: bool,
    rng: Rng,
    /// `None` once the last frame was yielded.
    exchange: Option<Exchange>,
}

/// Sends the requests by `send`, and checks that the server never saw more than the limit.
pub(crate) async fn storm<F, Fut>(version: Version, slots: &Slots, send: F)
where
    F: Fn(reqwest::Request) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<reqwest::Response, BoxError>> + Send,
{
    let table = Arc::new(Table { state: Mutex::default(), is_full: Semaphore::new(0) });
    let of_handler = table.clone();
    let addr = serve(move |request| handle(request.map(drop), of_handler.clone())).await;

    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let (table, send) = (table.clone(), send.clone());
        tasks.push(tokio::spawn(async move {
            let mut ends = Vec::new();
            for id in (task..REQUESTS).step_by(TASKS as usize) {
                let url = format!("http://{addr}/{id}").parse().unwrap();
                let mut request = reqwest::Request::new(http::Method::GET, url);
                *request.version_mut() = version;
                ends.push((fate(id), one(id, send(request), &table).await));
            }
            ends
        }));
    }
    let mut ends = HashMap::<_, usize>::new();
    for task in tasks {
        for end in task.await.unwrap() {
            *ends.entry(end).or_default() += 1;
        }
    }

    // What was meant to happen did, so nothing below is true of an idle server.
    let count = |fate, was_ok| ends.get(&(fate, was_ok)).copied().unwrap_or(0);
    for fate in [Fate::Read, Fate::DropResponse, Fate::DropInBody, Fate::FailedStatus] {
        assert!(count(fate, true) > 100 && count(fate, false) == 0, "{fate:?}: {ends:?}");
    }
    for fate in [Fate::ErrorAtOnce, Fate::ErrorInBody] {
        assert!(count(fate, false) > 100 && count(fate, true) == 0, "{fate:?}: {ends:?}");
    }
    assert!(count(Fate::DropFuture, false) > 100, "{ends:?}");

    assert_eq!(table.state.lock().unwrap().peak, LIMIT);
    assert_eq!(in_flight(slots), 0);
    let counts = slots.stats("127.0.0.1").unwrap().counts;
    assert_eq!(counts.asked, counts.started + counts.gone);
    assert_eq!(counts.started, counts.finished + counts.failed + counts.cancelled);
    let permits: Vec<_> = (0..LIMIT).map(|_| slots.try_acquire("127.0.0.1").unwrap()).collect();
    assert!(slots.try_acquire("127.0.0.1").is_err());
    drop(permits);
}

/// Slots as the storm wants them.
pub(crate) fn slots() -> Slots {
    super::slots(LIMIT)
}

fn fate(id: u64) -> Fate {
    match Rng::with_seed(id).u8(..10) {
        0..=3 => Fate::Read,
        4 => Fate::DropFuture,
        5 => Fate::DropResponse,
        6 => Fate::DropInBody,
        7 => Fate::FailedStatus,
        8 => Fate::ErrorAtOnce,
        _ => Fate::ErrorInBody,
    }
}

/// One exchange on the client's side. Whether it ended as a response that was read to its end, or was dropped on
/// purpose.
async fn one(
    id: u64,
    send: impl Future<Output = Result<reqwest::Response, BoxError>>,
    table: &Table,
) -> bool {
    let mut send = Box::pin(send);
    let response = if fate(id) == Fate::DropFuture {
        let patience = Duration::from_millis(Rng::with_seed(!id).u64(..8));
        tokio::time::timeout(patience, &mut send).await.unwrap_or_else(|late| Err(late.into()))
    } else {
        send.as_mut().await
    };
    let Ok(mut response) = response else {
        table.drop_exchange(id);
        return false;
    };
    let known = response.content_length();
    let mut length = 0;
    loop {
        let is_enough = match fate(id) {
            Fate::DropResponse => true,
            Fate::DropInBody => length > 0,
            _ => false,
        };
        if is_enough {
            table.drop_exchange(id);
            return true;
        }
        match response.chunk().await {
            Ok(Some(chunk)) => length += chunk.len() as u64,
            Ok(None) => return known.is_none_or(|known| known == length),
            Err(_) => return false,
        }
    }
}

async fn handle(request: Request<()>, table: Arc<Table>) -> Result<super::Answer, BoxError> {
    let id = request.uri().path()[1..].parse()?;
    let exchange = table.open(id);
    let _ = table.is_full.acquire().await;
    let mut rng = Rng::with_seed(id ^ 0xabcd);
    sleep(Duration::from_millis(rng.u64(..2))).await;
    if fate(id) == Fate::ErrorAtOnce {
        return Err("fails at once".into());
    }
    let left = rng.u64(1..40_000);
    let fails_at = (fate(id) == Fate::ErrorInBody).then(|| rng.u64(1..=left));
    let length_is_known = rng.bool();
    let pause = Box::pin(sleep(Duration::from_millis(rng.u64(..3))));
    let mut answer = answer(Pieces { pause, left, fails_at, length_is_known, rng, exchange: Some(exchange) });
    if fate(id) == Fate::FailedStatus {
        *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    Ok(answer)
}

// === impl Table ===

impl Table {
    fn open(self: &Arc<Self>, id: u64) -> Exchange {
        let mut state = self.state.lock().unwrap();
        if !state.dropped.contains(&id) {
            state.open.insert(id);
            state.peak = state.peak.max(state.open.len());
            if state.peak == LIMIT {
                self.is_full.close();
            }
        }
        Exchange { id, table: self.clone() }
    }

    fn drop_exchange(&self, id: u64) {
        let mut state = self.state.lock().unwrap();
        state.open.remove(&id);
        state.dropped.insert(id);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.table.state.lock().unwrap().open.remove(&self.id);
    }
}

// === impl Pieces ===

impl Body for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        ready!(self.pause.as_mut().poll(cx));
        if self.fails_at.is_some_and(|at| self.left <= at) {
            self.exchange = None;
            return Poll::Ready(Some(Err("fails in its body".into())));
        }
        let most = self.left.min(10_000);
        let len = self.rng.u64(1..=most);
        self.left -= len;
        if self.left == 0 {
            self.exchange = None;
        }
        if self.rng.bool() {
            self.pause = Box::pin(sleep(Duration::from_millis(1)));
        }
        Poll::Ready(Some(Ok(Frame::data(vec![b'x'; len as usize].into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        if self.length_is_known { SizeHint::with_exact(self.left) } else { SizeHint::default() }
    }
}
