//! The response body: when it gives the permit back, and that it changes nothing else.
#![allow(clippy::unwrap_used)]

mod support;

use std::fmt::Debug;
use std::task::Poll;
use std::time::Duration;

use http::StatusCode;
use http_body::Body;
use proptest::prelude::*;
use tokio::time::advance;
use tokio_test::task::{Spawn, spawn};
use tokio_test::{assert_pending, assert_ready_ok};
use tower::{Layer, Service};
use tower_slot::body::SlotBody;
use tower_slot::{Hold, SlotConfig, Slots, WaitReason};

use self::support::{
    Act, Answer, Answered, Broken, Client, Inner, Says, Script, Seen, Step, body_of, data, ended, frame, get,
    in_flight, later, layer, plan, planned, trailers, waiting,
};

const SECOND: Duration = Duration::from_secs(1);

/// A service whose slots have room for one.
fn narrow() -> (Client, Slots) {
    let layer = layer(SlotConfig::builder().concurrency(1));
    (layer.layer(Inner::new()), layer.slots().clone())
}

/// Sends a request that is answered at once.
fn send(client: &mut Client, answer: Answer) -> Answered {
    assert_ready_ok!(spawn(client.call(planned("a.test", answer))).poll())
}

/// Sends a request whose body is to be polled by hand.
fn send_body(client: &mut Client, body: Script) -> Spawn<SlotBody<Script>> {
    body_of(send(client, Answer::ok(body)))
}

// --- when the permit is given back

/// B1, case 1.
#[test]
fn the_next_request_starts_after_the_last_frame_and_not_at_the_response() {
    let (mut client, slots) = narrow();
    let mut body = send_body(&mut client, Script::sized(&["one", "two", "three"]));
    let mut next = spawn(client.call(get("a.test")));
    assert_pending!(next.poll());
    for word in ["one", "two"] {
        assert_eq!(frame(&mut body), data(word));
        assert!(!next.is_woken(), "woken after frame {word}");
        assert_pending!(next.poll());
        assert_eq!(in_flight(&slots, "a.test"), 1);
    }
    assert_eq!(frame(&mut body), data("three"));
    assert!(next.is_woken());
    assert_ready_ok!(next.poll());
    assert_eq!(ended(&slots, "a.test"), [2, 0, 0]);
}

/// B1, case 1.
#[test]
fn the_next_request_starts_when_the_body_is_dropped_after_its_first_frame() {
    let (mut client, slots) = narrow();
    let mut body = send_body(&mut client, Script::sized(&["one", "two", "three"]));
    let mut next = spawn(client.call(get("a.test")));
    assert_pending!(next.poll());
    assert_eq!(frame(&mut body), data("one"));
    assert!(!next.is_woken());
    drop(body);
    assert!(next.is_woken());
    assert_ready_ok!(next.poll());
    assert_eq!(ended(&slots, "a.test"), [1, 0, 1]);
}

/// B1, case 3: nobody polls for `None`, and the body is kept.
#[test]
fn permit_returns_when_body_ends_but_is_not_dropped() {
    let (mut client, slots) = narrow();
    let mut body = send_body(&mut client, Script::sized(&["hello", "world"]));
    assert_eq!(frame(&mut body), data("hello"));
    assert_eq!(in_flight(&slots, "a.test"), 1);
    assert_eq!(frame(&mut body), data("world"));
    assert_eq!(in_flight(&slots, "a.test"), 0);
    drop(body);
    assert_eq!(ended(&slots, "a.test"), [1, 0, 0]);
}

/// B1.
#[test]
fn a_body_that_does_not_know_its_end_gives_the_permit_back_at_none() {
    let (mut client, slots) = narrow();
    let mut body = send_body(&mut client, Script::chunked(&["hello"]));
    assert_eq!(frame(&mut body), data("hello"));
    assert_eq!(in_flight(&slots, "a.test"), 1);
    assert_eq!(frame(&mut body), Seen::End);
    assert_eq!(in_flight(&slots, "a.test"), 0);
    assert_eq!(ended(&slots, "a.test"), [1, 0, 0]);
}

