//! Upgrades: the permit goes with the handle, and comes back once, whoever has a copy.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use std::{hint, thread};

use http::{Request, StatusCode};
use tokio::time::advance;
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok};
use tower::{Layer, Service};
use tower_slot::{Hold, SlotConfig, SlotLayer, SlotPermit, SlotTimings, UpgradePermit};

use self::support::{
    Answer, Answered, Client, Inner, Script, body_of, counts, data, ended, frame, get, give, in_flight,
    later, layer, plan, waiting,
};

const SECOND: Duration = Duration::from_secs(1);

/// What the handler keeps of each request's handle.
type Handles = Arc<Mutex<Vec<UpgradePermit>>>;

/// What the handler does with the handle before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handler {
    /// Nothing; the request drops it.
    Forgets,
    /// Keeps a copy, as a task does that waits for the connection.
    Keeps,
}

/// A request that asks for a websocket.
fn websocket() -> Request<()> {
    let mut request = get("a.test");
    request.headers_mut().insert(http::header::UPGRADE, "websocket".parse().unwrap());
    request
}

/// A request for a tunnel.
fn connect() -> Request<()> {
    Request::connect("a.test:443").body(()).unwrap()
}

/// A service whose handler keeps or forgets the handle and then does what the request's plan says.
fn serve(handler: Handler) -> (Client, SlotLayer, Handles) {
    serve_with(handler, layer(SlotConfig::builder().concurrency(1)))
}

fn serve_with(handler: Handler, layer: SlotLayer) -> (Client, SlotLayer, Handles) {
    let handles = Handles::default();
    let kept = handles.clone();
    let inner = Inner::answering(move |parts| {
        if handler == Handler::Keeps {
            kept.lock().unwrap().extend(parts.extensions.get::<UpgradePermit>().cloned());
        }
        support::planned_answer(parts)
    });
    (layer.layer(inner), layer, handles)
}

/// Sends what is answered at once.
fn send(client: &mut Client, request: Request<()>, answer: Answer) -> Answered {
    assert_ready_ok!(spawn(client.call(plan(request, answer))).poll())
}

fn switched() -> Answer {
    Answer::status(StatusCode::SWITCHING_PROTOCOLS, Script::default())
}

/// The handle that the handler has kept.
fn only(handles: &Handles) -> UpgradePermit {
    let mut handles = handles.lock().unwrap();
    assert_eq!(handles.len(), 1);
    handles.pop().unwrap()
}

// --- who gets a handle

/// B4: the request's method or header asks, the response's status agrees.
#[test]
fn the_handle_is_in_requests_that_ask_and_in_responses_that_agree() {
    let statuses =
        [101, 200, 204, 299, 302, 404, 426, 500].map(|status| StatusCode::from_u16(status).unwrap());
    for status in statuses {
        let upgrades = status == StatusCode::SWITCHING_PROTOCOLS;
        let cases = [
            ("plain", get("a.test"), false, false),
            ("websocket", websocket(), true, upgrades),
            ("connect", connect(), true, upgrades || status.is_success()),
        ];
        for (name, request, asks, agreed) in cases {
            let (mut client, layer, handles) = serve(Handler::Keeps);
            let response = send(&mut client, request, Answer::status(status, Script::chunked(&["hello"])));
            assert_eq!(handles.lock().unwrap().len(), usize::from(asks), "{name} {status}");
            let handle = response.extensions().get::<UpgradePermit>().cloned();
            assert_eq!(handle.is_some(), agreed, "{name} {status}");
            assert_eq!(in_flight(layer.slots(), "a.test"), 1, "{name} {status}");
            // Without an upgrade the body has the permit, as always.
            let mut body = body_of(response);
            assert_eq!(frame(&mut body), data("hello"));
            frame(&mut body);
            assert_eq!(in_flight(layer.slots(), "a.test"), usize::from(agreed), "{name} {status}");
            let taken = handles.lock().unwrap().first().and_then(UpgradePermit::take);
            assert_eq!(taken.is_some(), agreed, "{name} {status}");
            drop(taken);
            assert_eq!(ended(layer.slots(), "a.test"), [1, 0, 0], "{name} {status}");
        }
    }
}

