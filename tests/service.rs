//! The service and its future: what is held while a request waits, who shares slots, and what ends well.
#![allow(clippy::unwrap_used)]

mod support;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tokio::runtime::{Builder, Handle};
use tokio::time::advance;
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};
use tower::{Layer, Service, ServiceExt};
use tower_slot::body::SlotBody;
use tower_slot::future::ResponseFuture;
use tower_slot::{
    Acquire, Fail, SlotConfig, SlotError, SlotKey, SlotLayer, SlotLimits, SlotPermit, SlotService,
    SlotTimings, Slots, UpgradePermit,
};

use self::support::{
    Answer, Answering, Broken, Call, Client, Inner, Readiness, Script, Seen, body_of, comes, counts, data,
    ended, frame, get, give, in_flight, later, layer, planned, waiting,
};

const SECOND: Duration = Duration::from_secs(1);

/// A service whose slots have room for one, its slots, and the service inside.
fn narrow() -> (Client, Slots, Inner) {
    let (layer, inner) = (layer(SlotConfig::builder().concurrency(1)), Inner::new());
    (layer.layer(inner.clone()), layer.slots().clone(), inner)
}

// --- readiness

/// S1, case 11: 100 clones are polled ready and left alone.
#[test]
fn poll_ready_is_always_ready_and_reserves_nothing() {
    let (mut client, slots, inner) = narrow();
    inner.set_readiness(Readiness::Pending);
    let mut idle: Vec<Client> = (0..100).map(|_| client.clone()).collect();
    for clone in &mut idle {
        assert_ready_ok!(spawn(ServiceExt::<Request<()>>::ready(clone)).poll());
    }
    assert!(slots.is_empty());
    inner.set_readiness(Readiness::Ready);
    let response =
        assert_ready_ok!(spawn(client.call(planned("a.test", Answer::ok(Script::chunked(&["x"]))))).poll());
    // Also while the slot is full.
    for clone in &mut idle {
        assert_ready_ok!(spawn(ServiceExt::<Request<()>>::ready(clone)).poll());
    }
    assert_eq!((in_flight(&slots, "a.test"), waiting(&slots, "a.test"), inner.reserved()), (1, 0, 0));
    drop(response);
    assert_ready_ok!(spawn(client.call(get("a.test"))).poll());
    assert_eq!(counts(&slots, "a.test").asked, 2);
}

/// S1: the place in the queue is taken at the first poll.
#[test]
fn a_call_whose_future_is_not_polled_holds_nothing() {
    let (mut client, slots, inner) = narrow();
    let first = client.call(get("a.test"));
    assert_ready_ok!(spawn(client.call(get("a.test"))).poll());
    assert_eq!((counts(&slots, "a.test").asked, inner.calls()), (1, 1));
    drop(first);
    assert_eq!((counts(&slots, "a.test").asked, counts(&slots, "a.test").gone), (1, 0));
}

/// S1: nothing of the inner service is held before the start.
#[test]
fn the_inner_service_is_polled_ready_only_after_the_start() {
    let (mut client, slots, inner) = narrow();
    let held = slots.try_acquire("a.test").unwrap();
    // It would fail the request at once if it were asked.
    inner.set_readiness(Readiness::Error);
    let mut call = spawn(client.call(get("a.test")));
    assert_pending!(call.poll());
    inner.set_readiness(Readiness::Ready);
    assert!(!call.is_woken());
    assert_pending!(call.poll());
    assert_eq!((inner.reserved(), inner.calls()), (0, 0));
    drop(held);
    assert!(call.is_woken());
    assert_ready_ok!(call.poll());
    assert_eq!((inner.reserved(), inner.calls()), (0, 1));
}