/// B1, case 41.
#[test]
fn trailers_are_the_end_although_the_body_does_not_say_so() {
    let (mut client, slots) = narrow();
    let mut body = send_body(&mut client, Script::chunked(&["hello"]).then(Act::Trailers));
    assert_eq!(frame(&mut body), data("hello"));
    assert_eq!(in_flight(&slots, "a.test"), 1);
    assert_eq!(frame(&mut body), Seen::Trailers(trailers()));
    assert!(!body.is_end_stream());
    assert_eq!(ended(&slots, "a.test"), [1, 0, 0]);
}

/// B1, B3, case 41.
#[test]
fn an_empty_data_frame_is_passed_on_and_is_no_end() {
    let (mut client, slots) = narrow();
    let mut body = send_body(&mut client, Script::chunked(&["", "hello", ""]).then(Act::Trailers));
    for word in ["", "hello", ""] {
        assert_eq!(frame(&mut body), data(word));
        assert_eq!(in_flight(&slots, "a.test"), 1);
    }
    assert_eq!(frame(&mut body), Seen::Trailers(trailers()));
    assert_eq!(in_flight(&slots, "a.test"), 0);
}

/// B1.
#[test]
fn an_error_in_the_body_gives_the_permit_back_as_failed() {
    let (mut client, slots) = narrow();
    let mut body = send_body(&mut client, Script::chunked(&["hello"]).then(Act::Error));
    assert_eq!(frame(&mut body), data("hello"));
    assert_eq!(frame(&mut body), Seen::Error(Broken("body")));
    assert_eq!(ended(&slots, "a.test"), [0, 1, 0]);
    drop(body);
    assert_eq!(ended(&slots, "a.test"), [0, 1, 0]);
}

/// B1, case 4.
#[test]
fn a_pending_body_that_claims_to_be_at_its_end_keeps_the_permit() {
    let (mut client, slots) = narrow();
    let script = Script::new().then(Act::Pending).saying(Says::Over).then(Act::Pending).saying(Says::Over);
    let mut body = send_body(&mut client, script);
    for _ in 0..2 {
        assert_eq!(frame(&mut body), Seen::Pending);
        assert!(body.is_end_stream());
        assert_eq!(in_flight(&slots, "a.test"), 1);
    }
    assert_eq!(frame(&mut body), Seen::End);
    assert_eq!(ended(&slots, "a.test"), [1, 0, 0]);
}

/// B1: whatever the method and the status.
#[test]
fn a_body_that_is_at_its_end_when_the_response_arrives_holds_no_permit() {
    for status in [StatusCode::OK, StatusCode::NO_CONTENT, StatusCode::INTERNAL_SERVER_ERROR] {
        let (mut client, slots) = narrow();
        let kept = send(&mut client, Answer::status(status, Script::default()));
        assert_eq!(in_flight(&slots, "a.test"), 0, "{status}");
        drop(kept);
        assert_eq!(ended(&slots, "a.test"), [1, 0, 0], "{status}");
    }
}

/// B1: a 204 or an answer to HEAD that has a body nevertheless is judged by that body.
#[test]
fn the_body_alone_is_judged_and_not_the_method_or_the_status() {
    for (method, status) in [("HEAD", StatusCode::OK), ("GET", StatusCode::NO_CONTENT)] {
        let (mut client, slots) = narrow();
        let request = http::Request::builder().method(method).uri("http://a.test/").body(()).unwrap();
        let request = plan(request, Answer::status(status, Script::chunked(&["hello"])));
        let mut body = body_of(assert_ready_ok!(spawn(client.call(request)).poll()));
        assert_eq!(in_flight(&slots, "a.test"), 1, "{method} {status}");
        assert_eq!(frame(&mut body), data("hello"));
        assert_eq!(frame(&mut body), Seen::End);
        assert_eq!(in_flight(&slots, "a.test"), 0, "{method} {status}");
    }
}

