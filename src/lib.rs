//! A tower middleware for HTTP: every request goes through a named *slot*, a lane with its own concurrency, its
//! own pace and its own queue, and keeps its place there until the response **body** has ended.
//!
//! ```
//! use std::time::Duration;
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_slot::{SlotConfig, SlotLayer, SlotLimits};
//! # use http::{Request, Response};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_slot::BoxError> {
//! # let client = tower::service_fn(async |_: Request<String>| Ok::<_, tower_slot::BoxError>(Response::new(String::new())));
//! let config = SlotConfig::builder() // for every slot, one per host
//!     .concurrency(8)
//!     .delay(Duration::from_millis(20))
//!     .slot("api.test", SlotLimits::new().concurrency(2)) // what is not set is inherited
//!     .total_concurrency(64)
//!     .build()?;
//! let layer = SlotLayer::new(config);
//! let slots = layer.slots().clone(); // look, change, pause, close
//! let mut client = ServiceBuilder::new().layer(layer).service(client);
//!
//! let request = Request::get("http://a.test/").body(String::new())?;
//! let response = client.ready().await?.call(request).await?;
//! assert_eq!(slots.stats("a.test").map(|slot| slot.in_flight), Some(0)); // an empty body has ended already
//! # Ok(()) }
//! ```
//!
//! # The story of one request
//!
//! 1. [`SlotService::call`](SlotService) has the [`KeyExtractor`] name the slot and finds it in the table. By
//!    default that is a [`SlotKey`] in the request's extensions, else the host.
//! 2. At the first poll of the [response future](future::ResponseFuture) the request takes its place in the
//!    slot's queue, unless it can start at once. The first in the queue passes three gates, in order:
//!    *concurrency* (is the slot full?), *pace* (delay, jitter, pause) and *total* (the cap over all slots).
//!    Waiting for the pace takes no permit, neither of the slot nor of the total.
//! 3. It *starts*: a [permit](SlotPermit) is granted. Now a clone of the inner service is polled ready and called.
//! 4. The response comes. Its [body](body::SlotBody) takes the permit along, and gives it back when it has ended, fails or
//!    is dropped; at the headers already under [`Hold::Headers`].
//! 5. An idle slot is recycled, once its pace is past.
//!
//! # Placement
//!
//! What stands outside the layer sees the wait, what stands inside does not.
//!
//! | layer | outside | inside |
//! |---|---|---|
//! | timeout | counts the wait; a request that times out leaves the queue | counts from the start |
//! | retry | each attempt takes the slot anew, at its pace; the back-off holds no permit | all attempts share one permit |
//! | redirect | each hop goes through its own slot | all hops are one request of the first slot |
//! | `LoadShed`, `Buffer`, `Balance` | see no back-pressure: the layer is always ready. Bound the queue with [`queue_capacity`](SlotLimits::queue_capacity) | shed or wait after the start |
//! | `ConcurrencyLimit` | counts those who wait, so one slot can use it up: see [`total_concurrency`](SlotConfigBuilder::total_concurrency) | waits after the start |
//! | decompression | the permit is back when the packed body has been read | when the unpacked one has |
//! | trace, headers | see the wait | begin at the start |
//!
//! The module [`placement`] goes through every order, says what the slot counts in each, and how the layer stands on
//! servers of axum and tonic.
//!
//! # What to know
//!
//! - In flight, a slot may hold as much of the total as its concurrency allows: keep a slot's concurrency below the total.
//! - Concurrency is not connections: the permit is back before the pool has the connection back. And it follows the
//!   response only: an upload that goes on after an early response is not counted.
//! - A response that nobody reads keeps its permit. [`Slots::snapshot`] shows its age, and a
//!   [wait timeout](SlotLimits::wait_timeout) turns a hang into an error that says so.
//!
//! # The loop that waits for itself
//!
//! First in, first out has a price: a first waiter that was woken and is not polled holds up its slot. This loop does
//! that to itself, since the stream is not polled while the body of the loop waits for the same slot:
//!
//! ```no_run
//! # use futures_util::StreamExt;
//! # async fn get(_: u32) {}
//! # async fn run() {
//! let mut responses = futures_util::stream::iter(0..10).map(get).buffer_unordered(4);
//! while let Some(response) = responses.next().await {
//!     get(11).await; // waits behind one of the four, which nobody polls
//! }
//! # }
//! ```
//!
//! The cure is to spawn the requests, so that each is polled by its own task. With a wait timeout the loop ends with
//! [`WaitTimeout`](SlotErrorKind::WaitTimeout), and [`SlotError::stalled`] tells since when the first waiter has been
//! ready without being polled; so do the [statistics](SlotStats::stalled).
//!
//! # Features
//!
//! None by default: the core needs no runtime but tokio's timer.
//!
//! | feature | what it brings |
//! |---|---|
//! | `domain` | `RegistrableDomain`: a slot per registrable domain, by the public suffix list |
//! | `resolve` | `PerIp`: a slot per address of the host, by the system's resolver or one of your own |
//! | `hickory` | `HickoryResolver`: the same by hickory-resolver. It needs Rust 1.88, more than the rest |
//! | `serde` | [`SlotConfig`] from a file in TOML, JSON or YAML; a [`Snapshot`] as JSON |
//! | `reqwest` | `ReqwestService`: a `reqwest::Client` as the inner service, its responses kept whole. None of reqwest's own features are turned on: TLS and HTTP/2 are yours to choose |
//! | `reqwest-middleware` | `SlotMiddleware` for clients built with reqwest-middleware; turns `reqwest` on |
//! | `connection` | `SlotLayer::connection_times`: the time to a connection apart from the time to the headers, told by hyper-util's client |
//! | `proxy` | `ProxyIdentity`: keys of proxies and their accounts, without secrets |
//! | `tracing` | events per request, and warnings; see [`telemetry`] |
//! | `metrics` | counters, histograms and gauges through the `metrics` facade; see [`telemetry`] |

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "reqwest-middleware")]
mod ahead;
mod config;
#[cfg(feature = "serde")]
mod config_file;
mod connection;
#[cfg(feature = "domain")]
mod domain;
mod error;
mod extract;
mod guard;
mod hold;
mod jitter;
mod key;
mod layer;
mod limits;
#[cfg(feature = "proxy")]
mod proxy;
mod reject;
#[cfg(feature = "resolve")]
mod resolve;
mod respond;
mod service;
mod slot;
mod tenant;
mod timings;
mod upgrade;

