//! In memory: scripted inner services and bodies, on a paused clock.

use std::time::Duration;

use http::{Response, StatusCode};
use strum::IntoEnumIterator;
use tokio::time::{Instant, advance};
use tokio_test::assert_ready;
use tokio_test::task::{Spawn, spawn};
use tower::{Layer, Service};
use tower_slot::body::SlotBody;
use tower_slot::{ExtensionOrHost, Reject, SlotError, SlotLayer, SlotService, Slots};

use crate::scene::{DELAY, Ending, Scene, TIMEOUT, scenes};
use crate::support::{
    self, Act, Answer, Broken, Call, Inner, Readiness, Script, Seen, body_of, data, frame, get, give,
    in_flight, later, planned, trailers,
};

const SECOND: Duration = Duration::from_secs(1);

/// The stage: a service and what is around it.
struct Stage<R> {
    client: SlotService<Inner, ExtensionOrHost, R>,
    slots: Slots,
    inner: Inner,
    start: Instant,
}

/// What is left of the request; kept, so that only the ending itself can give the permit back.
enum Left<R> {
    Call(Spawn<Call<R>>),
    Body(Spawn<SlotBody<Script>>),
    Nothing,
}

/// B1, B2, B4, Q5, S3, V1, case 6.
#[tokio::test(start_paused = true)]
async fn however_a_request_ends_its_permit_is_given_back_once_and_the_next_one_starts() {
    let mut runs = 0;
    for scene in scenes(Ending::iter().filter(|ending| !ending.is_of_sockets())) {
        play(scene, scene.layer()).await;
        play(scene, scene.layer().reject_with(|_: SlotError| Response::new(Script::default()))).await;
        runs += 2;
    }
    // All endings but the timeouts under all limits.
    assert_eq!(runs, (21 * 4 + 3) * 4 * 2);
}

async fn play<R: Reject<Script, Broken> + Clone>(scene: Scene, layer: SlotLayer<ExtensionOrHost, R>) {
    let (inner, start) = (Inner::new(), Instant::now());
    let client = layer.layer(inner.clone());
    let mut stage = Stage { client, slots: layer.slots().clone(), inner, start };
    let block = scene.block(&stage.slots);

    let (left, answer) = scene.prepare(&mut stage);
    if scene.ending.is_timeout() {
        advance(TIMEOUT - SECOND).await;
    }
    let (blockers, has_permit) = (scene.blockers(), scene.has_permit());
    assert_eq!(in_flight(&stage.slots, "a.test"), blockers + usize::from(has_permit), "{scene:?}");

    // The next one stands behind it, if there is anything to stand behind.
    let mut next = spawn(stage.client.call(get("a.test")));
    let started = next.poll().is_ready();
    assert_eq!(started, !(scene.is_waited_for() || scene.is_paced()), "{scene:?}");

    if scene.ending.is_timeout() {
        advance(SECOND).await;
    }
    let left = scene.act(&stage, left, answer);
    assert_eq!(in_flight(&stage.slots, "a.test"), blockers, "{scene:?}: back in that moment");
    if scene.wakes_the_next() {
        assert!(next.is_woken(), "{scene:?}: the next one is woken");
    }

    // Nothing is in the way of the next one any more but the pace.
    drop(block);
    stage.slots.resume("a.test");
    if !started {
        if scene.is_paced() {
            assert!(next.poll().is_pending(), "{scene:?}");
            advance(DELAY).await;
        }
        assert!(next.is_woken(), "{scene:?}: the next one is woken");
        assert!(assert_ready!(next.poll()).is_ok(), "{scene:?}");
        let at = stage.inner.called_at(stage.start).pop().unwrap();
        let due = if scene.is_paced() { DELAY } else { Duration::ZERO };
        let due = if scene.ending.is_timeout() { TIMEOUT } else { due };
        assert_eq!(at, due, "{scene:?}: the next one starts at once");
    }

    scene.check(&stage.slots);
    // Nor does it do any harm to go on with what is left.
    match left {
        Left::Call(mut call) => assert!(call.poll().is_pending(), "{scene:?}"),
        Left::Body(mut body) => assert_eq!(frame(&mut body), Seen::End, "{scene:?}"),
        Left::Nothing => {}
    }
    scene.check(&stage.slots);
}

// === impl Scene ===

