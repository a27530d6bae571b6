//! A scripted inner service and scripted bodies, for tests that poll by hand.
//!
//! What the inner service does with a request travels in the request's extensions as a [`Plan`], or is found by
//! a closure. The service panics when it is called without having been polled ready, and its clones start
//! unready, so every test that uses it holds case 20.
// Each test file uses its own part of it.
#![allow(dead_code, unreachable_pub, unused_imports, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod inner;
mod script;

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use http::{Request, Response};
use http_body::Body;
use tokio_test::task::Spawn;
use tower_slot::body::SlotBody;
use tower_slot::future::ResponseFuture;
use tower_slot::{Counts, Fail, SlotConfigBuilder, SlotLayer, SlotService, Slots};

pub use self::inner::{
    Answer, Answering, Called, Inner, Readiness, give, later, plan, planned, planned_answer,
};
pub use self::script::{Act, Broken, Says, Script, Seen, Step, data, frame, trailers};

/// The service under test, with the scripted one inside.
pub type Client = SlotService<Inner>;

/// Its future.
pub type Call<R = Fail> = ResponseFuture<Inner, (), Answering, R>;

/// Its response.
pub type Answered = Response<SlotBody<Script>>;

/// Builds a layer.
pub fn layer(config: SlotConfigBuilder) -> SlotLayer {
    SlotLayer::new(config.build().unwrap())
}

/// A request for `http://{host}/`.
pub fn get(host: &str) -> Request<()> {
    Request::get(format!("http://{host}/")).body(()).unwrap()
}

/// Takes the body out of a response, to be polled by hand.
pub fn body_of<B: Body>(response: Response<B>) -> Spawn<B> {
    tokio_test::task::spawn(response.into_body())
}

/// Waits on a paused clock for what shall come: a wakeup that is lost fails the test and does not hang it.
pub async fn comes<F: Future>(future: F) -> F::Output {
    let an_hour = std::time::Duration::from_secs(3_600);
    tokio::time::timeout(an_hour, future).await.expect("it comes, and nobody has to poll again")
}

/// How many are in flight in a slot; none if there is no such slot.
pub fn in_flight(slots: &Slots, key: &str) -> usize {
    slots.stats(key).map_or(0, |stats| stats.in_flight)
}

/// How many wait in a slot.
pub fn waiting(slots: &Slots, key: &str) -> usize {
    slots.stats(key).map_or(0, |stats| stats.waiting)
}

/// The counts of a slot, after they were seen to add up.
#[track_caller]
pub fn counts(slots: &Slots, key: &str) -> Counts {
    let stats = slots.stats(key).expect("there is such a slot");
    let counts = stats.counts;
    let Counts { asked, started, refused, timed_out, gone, finished, failed, cancelled, .. } = counts;
    assert_eq!(asked, started + refused + timed_out + gone + stats.waiting as u64, "asked adds up");
    assert_eq!(started, finished + failed + cancelled + stats.in_flight as u64, "started adds up");
    counts
}

/// How those who started have ended: finished, failed, cancelled.
#[track_caller]
pub fn ended(slots: &Slots, key: &str) -> [u64; 3] {
    let counts = counts(slots, key);
    [counts.finished, counts.failed, counts.cancelled]
}

/// Runs what shall panic as scripted, and nothing else.
#[track_caller]
pub fn panics<T>(f: impl FnOnce() -> T) {
    let payload: Box<dyn Any + Send> =
        catch_unwind(AssertUnwindSafe(f)).err().expect("it panics, as the script says");
    assert!(payload.is::<Broken>(), "it panics for no other reason");
}

/// A panic that the panic hook does not see, so that it prints nothing.
pub fn scripted_panic() -> ! {
    resume_unwind(Box::new(Broken("panic")))
}