/// S1: while the inner service is not ready the permit is held, and the time counts as to the headers.
#[tokio::test(start_paused = true)]
async fn waiting_for_the_inner_service_is_not_waiting_in_the_slot() {
    let layer =
        layer(SlotConfig::builder().concurrency(1).queue_capacity(0).wait_timeout(SECOND)).timings(true);
    let inner = Inner::new();
    let mut client = layer.layer(inner.clone());
    inner.set_readiness(Readiness::Pending);
    let mut call = spawn(client.call(planned("a.test", Answer::ok(Script::default()).after(SECOND))));
    assert_pending!(call.poll());
    advance(3 * SECOND).await;
    assert_pending!(call.poll());
    assert_eq!((in_flight(layer.slots(), "a.test"), waiting(layer.slots(), "a.test")), (1, 0));
    inner.set_readiness(Readiness::Ready);
    assert!(call.is_woken());
    assert_pending!(call.poll());
    advance(SECOND).await;
    assert!(call.is_woken());
    let response = assert_ready_ok!(call.poll());
    let timings = response.extensions().get::<SlotTimings>().unwrap();
    assert_eq!((timings.waited(), timings.to_headers()), (Duration::ZERO, 4 * SECOND));
    assert_eq!(layer.slots().stats("a.test").unwrap().times.headers, 4 * SECOND);
}

/// S1, case 20: the scripted service panics when it is called without having been polled ready, and its clones
/// have to be polled anew.
#[test]
fn the_clone_that_was_polled_ready_is_the_one_that_is_called() {
    let (mut client, slots, inner) = narrow();
    // The service that was wrapped is ready, its clones are not.
    assert_ready_ok!(spawn(ServiceExt::<Request<()>>::ready(client.get_mut())).poll());
    assert_eq!(inner.reserved(), 1);
    for _ in 0..3 {
        assert_ready_ok!(spawn(client.call(get("a.test"))).poll());
        assert_ready_ok!(spawn(client.clone().oneshot(get("a.test"))).poll());
    }
    assert_eq!((ended(&slots, "a.test"), inner.calls(), inner.reserved()), ([6, 0, 0], 6, 1));
}

// --- sharing

/// S2.
#[test]
fn clones_and_services_of_one_layer_share_its_slots() {
    let one = layer(SlotConfig::builder().concurrency(1));
    let service = one.layer(Inner::new());
    let mut others = [
        service.clone(),
        one.layer(Inner::new()),
        one.clone().layer(Inner::new()),
        SlotLayer::with_slots(one.slots().clone()).layer(Inner::new()),
        SlotLayer::with_slots(service.slots().clone()).layer(Inner::new()),
    ];
    let held = one.slots().try_acquire("a.test").unwrap();
    let mut calls: Vec<_> = others.iter_mut().map(|other| spawn(other.call(get("a.test")))).collect();
    for call in &mut calls {
        assert_pending!(call.poll());
    }
    assert_eq!(waiting(service.slots(), "a.test"), 5);
    drop(held);
    for call in &mut calls {
        assert!(call.is_woken());
        assert_ready_ok!(call.poll());
    }
}

/// S2.
#[test]
fn two_new_layers_share_nothing() {
    let config = SlotConfig::builder().concurrency(1).build().unwrap();
    let (one, other) = (SlotLayer::new(config.clone()), SlotLayer::new(config));
    let _held = one.slots().try_acquire("a.test").unwrap();
    assert_ready_ok!(spawn(other.layer(Inner::new()).call(get("a.test"))).poll());
    assert_eq!((in_flight(one.slots(), "a.test"), in_flight(other.slots(), "a.test")), (1, 0));
    assert_eq!(ended(other.slots(), "a.test"), [1, 0, 0]);
}

// --- the end of the future

/// B2, case 2: finished futures are kept.
#[test]
fn the_slot_is_free_when_a_future_resolves_with_an_error_although_it_is_kept() {
    let (mut client, slots, inner) = narrow();
    let mut kept = Vec::new();
    for by_readiness in [false, true] {
        inner.set_readiness(if by_readiness { Readiness::Error } else { Readiness::Ready });
        let mut call = spawn(client.call(planned("a.test", Answer::Error)));
        let error = assert_ready_err!(call.poll());
        assert_eq!(error.downcast_ref(), Some(&Broken(if by_readiness { "ready" } else { "inner" })));
        kept.push((call, error));
        assert_eq!(in_flight(&slots, "a.test"), 0);
    }
    assert_eq!(ended(&slots, "a.test"), [0, 2, 0]);
    drop(kept);
    assert_eq!(ended(&slots, "a.test"), [0, 2, 0]);
}