impl Scene {
    /// The body, if the ending needs one.
    fn script(self) -> Option<Script> {
        let script = Script::chunked(&["x"]);
        Some(match self.ending {
            Ending::Untouched | Ending::AfterFrame | Ending::Read2xx | Ending::Read5xx => script,
            Ending::WhilePending => script.then(Act::Pending),
            Ending::LastFrame => Script::sized(&["x", "y"]),
            Ending::Trailers => script.then(Act::Trailers),
            Ending::BodyError => script.then(Act::Error),
            Ending::PanicInBody => script.then(Act::Panic),
            _ => return None,
        })
    }

    /// Brings the request to the moment before its ending.
    fn prepare<R: Reject<Script, Broken> + Clone>(
        self,
        stage: &mut Stage<R>,
    ) -> (Left<R>, Option<tokio::sync::oneshot::Sender<Answer>>) {
        let (sender, answer) = later();
        let answer = if self.ending == Ending::PanicInCall { Answer::PanicInCall } else { answer };
        let mut request = planned("a.test", answer);
        if self.per_request {
            request.extensions_mut().insert(self.hold);
        }
        if matches!(
            self.ending,
            Ending::NotReady | Ending::NeverReady | Ending::PanicInReady | Ending::PanicInCall
        ) {
            stage.inner.set_readiness(Readiness::Pending);
        }
        let mut call = spawn(stage.client.call(request));
        if self.ending == Ending::Unpolled {
            return (Left::Call(call), None);
        }
        assert!(call.poll().is_pending(), "{self:?}");
        let Some(script) = self.script() else { return (Left::Call(call), Some(sender)) };
        let status =
            if self.ending == Ending::Read5xx { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        give(sender, Answer::status(status, script));
        assert!(call.is_woken());
        let Ok(response) = assert_ready!(call.poll()) else { panic!("{self:?}") };
        assert_eq!(response.status(), status);
        let mut body = body_of(response);
        if self.ending != Ending::Untouched {
            assert_eq!(frame(&mut body), data("x"), "{self:?}");
        }
        if self.ending == Ending::WhilePending {
            assert_eq!(frame(&mut body), Seen::Pending);
        }
        (Left::Body(body), None)
    }

    /// Ends the request.
    fn act<R: Reject<Script, Broken> + Clone>(
        self,
        stage: &Stage<R>,
        left: Left<R>,
        answer: Option<tokio::sync::oneshot::Sender<Answer>>,
    ) -> Left<R> {
        match (left, answer) {
            (Left::Body(mut body), _) => {
                let expected = match self.ending {
                    Ending::LastFrame => data("y"),
                    Ending::Trailers => Seen::Trailers(trailers()),
                    Ending::BodyError => Seen::Error(Broken("body")),
                    Ending::PanicInBody => {
                        support::panics(|| frame(&mut body));
                        return Left::Body(body);
                    }
                    Ending::Read2xx | Ending::Read5xx => Seen::End,
                    _ => return Left::Nothing,
                };
                assert_eq!(frame(&mut body), expected, "{self:?}");
                Left::Body(body)
            }
            (Left::Call(mut call), Some(answer)) => {
                match self.ending {
                    Ending::Empty => give(answer, Answer::ok(Script::default())),
                    Ending::Error => give(answer, Answer::Error),
                    Ending::PanicInFuture => give(answer, Answer::PanicInFuture),
                    Ending::PanicInCall => stage.inner.set_readiness(Readiness::Ready),
                    Ending::NeverReady => stage.inner.set_readiness(Readiness::Error),
                    Ending::PanicInReady => stage.inner.set_readiness(Readiness::Panic),
                    ending if ending.is_timeout() => {}
                    _ => {
                        drop(call);
                        stage.inner.set_readiness(Readiness::Ready);
                        return Left::Nothing;
                    }
                }
                assert!(call.is_woken(), "{self:?}");
                let left = match self.ending {
                    Ending::PanicInReady | Ending::PanicInCall | Ending::PanicInFuture => {
                        support::panics(|| call.poll().is_ready());
                        Left::Call(call)
                    }
                    _ => match assert_ready!(call.poll()) {
                        // The empty one, or the refusal as a response.
                        Ok(response) => Left::Body(body_of(response)),
                        Err(_) => Left::Call(call),
                    },
                };
                stage.inner.set_readiness(Readiness::Ready);
                left
            }
            _ => Left::Nothing,
        }
    }
}
