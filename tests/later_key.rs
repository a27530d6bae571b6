//! Keys that take time: until it is known no slot knows of the request.
#![allow(clippy::unwrap_used)]

mod support;

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Request;
use tokio::sync::oneshot;
use tokio::time::advance;
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};
use tower::{Layer, Service};
use tower_slot::{
    BoxError, Extracted, KeyExtractor, KeyFuture, SlotConfig, SlotConfigBuilder, SlotError, SlotErrorKind,
    SlotKey, SlotLayer, SlotService, SlotTimings, WaitReason,
};

use self::support::{Answer, Broken, Inner, Script, counts, ended, get, in_flight, planned, waiting};

const SECOND: Duration = Duration::from_secs(1);

type Key = Result<SlotKey, BoxError>;

/// An extractor whose keys are told by the test, in the order in which they are asked for.
#[derive(Clone, Default)]
struct Oracle(Arc<Mutex<Vec<oneshot::Sender<Key>>>>);

impl<B> KeyExtractor<B> for Oracle {
    fn extract<'a>(&self, _: &'a Request<B>) -> Extracted<'a> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().unwrap().push(sender);
        Extracted::Later(KeyFuture::new(
            async move { receiver.await.unwrap_or(Err(Box::new(Broken("mute")))) },
        ))
    }
}

impl Oracle {
    /// Tells the key of the first request that has none yet.
    fn tell(&self, key: Key) {
        let sender = self.0.lock().unwrap().remove(0);
        assert!(sender.send(key).is_ok(), "somebody waits for the key");
    }
}

fn client(config: SlotConfigBuilder) -> (SlotService<Inner, Oracle>, SlotLayer<Oracle>, Inner, Oracle) {
    let (inner, oracle) = (Inner::new(), Oracle::default());
    let layer = support::layer(config).key_extractor(oracle.clone());
    (layer.layer(inner.clone()), layer, inner, oracle)
}

#[test]
fn no_slot_knows_of_a_request_whose_key_is_not_known() {
    let (mut client, layer, inner, oracle) = client(SlotConfig::builder().concurrency(1));
    let slots = layer.slots();
    let mut call = spawn(client.call(get("a.test")));
    assert_pending!(call.poll());
    assert_eq!((slots.len(), inner.reserved(), inner.calls()), (0, 0, 0));
    oracle.tell(Ok(SlotKey::from("late")));
    assert!(call.is_woken());
    assert_ready_ok!(call.poll());
    assert_eq!((ended(slots, "late"), slots.len()), ([1, 0, 0], 1));
    // A key of this kind is not written into the request either.
    assert_eq!(inner.called()[0].key, None);
}

/// Q1: the place in the queue is taken when the key is known.
#[test]
fn the_place_in_the_queue_is_taken_when_the_key_is_known() {
    let (mut client, layer, _, oracle) = client(SlotConfig::builder().concurrency(1));
    let slots = layer.slots();
    let held = slots.try_acquire("late").unwrap();
    let [mut first, mut second] = ["a.test", "b.test"].map(|host| spawn(client.call(get(host))));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    assert_eq!(waiting(slots, "late"), 0);
    // The second one's key comes first.
    let slow = oracle.0.lock().unwrap().remove(0);
    oracle.tell(Ok(SlotKey::from("late")));
    assert_pending!(second.poll());
    assert!(slow.send(Ok(SlotKey::from("late"))).is_ok());
    assert_pending!(first.poll());
    assert_eq!(waiting(slots, "late"), 2);
    drop(held);
    assert!(second.is_woken() && !first.is_woken());
    assert_ready_ok!(second.poll());
    assert!(first.is_woken());
    assert_ready_ok!(first.poll());
}

