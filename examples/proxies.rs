//! A pool of forward proxies, each with a budget of its own. A proxy's slot is named by scheme, host and port: the
//! user name and the password in its URL show up nowhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use reqwest::Url;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tokio::net::TcpListener;
use tower_slot::reqwest_middleware::SlotMiddleware;
use tower_slot::{BoxError, SlotConfig, SlotKey, SlotLimits, Slots};

/// What a proxy itself has seen: the requests that are open now, and the most at a time.
type Seen = Arc<[AtomicUsize; 2]>;

fn key_of(proxy: &Url) -> Option<SlotKey> {
    let (host, port) = (proxy.host_str()?, proxy.port_or_known_default()?);
    Some(SlotKey::from(format!("{}://{host}:{port}", proxy.scheme())))
}

fn client_of(proxy: Url, slots: &Slots) -> reqwest::Result<ClientWithMiddleware> {
    let client = reqwest::Client::builder().proxy(reqwest::Proxy::all(proxy)?).build()?;
    Ok(ClientBuilder::new(client).with(SlotMiddleware::new(slots.clone())).build())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // reqwest is built without a provider of cryptography here; with its default features it brings one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let slots = Slots::new(SlotConfig::default());
    let mut pool = Vec::new();
    for budget in 1..=3 {
        let (listener, seen) = (TcpListener::bind("127.0.0.1:0").await?, Seen::default());
        let url = Url::parse(&format!("http://user:secret@{}", listener.local_addr()?))?;
        tokio::spawn(serve(listener, seen.clone()));
        let key = key_of(&url).ok_or("a proxy without a host")?;
        slots.configure(&key, SlotLimits::new().concurrency(budget))?;
        pool.push((key, client_of(url, &slots)?, seen));
    }

    // Thirty pages of one host, dealt out to the proxies in turn. Each is read where it was asked for: one that
    // waited to be read would keep its place.
    let pages = (0..30).map(|page| {
        let (key, client, _) = &pool[page % pool.len()];
        let request = client.get(format!("http://site.test/{page}")).with_extension(key.clone());
        tokio::spawn(async { Ok::<_, BoxError>(request.send().await?.error_for_status()?.bytes().await?) })
    });
    for page in pages.collect::<Vec<_>>() {
        page.await??;
    }

    println!("{:<24} {:>6} {:>7} {:>13}", "proxy", "budget", "started", "most at once");
    for (key, _, seen) in &pool {
        let stats = slots.stats(key).ok_or("no slot")?;
        let (budget, started) = (stats.limits.concurrency.unwrap_or(0), stats.counts.started);
        println!("{key:<24} {budget:>6} {started:>7} {:>13}", seen[1].load(Ordering::SeqCst));
    }
    Ok(())
}

async fn serve(listener: TcpListener, seen: Seen) {
    while let Ok((stream, _)) = listener.accept().await {
        let seen = seen.clone();
        let service = service_fn(move |request| answer(request, seen.clone()));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// The proxy wants to know who asks, and makes the page up instead of fetching it.
async fn answer(request: http::Request<Incoming>, seen: Seen) -> http::Result<http::Response<String>> {
    seen[1].fetch_max(seen[0].fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(20)).await;
    seen[0].fetch_sub(1, Ordering::SeqCst);
    let is_known = request.headers().contains_key("proxy-authorization");
    http::Response::builder().status(if is_known { 200 } else { 407 }).body(request.uri().to_string())
}
