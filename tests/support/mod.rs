//! A scripted inner service and scripted bodies, for tests that poll by hand.
//!
//! What the inner service does with a request travels in the request's extensions as a [`Plan`], or is found by
//! a closure. The service panics when it is called without having been polled ready, and its clones start
//! unready, so every test that uses it holds case 20.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep};
use tokio_test::task::Spawn;
use tower::Service;
use tower_slot::body::SlotBody;
use tower_slot::future::ResponseFuture;
use tower_slot::{Counts, Fail, Hold, SlotConfigBuilder, SlotKey, SlotLayer, SlotService, Slots};

/// The service under test, with the scripted one inside.
pub type Client = SlotService<Inner>;

/// Its future.
pub type Call<R = Fail> = ResponseFuture<Inner, (), Answering, R>;

/// Its response.
pub type Answered = Response<SlotBody<Script>>;

/// The error of scripted services and bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);

// --- bodies

/// A body that does, poll by poll, what it is told. After its last step it gives `None`.
#[derive(Clone, Debug)]
pub struct Script {
    pub says: Says,
    pub hint: (u64, Option<u64>),
    pub steps: VecDeque<Step>,
}

/// One poll of a scripted body, and what the body says of itself afterwards.
#[derive(Clone, Debug)]
pub struct Step {
    pub act: Act,
    pub says: Says,
    pub hint: (u64, Option<u64>),
}

/// What one poll of a scripted body comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    Pending,
    Data(&'static str),
    Trailers,
    Error,
    Panic,
    End,
}

/// What a scripted body answers when it is asked whether it is at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    More,
    Over,
    Panic,
}

/// What a poll of a body gave, in a form that can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Pending,
    Data(Bytes),
    Trailers(HeaderMap),
    Error(Broken),
    End,
}

// --- services

/// What the inner service makes of one request.
pub enum Answer {
    Response(Response<Script>),
    Error,
    PanicInCall,
    PanicInFuture,
    /// Sleeps first.
    After(Duration, Box<Answer>),
    /// Waits until the test knows; for ever if the sender is gone.
    Later(oneshot::Receiver<Answer>),
    Asleep(Pin<Box<Sleep>>, Box<Answer>),
    Never,
}

/// An answer in a request's extensions. It is used once, by the first copy of the request that is called.
#[derive(Clone)]
pub struct Plan(Arc<Mutex<Option<Answer>>>);

/// Whether the inner service is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    Pending,
    Error,
    Panic,
}

/// The scripted inner service.
pub struct Inner {
    shared: Arc<Shared>,
    /// Whether this very clone was polled ready and not called since.
    polled: bool,
}

/// What the inner service has seen of one request.
#[derive(Clone, Debug)]
pub struct Called {
    pub at: Instant,
    pub host: String,
    pub key: Option<SlotKey>,
    pub hold: Option<Hold>,
}

/// The future of the scripted service.
pub struct Answering(Answer);

struct Shared {
    answer: Box<dyn Fn(&Parts) -> Answer + Send + Sync>,
    state: Mutex<State>,
}

struct State {
    readiness: Readiness,
    wakers: Vec<Waker>,
    called: Vec<Called>,
    /// How many clones are polled ready and not called.
    reserved: usize,
}

/// Builds a layer.
pub fn layer(config: SlotConfigBuilder) -> SlotLayer {
    SlotLayer::new(config.build().unwrap())
}

/// A request for `http://{host}/`.
pub fn get(host: &str) -> Request<()> {
    Request::get(format!("http://{host}/")).body(()).unwrap()
}

/// A request for `host` that is answered as told.
pub fn planned(host: &str, answer: Answer) -> Request<()> {
    plan(get(host), answer)
}

/// Has a request answered as told.
pub fn plan(mut request: Request<()>, answer: Answer) -> Request<()> {
    request.extensions_mut().insert(Plan(Arc::new(Mutex::new(Some(answer)))));
    request
}

/// What a request's plan says; an empty 200 if it has none.
pub fn planned_answer(parts: &Parts) -> Answer {
    let plan = parts.extensions.get::<Plan>().map(|plan| plan.0.lock().unwrap().take());
    plan.map_or(Answer::ok(Script::default()), |answer| answer.expect("a plan is used once"))
}