/// B2: nor does a finished future keep the request, however it failed.
#[test]
fn a_future_that_has_failed_keeps_nothing_of_its_request() {
    let (mut client, slots, inner) = narrow();
    slots.configure("a.test", SlotLimits::new().queue_capacity(0)).unwrap();
    let mut fail = |answer| {
        let (mut request, kept) = (planned("a.test", answer), Arc::new(()));
        request.extensions_mut().insert(kept.clone());
        let mut call = spawn(client.call(request));
        let error = assert_ready_err!(call.poll());
        assert!(format!("{call:?}").contains("Done"), "{error}");
        assert_eq!(Arc::strong_count(&kept), 1, "{error}");
        call
    };
    let held = slots.try_acquire("a.test").unwrap();
    let refused = fail(Answer::Never);
    drop(held);
    let failed = fail(Answer::Error);
    inner.set_readiness(Readiness::Error);
    let never_ready = fail(Answer::Never);
    assert_eq!(ended(&slots, "a.test"), [1, 2, 0]);
    drop([refused, failed, never_ready]);
}

/// B2: and whoever waits behind it is woken in that moment.
#[test]
fn an_error_of_the_inner_service_wakes_the_next_request() {
    let (mut client, slots, _) = narrow();
    let (answer, pending) = later();
    let mut first = spawn(client.call(planned("a.test", pending)));
    let mut next = spawn(client.call(get("a.test")));
    assert_pending!(first.poll());
    assert_pending!(next.poll());
    give(answer, Answer::Error);
    assert!(!next.is_woken());
    assert_ready_err!(first.poll());
    assert!(next.is_woken());
    assert_ready_ok!(next.poll());
    assert_eq!(ended(&slots, "a.test"), [1, 1, 0]);
}

/// S5: a finished future stays finished, whatever it finished with.
#[test]
fn polling_the_future_after_it_resolved_does_no_harm() {
    let (mut client, slots, inner) = narrow();
    let mut done = Vec::new();
    for answer in
        [Answer::ok(Script::chunked(&["x"])), Answer::Error, Answer::PanicInCall, Answer::PanicInFuture]
    {
        let mut call = spawn(client.call(planned("a.test", answer)));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(call.poll()))).is_err();
        done.push((call, panicked));
    }
    inner.set_readiness(Readiness::Panic);
    let mut call = spawn(client.call(get("a.test")));
    support::panics(|| call.poll());
    inner.set_readiness(Readiness::Ready);
    done.push((call, true));
    slots.close();
    let mut call = spawn(client.call(get("a.test")));
    assert_ready_err!(call.poll());
    done.push((call, false));
    assert_eq!(done.iter().filter(|(_, panicked)| *panicked).count(), 3);
    let before = (counts(&slots, "a.test"), inner.calls());
    for (call, _) in &mut done {
        for _ in 0..3 {
            assert_pending!(call.poll());
            assert!(!call.is_woken());
        }
    }
    drop(done);
    assert_eq!((counts(&slots, "a.test"), inner.calls()), before);
    assert_eq!(ended(&slots, "a.test"), [0, 4, 1]);
}

/// B1, B2: what the inner future holds goes before the permit does, whatever it ends with.
#[test]
fn the_inner_future_is_dropped_before_the_permit_is_given_back() {
    /// Work that is done only when it is dropped, and sees then whether its permit is out.
    struct Work {
        slots: Slots,
        seen: Arc<Mutex<Vec<usize>>>,
        answer: Option<Result<(), Broken>>,
    }
    impl Future for Work {
        type Output = Result<Response<Script>, Broken>;
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
            let answer = self.answer.clone().map(|answer| answer.map(|()| Response::new(Script::default())));
            answer.map_or(Poll::Pending, Poll::Ready)
        }
    }
    impl Drop for Work {
        fn drop(&mut self) {
            self.seen.lock().unwrap().push(in_flight(&self.slots, "a.test"));
        }
    }
    let layer = layer(SlotConfig::builder().concurrency(1));
    let (slots, seen) = (layer.slots().clone(), Arc::<Mutex<Vec<usize>>>::default());
    let log = seen.clone();
    let mut client = layer.layer(tower::service_fn(move |request: Request<Option<Result<(), Broken>>>| {
        Work { slots: slots.clone(), seen: log.clone(), answer: request.into_body() }
    }));
    for answer in [None, Some(Ok(())), Some(Err(Broken("work")))] {
        let mut call = spawn(client.call(get("a.test").map(|()| answer.clone())));
        assert_eq!(call.poll().is_pending(), answer.is_none());
    }
    assert_eq!(*seen.lock().unwrap(), [1, 1, 1]);
    assert_eq!(ended(layer.slots(), "a.test"), [1, 1, 1]);
}

