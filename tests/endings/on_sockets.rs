//! On sockets: hyper-util's client, and a server on loopback.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::poll;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use strum::IntoEnumIterator;
use tokio::time::timeout;
use tokio_test::task::spawn;
use tower::{Layer, Service, service_fn};
use tower_slot::body::SlotBody;
use tower_slot::{BoxError, SlotError, SlotErrorKind, SlotLimits, Slots};

use crate::client::{Between, ResBody};
use crate::net::{Page, Server, Wire, trailers};
use crate::prompter::Prompter;
use crate::scene::{Ending, Scene, TIMEOUT, scenes};
use crate::support::{Broken, in_flight, waiting};

type Call = Pin<Box<dyn Future<Output = Result<Response<SlotBody<ResBody>>, BoxError>>>>;

/// What is left of the request; kept, so that only the ending itself can give the permit back.
enum Left {
    Call(Call),
    Body(SlotBody<ResBody>),
    Nothing,
}

/// One run, and what it looks at while it polls.
struct Run {
    wire: Wire,
    scene: Scene,
    slots: Slots,
}

/// Longer than anything here takes: a wakeup that is lost fails the test instead of hanging it.
const PATIENCE: Duration = Duration::from_secs(30);

/// B1, B2, B4, B5, Q5, S3, V1, case 6.
#[tokio::test]
#[cfg_attr(miri, ignore = "Miri has no sockets")]
async fn however_a_request_ends_on_sockets_its_permit_is_given_back_once_and_the_next_one_starts() {
    let mut runs = 0;
    for wire in Wire::PLAIN {
        let fine = Server::start(
            wire,
            service_fn(async |_| Ok::<_, Infallible>(Page::sized().data("fine").response())),
        )
        .await;
        for scene in scenes(Ending::iter()).filter(|scene| !scene.per_request) {
            let layer = scene.layer();
            let run = Run { wire, scene, slots: layer.slots().clone() };
            let played = timeout(PATIENCE, run.play(layer, &fine)).await;
            assert!(played.is_ok(), "{wire:?} {scene:?}: somebody waits for ever");
            runs += 1;
        }
    }
    // All endings but the timeouts under all limits.
    assert_eq!(runs, (34 * 4 + 3) * 2 * 2);
}

// === impl Run ===

impl Run {
    async fn play(&self, layer: tower_slot::SlotLayer, fine: &Server) {
        let Self { scene, slots, .. } = self;
        let prompter = Prompter::new(scene.ending);
        let server = prompter.server(self.wire).await;
        let mut client = layer.layer(Between::new(self.wire, prompter.clone()));
        let block = scene.block(slots);

        if scene.ending.is_timeout() {
            slots.configure("a.test", SlotLimits::new().wait_timeout(Duration::from_millis(10))).unwrap();
        }
        let call = Box::pin(client.call(prompter.request(&server)));
        let left = self.prepare(call, &prompter).await;
        assert_eq!(in_flight(slots, "a.test"), self.held(), "{self:?}");
        if scene.ending.is_timeout() {
            slots.configure("a.test", SlotLimits::new().wait_timeout(TIMEOUT)).unwrap();
        }

        // The next one stands behind it, if there is anything to stand behind.
        let mut call = || {
            let request = Request::get(fine.uri("a.test", "/")).body(Page::sized()).unwrap();
            spawn(client.call(request))
        };
        let mut behind = scene.is_waited_for().then(&mut call);
        if let Some(next) = &mut behind {
            assert!(next.poll().is_pending(), "{self:?}");
        }

        let left = self.act(left, &prompter, server).await;
        assert_eq!(in_flight(slots, "a.test"), scene.blockers(), "{self:?}: back in that moment");
        if scene.wakes_the_next() {
            assert!(behind.as_ref().unwrap().is_woken(), "{self:?}: the next one is woken");
        }
        prompter.over();

        // Nothing is in the way of the next one any more but the pace.
        drop(block);
        slots.resume("a.test");
        let mut next = behind.unwrap_or_else(call);
        if scene.is_paced() {
            assert!(next.poll().is_pending(), "{self:?}");
            assert_eq!(waiting(slots, "a.test"), 1, "{self:?}");
            slots.configure("a.test", SlotLimits::new().delay(Duration::ZERO)).unwrap();
            assert!(next.is_woken(), "{self:?}: the next one is woken");
        }
        let response = next.await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "fine", "{self:?}");

