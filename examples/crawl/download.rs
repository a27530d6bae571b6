//! The polite downloader: every URL is asked for at once, and its slot decides when it goes.
//!
//! The queue is the layer's. No list of hosts is kept here and no request is held back, so a host that is slow, or has
//! many URLs, is in nobody's way.

use std::{
    collections::HashMap,
    error::Error,
    io::{self, Write},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, header::USER_AGENT};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::crypto::ring::default_provider;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, timeout},
};
use tower::{
    Service, ServiceBuilder, ServiceExt,
    timeout::{TimeoutLayer, error::Elapsed},
};
use tower_slot::{BoxError, SlotError, SlotKey, SlotLayer, SlotTimings};

use crate::{
    args::Plan,
    chain,
    print::{Outcome, Part, Printer},
    target::{self, Target},
    timeline::Timeline,
};

/// How servers may know us.
const AGENT: &str = concat!("tower-slot-crawl/", env!("CARGO_PKG_VERSION"));

/// What all downloads share.
struct Crawl<S> {
    service: S,
    timeline: Timeline,
    groups: HashMap<SlotKey, SlotKey>,
    timeout: Duration,
}

/// Downloads everything, and prints each line as soon as it is known.
///
/// # Errors
/// When nothing can be printed any more. A URL that fails is a line, not an error.
pub(crate) async fn run<W: Write>(
    plan: Plan,
    timeline: &Timeline,
    printer: &mut Printer<W>,
) -> io::Result<()> {
    let layer = SlotLayer::new(plan.config).timings(true);
    let slots = layer.slots().clone();
    let service = ServiceBuilder::new()
        .layer(layer)
        // Below the slots, so that the time in the queue does not count.
        .layer(TimeoutLayer::new(plan.timeout))
        .service(client().map_err(io::Error::other)?);
    let timeline = timeline.clone();
    let crawl = Arc::new(Crawl { service, timeline, groups: plan.groups, timeout: plan.timeout });

    let mut tasks = JoinSet::new();
    for target in plan.targets {
        tasks.spawn(crawl.clone().fetch(target));
    }
    let mut lines = if plan.stdin { target::from_stdin() } else { mpsc::channel(1).1 };
    let mut reading = true;
    loop {
        tokio::select! {
            line = lines.recv(), if reading => match line {
                Some(Ok(target)) => {
                    tasks.spawn(crawl.clone().fetch(target));
                }
                Some(Err(refused)) => printer.line(&Outcome::refused(refused))?,
                None => reading = false,
            },
            Some(done) = tasks.join_next() => printer.line(&done.map_err(io::Error::other)?)?,
            else => break,
        }
    }
    printer.slots(&slots.snapshot())
}

/// Creates a client for `http` and `https`.
///
/// The system's certificates are used where there are any; else those that Mozilla trusts, which are built in.
fn client() -> Result<Client<HttpsConnector<HttpConnector>, Empty<Bytes>>, rustls::Error> {
    // By name: where several providers are compiled in, rustls does not choose one.
    let provider = Arc::new(default_provider());
    let builder = match HttpsConnectorBuilder::new().with_provider_and_native_roots(provider.clone()) {
        Ok(builder) => builder,
        Err(_) => HttpsConnectorBuilder::new().with_provider_and_webpki_roots(provider)?,
    };
    let connector = builder.https_or_http().enable_http1().build();
    Ok(Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector))
}

// === impl Crawl ===

impl<S, B> Crawl<S>
where
    S: Service<Request<Empty<Bytes>>, Response = Response<B>, Error = BoxError> + Clone,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    async fn fetch(self: Arc<Self>, target: Target) -> Outcome {
        let host = SlotKey::host(target.host());
        let group = self.groups.get(&host).cloned();
        let mut part = Part::default();
        let result = self.read(&target, group.clone(), &mut part).await;
        Outcome {
            url: target.uri().to_string(),
            slot: Some(group.unwrap_or(host)),
            part,
            error: result.err().map(|error| self.explain(error.as_ref())),
        }
    }

    /// Reads one URL to the end of its body; what was reached is in `part` also when it fails.
    async fn read(&self, target: &Target, group: Option<SlotKey>, part: &mut Part) -> Result<(), BoxError> {
        let mut request = Request::get(target.uri()).header(USER_AGENT, AGENT).body(Empty::new())?;
        // A host that is in no group derives its key from the URL, in the layer.
        if let Some(group) = group {
            request.extensions_mut().insert(group);
        }
        let asked = Instant::now();
        let response = self.service.clone().oneshot(request).await.inspect_err(|error| {
            part.waited = error.downcast_ref().map(SlotError::waited);
        })?;

        part.status = Some(response.status().as_u16());
        let timings = response.extensions().get::<SlotTimings>().cloned();
        part.waited = timings.as_ref().map(SlotTimings::waited);
        part.to_headers = timings.as_ref().map(SlotTimings::to_headers);
        let left = self.timeout.saturating_sub(part.to_headers.unwrap_or_default());
        let mut body = pin!(response.into_body());
        let counted = timeout(left, async {
            while let Some(frame) = body.frame().await {
                let data = frame.map_err(Into::into)?.into_data();
                part.bytes += data.map_or(0, |data| data.len() as u64);
            }
            Ok::<_, BoxError>(())
        });
        let counted = counted.await.unwrap_or_else(|_| Err(Elapsed::new().into()));
        part.body = timings.as_ref().and_then(SlotTimings::body);
        if let Some(timings) = timings {
            self.timeline.add(asked, timings);
        }
        counted
    }

    fn explain(&self, error: &(dyn Error + 'static)) -> String {
        if error.is::<Elapsed>() {
            return format!("not done within {}", humantime::format_duration(self.timeout));
        }
        chain(error)
    }
}