// --- an upgrade

/// B4, case 8: on a client, where the response brings the handle.
#[tokio::test(start_paused = true)]
async fn a_permit_that_is_taken_after_the_response_lives_as_long_as_its_task() {
    for request in [websocket(), connect()] {
        let (mut client, layer, _) = serve(Handler::Forgets);
        let mut response = send(&mut client, request, switched());
        let handle = response.extensions_mut().remove::<UpgradePermit>().unwrap();
        let task = tokio::spawn(async move {
            let _permit = handle.take().expect("nobody has taken it");
            tokio::time::sleep(5 * SECOND).await;
        });
        drop(response);
        let mut next = spawn(client.call(get("a.test")));
        assert_pending!(next.poll());
        tokio::task::yield_now().await;
        advance(4 * SECOND).await;
        assert!(!next.is_woken());
        assert_eq!(in_flight(layer.slots(), "a.test"), 1);
        task.await.unwrap();
        assert!(next.is_woken());
        assert_ready_ok!(next.poll());
        assert_eq!(ended(layer.slots(), "a.test"), [2, 0, 0]);
    }
}

/// B4, case 8: on a server, where the task has the permit before the response exists.
#[test]
fn a_permit_that_is_taken_before_the_response_stays_with_whoever_took_it() {
    let (mut client, layer, handles) = serve(Handler::Keeps);
    let (answer, pending) = later();
    let mut call = spawn(client.call(plan(websocket(), pending)));
    assert_pending!(call.poll());
    let permit = only(&handles).take().unwrap();
    give(answer, switched());
    let mut response = assert_ready_ok!(call.poll());
    // Its handle has nothing to give any more.
    let handle = response.extensions_mut().remove::<UpgradePermit>();
    assert!(handle.is_some_and(|handle| handle.take().is_none()));
    drop((call, response));
    assert_eq!(in_flight(layer.slots(), "a.test"), 1);
    assert_eq!(permit.key().as_str(), "a.test");
    drop(permit);
    assert_eq!(ended(layer.slots(), "a.test"), [1, 0, 0]);
}

/// B4, V1: whoever has taken it is in the body from then on.
#[tokio::test(start_paused = true)]
async fn a_permit_that_was_taken_shows_since_when_in_debug() {
    let (mut client, layer, handles) = serve(Handler::Keeps);
    let mut call = spawn(client.call(plan(websocket(), switched().after(9 * SECOND))));
    assert_pending!(call.poll());
    advance(2 * SECOND).await;
    let (permit, taken) = (only(&handles).take().unwrap(), tokio::time::Instant::now());
    advance(3 * SECOND).await;
    let text = format!("{permit:?}");
    assert!(text.contains(&format!("since: {taken:?}")), "{text}");
    let times = layer.slots().stats("a.test").unwrap().times;
    assert_eq!((times.headers, times.body), (2 * SECOND, 3 * SECOND));
}

/// B4.
#[test]
fn a_permit_that_is_taken_and_given_back_before_the_response_is_gone() {
    let (mut client, layer, handles) = serve(Handler::Keeps);
    let (answer, pending) = later();
    let mut call = spawn(client.call(plan(websocket(), pending)));
    assert_pending!(call.poll());
    drop(only(&handles).take());
    assert_eq!(ended(layer.slots(), "a.test"), [1, 0, 0]);
    let mut next = spawn(client.call(get("a.test")));
    assert_ready_ok!(next.poll());
    give(answer, switched());
    drop(assert_ready_ok!(call.poll()));
    assert_eq!(ended(layer.slots(), "a.test"), [2, 0, 0]);
}

