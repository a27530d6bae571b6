//! A body that was read ahead: the frames that were read, then the rest.
//!
//! Whoever reads it sees what the body would have said itself: trailers and an error too.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body as HttpBody, Frame, SizeHint};
use reqwest::Body;

use crate::body::SlotBody;

type Bytes = <Body as HttpBody>::Data;

/// A response body with frames that were read before anybody asked for them.
#[derive(Debug)]
pub(crate) struct Ahead {
    read: VecDeque<reqwest::Result<Frame<Bytes>>>,
    /// How many bytes of data are in `read`.
    len: u64,
    /// `None` once it has ended or failed.
    rest: Option<SlotBody<Body>>,
}

// === impl Ahead ===

impl Ahead {
    /// Reads `body` to its end if it has no more than `limit` bytes. If it says that it has more, nothing is read.
    pub(crate) async fn read(body: SlotBody<Body>, limit: u64) -> Self {
        let mut ahead = Self { read: VecDeque::new(), len: 0, rest: Some(body) };
        while let Some(rest) = &mut ahead.rest {
            if ahead.len.saturating_add(rest.size_hint().lower()) > limit {
                break;
            }
            let frame = poll_fn(|cx| Pin::new(&mut *rest).poll_frame(cx)).await;
            if !matches!(frame, Some(Ok(_))) || rest.is_end_stream() {
                ahead.rest = None;
            }
            if let Some(frame) = frame {
                ahead.len += len(&frame);
                ahead.read.push_back(frame);
            }
        }
        ahead
    }
}

impl HttpBody for Ahead {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<reqwest::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        if let Some(frame) = this.read.pop_front() {
            this.len -= len(&frame);
            return Poll::Ready(Some(frame));
        }
        match &mut this.rest {
            Some(rest) => Pin::new(rest).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.rest.as_ref().is_none_or(SlotBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.as_ref().map_or(SizeHint::with_exact(0), SlotBody::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(self.len.saturating_add(rest.lower()));
        if let Some(upper) = rest.upper() {
            hint.set_upper(self.len.saturating_add(upper));
        }
        hint
    }
}

fn len(frame: &reqwest::Result<Frame<Bytes>>) -> u64 {
    let data = frame.as_ref().ok().and_then(Frame::data_ref);
    data.map_or(0, |data| data.len() as u64)
}
