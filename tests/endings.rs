//! Every way in which a request can end, under every kind of limit and hold: the permit comes back in that
//! moment, once, and the next request gets it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::time::Duration;

use http::{Response, StatusCode};
use tokio::time::{Instant, advance};
use tokio_test::assert_ready;
use tokio_test::task::{Spawn, spawn};
use tower::{Layer, Service};
use tower_slot::body::SlotBody;
use tower_slot::{
    ExtensionOrHost, Fail, Hold, Reject, SlotConfig, SlotError, SlotLayer, SlotPermit, SlotService,
    SlotStats, Slots,
};

use self::support::{
    Act, Answer, Broken, Call, Inner, Readiness, Script, Seen, body_of, counts, data, frame, get, give,
    in_flight, later, planned, trailers,
};

const SECOND: Duration = Duration::from_secs(1);

/// How the request ends, and whether that happens to its future or to its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    // The future is dropped.
    Unpolled,
    InQueue,
    AtPace,
    AtTotal,
    NotReady,
    Called,
    // The future resolves.
    TimedOut,
    Empty,
    Error,
    NeverReady,
    PanicInReady,
    PanicInCall,
    PanicInFuture,
    // The body is dropped.
    Untouched,
    AfterFrame,
    WhilePending,
    // The body ends, and is kept.
    Read2xx,
    Read5xx,
    LastFrame,
    Trailers,
    BodyError,
    PanicInBody,
}

/// What is limited beside the concurrency, which is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Nothing,
    Total,
    Pace,
    Wait,
}

/// What a request counts as in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    NeverAsked,
    Gone,
    TimedOut,
    Finished,
    Failed,
    Cancelled,
}

#[derive(Clone, Copy, Debug)]
struct Scene {
    ending: Ending,
    limit: Limit,
    hold: Hold,
    /// Whether the request says what is held, or the slot.
    per_request: bool,
}

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

const ENDINGS: [Ending; 22] = {
    use Ending::*;
    [
        Unpolled,
        InQueue,
        AtPace,
        AtTotal,
        NotReady,
        Called,
        TimedOut,
        Empty,
        Error,
        NeverReady,
        PanicInReady,
        PanicInCall,
        PanicInFuture,
        Untouched,
        AfterFrame,
        WhilePending,
        Read2xx,
        Read5xx,
        LastFrame,
        Trailers,
        BodyError,
        PanicInBody,
    ]
};
const DELAY: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(60);

/// B1, B2, B4, Q5, S3, V1, case 6.
#[tokio::test(start_paused = true)]
async fn however_a_request_ends_its_permit_is_given_back_once_and_the_next_one_starts() {
    let mut scenes = 0;
    for scene in all_scenes() {
        play(scene, scene.layer()).await;
        play(scene, scene.layer().reject_with(|_: SlotError| Response::new(Script::default()))).await;
        scenes += 1;
    }
    // All endings but one under all limits.
    assert_eq!(scenes, (21 * 4 + 1) * 4);
}

fn all_scenes() -> impl Iterator<Item = Scene> {
    let limits = [Limit::Nothing, Limit::Total, Limit::Pace, Limit::Wait];
    let scenes = ENDINGS.into_iter().flat_map(move |ending| limits.map(|limit| (ending, limit)));
    scenes.filter(|(ending, limit)| *ending != Ending::TimedOut || *limit == Limit::Wait).flat_map(
        |(ending, limit)| {
            let holds =
                [(Hold::Body, false), (Hold::Body, true), (Hold::Headers, false), (Hold::Headers, true)];
            holds.map(|(hold, per_request)| Scene { ending, limit, hold, per_request })
        },
    )
}

async fn play<R: Reject<Script, Broken> + Clone>(scene: Scene, layer: SlotLayer<ExtensionOrHost, R>) {
    let (inner, start) = (Inner::new(), Instant::now());
    let client = layer.layer(inner.clone());
    let mut stage = Stage { client, slots: layer.slots().clone(), inner, start };
    let block = scene.block(&stage.slots);

    let (left, answer) = scene.prepare(&mut stage);
    if scene.ending == Ending::TimedOut {
        advance(TIMEOUT - SECOND).await;
    }
    let has_permit = scene.has_started() && !(scene.has_response() && scene.hold == Hold::Headers);
    let blockers = usize::from(scene.ending == Ending::InQueue || scene.ending == Ending::TimedOut);
    assert_eq!(in_flight(&stage.slots, "a.test"), blockers + usize::from(has_permit), "{scene:?}");

    // The next one stands behind it, if there is anything to stand behind.
    let mut next = spawn(stage.client.call(get("a.test")));
    let is_paced = scene.limit == Limit::Pace && scene.has_started();
    let waits = has_permit || scene.fate() == Fate::Gone || blockers > 0 || is_paced;
    let started = next.poll().is_ready();
    assert_eq!(started, !waits, "{scene:?}");

    if scene.ending == Ending::TimedOut {
        advance(SECOND).await;
    }
    let left = scene.act(&stage, left, answer);
    assert_eq!(in_flight(&stage.slots, "a.test"), blockers, "{scene:?}: back in that moment");
    // A gap in the queue in front of it has it look at the gates itself.
    if has_permit || matches!(scene.ending, Ending::AtPace | Ending::AtTotal) {
        assert!(next.is_woken(), "{scene:?}: the next one is woken");
    }

    // Nothing is in the way of the next one any more but the pace.
    if let Some(permit) = block {
        drop(permit);
        stage.slots.resume("a.test");
    }
    if !started {
        let paced = scene.limit == Limit::Pace && (scene.has_started() || blockers > 0);
        if paced {
            assert!(next.poll().is_pending(), "{scene:?}");
            advance(DELAY).await;
        }
        assert!(next.is_woken(), "{scene:?}: the next one is woken");
        assert!(assert_ready!(next.poll()).is_ok(), "{scene:?}");
        let at = stage.inner.called_at(stage.start).pop().unwrap();
        let due = if paced { DELAY } else { Duration::ZERO };
        let due = if scene.ending == Ending::TimedOut { TIMEOUT } else { due };
        assert_eq!(at, due, "{scene:?}: the next one starts at once");
    }

    check(scene, &stage.slots, blockers as u64);
    // Nor does it do any harm to go on with what is left.
    match left {
        Left::Call(mut call) => assert!(call.poll().is_pending(), "{scene:?}"),
        Left::Body(mut body) => assert_eq!(frame(&mut body), Seen::End, "{scene:?}"),
        Left::Nothing => {}
    }
    check(scene, &stage.slots, blockers as u64);
}

