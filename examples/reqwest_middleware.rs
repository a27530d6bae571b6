//! Slots in a client of reqwest-middleware, inside of a retry: every attempt takes the slot anew, at its pace, and
//! the place is free while the retry sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use reqwest_middleware::{ClientBuilder, Error};
use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};
use tokio::time::Instant;
use tower_slot::reqwest_middleware::SlotMiddleware;
use tower_slot::{BoxError, SlotConfig, SlotError, SlotKey, SlotLimits, Slots};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // reqwest is built without a provider of cryptography here; with its default features it brings one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    tokio::spawn(serve(listener, Instant::now()));

    let config = SlotConfig::builder()
        .concurrency(1)
        .delay(Duration::from_millis(200))
        .slot("full", SlotLimits::new().queue_capacity(0))
        .build()?;
    let slots = Slots::new(config);
    let back_off = ExponentialBackoff::builder()
        .retry_bounds(Duration::from_millis(20), Duration::from_millis(50))
        .build_with_max_retries(3);
    let http = reqwest::Client::builder().no_proxy().build()?;
    let client = ClientBuilder::new(http.clone())
        .with(RetryTransientMiddleware::new_with_policy(back_off)) // the first one is the outermost
        .with(SlotMiddleware::new(slots.clone()).finish_failed(64 * 1024))
        .build();

    // The server fails every other time: three pages are six attempts, 200 ms apart.
    for page in 1..=3 {
        let response = client.get(format!("http://{server}/{page}")).send().await?;
        println!("{}: {}", response.url(), response.status());
        response.bytes().await?;
    }
    let stats = slots.stats("127.0.0.1").ok_or("no slot")?;
    println!(
        "slot {:?}: {} attempts, {:?} waited for the pace",
        stats.key, stats.counts.started, stats.times.pace
    );

    // An explicit key puts a request into another slot; a refusal is an error of the middleware.
    let plain = ClientBuilder::new(http).with(SlotMiddleware::new(slots.clone())).build();
    let permit = slots.try_acquire("full")?;
    let refused = plain.get(format!("http://{server}/")).with_extension(SlotKey::new("full")).send().await;
    if let Err(Error::Middleware(error)) = refused {
        println!("refused: {}", error.downcast::<SlotError>()?);
    }
    drop(permit);
    Ok(())
}

/// Says when it was asked, and fails every other time.
async fn serve(listener: tokio::net::TcpListener, start: Instant) {
    let asked = Arc::new(AtomicUsize::new(0));
    while let Ok((stream, _)) = listener.accept().await {
        let asked = asked.clone();
        let service = service_fn(move |request: http::Request<_>| {
            let fails = asked.fetch_add(1, Ordering::SeqCst) % 2 == 0;
            let status = if fails { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
            println!("  {:>4} ms  {} -> {status}", start.elapsed().as_millis(), request.uri());
            let body = Full::new(Bytes::from(vec![b'x'; 50_000]));
            async move { Response::builder().status(status).body(body) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
