//! The page and its addresses.
//!
//! It controls something, so other sites must not: a request has to name this host (a name that somebody else has made
//! point here is refused), must not come from a page of another origin, and a change has to be JSON, which no form of
//! another site can send.

use std::{future::ready, net::SocketAddr};

use axum::{
    Router,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use http::{HeaderMap, StatusCode, header};
use tower_slot::Slots;

use crate::{control, feed::Feed};

const PAGE: &str = include_str!("page.html");
/// Nothing from elsewhere, and not in a frame of somebody else's page.
const POLICY: &str = "default-src 'none'; connect-src 'self'; img-src data:; script-src 'unsafe-inline'; \
                      style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Creates the page of `slots`, to be served at `address`.
pub(crate) fn router(slots: Slots, address: SocketAddr) -> Router {
    let feed = Feed::new(slots.clone());
    Router::new()
        .route("/", get(async || ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(PAGE))))
        .route("/events", get(move || ready(feed.events())))
        .route("/pause", post(control::pause))
        .route("/resume", post(control::resume))
        .route("/concurrency", post(control::concurrency))
        .layer(from_fn_with_state(address.port(), only_from_here))
        .with_state(slots)
}

async fn only_from_here(State(port): State<u16>, request: Request, next: Next) -> Response {
    match check(port, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(why) => (StatusCode::FORBIDDEN, why).into_response(),
    }
}

fn check(port: u16, headers: &HeaderMap) -> Result<(), &'static str> {
    let is_here =
        |authority: &str| ["127.0.0.1", "localhost"].iter().any(|host| authority == format!("{host}:{port}"));
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if !text(header::HOST).is_some_and(is_here) {
        return Err("this is not the host of that name");
    }
    match text(header::ORIGIN) {
        Some(origin) if !origin.strip_prefix("http://").is_some_and(is_here) => {
            Err("a page of another origin has no say here")
        }
        _ => Ok(()),
    }
}