/// In the end all is as if nobody had been there, and counted once.
fn check(scene: Scene, slots: &Slots, blockers: u64) {
    let stats: SlotStats = slots.stats("a.test").unwrap();
    assert_eq!((stats.in_flight, stats.waiting), (0, 0), "{scene:?}");
    let snapshot = slots.snapshot();
    assert_eq!((snapshot.total.in_flight, snapshot.total.line), (0, 0), "{scene:?}");
    let is = |fate| u64::from(scene.fate() == fate);
    let counts = counts(slots, "a.test");
    let seen =
        [counts.gone, counts.timed_out, counts.finished, counts.failed, counts.cancelled, counts.refused];
    // The next one and the blocker have finished.
    let finished = 1 + blockers + is(Fate::Finished);
    let expected = [is(Fate::Gone), is(Fate::TimedOut), finished, is(Fate::Failed), is(Fate::Cancelled), 0];
    assert_eq!(seen, expected, "{scene:?}");
    assert_eq!(counts.asked, 1 + blockers + u64::from(scene.fate() != Fate::NeverAsked), "{scene:?}");
}

// === impl Scene ===

impl Scene {
    fn layer(self) -> SlotLayer<ExtensionOrHost, Fail> {
        let config = SlotConfig::builder().concurrency(1);
        let config = match self.limit {
            Limit::Nothing => config,
            Limit::Total => config.total_concurrency(1),
            Limit::Pace => config.delay(DELAY),
            Limit::Wait => config.wait_timeout(TIMEOUT),
        };
        // What a request says counts for it alone, and says the opposite of its slot.
        let of_slot = match (self.hold, self.per_request) {
            (hold, false) => hold,
            (Hold::Headers, true) => Hold::Body,
            (_, true) => Hold::Headers,
        };
        support::layer(config.hold(of_slot))
    }

    /// Whether the request gets as far as a permit.
    fn has_started(self) -> bool {
        !matches!(
            self.ending,
            Ending::Unpolled | Ending::InQueue | Ending::AtPace | Ending::AtTotal | Ending::TimedOut
        )
    }

    /// Whether the ending is one of the body.
    fn has_response(self) -> bool {
        self.script().is_some()
    }

    fn fate(self) -> Fate {
        match self.ending {
            Ending::Unpolled => Fate::NeverAsked,
            Ending::InQueue | Ending::AtPace | Ending::AtTotal => Fate::Gone,
            Ending::TimedOut => Fate::TimedOut,
            Ending::NotReady | Ending::Called => Fate::Cancelled,
            Ending::Error
            | Ending::NeverReady
            | Ending::PanicInReady
            | Ending::PanicInCall
            | Ending::PanicInFuture => Fate::Failed,
            Ending::Empty => Fate::Finished,
            // Over at the headers, whatever becomes of the body.
            _ if self.hold == Hold::Headers => Fate::Finished,
            Ending::Untouched | Ending::AfterFrame | Ending::WhilePending => Fate::Cancelled,
            Ending::Read2xx | Ending::Read5xx | Ending::LastFrame | Ending::Trailers => Fate::Finished,
            Ending::BodyError | Ending::PanicInBody => Fate::Failed,
        }
    }

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

    /// Puts something in the way of requests that shall end while they wait.
    fn block(self, slots: &Slots) -> Option<Option<SlotPermit>> {
        match self.ending {
            Ending::InQueue | Ending::TimedOut => Some(slots.try_acquire("a.test").ok()),
            Ending::AtPace => {
                slots.pause("a.test", Instant::now() + 2 * DELAY);
                Some(None)
            }
            Ending::AtTotal => {
                slots.configure_total(Some(1)).unwrap();
                Some(slots.try_acquire("b.test").ok())
            }
            _ => None,
        }
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
                    Ending::TimedOut => {}
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
