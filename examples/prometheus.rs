//! The slots' metrics as Prometheus scrapes them: two slots have labels of their own, all others share one.
//! Run it with `cargo run --features metrics --example prometheus`; it prints what a scrape gets.

use std::time::Duration;

use axum::{Router, extract::Path, routing::get};
use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::{net::TcpListener, time::sleep};
use tower::{ServiceBuilder, ServiceExt};
use tower_slot::{BoxError, SlotConfig, SlotError, SlotKey, SlotLayer, SlotLimits};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    // Before the first request: a slot takes its counters from the recorder that is there when it is made.
    let metrics = PrometheusBuilder::new()
        .with_recommended_naming(true)
        .set_buckets(&[0.001, 0.005, 0.025, 0.1, 0.5, 2.0, 10.0])?
        .install_recorder()?;

    let config = SlotConfig::builder()
        .concurrency(2)
        .queue_capacity(7)
        .slot("shop.test", SlotLimits::new().delay(Duration::from_millis(10)).unlimited_concurrency())
        // Strangers who make up hosts make no labels.
        .metric_slots(["news.test", "shop.test"])
        .build()?;
    let layer = SlotLayer::new(config);
    let slots = layer.slots().clone();

    // One server on loopback: the site that is crawled, and what Prometheus scrapes.
    let scraped = slots.clone();
    let scrape = move || {
        // Gauges are set when somebody looks; all else was counted as it happened.
        scraped.report();
        metrics.run_upkeep();
        std::future::ready(metrics.render())
    };
    let page = async |Path(millis): Path<u64>| {
        sleep(Duration::from_millis(millis)).await;
        "a page"
    };
    let app = Router::new().route("/metrics", get(scrape)).route("/page/{millis}", get(page));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let site = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });

    // Ten pages at once of each: two start, seven wait, and the tenth is refused where nothing starts in between.
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let crawler = ServiceBuilder::new().layer(layer).service(client.clone());
    let hosts = ["news.test", "shop.test", "a.test", "b.test", "c.test"];
    let pages = hosts.into_iter().flat_map(|host| [host; 10]).map(async |host| {
        let request =
            Request::get(format!("{site}/page/20")).extension(SlotKey::new(host)).body(Empty::new())?;
        match crawler.clone().oneshot(request).await {
            Ok(response) => response.into_body().collect().await.map(drop).map_err(BoxError::from),
            // The metrics count it.
            Err(error) if error.is::<SlotError>() => Ok(()),
            Err(error) => Err(error),
        }
    });
    for read in join_all(pages).await {
        read?;
    }

    // Work that is not HTTP, under way while Prometheus looks.
    let _permit = slots.acquire("backup").await?;
    let response = client.oneshot(Request::get(format!("{site}/metrics")).body(Empty::new())?).await?;
    print!("{}", String::from_utf8_lossy(&response.into_body().collect().await?.to_bytes()));
    Ok(())
}
