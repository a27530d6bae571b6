//! Something to look at: a crawl of six hosts that never ends, each with another reason to wait.

use std::{net::Ipv4Addr, time::Duration};

use axum::{Router, body::Body, extract::Path, routing::get};
use bytes::Bytes;
use futures_util::stream;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tokio::{net::TcpListener, time::sleep};
use tower::{ServiceBuilder, ServiceExt};
use tower_slot::{BoxError, Jitter, SlotConfig, SlotKey, SlotLayer, SlotLimits, SlotService, Slots};

/// How a host answers, and how much is wanted of it.
#[derive(Clone, Copy)]
struct Host {
    name: &'static str,
    /// To the headers and in the body, in milliseconds.
    answer: [u64; 2],
    /// So many pages are asked for at once,
    burst: u64,
    /// so often, on average in milliseconds.
    every: u64,
}

const HOSTS: [Host; 6] = [
    // Wants more than its concurrency has.
    Host { name: "news.test", answer: [30, 120], burst: 30, every: 2400 },
    // Polite: the pace is what it waits for.
    Host { name: "shop.test", answer: [60, 30], burst: 8, every: 2400 },
    Host { name: "api.test", answer: [15, 5], burst: 12, every: 900 },
    // Large bodies.
    Host { name: "media.test", answer: [40, 900], burst: 6, every: 2500 },
    // Thinks for long.
    Host { name: "archive.test", answer: [700, 60], burst: 3, every: 1800 },
    // May take all that the total leaves.
    Host { name: "wiki.test", answer: [25, 180], burst: 25, every: 2000 },
];

type Crawler = SlotService<Client<HttpConnector, Empty<Bytes>>>;

/// Starts the site and the crawl; both run until the runtime ends.
///
/// # Errors
/// When the site cannot be opened.
pub(crate) async fn start() -> Result<Slots, BoxError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let site = format!("http://{}", listener.local_addr()?);
    let app = Router::new().route("/{headers}/{body}", get(answer));
    tokio::spawn(async move { axum::serve(listener, app).await });

    let milliseconds = Duration::from_millis;
    let config = SlotConfig::builder()
        .concurrency(4)
        .queue_capacity(100)
        .total_concurrency(14)
        .slot("shop.test", SlotLimits::new().delay(milliseconds(250)).jitter(Jitter::ratio(0.5)))
        .slot("api.test", SlotLimits::new().delay(milliseconds(60)))
        .slot("media.test", SlotLimits::new().concurrency(3))
        .slot("wiki.test", SlotLimits::new().concurrency(12))
        .build()?;
    let layer = SlotLayer::new(config);
    #[cfg(feature = "connection")]
    let layer = layer.connection_times(true);
    let slots = layer.slots().clone();
    let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build_http();
    let crawler = ServiceBuilder::new().layer(layer).service(client);
    for host in HOSTS {
        tokio::spawn(host.crawl(crawler.clone(), site.clone()));
    }
    Ok(slots)
}

/// A page that takes as many milliseconds as its path says.
async fn answer(Path((headers, body)): Path<(u64, u64)>) -> Body {
    sleep(Duration::from_millis(headers)).await;
    Body::from_stream(stream::once(async move {
        sleep(Duration::from_millis(body)).await;
        Ok::<_, std::convert::Infallible>("a page of the site\n")
    }))
}

/// Somewhere between half of `average` and one and a half of it.
fn around(average: u64) -> u64 {
    fastrand::u64(average / 2..=average * 3 / 2)
}

// === impl Host ===

impl Host {
    async fn crawl(self, crawler: Crawler, site: String) {
        loop {
            for _ in 0..around(self.burst) {
                let [headers, body] = self.answer.map(around);
                let uri = format!("{site}/{headers}/{body}");
                tokio::spawn(read(crawler.clone(), uri, SlotKey::new(self.name)));
            }
            sleep(Duration::from_millis(around(self.every))).await;
        }
    }
}

/// Reads a page to its end. A full queue refuses it; the page shows how many it refused.
async fn read(crawler: Crawler, uri: String, slot: SlotKey) -> Result<(), BoxError> {
    let request = Request::get(uri).extension(slot).body(Empty::new())?;
    crawler.oneshot(request).await?.into_body().collect().await?;
    Ok(())
}
