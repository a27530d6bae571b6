//! Requests with a script: what the inner service does with each, and what its response body yields.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use proptest::prelude::*;
use tower_service::Service;
use tower_slot::{BoxError, Hold, SlotKey, UpgradePermit};

use crate::schedule::NAMES;

/// What becomes of a request.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) key: usize,
    pub(crate) timings: bool,
    pub(crate) hold: Option<Hold>,
    pub(crate) upgrade: Option<Upgrade>,
    pub(crate) ready: Act,
    /// The call itself panics.
    pub(crate) call_panics: bool,
    pub(crate) answer: Act,
    pub(crate) body: Frames,
}

/// A request asks for an upgrade, with one of these; the response agrees or does not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Upgrade {
    Connect(bool),
    Header(bool),
}

/// It is pending so many times, and then ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Act {
    pends: u8,
    end: End,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Good,
    Error,
    Panic,
}

/// A body.
#[derive(Clone, Debug)]
pub(crate) struct Frames {
    pub(crate) turns: VecDeque<Turn>,
    pub(crate) claim: Claim,
}

/// What one poll of a body gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Turn {
    Pending,
    /// So many bytes, or none.
    Data(u8),
    Trailers,
    Error,
    Panic,
}

/// What a body says of its end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Claim {
    /// When there is nothing more.
    Right,
    /// Never.
    Late,
    /// Also while it is going to be pending.
    Early,
    /// It panics when so many turns or less are left.
    Panic(u8),
}

/// The inner service. A clone is given the script of the next request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inner {
    pub(crate) next: Option<Course>,
}

/// How far the inner service is with one request, shared with whoever plays the caller.
#[derive(Clone, Debug)]
pub(crate) struct Course(Arc<Mutex<Progress>>);

#[derive(Debug)]
pub(crate) struct Progress {
    script: Script,
    /// Whether the service was asked if it is ready: so the slot has let the request start.
    pub(crate) begun: bool,
    /// The handle that came with the request.
    pub(crate) handle: Option<UpgradePermit>,
}

/// The inner service's future.
#[derive(Debug)]
pub(crate) struct Answer(Course);

/// A panic that was planned, without the noise.
fn planned() -> ! {
    resume_unwind(Box::new(PLANNED))
}

pub(crate) fn is_planned(panic: &(dyn Any + Send)) -> bool {
    panic.downcast_ref() == Some(&PLANNED)
}

const PLANNED: &str = "planned";

// === impl Script ===

impl Script {
    pub(crate) fn any() -> impl Strategy<Value = Self> {
        let hold = prop_oneof![4 => Just(None), 1 => Just(Some(Hold::Body)), 1 => Just(Some(Hold::Headers))];
        let upgrade = prop_oneof![
            6 => Just(None),
            1 => any::<bool>().prop_map(|agreed| Some(Upgrade::Connect(agreed))),
            1 => any::<bool>().prop_map(|agreed| Some(Upgrade::Header(agreed))),
        ];
        let body = (proptest::collection::vec(Turn::any(), 0..5), Claim::any())
            .prop_map(|(turns, claim)| Frames { turns: turns.into(), claim });
        let asked = (0..NAMES.len(), any::<bool>(), hold, upgrade);
        (asked, Act::any(), prop::bool::weighted(0.05), Act::any(), body).prop_map(
            |((key, timings, hold, upgrade), ready, call_panics, answer, body)| Self {
                key,
                timings,
                hold,
                upgrade,
                ready,
                call_panics,
                answer,
                body,
            },
        )
    }

    pub(crate) fn request(&self) -> Request<()> {
        let mut request = Request::new(());
        request.extensions_mut().insert(SlotKey::from(NAMES[self.key]));
        if let Some(hold) = self.hold {
            request.extensions_mut().insert(hold);
        }
        match self.upgrade {
            None => {}
            Some(Upgrade::Connect(_)) => *request.method_mut() = Method::CONNECT,
            Some(Upgrade::Header(_)) => {
                request.headers_mut().insert(header::UPGRADE, header::HeaderValue::from_static("raw"));
            }
        }
        request
    }

    pub(crate) fn is_upgraded(&self) -> bool {
        matches!(self.upgrade, Some(Upgrade::Connect(true) | Upgrade::Header(true)))
    }