/// B4, case 8: the body of the response has nothing to do with it.
#[test]
fn a_permit_that_is_never_taken_goes_with_the_last_copy_of_the_handle() {
    let (mut client, layer, handles) = serve(Handler::Keeps);
    let response = send(
        &mut client,
        websocket(),
        Answer::status(StatusCode::SWITCHING_PROTOCOLS, Script::chunked(&["x"])),
    );
    let (parts, body) = response.into_parts();
    let mut body = spawn(body);
    assert_eq!(frame(&mut body), data("x"));
    frame(&mut body);
    drop(body);
    let copy = parts.extensions.get::<UpgradePermit>().unwrap().clone();
    let mut next = spawn(client.call(get("a.test")));
    assert_pending!(next.poll());
    drop(parts);
    drop(only(&handles));
    assert!(!next.is_woken());
    assert_eq!(in_flight(layer.slots(), "a.test"), 1);
    drop(copy);
    assert!(next.is_woken());
    assert_ready_ok!(next.poll());
    assert_eq!(ended(layer.slots(), "a.test"), [2, 0, 0]);
}

/// B4.
#[test]
fn an_upgrade_that_nobody_looks_at_ends_with_its_response() {
    let (mut client, layer, _) = serve(Handler::Forgets);
    let response = send(&mut client, connect(), Answer::ok(Script::default()));
    assert_eq!(in_flight(layer.slots(), "a.test"), 1);
    drop(response);
    assert_eq!(ended(layer.slots(), "a.test"), [1, 0, 0]);
}

/// B4: whichever copy comes first.
#[test]
fn of_two_copies_only_the_first_gets_the_permit() {
    for first in [0, 1] {
        let (mut client, layer, handles) = serve(Handler::Keeps);
        let mut response = send(&mut client, websocket(), switched());
        let copies = [only(&handles), response.extensions_mut().remove::<UpgradePermit>().unwrap()];
        let permit = copies[first].take().unwrap();
        assert!(copies.iter().all(|copy| copy.take().is_none()));
        drop(copies);
        assert_eq!(in_flight(layer.slots(), "a.test"), 1);
        drop(permit);
        assert_eq!(ended(layer.slots(), "a.test"), [1, 0, 0]);
    }
}

/// B4: a task on another thread takes the permit while the response arrives.
#[test]
fn a_take_in_the_moment_of_the_response_gets_the_permit() {
    let (mut client, layer, handles) = serve(Handler::Keeps);
    for round in 0..2_000 {
        let (answer, pending) = later();
        let mut call = spawn(client.call(plan(websocket(), pending)));
        assert_pending!(call.poll());
        let handle = only(&handles);
        give(answer, switched());
        let (ready, polling) = (AtomicBool::new(false), AtomicBool::new(false));
        let permit = thread::scope(|scope| {
            let taker = scope.spawn(|| {
                ready.store(true, Ordering::Release);
                while !polling.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                // A little later each time, so that all of the poll is met.
                (0..round % 200).for_each(|_| hint::spin_loop());
                handle.take()
            });
            while !ready.load(Ordering::Acquire) {
                thread::yield_now();
            }
            polling.store(true, Ordering::Release);
            assert_ready_ok!(call.poll());
            taker.join().unwrap()
        });
        assert!(permit.is_some(), "round {round}");
    }
    assert_eq!(ended(layer.slots(), "a.test"), [2_000, 0, 0]);
}

// --- no upgrade after all

/// B4: the handler has spawned its task, and then something makes it answer otherwise.
#[test]
fn a_response_that_is_no_upgrade_takes_the_permit_from_the_handle_to_its_body() {
    let (mut client, layer, handles) = serve(Handler::Keeps);
    let answer = Answer::status(StatusCode::BAD_REQUEST, Script::chunked(&["no"]));
    let mut body = body_of(send(&mut client, websocket(), answer));
    let handle = only(&handles);
    assert!(handle.take().is_none());
    assert_eq!(in_flight(layer.slots(), "a.test"), 1);
    assert_eq!(frame(&mut body), data("no"));
    frame(&mut body);
    assert_eq!(ended(layer.slots(), "a.test"), [1, 0, 0]);
    assert!(handle.take().is_none());
    drop((body, handle));
    assert_eq!(ended(layer.slots(), "a.test"), [1, 0, 0]);
}

