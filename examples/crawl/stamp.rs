//! Stamps of the starts, taken around the layer and without asking it.
//!
//! A permit is granted inside a poll of the response future, and the inner service is called in the same poll. So the
//! start lies between two stamps: the entry into that poll, taken outside the layer, and the call, taken right below
//! it. A gap is measured from the *entry* of the one start to the *call* of the next. The true gap is at most that
//! long, so one that shows as too short was too short: no thread that was put aside for a while between a grant and
//! its call can make a gap look shorter than it was, and nothing needs to be allowed for it.

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use http::Request;
use tokio::time::Instant;
use tower::Service;

/// Goes with a request, in its extensions: the lane it will start in, and the last entry into a poll of its future.
#[derive(Clone)]
pub(crate) struct Stamp {
    lane: Arc<str>,
    entered: Arc<Mutex<Instant>>,
}

/// The service right below the layer: stamps each call.
#[derive(Clone)]
pub(crate) struct Stamped<S> {
    inner: S,
    starts: Starts,
}

/// All starts of a scene.
#[derive(Clone, Default)]
pub(crate) struct Starts(Arc<Mutex<Vec<Start>>>);

#[derive(Clone)]
struct Start {
    lane: Arc<str>,
    entered: Instant,
    called: Instant,
}

// === impl Stamp ===

impl Stamp {
    pub(crate) fn new(lane: &str) -> Self {
        Self { lane: lane.into(), entered: Arc::new(Mutex::new(Instant::now())) }
    }

    /// Drives `future`, the response future outside the layer, and notes when each of its polls begins.
    pub(crate) async fn around<F: Future>(self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            *self.entered.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            future.as_mut().poll(cx)
        })
        .await
    }
}

// === impl Stamped ===

impl<S> Stamped<S> {
    pub(crate) fn new(inner: S, starts: Starts) -> Self {
        Self { inner, starts }
    }
}

impl<S, B> Service<Request<B>> for Stamped<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> S::Future {
        let called = Instant::now();
        if let Some(stamp) = request.extensions().get::<Stamp>() {
            self.starts.push(Start {
                lane: stamp.lane.clone(),
                entered: *stamp.entered.lock().unwrap_or_else(PoisonError::into_inner),
                called,
            });
        }
        self.inner.call(request)
    }
}

// === impl Starts ===

impl Starts {
    fn push(&self, start: Start) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(start);
    }

    /// Returns the shortest gap between two starts in one lane.
    pub(crate) fn shortest_gap(&self) -> Duration {
        let mut starts = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        starts.sort_unstable_by_key(|start| start.called);
        let mut last = HashMap::new();
        let mut shortest = Duration::MAX;
        for start in starts {
            if let Some(entered) = last.insert(start.lane, start.entered) {
                shortest = shortest.min(start.called - entered);
            }
        }
        shortest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_from_the_entry_of_one_start_to_the_call_of_the_next_in_its_lane() {
        let (starts, first) = (Starts::default(), Instant::now());
        assert_eq!(starts.shortest_gap(), Duration::MAX);
        let at = |ms| first + Duration::from_millis(ms);
        // In no order, as threads come.
        for (lane, entered, called) in
            [("b", 0, 1), ("a", 100, 130), ("a", 0, 60), ("a", 300, 301), ("b", 500, 501)]
        {
            starts.push(Start { lane: lane.into(), entered: at(entered), called: at(called) });
        }
        assert_eq!(starts.shortest_gap(), Duration::from_millis(130));
    }
}