    fn status(&self) -> StatusCode {
        match self.upgrade {
            Some(Upgrade::Connect(false)) => StatusCode::FORBIDDEN,
            Some(Upgrade::Header(true)) => StatusCode::SWITCHING_PROTOCOLS,
            _ => StatusCode::OK,
        }
    }
}

// === impl Act ===

impl Act {
    fn any() -> impl Strategy<Value = Self> {
        let end = prop_oneof![12 => Just(End::Good), 1 => Just(End::Error), 1 => Just(End::Panic)];
        (prop_oneof![2 => Just(0), 1 => 1..3_u8], end).prop_map(|(pends, end)| Self { pends, end })
    }

    /// How it ends, if it does now.
    fn turn(&mut self) -> Option<End> {
        let ends = self.pends == 0;
        self.pends = self.pends.saturating_sub(1);
        ends.then_some(self.end)
    }
}

// === impl End ===

impl End {
    fn come(self) -> Result<(), BoxError> {
        match self {
            Self::Good => Ok(()),
            Self::Error => Err(PLANNED.into()),
            Self::Panic => planned(),
        }
    }
}

// === impl Turn ===

impl Turn {
    fn any() -> impl Strategy<Value = Self> {
        prop_oneof![
            3 => Just(Self::Pending),
            6 => (0..3_u8).prop_map(Self::Data),
            1 => Just(Self::Trailers),
            1 => Just(Self::Error),
            1 => Just(Self::Panic),
        ]
    }
}

// === impl Claim ===

impl Claim {
    fn any() -> impl Strategy<Value = Self> {
        prop_oneof![
            4 => Just(Self::Right),
            2 => Just(Self::Late),
            2 => Just(Self::Early),
            1 => (0..4_u8).prop_map(Self::Panic),
        ]
    }
}

// === impl Inner ===

impl Service<Request<()>> for Inner {
    type Response = Response<Frames>;
    type Error = BoxError;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let ready = self.next.as_ref().expect("it has a script").with(|course| {
            course.begun = true;
            course.script.ready.turn()
        });
        ready.map_or(Poll::Pending, |end| Poll::Ready(end.come()))
    }

    fn call(&mut self, mut request: Request<()>) -> Answer {
        let course = self.next.take().expect("it has a script");
        let panics = course.with(|course| {
            course.handle = request.extensions_mut().remove();
            course.script.call_panics
        });
        if panics {
            planned();
        }
        Answer(course)
    }
}

// === impl Course ===

impl Course {
    pub(crate) fn new(script: Script) -> Self {
        Self(Arc::new(Mutex::new(Progress { script, begun: false, handle: None })))
    }

    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Progress) -> T) -> T {
        f(&mut self.0.lock().expect("nothing panics under this lock"))
    }
}

// === impl Answer ===

impl Future for Answer {
    type Output = Result<Response<Frames>, BoxError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(end) = self.0.with(|course| course.script.answer.turn()) else { return Poll::Pending };
        end.come()?;
        let (status, body) = self.0.with(|course| (course.script.status(), course.script.body.clone()));
        let mut response = Response::new(body);
        *response.status_mut() = status;
        Poll::Ready(Ok(response))
    }
}

// === impl Frames ===

impl Frames {
    /// Whether it says that it is at its end; `None` if it panics instead.
    pub(crate) fn claims(&self) -> Option<bool> {
        match self.claim {
            Claim::Right => Some(self.turns.is_empty()),
            Claim::Late => Some(false),
            Claim::Early => Some(self.turns.front().is_none_or(|turn| *turn == Turn::Pending)),
            Claim::Panic(left) => (self.turns.len() > usize::from(left)).then_some(false),
        }
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.turns.pop_front() {
            None => Poll::Ready(None),
            Some(Turn::Pending) => Poll::Pending,
            Some(Turn::Data(n)) => Poll::Ready(Some(Ok(Frame::data(vec![n; usize::from(n)].into())))),
            Some(Turn::Trailers) => Poll::Ready(Some(Ok(Frame::trailers(HeaderMap::new())))),
            Some(Turn::Error) => Poll::Ready(Some(Err(PLANNED.into()))),
            Some(Turn::Panic) => planned(),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.claims().unwrap_or_else(|| planned())
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.turns.len() as u64)
    }
}