// --- keys

/// K3: explicit and host keys share one name space and are compared exactly.
#[test]
fn a_request_can_be_put_into_a_hosts_slot_by_name() {
    let (mut client, slots, _) = narrow();
    let held = slots.try_acquire(SlotKey::host("A.test.")).unwrap();
    let mut named = get("b.test");
    named.extensions_mut().insert(SlotKey::from("a.test"));
    let mut named = spawn(client.call(named));
    assert_pending!(named.poll());
    assert_eq!(waiting(&slots, "a.test"), 1);
    // The same letters in another case are another name.
    let mut other = get("a.test");
    other.extensions_mut().insert(SlotKey::from("A.test"));
    assert_ready_ok!(spawn(client.call(other)).poll());
    drop(held);
    assert_ready_ok!(named.poll());
    let keys: Vec<_> = slots.snapshot().slots.into_iter().map(|stats| stats.key.to_string()).collect();
    assert_eq!(keys, ["A.test", "a.test"]);
}

/// K3.
#[test]
fn a_derived_key_is_not_written_back_and_an_explicit_one_stays() {
    let (mut client, _, inner) = narrow();
    let mut named = get("b.test");
    named.extensions_mut().insert(SlotKey::from("mine"));
    for request in [get("a.test"), named] {
        let response = assert_ready_ok!(spawn(client.call(request)).poll());
        assert!(response.extensions().is_empty());
    }
    let keys: Vec<_> = inner.called().into_iter().map(|called| called.key).collect();
    assert_eq!(keys, [None, Some(SlotKey::from("mine"))]);
}

// --- types

/// S5: where what they wrap is.
#[test]
fn futures_services_and_handles_are_send_and_sync() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    fn unpin<T: Unpin>() {}
    fn of_send<S: Send, B: Send, F: Send, R: Send>() {
        send::<ResponseFuture<S, B, F, R>>();
        send::<SlotService<S, B, R>>();
        send::<SlotLayer<B, R>>();
    }
    fn of_sync<S: Sync, B: Sync, F: Sync, R: Sync>() {
        sync::<ResponseFuture<S, B, F, R>>();
        sync::<SlotService<S, B, R>>();
        sync::<SlotLayer<B, R>>();
    }
    fn of_unpin<S: Unpin, B: Unpin, R: Unpin>() {
        unpin::<SlotService<S, B, R>>();
        unpin::<SlotLayer<B, R>>();
        unpin::<SlotBody<B>>();
    }
    fn all<T: Send + Sync + Unpin + 'static>() {}
    of_send::<Inner, (), Answering, Fail>();
    of_sync::<Inner, (), Answering, Fail>();
    of_unpin::<Inner, (), Fail>();
    all::<Slots>();
    all::<SlotPermit>();
    all::<UpgradePermit>();
    all::<SlotTimings>();
    all::<SlotError>();
    all::<Client>();
    all::<SlotLayer>();
    all::<SlotBody<Script>>();
    send::<Acquire>();
    sync::<Acquire>();
    send::<Call>();
    sync::<Call>();
}

/// S5: layers and services ask nothing of what is inside until they are used.
#[test]
fn a_layer_wraps_anything() {
    struct NotEvenAService;
    let service = layer(SlotConfig::builder()).layer(NotEvenAService);
    assert!(service.slots().is_empty());
    let NotEvenAService = service.into_inner();
}

/// S5.
#[test]
fn the_future_shows_its_state_in_debug() {
    let (mut client, slots, _) = narrow();
    let (answer, pending) = later();
    let held = slots.try_acquire("a.test").unwrap();
    let mut call = spawn(client.call(planned("a.test", pending)));
    assert_pending!(call.poll());
    assert!(format!("{call:?}").contains("Waiting"));
    drop(held);
    assert_pending!(call.poll());
    assert!(format!("{call:?}").contains("Calling"));
    give(answer, Answer::ok(Script::default()));
    assert_ready_ok!(call.poll());
    assert!(format!("{call:?}").contains("Done"));
}

