//! The scenes: what a crawl asks of its slots, shown over real sockets and measured at the server.
//!
//! Each scene has a layer, a client and host names of its own, so that all of them run at the same time, against one
//! server and on one runtime, and still have nothing to do with each other.

use std::{
    io::{IsTerminal, stderr},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use tokio::{task::JoinSet, time::Instant};
use tower::{Service, ServiceExt};
use tower_slot::{BoxError, SlotKey, SlotTimings};

use crate::{bodies, line, pace, recycle, report::Row, site::Site, stamp::Stamp, timeline::Timeline};

/// What every scene plays on.
pub(crate) struct Stage {
    pub(crate) site: Site,
    bars: MultiProgress,
    style: ProgressStyle,
    timeline: Timeline,
}

/// Where a scene tells what it has done.
#[derive(Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
    timeline: Timeline,
}

/// One request of a scene.
#[derive(Clone)]
pub(crate) struct Ask {
    host: String,
    /// How long its body takes, in milliseconds.
    millis: u64,
    /// The slot by name, where it is not the host's.
    key: Option<SlotKey>,
}

/// Runs all scenes and returns their rows, in the order of the table.
///
/// # Errors
/// When the site cannot be opened. A scene that breaks off is a row, not an error.
pub(crate) async fn run(timeline: &Timeline) -> Result<Vec<Row>, BoxError> {
    let stage = Stage::new(Site::open().await?, timeline.clone())?;
    let (own, merged, split, faster, slots, towers, line, recycled) = tokio::join!(
        pace::own(&stage),
        pace::merged(&stage),
        pace::split(&stage),
        pace::faster(&stage),
        bodies::with_slots(&stage),
        bodies::with_tower(&stage),
        line::no_head_of_line(&stage),
        recycle::idle(&stage),
    );
    let rows = [
        (pace::OWN, own),
        (pace::MERGED, merged),
        (pace::SPLIT, split),
        (pace::FASTER, faster),
        (bodies::SLOTS, slots),
        (bodies::TOWER, towers),
        (line::NAME, line),
        (recycle::NAME, recycled),
    ];
    stage.bars.clear()?;
    Ok(rows.into_iter().map(|(name, row)| row.unwrap_or_else(|error| Row::failed(name, &error))).collect())
}

/// Sends all of `asks` through `service` at once and reads every body to its end.
///
/// # Errors
/// The first failure; the requests that are still under way are then given up.
pub(crate) async fn drive<S, B>(service: S, asks: Vec<Ask>, progress: Progress) -> Result<(), BoxError>
where
    S: Service<Request<Empty<Bytes>>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let mut tasks = JoinSet::new();
    for ask in asks {
        let (request, stamp) = ask.request()?;
        let answer = stamp.around(service.clone().oneshot(request));
        let timeline = progress.timeline.clone();
        tasks.spawn(async move {
            let asked = Instant::now();
            let (parts, body) = answer.await.map_err(Into::into)?.into_parts();
            body.collect().await.map_err(Into::into)?;
            if let Some(timings) = parts.extensions.get::<SlotTimings>() {
                timeline.add(asked, timings.clone());
            }
            Ok::<_, BoxError>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
        progress.bar.inc(1);
    }
    Ok(())
}

// === impl Stage ===

impl Stage {
    fn new(site: Site, timeline: Timeline) -> Result<Self, BoxError> {
        // Bars are for eyes: a log file gets the table alone.
        let target =
            if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Ok(Self {
            site,
            bars: MultiProgress::with_draw_target(target),
            style: ProgressStyle::with_template("{msg:>32} {bar:40} {pos:>3}/{len}")?,
            timeline,
        })
    }

    /// Adds the progress bar of a scene that takes `steps`.
    pub(crate) fn bar(&self, scene: &'static str, steps: usize) -> Progress {
        let bar = ProgressBar::new(steps as u64).with_style(self.style.clone()).with_message(scene);
        // What is done stays in view until all is.
        let bar = bar.with_finish(ProgressFinish::AndLeave);
        Progress { bar: self.bars.add(bar), timeline: self.timeline.clone() }
    }
}

// === impl Ask ===

impl Ask {
    /// Creates a request to `host` for a page that is there at once.
    pub(crate) fn to(host: &str) -> Self {
        Self { host: host.to_owned(), millis: 0, key: None }
    }

    /// Asks for a body that ends `time` after the request's arrival.
    pub(crate) fn lasting(mut self, time: Duration) -> Self {
        self.millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// Puts the request into the slot `name`.
    pub(crate) fn in_slot(mut self, name: &str) -> Self {
        self.key = Some(SlotKey::new(name));
        self
    }

    /// Returns `count` of these.
    pub(crate) fn times(self, count: usize) -> Vec<Self> {
        vec![self; count]
    }

    fn request(self) -> Result<(Request<Empty<Bytes>>, Stamp), http::Error> {
        let stamp = Stamp::new(self.key.as_ref().map_or(&self.host, SlotKey::as_str));
        let mut request = Request::get(format!("http://{}/{}", self.host, self.millis))
            .extension(stamp.clone())
            .body(Empty::new())?;
        if let Some(key) = self.key {
            request.extensions_mut().insert(key);
        }
        Ok((request, stamp))
    }
}
