//! Where retries and timeouts stand decides what the slot counts.
//! Run it with `cargo run --example retry_and_timeout`.

use std::future::{Ready, pending, ready};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::{Router, routing::get};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tower::retry::{Policy, RetryLayer};
use tower::{Layer, ServiceExt, timeout::TimeoutLayer};
use tower_slot::{BoxError, Counts, SlotConfig, SlotLayer, Slots};

/// Up to three attempts. A back-off would be the future's; tower drops the failed response before it polls that.
#[derive(Clone)]
struct Thrice(usize);

impl<Q: Clone, B> Policy<Q, Response<B>, BoxError> for Thrice {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Q, result: &mut Result<Response<B>, BoxError>) -> Option<Ready<()>> {
        self.0 += 1;
        let failed = result.as_ref().map_or(true, |response| response.status().is_server_error());
        (failed && self.0 < 3).then(|| ready(()))
    }

    fn clone_request(&mut self, request: &Q) -> Option<Q> {
        Some(request.clone())
    }
}

/// Never answers the first of three requests, fails the second, answers the third.
async fn flaky() -> Result<&'static str, StatusCode> {
    static REQUESTS: AtomicUsize = AtomicUsize::new(0);
    match REQUESTS.fetch_add(1, Ordering::Relaxed) % 3 {
        0 => pending().await,
        1 => Err(StatusCode::SERVICE_UNAVAILABLE),
        _ => Ok("done"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, Router::new().route("/", get(flaky))).into_future());

    let config = SlotConfig::builder().concurrency(1).delay(Duration::from_millis(200)).build()?;
    let slots = [(); 3].map(|()| Slots::new(config.clone()));
    let slot = |n: usize| SlotLayer::with_slots(slots[n].clone());
    let (retry, timeout) = (RetryLayer::new(Thrice(0)), TimeoutLayer::new(Duration::from_millis(500)));
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>().map_err(BoxError::from);
    let stacks = [
        ("retry, timeout, slot", (&retry, &timeout, slot(0)).layer(client.clone()).boxed_clone()),
        ("slot, retry, timeout", (slot(1), &retry, &timeout).layer(client.clone()).boxed_clone()),
        ("timeout, retry, slot", (&timeout, &retry, slot(2)).layer(client).boxed_clone()),
    ];

    for ((order, stack), slots) in stacks.into_iter().zip(&slots) {
        let began = Instant::now();
        let request = Request::get(format!("http://{address}/")).body(Empty::new())?;
        let outcome = match stack.oneshot(request).await {
            Ok(response) => format!("{:?}", response.into_body().collect().await?.to_bytes()),
            Err(error) => error.to_string(),
        };
        println!("{order}: {outcome} after {:.0?}", began.elapsed());
        for slot in slots.snapshot().slots {
            let (Counts { started, finished, cancelled, .. }, pace) = (slot.counts, slot.times.pace);
            println!(
                "  {started} started, {finished} finished, {cancelled} cancelled, {pace:.0?} at the pace"
            );
        }
    }
    Ok(())
}