/// B1.
#[test]
fn a_body_that_is_dropped_untouched_gives_the_permit_back_as_cancelled() {
    let (mut client, slots) = narrow();
    let response = send(&mut client, Answer::ok(Script::sized(&["hello"])));
    assert_eq!(in_flight(&slots, "a.test"), 1);
    drop(response);
    assert_eq!(ended(&slots, "a.test"), [0, 0, 1]);
}

/// B2.
#[test]
fn a_panic_in_the_body_gives_the_permit_back_as_failed_although_the_body_is_kept() {
    let panics_in_the_poll = Script::chunked(&["hello"]).then(Act::Panic);
    let panics_when_asked = Script::chunked(&["hello"]).then(Act::Data("world")).saying(Says::Panic);
    for script in [panics_in_the_poll, panics_when_asked] {
        let (mut client, slots) = narrow();
        let mut body = send_body(&mut client, script.clone());
        assert_eq!(frame(&mut body), data("hello"));
        support::panics(|| frame(&mut body));
        assert_eq!(ended(&slots, "a.test"), [0, 1, 0], "{script:?}");
        assert_eq!(frame(&mut body), Seen::End);
        drop(body);
        assert_eq!(ended(&slots, "a.test"), [0, 1, 0], "{script:?}");
    }
}

/// B2.
#[test]
fn a_body_that_panics_when_the_response_arrives_fails_the_request() {
    let (mut client, slots) = narrow();
    let answer = Answer::ok(Script::chunked(&["hello"]).then(Act::End));
    let Answer::Response(mut response) = answer else { unreachable!() };
    response.body_mut().says = Says::Panic;
    let mut call = spawn(client.call(planned("a.test", Answer::Response(response))));
    support::panics(|| call.poll());
    assert_eq!(ended(&slots, "a.test"), [0, 1, 0]);
}

/// B1, B3.
#[test]
fn polling_after_the_end_does_no_harm() {
    let scripts = [Script::sized(&["x"]), Script::chunked(&["x"]), Script::new().then(Act::Error)];
    for script in scripts {
        let (mut client, slots) = narrow();
        let mut body = send_body(&mut client, script.clone());
        while !matches!(frame(&mut body), Seen::End) {}
        let before = ended(&slots, "a.test");
        let second = send_body(&mut client, Script::chunked(&["y"]));
        for _ in 0..3 {
            assert_eq!(frame(&mut body), Seen::End, "{script:?}");
        }
        drop(body);
        // The permit that is out now is the second one's.
        assert_eq!((ended(&slots, "a.test"), in_flight(&slots, "a.test")), (before, 1), "{script:?}");
        drop(second);
    }
}

// --- how long it is held

/// B4, case 9.
#[test]
fn with_hold_headers_the_slot_is_free_at_the_response_of_a_body_without_end() {
    let (mut client, slots) = narrow();
    let mut request = planned("a.test", Answer::ok(Script::chunked(&["event"; 3])));
    request.extensions_mut().insert(Hold::Headers);
    let mut events = body_of(assert_ready_ok!(spawn(client.call(request)).poll()));
    assert_eq!(ended(&slots, "a.test"), [1, 0, 0]);
    assert_ready_ok!(spawn(client.call(get("a.test"))).poll());
    assert_eq!(frame(&mut events), data("event"));
    drop(events);
    assert_eq!(ended(&slots, "a.test"), [2, 0, 0]);
}

/// B4, V1, case 9.
#[tokio::test(start_paused = true)]
async fn without_it_statistics_show_the_holder_and_its_age() {
    let (mut client, slots) = narrow();
    let mut events = send_body(&mut client, Script::chunked(&["event"; 3]));
    let mut next = spawn(client.call(get("a.test")));
    assert_pending!(next.poll());
    advance(900 * SECOND).await;
    assert_eq!(frame(&mut events), data("event"));
    let stats = slots.stats("a.test").unwrap();
    assert_eq!((stats.in_flight, stats.oldest_permit), (1, Some(900 * SECOND)));
    assert_eq!((stats.waiting, stats.reason), (1, Some(WaitReason::Concurrency)));
    assert_eq!(stats.oldest_waiter, Some(900 * SECOND));
    assert_eq!(stats.times.body, 900 * SECOND);
}

