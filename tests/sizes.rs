//! Sizes of the public types: what a request carries around, and what is kept for each waiter.

use std::convert::Infallible;
use std::future::{Ready, pending, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Empty, Full};
use tokio::time::Sleep;
use tower::{Layer, Service, service_fn};
use tower_slot::body::SlotBody;
use tower_slot::{
    Acquire, KeyRef, SlotConfig, SlotError, SlotKey, SlotLayer, SlotPermit, SlotService, SlotTimings, Slots,
    UpgradePermit,
};

type Answer = Result<Response<Empty<Bytes>>, Infallible>;

/// The size of the response future beyond that of the inner future or the request, of which it has one at a time.
fn beyond<B, F: Future<Output = Answer>>(request: B, answer: impl Fn(Request<B>) -> F + Clone) -> usize {
    let mut service = SlotLayer::new(SlotConfig::default()).layer(service_fn(answer));
    let whole = size_of_val(&service.call(Request::new(request)));
    println!("{whole} bytes around {} of the future and {}", size_of::<F>(), size_of::<Request<B>>());
    whole - size_of::<F>().max(size_of::<Request<B>>())
}

fn at_once<B>(_: Request<B>) -> Ready<Answer> {
    ready(Ok(Response::new(Empty::new())))
}

async fn later<B>(_: Request<B>) -> Answer {
    Ok(Response::new(Empty::new()))
}

async fn big<B>(request: Request<B>) -> Answer {
    let kept = [1_u8; 4_096];
    pending::<()>().await;
    drop((request, kept));
    Ok(Response::new(Empty::new()))
}

// S5
#[test]
fn a_response_future_is_at_most_232_bytes_larger_than_the_larger_of_what_it_wraps() {
    let seen = [
        beyond((), at_once),
        beyond((), later),
        beyond((), big),
        beyond(Full::new(Bytes::new()), at_once),
        beyond(Full::new(Bytes::new()), later),
        beyond([0_u8; 1_000], big),
        beyond([0_u64; 1_000], at_once),
    ];
    println!("beyond: {seen:?}");
    assert!(seen.iter().all(|beyond| *beyond <= 232), "{seen:?}");
}

// B1, B3
#[test]
fn a_body_carries_a_permit_and_its_timings() {
    assert_eq!(size_of::<SlotPermit>(), 16);
    assert_eq!(size_of::<Option<SlotPermit>>(), 16);
    assert_eq!(size_of::<SlotBody<()>>(), 24);
    assert_eq!(size_of::<SlotBody<Full<Bytes>>>() - size_of::<Full<Bytes>>(), 24);
    assert_eq!(size_of::<SlotBody<Empty<Bytes>>>(), 24);
}

// S5
#[test]
fn a_waiter_is_a_timer_and_little_else() {
    let beyond = size_of::<Acquire>() - size_of::<Sleep>();
    println!("{beyond} bytes beyond the timer");
    assert!(beyond <= 56, "{beyond}");
}

// K2, S2, S3
#[test]
fn what_is_cloned_and_passed_on_is_small() {
    assert_eq!(size_of::<SlotKey>(), 3 * size_of::<usize>());
    assert_eq!(size_of::<KeyRef<'_>>(), 4 * size_of::<usize>());
    assert_eq!(size_of::<SlotService<()>>(), 2 * size_of::<usize>());
    let handles =
        [size_of::<Slots>(), size_of::<UpgradePermit>(), size_of::<SlotTimings>(), size_of::<SlotError>()];
    assert_eq!(handles, [size_of::<usize>(); 4]);
}
