//! Counts: what became of everybody who asked adds up at every moment.

#![allow(clippy::unwrap_used, clippy::panic)]

mod by_hand;

use std::future::{Ready, pending, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tokio::time::advance;
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_slot::body::SlotBody;
use tower_slot::{BoxError, Hold, SlotConfig, SlotErrorKind, SlotLayer, Slots};

use by_hand::{millis, queued, request, row, secs, slots, stats};

type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A row of the slot's counts: they always add up.
fn counts(slots: &Slots, key: &str) -> [u64; 8] {
    let stats = stats(slots, key);
    let row = row(stats.counts);
    let [asked, started, refused, timed_out, gone, finished, failed, cancelled] = row;
    assert_eq!(asked, started + refused + timed_out + gone + stats.waiting as u64);
    assert_eq!(started, finished + failed + cancelled + stats.in_flight as u64);
    row
}

/// Answers as the path says.
async fn answer(request: Request<()>) -> Result<Response<Body>, BoxError> {
    let full = || Full::from("body").map_err(BoxError::from).boxed_unsync();
    let body = match request.uri().path() {
        "/empty" => Empty::new().map_err(BoxError::from).boxed_unsync(),
        "/never" => pending().await,
        "/error" => return Err("no answer".into()),
        "/panic" => panic!("the inner service panics"),
        "/body-error" => {
            let frames = [Ok(Frame::data(Bytes::from("body"))), Err(BoxError::from("broken"))];
            StreamBody::new(stream::iter(frames)).boxed_unsync()
        }
        "/body-panic" => {
            let frames = stream::poll_fn(|_| -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
                panic!("the inner body panics")
            });
            StreamBody::new(frames).boxed_unsync()
        }
        _ => full(),
    };
    Ok(Response::new(body))
}

/// Never well: not ready for ever, not ready with an error, or it panics when called.
#[derive(Clone, Copy)]
enum Ill {
    Pending,
    Error,
    Panic,
}

impl Service<Request<()>> for Ill {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Ready<Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Pending => Poll::Pending,
            Self::Error => Poll::Ready(Err("not ready".into())),
            Self::Panic => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        match self {
            Self::Panic => panic!("the call panics"),
            _ => ready(Err("not ready".into())),
        }
    }
}

// V1, case 6
#[tokio::test(start_paused = true)]
async fn counts_say_what_became_of_everybody() {
    let slots = slots(SlotConfig::builder().concurrency(1).queue_capacity(1).wait_timeout(millis(10)));
    let permit = slots.try_acquire("a").unwrap();
    assert_eq!(counts(&slots, "a"), [1, 1, 0, 0, 0, 0, 0, 0]);
    slots.try_acquire("a").unwrap_err();
    assert_eq!(counts(&slots, "a"), [2, 1, 1, 0, 0, 0, 0, 0]);
    let unpolled = slots.acquire("a");
    assert_eq!(counts(&slots, "a"), [2, 1, 1, 0, 0, 0, 0, 0], "nobody has asked");
    drop(unpolled);
    let mut waits = queued(&slots, "a");
    assert_eq!(counts(&slots, "a"), [3, 1, 1, 0, 0, 0, 0, 0], "one waits");
    let error = assert_ready_err!(spawn(slots.acquire("a")).poll());
    assert_eq!(error.kind(), SlotErrorKind::QueueFull);
    assert_eq!(counts(&slots, "a"), [4, 1, 2, 0, 0, 0, 0, 0]);
    advance(millis(10)).await;
    let error = assert_ready_err!(waits.poll());
    assert_eq!(error.kind(), SlotErrorKind::WaitTimeout);
    assert_eq!(counts(&slots, "a"), [4, 1, 2, 1, 0, 0, 0, 0]);
    drop(waits);
    assert_eq!(counts(&slots, "a"), [4, 1, 2, 1, 0, 0, 0, 0], "gone once only");
    drop(queued(&slots, "a"));
    assert_eq!(counts(&slots, "a"), [5, 1, 2, 1, 1, 0, 0, 0]);
    let mut waits = queued(&slots, "a");
    drop(permit);
    assert_eq!(counts(&slots, "a"), [6, 1, 2, 1, 1, 1, 0, 0]);
    let permit = assert_ready_ok!(waits.poll());
    drop(waits);
    assert_eq!(counts(&slots, "a"), [6, 2, 2, 1, 1, 1, 0, 0]);
    drop(permit);
    assert_eq!(counts(&slots, "a"), [6, 2, 2, 1, 1, 2, 0, 0]);
    slots.close();
    slots.try_acquire("a").unwrap_err();
    assert_ready_err!(spawn(slots.acquire("a")).poll());
    assert_eq!(counts(&slots, "a"), [8, 2, 4, 1, 1, 2, 0, 0]);
}