/// B4: the slot says one thing, the request another.
#[test]
fn the_hold_of_a_request_overrides_that_of_its_slot() {
    let cases = [
        (Hold::Body, None, 1),
        (Hold::Headers, None, 0),
        (Hold::Body, Some(Hold::Headers), 0),
        (Hold::Headers, Some(Hold::Body), 1),
    ];
    for (of_slot, of_request, held) in cases {
        let layer = layer(SlotConfig::builder().hold(of_slot));
        let mut client = layer.layer(Inner::new());
        let mut request = planned("a.test", Answer::ok(Script::chunked(&["hello"])));
        if let Some(hold) = of_request {
            request.extensions_mut().insert(hold);
        }
        let response = assert_ready_ok!(spawn(client.call(request)).poll());
        assert_eq!(in_flight(layer.slots(), "a.test"), held, "{of_slot:?} {of_request:?}");
        drop(response);
        let kept = [1 - held as u64, 0, held as u64];
        assert_eq!(ended(layer.slots(), "a.test"), kept, "{of_slot:?} {of_request:?}");
    }
}

/// B5: the inner service goes on with the upload after the response has ended.
#[test]
fn an_upload_that_goes_on_after_an_early_response_is_not_counted() {
    let layer = layer(SlotConfig::builder().concurrency(1));
    let uploads = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let kept = uploads.clone();
    let mut client = layer.layer(tower::service_fn(move |request: http::Request<Script>| {
        kept.lock().unwrap().push(request.into_body());
        std::future::ready(Ok::<_, Broken>(http::Response::new(Script::sized(&["no"]))))
    }));
    let upload = Script::chunked(&["a", "lot"]);
    let request = http::Request::post("http://a.test/").body(upload).unwrap();
    let mut body = body_of(assert_ready_ok!(spawn(client.call(request)).poll()));
    assert_eq!(in_flight(layer.slots(), "a.test"), 1);
    assert_eq!(frame(&mut body), data("no"));
    assert_eq!(uploads.lock().unwrap().len(), 1);
    assert_eq!(ended(layer.slots(), "a.test"), [1, 0, 0]);
}

// --- nothing else changes

/// B3, S5: where the inner body is.
#[test]
fn a_slot_body_is_whatever_its_inner_body_is() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    fn unpin<T: Unpin>() {}
    fn default<T: Default>() -> T {
        T::default()
    }
    fn debug<T: Debug>(it: T) -> String {
        format!("{it:?}")
    }
    fn of_send<B: Send>() {
        send::<SlotBody<B>>();
    }
    fn of_sync<B: Sync>() {
        sync::<SlotBody<B>>();
    }
    fn of_unpin<B: Unpin>() {
        unpin::<SlotBody<B>>();
    }
    of_send::<Script>();
    of_sync::<Script>();
    of_unpin::<Script>();
    let body: SlotBody<Script> = default();
    assert!(body.is_end_stream());
    assert!(debug(body).contains("Script"));
}

/// B3.
#[test]
fn a_body_that_holds_a_permit_shows_its_slot_in_debug() {
    let (mut client, _slots) = narrow();
    let response = send(&mut client, Answer::ok(Script::chunked(&["hello"])));
    let text = format!("{:?}", response.body());
    assert!(text.contains("a.test") && text.contains("hello"), "{text}");
    assert_eq!(response.body().get_ref().steps.len(), 1);
}

