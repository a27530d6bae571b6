//! One process of clients: hyper-util's client behind the layer, and workers that send one request after the other.

use std::convert::Infallible;
use std::future::{Future, poll_fn, ready};
use std::io::{self, Write as _};
use std::iter::once;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tower::{Layer, Service, service_fn};
use tower_slot::{BoxError, Hold, SlotError, SlotErrorKind, SlotLayer};

use crate::changes::Changes;
use crate::counted::Counted;
use crate::figures::{Figures, Memory};
use crate::ledger::{Ledger, poll_begins};
use crate::plan::End;
use crate::watch::{INTERVAL, Watch};
use crate::{Run, ending, hosts, process, rule};

/// How long it may take until all requests have ended once no new ones come.
const LAST_REQUEST: Duration = Duration::from_secs(30);

/// What the workers count.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    stop: AtomicBool,
    pub(crate) requests: AtomicU64,
    pub(crate) unpolled: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) timed_out: AtomicU64,
    pub(crate) faults: AtomicU64,
    cancels: AtomicU64,
}

pub(crate) async fn run(run: Run, number: u64, port: u16) -> Result<(), BoxError> {
    let mut rng = Rng::with_seed(run.seed.wrapping_add(number));
    let files = process::open_files()?;
    let (slots, ledger, mut changes) = Changes::begin(rng.fork())?;
    let seen = Arc::new(Seen::default());
    let begin = Instant::now();

    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let resolver = service_fn(move |_: Name| ready(Ok::<_, Infallible>(once(address))));
    let client = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(1))
        .build(HttpConnector::new_with_resolver(resolver));
    let client = SlotLayer::with_slots(slots.clone()).layer(Counted::new(client, ledger.clone()));
    let mut workers = JoinSet::new();
    for _ in 0..run.workers {
        let (mut client, mut rng, seen) = (client.clone(), rng.fork(), seen.clone());
        workers.spawn(async move {
            while !seen.stop.load(Ordering::Relaxed) {
                let host = hosts::name(hosts::asked_at(begin.elapsed(), &mut rng));
                let number = rng.u64(..);
                let mut request = Request::get(format!("http://{host}:{port}/{number}")).body(Empty::new())?;
                if rng.u8(..20) == 0 {
                    request.extensions_mut().insert(Hold::Headers);
                }
                exchange(&mut client, request, End::of(number), &seen).await;
                sleep(Duration::from_micros(rng.u64(..4_000))).await;
            }
            Ok::<_, BoxError>(())
        });
    }
    drop(client);

    let mut watch = Watch::new(slots.clone(), ledger.clone());
    let (mut memory, mut figures) = (Memory::default(), Figures::default());
    let mut looks = interval(INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seconds = 0;
    while begin.elapsed() < run.time {
        looks.tick().await;
        let snapshot = watch.look();
        if begin.elapsed().as_secs() > seconds {
            seconds += 1;
            changes.second(seconds)?;
            memory.sample(process::resident()?);
            figures.recycled = snapshot.recycled.slots;
            (figures.changes, figures.looks) = (changes.done(), watch.looks());
            tell(&mut figures, &seen, &ledger)?;
        }
    }

    seen.stop.store(true, Ordering::Relaxed);
    let last = timeout(LAST_REQUEST, async {
        while let Some(worker) = workers.join_next().await {
            worker??;
        }
        Ok::<_, BoxError>(())
    });
    let mut last = pin!(last);
    loop {
        tokio::select! {
            biased;
            ended = &mut last => {
                rule!(ended.is_ok(), "requests have not ended: {:?}", slots.snapshot().slots);
                ended??;
                break;
            }
            _ = looks.tick() => drop(watch.look()),
        }
    }
    (figures.early, figures.late) = memory.early_and_late();
    let more = Memory::tolerance(figures.early, run.time);
    let (early, late) = (figures.early, figures.late);
    rule!(late <= early + more, "memory grew from {early} KiB to {late} KiB, by more than {more} KiB");
    figures.recycled = slots.snapshot().recycled.slots;
    ending::check(&slots, &ledger, &seen).await?;
    // The workers were the last to hold clients, and so the pools.
    figures.files = (files, ending::files(files).await?);
    tell(&mut figures, &seen, &ledger)
}

/// Tells the parent the figures so far.
fn tell(figures: &mut Figures, seen: &Seen, ledger: &Ledger) -> Result<(), BoxError> {
    figures.requests = seen.requests.load(Ordering::Relaxed);
    figures.unpolled = seen.unpolled.load(Ordering::Relaxed);
    figures.refused = seen.refused.load(Ordering::Relaxed);
    figures.timed_out = seen.timed_out.load(Ordering::Relaxed);
    figures.faults = seen.faults.load(Ordering::Relaxed);
    figures.cancels = seen.cancels.load(Ordering::Relaxed);
    (figures.starts, figures.peak) = (ledger.starts(), ledger.peak());
    println!("{}", serde_json::to_string(figures)?);
    Ok(io::stdout().flush()?)
}

/// Sends one request and ends it as planned.
async fn exchange<S, B>(client: &mut S, request: Request<Empty<Bytes>>, end: End, seen: &Seen)
where
    S: Service<Request<Empty<Bytes>>, Response = Response<B>, Error = BoxError>,
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let count = |counter: &AtomicU64| {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    let future = client.call(request);
    let patience = match end {
        End::Unpolled => return count(&seen.unpolled),
        End::Leave(time) => time,
        _ => Duration::MAX,
    };
    count(&seen.requests);
    let all = async {
        let mut body = match with_poll_begins(future).await {
            Ok(response) => response.into_body(),
            Err(error) => {
                return count(match error.downcast_ref::<SlotError>().map(SlotError::kind) {
                    None => &seen.faults,
                    Some(SlotErrorKind::WaitTimeout) => &seen.timed_out,
                    Some(_) => &seen.refused,
                });
            }
        };
        let most = if let End::Frames(most) = end { most } else { usize::MAX };
        for _ in 0..most {
            match body.frame().await {
                Some(Ok(_)) => {}
                Some(Err(_)) => return count(&seen.faults),
                None => {
                    if let End::Keep(time) = end {
                        sleep(time).await;
                    }
                    return;
                }
            }
        }
        count(&seen.cancels);
    };
    if timeout(patience, all).await.is_err() {
        count(&seen.cancels);
    }
}

/// Notes each poll of the future, in which it may start.
async fn with_poll_begins<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        poll_begins();
        future.as_mut().poll(cx)
    })
    .await
}