pub mod body;
pub mod future;
#[cfg(any(doc, doctest))]
pub mod placement;
#[cfg(feature = "reqwest")]
#[cfg_attr(docsrs, doc(cfg(feature = "reqwest")))]
pub mod reqwest;
#[cfg(feature = "reqwest-middleware")]
#[cfg_attr(docsrs, doc(cfg(feature = "reqwest-middleware")))]
pub mod reqwest_middleware;
pub mod telemetry;

pub use self::config::{ConfigError, SlotConfig, SlotConfigBuilder};
#[cfg(feature = "domain")]
#[cfg_attr(docsrs, doc(cfg(feature = "domain")))]
pub use self::domain::RegistrableDomain;
pub use self::error::{BoxError, SlotError, SlotErrorKind, WaitReason};
pub use self::extract::{ExtensionOrHost, Extracted, KeyExtractor};
pub use self::hold::Hold;
pub use self::jitter::Jitter;
pub use self::key::{KeyFuture, KeyRef, SlotKey};
pub use self::layer::SlotLayer;
pub use self::limits::{Limits, SlotLimits};
#[cfg(feature = "proxy")]
#[cfg_attr(docsrs, doc(cfg(feature = "proxy")))]
pub use self::proxy::{ProxyIdentity, ProxyUrlError};
pub use self::reject::{Fail, Reject, RejectWith};
#[cfg(feature = "hickory")]
#[cfg_attr(docsrs, doc(cfg(feature = "hickory")))]
pub use self::resolve::HickoryResolver;
#[cfg(feature = "resolve")]
#[cfg_attr(docsrs, doc(cfg(feature = "resolve")))]
pub use self::resolve::{PerIp, Resolve, Resolving, SystemResolver, Unresolved, UnresolvedError};
pub use self::respond::{service_unavailable, too_many_requests};
pub use self::service::SlotService;
pub use self::slot::{
    Acquire, Counts, Drained, Phases, Recycled, SlotPermit, SlotStats, Slots, Snapshot, Sweeper, TotalStats,
};
pub use self::tenant::{ForwardedFor, HeaderKey, PeerKey};
pub use self::timings::SlotTimings;
pub use self::upgrade::UpgradePermit;

/// The README's examples are tests too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