/// Case 4 and S1: the response is not there yet, so nothing has ended.
#[test]
fn the_permit_is_held_until_the_response_is_there() {
    let (mut client, slots) = narrow();
    let (answer, pending) = later();
    let mut call = spawn(client.call(planned("a.test", pending)));
    assert_pending!(call.poll());
    assert_eq!(in_flight(&slots, "a.test"), 1);
    support::give(answer, Answer::ok(Script::default()));
    assert!(call.is_woken());
    assert_ready_ok!(call.poll());
    assert_eq!((in_flight(&slots, "a.test"), waiting(&slots, "a.test")), (0, 0));
}

fn any_says() -> impl Strategy<Value = Says> {
    prop_oneof![3 => Just(Says::More), 1 => Just(Says::Over)]
}

fn any_hint() -> impl Strategy<Value = (u64, Option<u64>)> {
    (0..100_u64, proptest::option::of(0..100_u64))
        .prop_map(|(lower, more)| (lower, more.map(|more| lower + more)))
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Pending),
        4 => prop_oneof![Just(""), Just("a"), Just("long")].prop_map(Act::Data),
        1 => Just(Act::Trailers),
        1 => Just(Act::Error),
        1 => Just(Act::End),
    ]
}

prop_compose! {
    fn any_step()(act in any_act(), says in any_says(), hint in any_hint()) -> Step {
        Step { act, says, hint }
    }
}

prop_compose! {
    /// Any body, the ill-behaved included: frames after the end, claims that are wrong, hints that jump.
    fn any_script()(
        says in any_says(),
        hint in any_hint(),
        steps in proptest::collection::vec(any_step(), 0..8),
    ) -> Script {
        Script { says, hint, steps: steps.into() }
    }
}

/// After how many polls the rule says that the permit is back, and how it counts.
fn ends_after(script: &Script) -> (usize, [u64; 3]) {
    if script.says == Says::Over {
        return (0, [1, 0, 0]);
    }
    let mut steps = script.steps.iter().enumerate();
    let end = steps.find_map(|(at, step)| match step.act {
        Act::Error => Some((at + 1, [0, 1, 0])),
        Act::End | Act::Trailers => Some((at + 1, [1, 0, 0])),
        Act::Data(_) if step.says == Says::Over => Some((at + 1, [1, 0, 0])),
        _ => None,
    });
    end.unwrap_or((script.steps.len() + 1, [1, 0, 0]))
}

/// What can be seen of a body between polls.
fn outside<B: Body>(body: &B) -> (bool, u64, Option<u64>) {
    let hint = body.size_hint();
    (body.is_end_stream(), hint.lower(), hint.upper())
}

proptest! {
    /// B1, B3, V1: against the bare body, and against the rule.
    #[test]
    fn any_body_passes_unchanged_and_gives_its_permit_back_once_at_its_end(
        script in any_script(),
        polls in 0..12_usize,
        hold in prop_oneof![3 => Just(Hold::Body), 1 => Just(Hold::Headers)],
    ) {
        let layer = layer(SlotConfig::builder().hold(hold));
        let mut bare = spawn(script.clone());
        let (end, outcome) = match hold {
            Hold::Headers => (0, [1, 0, 0]),
            _ => ends_after(&script),
        };
        let mut client = layer.layer(Inner::new());
        let response = match spawn(client.call(planned("a.test", Answer::ok(script)))).poll() {
            Poll::Ready(Ok(response)) => response,
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        };
        let mut body = body_of(response);
        prop_assert_eq!(outside(&*body), outside(&*bare));
        prop_assert_eq!(in_flight(layer.slots(), "a.test"), usize::from(end > 0));
        for poll in 1..=polls {
            prop_assert_eq!(frame(&mut body), frame(&mut bare));
            prop_assert_eq!(outside(&*body), outside(&*bare));
            prop_assert_eq!(body.is_woken(), bare.is_woken());
            prop_assert_eq!(in_flight(layer.slots(), "a.test"), usize::from(poll < end));
        }
        drop(body);
        let outcome = if polls < end { [0, 0, 1] } else { outcome };
        prop_assert_eq!(ended(layer.slots(), "a.test"), outcome);
    }
}