/// An answer that the test gives when it likes.
pub fn later() -> (oneshot::Sender<Answer>, Answer) {
    let (sender, receiver) = oneshot::channel();
    (sender, Answer::Later(receiver))
}

/// Gives an answer that was to come later.
#[track_caller]
pub fn give(sender: oneshot::Sender<Answer>, answer: Answer) {
    assert!(sender.send(answer).is_ok(), "nobody waits for the answer");
}

/// Polls a body once.
pub fn frame<B>(body: &mut Spawn<B>) -> Seen
where
    B: Body<Data = Bytes, Error = Broken>,
{
    match body.enter(|cx, body| body.poll_frame(cx)) {
        Poll::Pending => Seen::Pending,
        Poll::Ready(None) => Seen::End,
        Poll::Ready(Some(Err(error))) => Seen::Error(error),
        Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
            Ok(data) => Seen::Data(data),
            Err(frame) => Seen::Trailers(frame.into_trailers().unwrap()),
        },
    }
}

/// A data frame, as [`frame`] sees it.
pub fn data(data: &'static str) -> Seen {
    Seen::Data(Bytes::from_static(data.as_bytes()))
}

/// Takes the body out of a response, to be polled by hand.
pub fn body_of<B: Body>(response: Response<B>) -> Spawn<B> {
    tokio_test::task::spawn(response.into_body())
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
fn scripted_panic() -> ! {
    resume_unwind(Box::new(Broken("panic")))
}

// === impl Broken ===

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Broken {}

// === impl Script ===

impl Script {
    /// A body without frames.
    pub fn new() -> Self {
        Self { says: Says::More, hint: (0, None), steps: VecDeque::new() }
    }

    /// A body that knows where it ends: it says so after its last frame.
    pub fn sized(frames: &[&'static str]) -> Self {
        let left = |from: usize| frames[from..].iter().map(|frame| frame.len() as u64).sum();
        let says = |left: usize| if left == 0 { Says::Over } else { Says::More };
        let hint = |from| (left(from), Some(left(from)));
        let step = |(at, frame): (usize, &&'static str)| Step {
            act: Act::Data(frame),
            says: says(frames.len() - at - 1),
            hint: hint(at + 1),
        };
        Self { says: says(frames.len()), hint: hint(0), steps: frames.iter().enumerate().map(step).collect() }
    }

    /// A body that does not know: only `None` tells.
    pub fn chunked(frames: &[&'static str]) -> Self {
        frames.iter().fold(Self::new(), |script, frame| script.then(Act::Data(frame)))
    }

    /// Adds a step.
    pub fn then(mut self, act: Act) -> Self {
        self.steps.push_back(Step { act, says: Says::More, hint: (0, None) });
        self
    }

    /// Has the body say after its last step, or from the beginning, that it is at its end, or panic when asked.
    pub fn saying(mut self, says: Says) -> Self {
        let last = self.steps.back_mut().map(|step| &mut step.says);
        *last.unwrap_or(&mut self.says) = says;
        self
    }
}

impl Default for Script {
    fn default() -> Self {
        Self::sized(&[])
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let end = Step { act: Act::End, says: Says::Over, hint: (0, Some(0)) };
        let Step { act, says, hint } = self.steps.pop_front().unwrap_or(end);
        (self.says, self.hint) = (says, hint);
        Poll::Ready(match act {
            Act::Pending => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Act::Data(data) => Some(Ok(Frame::data(Bytes::from_static(data.as_bytes())))),
            Act::Trailers => Some(Ok(Frame::trailers(trailers()))),
            Act::Error => Some(Err(Broken("body"))),
            Act::Panic => scripted_panic(),
            Act::End => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        match self.says {
            Says::More => false,
            Says::Over => true,
            Says::Panic => scripted_panic(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.hint.0);
        if let Some(upper) = self.hint.1 {
            hint.set_upper(upper);
        }
        hint
    }
}

/// The trailers that scripted bodies send.
pub fn trailers() -> HeaderMap {
    HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("checked"))])
}

// === impl Answer ===

impl Answer {
    /// 200 with that body.
    pub fn ok(body: Script) -> Self {
        Self::status(StatusCode::OK, body)
    }

    /// That status with that body.
    pub fn status(status: StatusCode, body: Script) -> Self {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        Self::Response(response)
    }

    /// The same after `time`.
    pub fn after(self, time: Duration) -> Self {
        Self::After(time, Box::new(self))
    }
}

// === impl Inner ===

impl Inner {
    /// A service that does what each request's [`Plan`] says.
    pub fn new() -> Self {
        Self::answering(planned_answer)
    }

    /// A service that answers what `f` says.
    pub fn answering(f: impl Fn(&Parts) -> Answer + Send + Sync + 'static) -> Self {
        let state =
            State { readiness: Readiness::Ready, wakers: Vec::new(), called: Vec::new(), reserved: 0 };
        Self { shared: Arc::new(Shared { answer: Box::new(f), state: Mutex::new(state) }), polled: false }
    }

    /// Changes whether the service, with all its clones, is ready.
    pub fn set_readiness(&self, readiness: Readiness) {
        let mut state = self.shared.state.lock().unwrap();
        state.readiness = readiness;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns the calls so far.
    pub fn called(&self) -> Vec<Called> {
        self.shared.state.lock().unwrap().called.clone()
    }

    /// Returns how many calls there were so far.
    pub fn calls(&self) -> usize {
        self.shared.state.lock().unwrap().called.len()
    }

    /// Returns when the calls so far came, counted from `start`.
    pub fn called_at(&self, start: Instant) -> Vec<Duration> {
        self.called().iter().map(|called| called.at - start).collect()
    }

    /// Returns how many clones are polled ready and not called.
    pub fn reserved(&self) -> usize {
        self.shared.state.lock().unwrap().reserved
    }
}

// A clone has not been polled ready.
impl Clone for Inner {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), polled: false }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap().reserved -= usize::from(self.polled);
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

impl<B> Service<Request<B>> for Inner {
    type Response = Response<Script>;
    type Error = Broken;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let mut state = self.shared.state.lock().unwrap();
        match state.readiness {
            Readiness::Ready => {
                state.reserved += usize::from(!self.polled);
                self.polled = true;
                Poll::Ready(Ok(()))
            }
            Readiness::Pending => {
                state.wakers.push(cx.waker().clone());
                Poll::Pending
            }
            Readiness::Error => Poll::Ready(Err(Broken("ready"))),
            Readiness::Panic => {
                drop(state);
                scripted_panic()
            }
        }
    }

    fn call(&mut self, request: Request<B>) -> Answering {
        assert!(self.polled, "called without having been polled ready");
        self.polled = false;
        let (parts, _) = request.into_parts();
        let mut state = self.shared.state.lock().unwrap();
        state.reserved -= 1;
        state.called.push(Called {
            at: Instant::now(),
            host: parts.uri.host().unwrap_or_default().to_owned(),
            key: parts.extensions.get().cloned(),
            hold: parts.extensions.get().copied(),
        });
        drop(state);
        match (self.shared.answer)(&parts) {
            Answer::PanicInCall => scripted_panic(),
            answer => Answering(answer),
        }
    }
}

// === impl Answering ===

impl Future for Answering {
    type Output = Result<Response<Script>, Broken>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            self.0 = match std::mem::replace(&mut self.0, Answer::Never) {
                Answer::Response(response) => return Poll::Ready(Ok(response)),
                Answer::Error => return Poll::Ready(Err(Broken("inner"))),
                Answer::PanicInCall | Answer::PanicInFuture => scripted_panic(),
                Answer::Never => return Poll::Pending,
                Answer::After(time, answer) => Answer::Asleep(Box::pin(sleep(time)), answer),
                Answer::Asleep(mut sleep, answer) => {
                    if sleep.as_mut().poll(cx).is_pending() {
                        self.0 = Answer::Asleep(sleep, answer);
                        return Poll::Pending;
                    }
                    *answer
                }
                Answer::Later(mut receiver) => match Pin::new(&mut receiver).poll(cx) {
                    Poll::Ready(answer) => answer.unwrap_or(Answer::Never),
                    Poll::Pending => {
                        self.0 = Answer::Later(receiver);
                        return Poll::Pending;
                    }
                },
            };
        }
    }
}