/// B4: taken is taken.
#[test]
fn a_response_that_is_no_upgrade_holds_nothing_if_the_permit_was_taken_before() {
    let (mut client, layer, handles) = serve(Handler::Keeps);
    let (answer, pending) = later();
    let mut call = spawn(client.call(plan(websocket(), pending)));
    assert_pending!(call.poll());
    let permit = only(&handles).take();
    give(answer, Answer::status(StatusCode::BAD_REQUEST, Script::chunked(&["no"])));
    let response = assert_ready_ok!(call.poll());
    drop(response);
    assert_eq!(in_flight(layer.slots(), "a.test"), 1);
    drop(permit);
    assert_eq!(ended(layer.slots(), "a.test"), [1, 0, 0]);
}

/// What happens to a request while a task still has its handle.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Dropped,
    Failed,
    Panicked,
}

/// B1, B2, B4: the handle keeps nothing that has not been taken.
#[test]
fn a_request_that_ends_without_a_response_gives_the_permit_back_although_a_task_has_the_handle() {
    let fates = [(Fate::Dropped, [0, 0, 1]), (Fate::Failed, [0, 1, 0]), (Fate::Panicked, [0, 1, 0])];
    for (fate, outcome) in fates {
        for taken in [false, true] {
            let (mut client, layer, handles) = serve(Handler::Keeps);
            let (answer, pending) = later();
            let mut call = spawn(client.call(plan(websocket(), pending)));
            assert_pending!(call.poll());
            let handle = only(&handles);
            let permit = if taken { handle.take() } else { None };
            let kept = match fate {
                Fate::Dropped => {
                    drop(call);
                    None
                }
                Fate::Failed => {
                    give(answer, Answer::Error);
                    assert_ready_err!(call.poll());
                    Some(call)
                }
                Fate::Panicked => {
                    give(answer, Answer::PanicInFuture);
                    support::panics(|| call.poll());
                    Some(call)
                }
            };
            assert_eq!(in_flight(layer.slots(), "a.test"), usize::from(taken), "{fate:?}");
            assert!(handle.take().is_none(), "{fate:?}, taken: {taken}");
            drop((kept, permit));
            // What was taken ends well, whatever becomes of the request.
            let outcome = if taken { [1, 0, 0] } else { outcome };
            assert_eq!(ended(layer.slots(), "a.test"), outcome, "{fate:?}, taken: {taken}");
        }
    }
}

/// B4: before the start there is no permit and no handle.
#[test]
fn a_request_that_waits_has_no_handle_yet() {
    let (mut client, layer, handles) = serve(Handler::Keeps);
    let holder = layer.slots().try_acquire("a.test").unwrap();
    let mut call = spawn(client.call(plan(websocket(), switched())));
    assert_pending!(call.poll());
    assert_eq!((waiting(layer.slots(), "a.test"), handles.lock().unwrap().len()), (1, 0));
    drop(holder);
    assert!(call.is_woken());
    assert_ready_ok!(call.poll());
    assert_eq!(handles.lock().unwrap().len(), 1);
}

// --- with Hold::Headers

/// B4: the permit is given back at the response, unless it was taken before.
#[test]
fn with_hold_headers_the_handle_has_nothing_after_the_response() {
    for per_request in [false, true] {
        let hold = if per_request { Hold::Body } else { Hold::Headers };
        let layer = layer(SlotConfig::builder().concurrency(1).hold(hold));
        let (mut client, layer, handles) = serve_with(Handler::Keeps, layer);
        for taken in [false, true] {
            let mut request = websocket();
            if per_request {
                request.extensions_mut().insert(Hold::Headers);
            }
            let (answer, pending) = later();
            let mut call = spawn(client.call(plan(request, pending)));
            assert_pending!(call.poll());
            let handle = only(&handles);
            let permit: Option<SlotPermit> = if taken { handle.take() } else { None };
            give(answer, switched());
            let response = assert_ready_ok!(call.poll());
            assert_eq!(in_flight(layer.slots(), "a.test"), usize::from(taken));
            assert!(handle.take().is_none());
            let of_response = response.extensions().get::<UpgradePermit>();
            assert!(of_response.and_then(UpgradePermit::take).is_none());
            drop(permit);
            assert_eq!(in_flight(layer.slots(), "a.test"), 0);
        }
        assert_eq!(ended(layer.slots(), "a.test"), [2, 0, 0]);
    }
}

