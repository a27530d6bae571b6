//! The timings that a response carries.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use tokio::time::advance;
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_ok};
use tower::{Layer, Service};
use tower_slot::{Hold, SlotConfig, SlotLimits, SlotTimings, WaitReason};

use self::support::{Answer, Inner, Readiness, Script, Seen, body_of, data, frame, layer, planned};

const SECOND: Duration = Duration::from_secs(1);

/// V2: exact, by reason, from the first poll to the end of the body.
#[tokio::test(start_paused = true)]
async fn timings_tell_where_a_request_has_spent_its_time() {
    let config = SlotConfig::builder()
        .total_concurrency(1)
        .slot("a.test", SlotLimits::new().concurrency(1).delay(10 * SECOND));
    let (layer, inner) = (layer(config).timings(true), Inner::new());
    let (slots, mut client) = (layer.slots(), layer.layer(inner.clone()));
    let first = slots.try_acquire("a.test").unwrap();
    let mut call =
        spawn(client.call(planned("a.test", Answer::ok(Script::chunked(&["x"])).after(2 * SECOND))));
    // Time before the first poll is nobody's.
    advance(SECOND).await;
    assert_pending!(call.poll());
    advance(2 * SECOND).await;
    // 1 s..3 s: the slot is full.
    drop(first);
    assert!(call.is_woken());
    assert_pending!(call.poll());
    advance(2 * SECOND).await;
    let other = slots.try_acquire("b.test").unwrap();
    advance(5 * SECOND).await;
    // 3 s..10 s: the pace.
    assert!(call.is_woken());
    assert_pending!(call.poll());
    advance(5 * SECOND).await;
    inner.set_readiness(Readiness::Pending);
    // 10 s..15 s: the total.
    drop(other);
    assert!(call.is_woken());
    assert_pending!(call.poll());
    advance(SECOND).await;
    inner.set_readiness(Readiness::Ready);
    assert_pending!(call.poll());
    advance(2 * SECOND).await;
    // 15 s..18 s: to the headers, not ready and answering.
    let mut response = assert_ready_ok!(call.poll());
    let timings = response.extensions_mut().remove::<SlotTimings>().unwrap();
    let clone = timings.clone();
    let mut body = body_of(response);
    advance(4 * SECOND).await;
    assert_eq!(frame(&mut body), data("x"));
    assert_eq!((timings.body(), frame(&mut body)), (None, Seen::End));
    // 18 s..22 s: in the body.
    assert_eq!(timings.slot().as_str(), "a.test");
    let waited = WaitReason::ALL.map(|reason| timings.waited_for(reason));
    assert_eq!(waited, [2 * SECOND, 7 * SECOND, 5 * SECOND]);
    assert_eq!((timings.waited(), timings.to_headers()), (14 * SECOND, 3 * SECOND));
    assert_eq!((timings.body(), clone.body()), (Some(4 * SECOND), Some(4 * SECOND)));
    let times = slots.stats("a.test").unwrap().times;
    assert_eq!((times.concurrency, times.pace, times.total), (2 * SECOND, 7 * SECOND, 5 * SECOND));
    // The one that was taken by hand was in the body from the start.
    assert_eq!((times.headers, times.body), (3 * SECOND, 4 * SECOND + 3 * SECOND));
}

/// V2.
#[test]
fn a_response_carries_its_timings_only_when_asked() {
    for on in [false, true] {
        let layer = layer(SlotConfig::builder()).timings(on);
        for answer in [Answer::ok(Script::default()), Answer::ok(Script::chunked(&["x"]))] {
            let response =
                assert_ready_ok!(spawn(layer.layer(Inner::new()).call(planned("a.test", answer))).poll());
            assert_eq!(response.extensions().get::<SlotTimings>().is_some(), on);
        }
    }
}

/// V2: the time in the body runs from the headers to the end, or to the drop.
#[tokio::test(start_paused = true)]
async fn timings_know_the_time_in_the_body_when_it_has_ended() {
    for dropped in [false, true] {
        let layer = layer(SlotConfig::builder()).timings(true);
        let mut client = layer.layer(Inner::new());
        let request = planned("a.test", Answer::ok(Script::chunked(&["hello"])));
        let response = assert_ready_ok!(spawn(client.call(request)).poll());
        let timings = response.extensions().get::<SlotTimings>().unwrap().clone();
        let mut body = body_of(response);
        advance(2 * SECOND).await;
        assert_eq!(frame(&mut body), data("hello"));
        assert_eq!(timings.body(), None);
        advance(3 * SECOND).await;
        if !dropped {
            assert_eq!(frame(&mut body), Seen::End);
            assert_eq!(timings.body(), Some(5 * SECOND));
            advance(7 * SECOND).await;
        }
        drop(body);
        assert_eq!(timings.body(), Some(5 * SECOND), "dropped: {dropped}");
    }
}

/// V2.
#[tokio::test(start_paused = true)]
async fn without_a_permit_the_time_in_the_body_is_not_measured() {
    let layer = layer(SlotConfig::builder().hold(Hold::Headers)).timings(true);
    let mut client = layer.layer(Inner::new());
    let request = planned("a.test", Answer::ok(Script::chunked(&["hello"])).after(2 * SECOND));
    let mut call = spawn(client.call(request));
    assert_pending!(call.poll());
    advance(2 * SECOND).await;
    let response = assert_ready_ok!(call.poll());
    let timings = response.extensions().get::<SlotTimings>().unwrap().clone();
    let mut body = body_of(response);
    advance(SECOND).await;
    while !matches!(frame(&mut body), Seen::End) {}
    drop(body);
    assert_eq!((timings.to_headers(), timings.body()), (2 * SECOND, None));
    assert_eq!(layer.slots().stats("a.test").unwrap().times.body, Duration::ZERO);
}