        scene.check(slots);
        // Nor does it do any harm to go on with what is left.
        match left {
            Left::Call(mut call) => assert!(poll!(&mut call).is_pending(), "{self:?}"),
            Left::Body(mut body) => drop(poll!(body.frame())),
            Left::Nothing => {}
        }
        scene.check(slots);
    }

    /// Brings the request to the moment before its ending.
    async fn prepare(&self, mut call: Call, prompter: &Prompter) -> Left {
        let ending = self.scene.ending;
        if !ending.has_started() {
            if ending != Ending::Unpolled {
                assert!(poll!(&mut call).is_pending(), "{self:?}");
            }
            return Left::Call(call);
        }
        if !ending.is_of_body() {
            tokio::select! {
                biased;
                () = prompter.reached() => {}
                answer = &mut call => panic!("{self:?}: {answer:?}"),
            }
            return Left::Call(call);
        }
        let response = self.ends([1, self.held()], |cx| call.as_mut().poll(cx)).await.unwrap().unwrap();
        let is_5xx = ending == Ending::Read5xx;
        assert_eq!(response.status() == StatusCode::SERVICE_UNAVAILABLE, is_5xx, "{self:?}");
        let mut body = response.into_body();
        if ending != Ending::Untouched {
            let frame = self.frame(&mut body, [self.held(); 2]).await.unwrap();
            assert_eq!(data(frame), "x", "{self:?}");
        }
        if ending == Ending::WhilePending {
            assert!(poll!(body.frame()).is_pending(), "{self:?}");
        }
        Left::Body(body)
    }

    /// Ends the request.
    async fn act(&self, left: Left, prompter: &Prompter, server: Server) -> Left {
        use Ending::*;
        let ending = self.scene.ending;
        match ending {
            Unpolled | InQueue | AtPace | AtTotal | NotReady | Connecting | Uploading | Called => {
                return Left::Nothing;
            }
            Untouched | AfterFrame | WhilePending => return Left::Nothing,
            UploadPanicked => {
                prompter.go();
                prompter.reached().await;
                return Left::Nothing;
            }
            Lost | LostInBody => drop(server),
            _ => prompter.go(),
        }
        let in_flight = [self.held(), self.scene.blockers()];
        match left {
            Left::Call(mut call) => {
                match self.ends(in_flight, |cx| call.as_mut().poll(cx)).await {
                    None => assert!(ending.is_panic(), "{self:?}"),
                    Some(Ok(response)) => {
                        assert!(matches!(ending, Empty | Early), "{self:?}");
                        return Left::Body(response.into_body());
                    }
                    Some(Err(error)) => {
                        assert!(!matches!(ending, Empty | Early), "{self:?}: {error}");
                        let kind = error.downcast_ref::<SlotError>().map(SlotError::kind);
                        let timed_out = ending.is_timeout().then_some(SlotErrorKind::WaitTimeout);
                        assert_eq!(kind, timed_out, "{self:?}: {error}");
                    }
                }
                Left::Call(call)
            }
            Left::Body(mut body) => {
                let frame = self.frame(&mut body, in_flight).await;
                match ending {
                    PanicInBody => assert!(frame.is_none(), "{self:?}"),
                    LastFrame => assert_eq!(data(frame.unwrap()), "y", "{self:?}"),
                    Trailers => {
                        let frame = frame.unwrap().unwrap().unwrap();
                        assert_eq!(frame.into_trailers().unwrap(), trailers(), "{self:?}");
                    }
                    BodyError | LostInBody => assert!(frame.unwrap().unwrap().is_err(), "{self:?}"),
                    // The end of a stream is an empty frame, and hyper hands it on.
                    _ if self.wire == Wire::Http2 => {
                        assert_eq!((data(frame.unwrap()).len(), body.is_end_stream()), (0, true), "{self:?}");
                    }
                    _ => assert!(frame.unwrap().is_none(), "{self:?}"),
                }
                Left::Body(body)
            }
            Left::Nothing => Left::Nothing,
        }
    }

    /// How many are in flight just before the ending.
    fn held(&self) -> usize {
        self.scene.blockers() + usize::from(self.scene.has_permit())
    }

    /// The next frame; nothing if it panics.
    async fn frame(
        &self,
        body: &mut SlotBody<ResBody>,
        in_flight: [usize; 2],
    ) -> Option<Option<Result<Frame<Bytes>, BoxError>>> {
        self.ends(in_flight, |cx| Pin::new(&mut *body).poll_frame(cx)).await
    }

    /// Polls until it is ready, or panics as scripted. So many are in flight up to the last poll, and then so many.
    async fn ends<T>(
        &self,
        [before, after]: [usize; 2],
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        poll_fn(|cx| {
            let polled = catch_unwind(AssertUnwindSafe(|| poll(cx)));
            let is_over = !matches!(polled, Ok(Poll::Pending));
            assert_eq!(in_flight(&self.slots, "a.test"), if is_over { after } else { before }, "{self:?}");
            match polled {
                Ok(polled) => polled.map(Some),
                Err(payload) => {
                    assert!(payload.is::<Broken>(), "{self:?}: it panics for no other reason");
                    Poll::Ready(None)
                }
            }
        })
        .await
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?}", self.wire, self.scene)
    }
}

/// A data frame.
fn data(frame: Option<Result<Frame<Bytes>, BoxError>>) -> Bytes {
    frame.unwrap().unwrap().into_data().unwrap()
}