/// S5: no task is spawned.
#[tokio::test(start_paused = true)]
async fn no_task_is_spawned() {
    let layer = layer(SlotConfig::builder().concurrency(1).delay(SECOND).wait_timeout(9 * SECOND));
    let client = layer.layer(Inner::new());
    let calls = (0..3).map(|_| {
        client.clone().oneshot(planned("a.test", Answer::ok(Script::chunked(&["x"])).after(SECOND)))
    });
    let mut bodies = Vec::new();
    let all = async {
        for call in calls {
            let mut body = body_of(call.await.unwrap());
            while !matches!(frame(&mut body), Seen::End) {}
            bodies.push(body);
        }
    };
    comes(all).await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    assert_eq!(ended(layer.slots(), "a.test"), [3, 0, 0]);
}

// --- without a runtime

/// S6: no timer is needed, also not by those who wait for room.
#[test]
fn a_request_that_needs_no_moment_works_without_a_runtime() {
    assert!(Handle::try_current().is_err());
    let layer = layer(SlotConfig::builder().concurrency(1).total_concurrency(1));
    let mut client = layer.layer(Inner::new());
    let mut first = spawn(client.call(planned("a.test", Answer::ok(Script::chunked(&["x"])))));
    let mut body = body_of(assert_ready_ok!(first.poll()));
    let mut waiting = ["a.test", "b.test"].map(|host| spawn(client.call(get(host))));
    waiting.iter_mut().for_each(|call| assert_pending!(call.poll()));
    assert_eq!((frame(&mut body), frame(&mut body)), (data("x"), Seen::End));
    // The total is free: b.test's was in line for it, a.test's is only now let to it.
    for call in waiting.iter_mut().rev() {
        assert!(call.is_woken());
        assert_ready_ok!(call.poll());
    }
    // Nor does a delay or a timeout that is not needed.
    let paced = support::layer(SlotConfig::builder().delay(SECOND).wait_timeout(SECOND));
    assert_ready_ok!(spawn(paced.layer(Inner::new()).call(get("a.test"))).poll());
}

/// S6: waiting for a moment panics there, and the slots stay usable.
#[test]
fn a_wait_for_a_moment_without_a_runtime_panics_and_leaves_the_slots_usable() {
    let layer = layer(SlotConfig::builder().delay(3_600 * SECOND));
    let mut client = layer.layer(Inner::new());
    assert_ready_ok!(spawn(client.call(get("a.test"))).poll());
    let mut call = spawn(client.call(get("a.test")));
    let poll = std::panic::AssertUnwindSafe(|| call.poll().is_ready());
    assert!(std::panic::catch_unwind(poll).is_err());
    drop(call);
    assert_eq!((waiting(layer.slots(), "a.test"), counts(layer.slots(), "a.test").gone), (0, 1));
    layer.slots().configure("a.test", SlotLimits::new().delay(Duration::ZERO)).unwrap();
    assert_ready_ok!(spawn(client.call(get("a.test"))).poll());
}

/// S6: a runtime that ends takes its waiters with it.
#[test]
fn slots_outlive_the_runtime_of_their_waiters() {
    let runtime = || Builder::new_current_thread().enable_time().build().unwrap();
    let layer = layer(SlotConfig::builder().delay(3_600 * SECOND));
    let client = layer.layer(Inner::new());
    let (old, new) = (runtime(), runtime());
    let slots = layer.slots();
    let body = old.block_on(async {
        let held = planned("a.test", Answer::ok(Script::chunked(&["x"])));
        let response = client.clone().oneshot(held).await.unwrap();
        for _ in 0..3 {
            tokio::spawn(client.clone().oneshot(get("a.test")));
        }
        tokio::task::yield_now().await;
        response.into_body()
    });
    assert_eq!(waiting(slots, "a.test"), 3);
    // One in another runtime stands behind them.
    let guard = new.enter();
    let mut call = spawn(client.clone().call(get("a.test")));
    assert_pending!(call.poll());
    drop(old);
    assert!(call.is_woken());
    assert_eq!((waiting(slots, "a.test"), counts(slots, "a.test").gone), (1, 3));
    assert_pending!(call.poll());
    slots.configure("a.test", SlotLimits::new().delay(Duration::ZERO)).unwrap();
    assert!(call.is_woken());
    assert_ready_ok!(call.poll());
    drop(guard);
    // What the old runtime had started is in flight until it is dropped.
    assert_eq!(in_flight(slots, "a.test"), 1);
    drop(body);
    assert_eq!(ended(slots, "a.test"), [1, 0, 1]);
}
