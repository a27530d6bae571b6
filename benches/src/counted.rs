//! A future whose polls and wakeups are counted.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use pin_project_lite::pin_project;

#[derive(Debug, Default)]
pub struct Tally {
    pub polls: AtomicUsize,
    pub wakes: AtomicUsize,
}

pin_project! {
    pub struct Counted<F> {
        #[pin]
        inner: F,
        tally: Arc<Tally>,
        // The task's waker and ours around it, kept so that one who compares wakers finds the same one.
        waker: Option<(Waker, Waker)>,
    }
}

struct CountedWaker {
    waker: Waker,
    tally: Arc<Tally>,
}

// === impl Counted ===

impl<F> Counted<F> {
    pub fn new(inner: F, tally: Arc<Tally>) -> Self {
        Self { inner, tally, waker: None }
    }
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        this.tally.polls.fetch_add(1, Ordering::Relaxed);
        this.waker.take_if(|(of_task, _)| !of_task.will_wake(cx.waker()));
        let (_, waker) = this.waker.get_or_insert_with(|| {
            let waker = CountedWaker { waker: cx.waker().clone(), tally: this.tally.clone() };
            (cx.waker().clone(), Arc::new(waker).into())
        });
        this.inner.poll(&mut Context::from_waker(waker))
    }
}

// === impl CountedWaker ===

impl Wake for CountedWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.tally.wakes.fetch_add(1, Ordering::Relaxed);
        self.waker.wake_by_ref();
    }
}
