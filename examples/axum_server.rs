//! A slot per tenant on an axum server: refusals are responses, and the shutdown waits for the last body.
//! Run it with `cargo run --example axum_server`.

use std::time::Duration;

use axum::{Router, routing::get};
use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderName, Request, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::{net::TcpListener, sync::oneshot, time::sleep};
use tower_slot::{BoxError, HeaderKey, SlotConfig, SlotLayer, SlotLimits, too_many_requests};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let config = SlotConfig::server() // whoever makes up tenants does not fill the memory
        .concurrency(1)
        .queue_capacity(1)
        .slot("large", SlotLimits::new().concurrency(4))
        .slot("steady", SlotLimits::new().queue_capacity(0).delay(Duration::from_millis(1_500)))
        .build()?;
    // No `HandleErrorLayer`: the error type stays `Infallible`.
    let tenant = HeaderKey::new(HeaderName::from_static("x-tenant"));
    let layer = SlotLayer::new(config).key_extractor(tenant).reject_with(too_many_requests);
    let slots = layer.slots().clone();
    let work = async || {
        sleep(Duration::from_millis(100)).await;
        "done"
    };
    let app = Router::new().route("/", get(work)).layer(layer);

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel();
    let drained = async move {
        let _ = stopped.await;
        slots.close();
        // The listener stays: newcomers are told 503 until those in flight are done.
        slots.drained().await;
    };
    let server = tokio::spawn(axum::serve(listener, app).with_graceful_shutdown(drained).into_future());

    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let send = async |tenant: &'static str| {
        let request =
            Request::get(format!("http://{address}/")).header("x-tenant", tenant).body(Empty::new())?;
        let response = client.request(request).await?;
        let status = response.status();
        let after = response.headers().get(header::RETRY_AFTER).cloned();
        let body = response.into_body().collect().await?.to_bytes();
        Ok::<_, BoxError>(match after {
            Some(after) => format!("{tenant}: {status}, come back in {} s", after.to_str()?),
            None => format!("{tenant}: {status}, {}", String::from_utf8_lossy(&body)),
        })
    };
    let all = ["small", "small", "small", "large", "large", "large", "steady", "steady"];
    for line in join_all(all.map(send)).await {
        println!("{}", line?);
    }

    let (last, late) = tokio::join!(send("large"), async {
        sleep(Duration::from_millis(20)).await;
        let _ = stop.send(());
        sleep(Duration::from_millis(20)).await;
        send("large").await
    });
    println!("in flight at the shutdown: {}\nafter it:                  {}", last?, late?);
    Ok(server.await??)
}