// V1, B1, B2, B4, case 6
#[tokio::test(start_paused = true)]
async fn a_start_is_finished_failed_or_cancelled_exactly_once() {
    let slots = slots(SlotConfig::builder().concurrency(1));
    let layer = SlotLayer::with_slots(slots.clone());
    let service = layer.layer(service_fn(answer));
    let ask = |path: &str| spawn(service.clone().oneshot(request(&format!("http://a.test{path}"))));
    let ended = || {
        let [asked, started, refused, timed_out, gone, ended @ ..] = counts(&slots, "a.test");
        assert_eq!([asked, refused, timed_out, gone], [started, 0, 0, 0]);
        ended
    };

    let response = assert_ready_ok!(ask("/ok").poll());
    assert_eq!(ended(), [0, 0, 0], "in flight");
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(ended(), [1, 0, 0], "the last frame was there");
    drop(body);
    assert_eq!(ended(), [1, 0, 0]);
    let kept = assert_ready_ok!(ask("/empty").poll());
    assert_eq!(ended(), [2, 0, 0], "the body was at its end");
    drop(kept);
    let mut of_headers = request("http://a.test/ok");
    of_headers.extensions_mut().insert(Hold::Headers);
    let kept = assert_ready_ok!(spawn(service.clone().oneshot(of_headers)).poll());
    assert_eq!(ended(), [3, 0, 0], "held to the headers");
    drop(kept);

    let mut kept = ask("/error");
    assert_ready_err!(kept.poll());
    assert_eq!(ended(), [3, 1, 0], "inner error");
    drop(kept);
    let mut body = assert_ready_ok!(ask("/body-error").poll()).into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(ended(), [3, 1, 0]);
    body.frame().await.unwrap().unwrap_err();
    assert_eq!(ended(), [3, 2, 0], "error of the body");
    drop(body);
    let mut panics = ask("/panic");
    catch_unwind(AssertUnwindSafe(|| panics.poll().is_ready())).unwrap_err();
    assert_eq!(ended(), [3, 3, 0], "panic of the inner future");
    drop(panics);
    let mut body = spawn(assert_ready_ok!(ask("/body-panic").poll()).into_body());
    catch_unwind(AssertUnwindSafe(|| {
        body.enter(|cx, body: Pin<&mut SlotBody<Body>>| http_body::Body::poll_frame(body, cx).is_ready())
    }))
    .unwrap_err();
    assert_eq!(ended(), [3, 4, 0], "panic of the body");
    drop(body);
    let ill = |ill: Ill| spawn(layer.layer(ill).oneshot(request("http://a.test/")));
    let mut kept = ill(Ill::Error);
    assert_ready_err!(kept.poll());
    assert_eq!(ended(), [3, 5, 0], "the inner service failed to become ready");
    drop(kept);
    let mut panics = ill(Ill::Panic);
    catch_unwind(AssertUnwindSafe(|| panics.poll().is_ready())).unwrap_err();
    assert_eq!(ended(), [3, 6, 0], "panic of the call");
    drop(panics);

    let mut cancelled = ill(Ill::Pending);
    assert_pending!(cancelled.poll());
    assert_eq!(ended(), [3, 6, 0], "started, and waits for the inner service");
    drop(cancelled);
    assert_eq!(ended(), [3, 6, 1], "dropped before the call");
    let mut cancelled = ask("/never");
    assert_pending!(cancelled.poll());
    drop(cancelled);
    assert_eq!(ended(), [3, 6, 2], "dropped after the call");
    drop(assert_ready_ok!(ask("/ok").poll()));
    assert_eq!(ended(), [3, 6, 3], "body dropped untouched");
    let mut body = assert_ready_ok!(ask("/body-error").poll()).into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    assert_eq!(ended(), [3, 6, 4], "body dropped in the middle");

    let last = counts(&slots, "a.test");
    advance(secs(60)).await;
    slots.retain_recent();
    let recycled = slots.snapshot().recycled;
    assert_eq!((recycled.slots, row(recycled.counts)), (1, last), "added to those of slots that are no more");
}
