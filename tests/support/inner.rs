//! An inner service that does with each request what it is told.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep};
use tower::Service;
use tower_slot::{Hold, SlotKey};

use super::{Broken, Script, get, scripted_panic};

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
