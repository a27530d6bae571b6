//! Where to place the layer in a stack, and what a slot then counts.
//!
//! The rule people get wrong: what stands *outside* the layer is done once per request and sees the wait; what
//! stands *inside* is done while a permit is held. So a retry inside sleeps through its back-off with a permit in its
//! hand, and a redirect inside visits hosts whose slots never hear of it.
//!
//! Orders are written from the outside inwards, as [`ServiceBuilder`] takes them: "retry, slot" means that each attempt
//! goes through the slot. The words in italics are those of [`Counts`](crate::Counts).
//!
//! # Timeouts
//!
//! | order | what the slot counts |
//! |---|---|
//! | timeout, slot | The wait is part of the time. A waiter leaves the queue (*gone*), one that has started gives its permit back (*cancelled*). |
//! | slot, timeout | The time runs from the start to the headers; it ends in an error of the inner service (*failed*). |
//! | tower-http's `Timeout`, slot | As tower's, but the caller gets a response with a status. |
//! | slot, tower-http's `Timeout` | Its response is one like any other (*finished*). |
//! | tower-http's `ResponseBodyTimeout`, slot | The body fails for the caller, but not for the slot: the permit stays until the body is dropped (*cancelled*). |
//! | slot, `ResponseBodyTimeout` | The body fails inside the slot, the permit is back at once (*failed*). This is the order to take. |
//!
//! A timeout outside ends at the headers, whatever the body does; to end a body, time the reading of it, or use a
//! `ResponseBodyTimeout` inside. To bound the wait alone, use [`wait_timeout`](crate::SlotLimits::wait_timeout): its error
//! says what was waited for, and who holds the slot.
//!
//! # Retries
//!
//! | order | what the slot counts |
//! |---|---|
//! | retry, slot | Each attempt is a request: it waits its turn and keeps the pace. The permit of the one before is back before the back-off, as tower drops the failed response first: *finished*, or *cancelled* if its body was left unread. |
//! | slot, retry | One request, one permit, held through all attempts and back-offs; attempts keep no pace. |
//! | retry, timeout, slot | Each attempt has its own timeout, its wait included. |
//! | retry, slot, timeout | Each attempt has its own timeout, from its start. |
//! | timeout, retry, slot | One timeout for all attempts, waits and back-offs; each attempt is a request. |
//! | timeout, slot, retry | One timeout for the wait and all attempts; one request. |
//! | slot, retry, timeout | One request; each attempt has its own timeout. |
//! | slot, timeout, retry | One request; one timeout for all attempts, from the start (*failed*). |
//!
//! # Redirects
//!
//! | order | what the slot counts |
//! |---|---|
//! | redirect, slot | Each hop is a request of its own host's slot. The permit of the hop before is back first, unread bytes or not (*cancelled* if there were some), so one slot does not wait for itself at a limit of 1. |
//! | slot, redirect | One request of the first host's slot. The other hosts' slots hear nothing of it. |
//!
//! A [`SlotKey`](crate::SlotKey) in the request's extensions goes along if the redirect's policy keeps the
//! extensions. tower-http's `Standard` drops them where another origin begins, so that hop goes by its host.
//!
//! # Queues, limits and shedding
//!
//! | order | what the slot counts |
//! |---|---|
//! | buffer, slot | The layer is always ready, so the buffer never fills: all wait in the slot's queue. Bound that with [`queue_capacity`](crate::SlotLimits::queue_capacity). |
//! | slot, buffer | Only those who have started are in the buffer. |
//! | load shed, slot | Nothing is ever shed, for the same reason. |
//! | slot, load shed, limit | Whoever has started and finds the limit reached is shed (*failed*). |
//! | limit, slot | tower's `ConcurrencyLimit` counts those who wait in a slot too: a slow slot can use all of it up, and then no slot gets requests. Use [`total_concurrency`](crate::SlotConfigBuilder::total_concurrency) instead. |
//! | slot, limit | Waiting for the limit is time to the headers, with a permit held; it ends at the headers. |
//!
//! # What looks at requests and bodies
//!
//! | order | what the slot counts |
//! |---|---|
//! | trace, slot | The same as without. The trace's latency includes the wait. |
//! | slot, trace | The same as without. The trace begins at the start. |
//! | set header, slot | A [key extractor](crate::KeyExtractor) sees the header. |
//! | slot, set header | It does not. |
//! | decompression, slot | The permit is back when the packed body has been read. |
//! | slot, decompression | The permit is back when the unpacked body has been read, so that a slow reader holds it longer. |
//! | CORS, validation, catch panic and the like, slot | What they answer by themselves takes no slot. |
//!
//! Some of tower-http's layers make a body by `Default`. [`SlotBody`](crate::body::SlotBody) has one if the body inside
//! has; hyper's `Incoming` has none, so map it into a box below the layer (`map_response_body(BoxBody::new)`), which the
//! [responders](crate::too_many_requests) need as well.
//!
//! # Servers
//!
//! `Router::layer`, `Router::route_layer` and `MethodRouter::layer` of axum, and `Server::layer` of tonic, build many
//! services from one layer: they share its slots, over all routes and connections. [`SlotLayer::reject_with`] keeps
//! `Infallible`, so nothing has to handle errors; a gRPC server answers
//! `tonic::Status::resource_exhausted(error.to_string()).into_http()`, or lets the client make `Unavailable` of a 429.
//!
//! A shutdown that waits for the last body, while newcomers are told 503:
//!
//! ```
//! # use axum::{Router, routing::get};
//! # use tower_slot::{SlotConfig, SlotLayer, too_many_requests};
//! # async fn run(listener: tokio::net::TcpListener, signal: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
//! let layer = SlotLayer::new(SlotConfig::default()).reject_with(too_many_requests);
//! let slots = layer.slots().clone();
//! let app = Router::new().route("/", get(async || "fine")).layer(layer);
//! axum::serve(listener, app)
//!     .with_graceful_shutdown(async move {
//!         signal.await;
//!         slots.close();
//!         slots.drained().await;
//!     })
//!     .await
//! # }
//! ```
//!
//! # gRPC clients
//!
//! A tonic client knows no host unless it is told one: `GreeterClient::with_origin(service, uri)` gives it a slot by
//! host, `GreeterClient::new(service)` makes all calls go through the slot named `""`. A `SlotKey` in the
//! extensions of a `tonic::Request` is a key like any other. A call is over at its trailers.
//!
//! [`ServiceBuilder`]: https://docs.rs/tower/latest/tower/struct.ServiceBuilder.html
//! [`SlotLayer::reject_with`]: crate::SlotLayer::reject_with
