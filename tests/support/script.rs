//! Bodies that do, poll by poll, what they are told.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use tokio_test::task::Spawn;

use super::scripted_panic;

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