/// Q3, V2: the time until the key is known is not spent in the slot.
#[tokio::test(start_paused = true)]
async fn the_wait_begins_when_the_key_is_known() {
    let (_, layer, inner, oracle) = client(SlotConfig::builder().concurrency(1).wait_timeout(5 * SECOND));
    let layer = layer.timings(true);
    let (slots, mut client) = (layer.slots(), layer.layer(inner));
    let held = slots.try_acquire("late").unwrap();
    let mut calls = [0, 1].map(|_| spawn(client.call(get("a.test"))));
    for call in &mut calls {
        assert_pending!(call.poll());
    }
    advance(60 * SECOND).await;
    for call in &mut calls {
        oracle.tell(Ok(SlotKey::from("late")));
        assert_pending!(call.poll());
    }
    advance(2 * SECOND).await;
    drop(held);
    let [mut first, mut second] = calls;
    let response = assert_ready_ok!(first.poll());
    let timings = response.extensions().get::<SlotTimings>().unwrap();
    assert_eq!((timings.slot().as_str(), timings.waited()), ("late", 2 * SECOND));
    assert_eq!(timings.waited_for(WaitReason::Concurrency), 2 * SECOND);
    let held = slots.try_acquire("late");
    assert!(held.is_err(), "one still waits");
    slots.pause("late", tokio::time::Instant::now() + 60 * SECOND);
    assert_pending!(second.poll());
    advance(3 * SECOND).await;
    assert!(second.is_woken());
    let error = assert_ready_err!(second.poll());
    assert_eq!(error.downcast_ref::<SlotError>().unwrap().waited(), 5 * SECOND);
}

/// S3: one downcast finds it, and its source is why.
#[test]
fn a_key_that_cannot_be_told_refuses_the_request_before_any_slot() {
    let (mut client, layer, inner, oracle) = client(SlotConfig::builder());
    let mut call = spawn(client.call(planned("a.test", Answer::ok(Script::default()))));
    assert_pending!(call.poll());
    oracle.tell(Err(Box::new(Broken("no such name"))));
    assert!(call.is_woken());
    let error = assert_ready_err!(call.poll());
    let error = error.downcast_ref::<SlotError>().unwrap();
    assert_eq!(error.kind(), SlotErrorKind::NoKey);
    let source = error.source().and_then(|source| source.downcast_ref());
    assert_eq!(source, Some(&Broken("no such name")));
    assert_eq!((layer.slots().len(), inner.calls()), (0, 0));
    assert_pending!(call.poll());
}

/// G4, V3: what the table says of the key is told then.
#[test]
fn a_key_may_come_too_late() {
    for close in [false, true] {
        let (mut client, layer, _, oracle) = client(SlotConfig::builder().max_slots(1));
        let _held = layer.slots().try_acquire("other").unwrap();
        let mut call = spawn(client.call(get("a.test")));
        assert_pending!(call.poll());
        let (key, kind) = match close {
            false => ("late", SlotErrorKind::TooManySlots),
            true => ("other", SlotErrorKind::Closed),
        };
        if close {
            layer.slots().close();
        }
        oracle.tell(Ok(SlotKey::from(key)));
        let error = assert_ready_err!(call.poll());
        let error = error.downcast_ref::<SlotError>().unwrap();
        assert_eq!((error.kind(), error.slot().as_str()), (kind, key));
    }
}

/// S5: at each point.
#[test]
fn a_request_may_be_dropped_while_its_key_is_not_known_and_after() {
    let (mut client, layer, _, oracle) = client(SlotConfig::builder().concurrency(1));
    let slots = layer.slots();
    drop(client.call(get("a.test")));
    oracle.0.lock().unwrap().clear();
    let mut call = spawn(client.call(get("a.test")));
    assert_pending!(call.poll());
    drop(call);
    oracle.0.lock().unwrap().clear();
    assert_eq!(slots.len(), 0);
    let held = slots.try_acquire("late").unwrap();
    let mut call = spawn(client.call(get("a.test")));
    assert_pending!(call.poll());
    oracle.tell(Ok(SlotKey::from("late")));
    assert_pending!(call.poll());
    assert_eq!(waiting(slots, "late"), 1);
    drop(call);
    assert_eq!((counts(slots, "late").gone, waiting(slots, "late")), (1, 0));
    drop(held);
    assert_eq!(in_flight(slots, "late"), 0);
}
