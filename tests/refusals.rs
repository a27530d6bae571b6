//! What a request gets that its slot does not let start: an error, or a response.
#![allow(clippy::unwrap_used)]

mod support;

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio::time::{Instant, advance};
use tokio_test::assert_ready_err;
use tokio_test::task::spawn;
use tower::{Layer, Service, ServiceExt};
use tower_slot::{BoxError, SlotConfig, SlotError, SlotErrorKind, SlotLayer, SlotPermit, WaitReason};

use self::support::{
    Answer, Broken, Inner, Script, Seen, body_of, comes, data, ended, frame, get, in_flight, layer, planned,
};

const SECOND: Duration = Duration::from_secs(1);

/// One refusal of each kind, from a service whose slot `a.test` is in use.
fn refusals<R>(layer: &SlotLayer<tower_slot::ExtensionOrHost, R>, kind: SlotErrorKind) -> Request<()>
where
    R: Clone,
{
    match kind {
        SlotErrorKind::TooManySlots => get("b.test"),
        SlotErrorKind::Closed => {
            layer.slots().close();
            get("a.test")
        }
        _ => get("a.test"),
    }
}

const KINDS: [SlotErrorKind; 4] = [
    SlotErrorKind::QueueFull,
    SlotErrorKind::WaitTimeout,
    SlotErrorKind::Closed,
    SlotErrorKind::TooManySlots,
];

/// A layer with one slot that is in use, and what a request has to wait until it is refused.
fn refusing(kind: SlotErrorKind) -> (SlotLayer, SlotPermit, Duration) {
    let config = SlotConfig::builder().concurrency(1).max_slots(1);
    let (config, wait) = match kind {
        SlotErrorKind::WaitTimeout => (config.wait_timeout(5 * SECOND), 5 * SECOND),
        _ => (config.queue_capacity(0), Duration::ZERO),
    };
    let layer = layer(config);
    let permit = layer.slots().try_acquire("a.test").unwrap();
    (layer, permit, wait)
}

/// S3: one downcast, and a kind.
#[tokio::test(start_paused = true)]
async fn one_downcast_finds_the_slots_own_failures() {
    for kind in KINDS {
        let (layer, permit, wait) = refusing(kind);
        advance(2 * SECOND).await;
        let inner = Inner::new();
        let start = Instant::now();
        let request = refusals(&layer, kind);
        let host = request.uri().host().unwrap().to_owned();
        let error: BoxError = comes(layer.layer(inner.clone()).oneshot(request)).await.unwrap_err();
        assert_eq!(start.elapsed(), wait, "{kind:?}");
        let error = error.downcast_ref::<SlotError>().unwrap();
        assert_eq!((error.kind(), error.slot().as_str(), error.waited()), (kind, &*host, wait));
        assert!(error.to_string().starts_with(&format!("slot \"{host}\": ")), "{error}");
        let (reason, busy, oldest) = match kind {
            SlotErrorKind::TooManySlots => (None, 0, None),
            SlotErrorKind::Closed => (None, 1, Some(2 * SECOND)),
            _ => (Some(WaitReason::Concurrency), 1, Some(2 * SECOND + wait)),
        };
        assert_eq!((error.reason(), error.in_flight(), error.oldest()), (reason, busy, oldest), "{kind:?}");
        assert_eq!(inner.calls(), 0);
        drop(permit);
        assert_eq!(in_flight(layer.slots(), "a.test"), 0);
    }
}

/// S3: an error of the inner service is passed on as it is.
#[test]
fn an_inner_error_that_is_a_box_already_is_not_boxed_again() {
    let layer = layer(SlotConfig::builder());
    let mut client = layer.layer(tower::service_fn(|_: Request<()>| {
        std::future::ready(Err::<Response<Script>, BoxError>(Box::new(Broken("inner"))))
    }));
    let error = assert_ready_err!(spawn(client.call(get("a.test"))).poll());
    assert_eq!(error.downcast_ref(), Some(&Broken("inner")));
}

/// S3: refusals become responses, and `Infallible` stays `Infallible`.
#[tokio::test(start_paused = true)]
async fn reject_with_turns_refusals_into_responses_and_keeps_infallible() {
    fn check<S: Service<Request<()>, Error = Infallible>>(service: S) -> S {
        service
    }
    for kind in KINDS {
        let (layer, _permit, wait) = refusing(kind);
        let layer = layer.reject_with(|error: SlotError| {
            let mut response = Response::new(Script::chunked(&["try later"]));
            *response.status_mut() = match error.kind() {
                SlotErrorKind::QueueFull | SlotErrorKind::WaitTimeout => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            response.extensions_mut().insert(error.kind());
            response
        });
        let request = refusals(&layer, kind);
        let start = Instant::now();
        let inner = tower::service_fn(|_: Request<()>| {
            std::future::ready(Ok::<_, Infallible>(Response::new(Script::default())))
        });
        let Ok(response) = comes(check(layer.layer(inner)).oneshot(request)).await;
        assert_eq!(start.elapsed(), wait, "{kind:?}");
        assert_eq!(response.extensions().get(), Some(&kind));
        assert!(response.status().is_client_error() || response.status().is_server_error());
        // Its body holds no permit and passes as it is.
        let slots = layer.slots();
        let before = (in_flight(slots, "a.test"), in_flight(slots, "b.test"), slots.len());
        assert_eq!(before, (1, 0, 1), "{kind:?}");
        let mut body = body_of(response);
        assert_eq!((frame(&mut body), frame(&mut body)), (data("try later"), Seen::End));
        drop(body);
        assert_eq!(in_flight(slots, "a.test"), 1);
    }
}

/// S3.
#[test]
fn reject_with_keeps_the_inner_services_error() {
    let layer = layer(SlotConfig::builder()).reject_with(|_| Response::new(Script::default()));
    let mut client = layer.layer(Inner::new());
    let error: Broken = assert_ready_err!(spawn(client.call(planned("a.test", Answer::Error))).poll());
    assert_eq!(error, Broken("inner"));
    assert_eq!(ended(layer.slots(), "a.test"), [0, 1, 0]);
}

/// Q2: only a moment that is to come is told as the earliest start.
#[tokio::test(start_paused = true)]
async fn the_earliest_start_is_told_until_it_is_there() {
    let layer = layer(SlotConfig::builder().concurrency(1).delay(SECOND).queue_capacity(0));
    let _permit = layer.slots().try_acquire("a.test").unwrap();
    let start = Instant::now() + SECOND;
    let earliest = || layer.slots().try_acquire("a.test").unwrap_err().earliest_start();
    assert_eq!(earliest(), Some(start));
    advance(SECOND - Duration::from_millis(1)).await;
    assert_eq!(earliest(), Some(start));
    advance(Duration::from_millis(1)).await;
    assert_eq!(earliest(), None);
}
