//! reqwest behind the slots: its client is the inner service, and what comes out is a `reqwest::Response` again.
//! Six pages are asked for at once; the server never has more than two open, since a body keeps its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_slot::reqwest::ReqwestService;
use tower_slot::{BoxError, SlotConfig, SlotLayer};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // reqwest is built without a provider of cryptography here; with its default features it brings one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let most = Arc::new(AtomicUsize::new(0));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    tokio::spawn(serve(listener, most.clone()));

    let layer = SlotLayer::new(SlotConfig::builder().concurrency(2).build()?);
    let slots = layer.slots().clone();
    let client = reqwest::Client::builder().no_proxy().build()?;
    let client = ServiceBuilder::new().layer(layer).service(ReqwestService::new(client));

    let pages = (1..=6).map(|page| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let request =
                http::Request::get(format!("http://{server}/{page}")).body(reqwest::Body::default())?;
            let response = client.ready().await?.call(request).await?;
            let response = reqwest::Response::from(response);
            let (url, from) = (response.url().clone(), response.remote_addr());
            println!("{url}: {} from {from:?}, {:?} bytes", response.status(), response.content_length());
            response.bytes().await?; // the place in the slot is free when the body has ended
            Ok::<_, BoxError>(())
        })
    });
    for page in pages.collect::<Vec<_>>() {
        page.await??;
    }

    let stats = slots.stats("127.0.0.1").ok_or("no slot")?;
    let times = stats.times;
    println!("the server had {} open at most", most.load(Ordering::SeqCst));
    println!("slot {:?}: {} started, {} in flight", stats.key, stats.counts.started, stats.in_flight);
    println!(
        "waited {:?}, to the headers {:?}, in the body {:?}",
        times.concurrency, times.headers, times.body
    );
    Ok(())
}

/// Answers at once, with a body that takes a while.
async fn serve(listener: tokio::net::TcpListener, most: Arc<AtomicUsize>) {
    let open = Arc::new(AtomicUsize::new(0));
    while let Ok((stream, _)) = listener.accept().await {
        let (open, most) = (open.clone(), most.clone());
        let service = service_fn(move |_| {
            most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let body = StreamBody::new(Box::pin(stream::once(slow(open.clone()))));
            async { http::Response::builder().header("content-length", 9).body(body) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn slow(open: Arc<AtomicUsize>) -> Result<Frame<Bytes>, BoxError> {
    tokio::time::sleep(Duration::from_millis(100)).await;
    open.fetch_sub(1, Ordering::SeqCst);
    Ok(Frame::data(Bytes::from("some page")))
}
