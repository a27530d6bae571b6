//! hyper's client with a slot per host: a body keeps its place until it has been read.
//! Run it with `cargo run --example hyper_client`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::{Router, body::Body, routing::get};
use bytes::Bytes;
use futures_util::{StreamExt, future::try_join_all, stream};
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::{net::TcpListener, time::sleep};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_slot::{BoxError, SlotConfig, SlotLayer, SlotLimits, SlotTimings};

/// The headers come at once, the body takes 50 ms.
async fn page() -> Body {
    let frames = ["begin ", "end"].into_iter().enumerate();
    Body::from_stream(stream::iter(frames).then(async |(n, frame)| {
        sleep(Duration::from_millis(50 * n as u64)).await;
        Ok::<_, Infallible>(frame)
    }))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(axum::serve(listener, Router::new().route("/", get(page))).into_future());

    // Every name is this machine.
    let here = service_fn(async |_| Ok::<_, Infallible>([SocketAddr::from(([127, 0, 0, 1], 0))].into_iter()));
    let client = Client::builder(TokioExecutor::new())
        .build::<_, Empty<Bytes>>(HttpConnector::new_with_resolver(here));

    let config = SlotConfig::builder()
        .concurrency(2)
        .slot("slow.test", SlotLimits::new().delay(Duration::from_millis(100)))
        .build()?;
    let layer = SlotLayer::new(config).timings(true);
    let slots = layer.slots().clone();
    let client = ServiceBuilder::new().layer(layer).service(client);

    println!("{:<10} {:>8} {:>12} {:>8}", "slot", "waited", "to headers", "body");
    let downloads = ["a.test", "slow.test"].repeat(4).into_iter().map(async |host| {
        let request = Request::get(format!("http://{host}:{port}/")).body(Empty::new())?;
        let response = client.clone().oneshot(request).await?;
        let timings = response.extensions().get::<SlotTimings>().cloned();
        response.into_body().collect().await?;
        if let Some(timings) = timings {
            let (slot, waited, headers) = (timings.slot(), timings.waited(), timings.to_headers());
            let body = timings.body().unwrap_or_default();
            println!("{slot:<10} {waited:>8.0?} {headers:>12.0?} {body:>8.0?}");
        }
        Ok::<_, BoxError>(())
    });
    try_join_all(downloads).await?;

    println!();
    for slot in slots.snapshot().slots {
        let (key, times) = (&slot.key, slot.times);
        println!(
            "{key}: {} done, waited {:.0?} for concurrency, {:.0?} for the pace",
            slot.counts.finished, times.concurrency, times.pace
        );
    }
    Ok(())
}