// --- beside

/// B4, V2: also when the handler has taken the permit before it answered.
#[tokio::test(start_paused = true)]
async fn an_upgrade_carries_its_timings_but_no_time_in_the_body() {
    for taken in [false, true] {
        let layer = layer(SlotConfig::builder().concurrency(1)).timings(true);
        let (mut client, layer, handles) = serve_with(Handler::Keeps, layer);
        let holder = layer.slots().try_acquire("a.test").unwrap();
        let mut call = spawn(client.call(plan(websocket(), switched().after(3 * SECOND))));
        assert_pending!(call.poll());
        advance(2 * SECOND).await;
        drop(holder);
        assert_pending!(call.poll());
        advance(SECOND).await;
        let permit = if taken { only(&handles).take() } else { None };
        advance(2 * SECOND).await;
        let response = assert_ready_ok!(call.poll());
        let timings = response.extensions().get::<SlotTimings>().cloned();
        let timings = timings.unwrap_or_else(|| panic!("timings, taken: {taken}"));
        assert_eq!((timings.waited(), timings.to_headers()), (2 * SECOND, 3 * SECOND), "taken: {taken}");
        drop((response, permit));
        handles.lock().unwrap().clear();
        assert_eq!(in_flight(layer.slots(), "a.test"), 0);
        assert_eq!(timings.body(), None);
    }
}

/// B4, V1: the time after the response counts as time in the body.
#[tokio::test(start_paused = true)]
async fn the_time_of_an_upgraded_connection_counts_as_time_in_the_body() {
    let (mut client, layer, _) = serve(Handler::Forgets);
    let mut call = spawn(client.call(plan(connect(), Answer::ok(Script::default()).after(SECOND))));
    assert_pending!(call.poll());
    advance(SECOND).await;
    let mut response = assert_ready_ok!(call.poll());
    let permit = response.extensions_mut().remove::<UpgradePermit>().unwrap().take();
    advance(7 * SECOND).await;
    drop(permit);
    let stats = layer.slots().stats("a.test").unwrap();
    assert_eq!((stats.times.headers, stats.times.body), (SECOND, 7 * SECOND));
    assert_eq!(counts(layer.slots(), "a.test").finished, 1);
}

/// V3, B4: moved permits too.
#[test]
fn a_close_waits_for_the_permit_of_an_upgrade() {
    let (mut client, layer, _) = serve(Handler::Forgets);
    let mut response = send(&mut client, websocket(), switched());
    let handle = response.extensions_mut().remove::<UpgradePermit>().unwrap();
    drop(response);
    layer.slots().close();
    let mut drained = spawn(layer.slots().drained());
    assert_pending!(drained.poll());
    let permit = handle.take().unwrap();
    drop(handle);
    assert!(!drained.is_woken());
    drop(permit);
    assert!(drained.is_woken());
    assert_ready!(drained.poll());
}

/// S5: the handle is shared between tasks.
#[test]
fn the_handle_is_send_and_sync_and_shows_nothing() {
    fn check<T: Clone + Send + Sync + Unpin + 'static>() {}
    check::<UpgradePermit>();
    let (mut client, _layer, handles) = serve(Handler::Keeps);
    let mut call = spawn(client.call(plan(websocket(), Answer::Never)));
    assert!(matches!(call.poll(), Poll::Pending));
    assert!(format!("{:?}", only(&handles)).starts_with("UpgradePermit"));
}

// --- how long

/// B4, V1: the body's time runs from the response, whenever the permit is taken.
#[tokio::test(start_paused = true)]
async fn a_permit_that_is_taken_late_has_been_in_the_body_since_the_response() {
    let (mut client, layer, handles) = serve(Handler::Keeps);
    let _response = send(&mut client, connect(), Answer::status(StatusCode::OK, Script::default()));
    advance(3 * SECOND).await;
    let permit = only(&handles).take().unwrap();
    advance(5 * SECOND).await;
    drop(permit);
    let stats = layer.slots().stats("a.test").unwrap();
    assert_eq!((stats.times.body, stats.longest.body), (8 * SECOND, 8 * SECOND));
}
