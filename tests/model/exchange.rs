//! Drives requests through the service, to every possible end, and keeps the books beside it: whenever somebody looks,
//! the slots' counts and times are those in the books.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::Response;
use http_body::Body;
use tokio::runtime::Runtime;
use tower_layer::Layer;
use tower_service::Service;
use tower_slot::body::SlotBody;
use tower_slot::future::ResponseFuture;
use tower_slot::{
    Fail, Hold, SlotError, SlotErrorKind, SlotLayer, SlotPermit, SlotService, SlotTimings, Slots,
    UpgradePermit,
};

use crate::book::{Book, Ended};
use crate::compare::{Fault, hold, nanos, same};
use crate::schedule::NAMES;
use crate::script::{Answer, Course, Frames, Inner, Script, Turn, is_planned};
use crate::traffic::{Move, Traffic};
use crate::words::MS;

/// The service, the requests under way, and the books.
struct Drive<'a> {
    clock: &'a Runtime,
    slots: Slots,
    /// Without timings and with them.
    services: [SlotService<Inner>; 2],
    hold: Hold,
    statistics: bool,
    looks: usize,
    exchanges: Vec<Exchange>,
    books: [Book; NAMES.len()],
}

/// One request.
struct Exchange {
    script: Script,
    course: Course,
    future: Option<Pin<Box<Responding>>>,
    /// Whether the future has nothing more to say; it is kept for a while, as callers do.
    resolved: bool,
    body: Option<Pin<Box<SlotBody<Frames>>>>,
    handles: Vec<UpgradePermit>,
    permit: At,
    timings: Option<SlotTimings>,
    waited: u64,
    to_headers: u64,
    in_body: u64,
}

type Responding = ResponseFuture<Inner, (), Answer, Fail>;

/// Where the permit is.
enum At {
    Unpolled,
    Waiting,
    Future,
    Body,
    Handle,
    Taken(SlotPermit),
    Over,
}

/// Runs it to its end.
pub(crate) fn run(clock: &Runtime, traffic: &Traffic) -> Result<(), Fault> {
    let _time = clock.enter();
    let mut drive = Drive::new(clock, traffic);
    for (at, step) in traffic.steps.iter().enumerate() {
        drive.step(at, step).map_err(|fault| format!("step {at}, {step:?}: {fault}"))?;
    }
    drive.finish().map_err(|fault| format!("afterwards: {fault}"))
}

// === impl Drive ===

impl<'a> Drive<'a> {
    fn new(clock: &'a Runtime, traffic: &Traffic) -> Self {
        let slots = Slots::new(traffic.config());
        let layer = |timings| SlotLayer::with_slots(slots.clone()).timings(timings);
        Self {
            clock,
            services: [false, true].map(|timings| layer(timings).layer(Inner::default())),
            slots,
            hold: traffic.hold,
            statistics: traffic.statistics,
            looks: traffic.looks,
            exchanges: Vec::new(),
            books: Default::default(),
        }
    }

    fn step(&mut self, at: usize, step: &Move) -> Result<(), Fault> {
        let pick = |pick: usize, count: usize| (count > 0).then(|| pick % count);
        let count = self.exchanges.len();
        match step {
            Move::Call(script) => self.call(script.clone()),
            Move::Poll(at) => pick(*at, count).map_or(Ok(()), |at| self.poll(at))?,
            Move::PollAll => (0..count).try_for_each(|at| self.poll(at))?,
            Move::Drop(at) => pick(*at, count).into_iter().for_each(|at| self.drop(at)),
            Move::Take(at) => pick(*at, count).map_or(Ok(()), |at| self.take(at))?,
            Move::DropHandle(at) => pick(*at, count).into_iter().for_each(|at| self.drop_handle(at)),
            Move::GiveBack(at) => pick(*at, count).into_iter().for_each(|at| self.give_back(at)),
            Move::Advance(ms) => self.advance(*ms),
            Move::Close => self.slots.close(),
        }
        if at % self.looks == 0 {
            self.compare()?;
        }
        self.exchanges.iter().try_for_each(Exchange::compare)?;
        self.exchanges.retain(|exchange| !exchange.is_over());
        Ok(())
    }

    /// Drops all there is.
    fn finish(&mut self) -> Result<(), Fault> {
        while !self.exchanges.is_empty() {
            for at in 0..self.exchanges.len() {
                self.drop(at);
                self.drop_handle(at);
                self.give_back(at);
            }
            self.compare()?;
            self.exchanges.iter().try_for_each(Exchange::compare)?;
            self.exchanges.retain(|exchange| !exchange.is_over());
        }
        let nobody = |book: &Book| book.in_flight == 0 && book.waiting == 0;
        hold("in flight and waiting return to 0", self.books.iter().all(nobody))?;
        self.slots.close();
        let mut drained = Box::pin(self.slots.drained());
        let drained = drained.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        hold("all is drained", drained.is_ready())
    }

    // --- act

    fn call(&mut self, script: Script) {
        let course = Course::new(script.clone());
        let service = &mut self.services[usize::from(script.timings)];
        service.get_mut().next = Some(course.clone());
        let future = service.call(script.request());
        self.exchanges.push(Exchange {
            script,
            course,
            future: Some(Box::pin(future)),
            resolved: false,
            body: None,
            handles: Vec::new(),
            permit: At::Unpolled,
            timings: None,
            waited: 0,
            to_headers: 0,
            in_body: 0,
        });
    }

    fn poll(&mut self, at: usize) -> Result<(), Fault> {
        let exchange = &mut self.exchanges[at];
        if exchange.body.is_some() {
            return self.poll_body(at);
        }
        let Some(future) = &mut exchange.future else { return Ok(()) };
        let polled =
            catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(Waker::noop()))));
        if exchange.resolved {
            return hold("a future that has resolved is pending", matches!(polled, Ok(Poll::Pending)));
        }
        let (begun, handle) = exchange.course.with(|course| (course.begun, course.handle.take()));
        exchange.handles.extend(handle);
        self.moves_on(at, begun);
        let exchange = &mut self.exchanges[at];
        match polled {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(result)) => {
                exchange.resolved = true;
                match result {
                    Ok(response) => self.responds(at, response)?,
                    Err(error) => self.fails(at, &*error)?,
                }
            }
            Err(panic) => {
                hold("only what is planned panics", is_planned(&*panic))?;
                exchange.resolved = true;
                self.ends(at, Ended::Failed);
            }
        }
        Ok(())
    }

    /// The slot has seen a request, and has let it start or not.
    fn moves_on(&mut self, at: usize, begun: bool) {
        let Exchange { permit, script, .. } = &mut self.exchanges[at];
        let book = &mut self.books[script.key];
        if let At::Unpolled = permit {
            *permit = At::Waiting;
            book.waiting += 1;
        }
        if let (At::Waiting, true) = (&permit, begun) {
            *permit = At::Future;
            book.waiting -= 1;
            book.in_flight += 1;
        }
    }

    fn fails(&mut self, at: usize, error: &(dyn std::error::Error + 'static)) -> Result<(), Fault> {
        let Some(error) = error.downcast_ref::<SlotError>() else {
            self.ends(at, Ended::Failed);
            return Ok(());
        };
        let Exchange { permit, script, waited, .. } = &mut self.exchanges[at];
        hold("only a waiter is refused", matches!(permit, At::Waiting))?;
        *permit = At::Over;
        let book = &mut self.books[script.key];
        book.waiting -= 1;
        match error.kind() {
            SlotErrorKind::WaitTimeout => book.timed_out += 1,
            _ => book.refused += 1,
        }
        same("time until the refusal", nanos(error.waited()), *waited)
    }

    fn responds(&mut self, at: usize, response: Response<SlotBody<Frames>>) -> Result<(), Fault> {
        let exchange = &mut self.exchanges[at];
        let hold_until = exchange.script.hold.unwrap_or(self.hold);
        let (parts, body) = response.into_parts();
        exchange.handles.extend(parts.extensions.get::<UpgradePermit>().cloned());
        exchange.timings = parts.extensions.get::<SlotTimings>().cloned();
        if let Some(timings) = &exchange.timings {
            same("timings: waited", nanos(timings.waited()), exchange.waited)?;
            same("timings: to the headers", nanos(timings.to_headers()), exchange.to_headers)?;
        }
        let ended = exchange.script.body.claims();
        exchange.body = Some(Box::pin(body));
        match exchange.permit {
            At::Future if hold_until == Hold::Headers => self.ends(at, Ended::Finished),
            At::Future if exchange.script.is_upgraded() => exchange.permit = At::Handle,
            At::Future if ended == Some(true) => self.ends(at, Ended::Finished),
            At::Future => {
                exchange.permit = At::Body;
                hold("the body was asked whether it is at its end", ended.is_some())?;
            }
            _ => {}
        }
        Ok(())
    }

    fn poll_body(&mut self, at: usize) -> Result<(), Fault> {
        let exchange = &mut self.exchanges[at];
        let Some(body) = &mut exchange.body else { return Ok(()) };
        let frames = &mut exchange.script.body;
        let passed = catch_unwind(AssertUnwindSafe(|| (body.is_end_stream(), body.size_hint().exact())));
        same(
            "what it says of its end",
            passed.ok(),
            frames.claims().map(|it| (it, Some(frames.turns.len() as u64))),
        )?;
        let polled = catch_unwind(AssertUnwindSafe(|| {
            body.as_mut().poll_frame(&mut Context::from_waker(Waker::noop()))
        }));
        let turn = frames.turns.pop_front();
        let held = matches!(exchange.permit, At::Body);
        let ended = match turn {
            None | Some(Turn::Trailers) => Some(Ended::Finished),
            Some(Turn::Error | Turn::Panic) => Some(Ended::Failed),
            Some(Turn::Pending) => None,
            Some(Turn::Data(_)) => match frames.claims() {
                Some(ended) => ended.then_some(Ended::Finished),
                None => Some(Ended::Failed),
            },
        };
        // Who holds no permit does not ask for the end.
        let panics = held && matches!(turn, Some(Turn::Data(_))) && frames.claims().is_none();
        let seen = match polled {
            Err(panic) => {
                hold("only what is planned panics", is_planned(&*panic))?;
                Some(Turn::Panic)
            }
            Ok(Poll::Pending) => Some(Turn::Pending),
            Ok(Poll::Ready(None)) => None,
            Ok(Poll::Ready(Some(Err(_)))) => Some(Turn::Error),
            Ok(Poll::Ready(Some(Ok(frame)))) => {
                Some(frame.into_data().map_or(Turn::Trailers, |data| Turn::Data(data.len() as u8)))
            }
        };
        same("frame", seen, if panics { Some(Turn::Panic) } else { turn })?;
        if let (true, Some(ended)) = (held, ended) {
            self.ends(at, ended);
        }
        Ok(())
    }

    fn drop(&mut self, at: usize) {
        let exchange = &mut self.exchanges[at];
        exchange.body = None;
        exchange.future = None;
        let book = &mut self.books[exchange.script.key];
        match exchange.permit {
            At::Unpolled => exchange.permit = At::Over,
            At::Waiting => {
                exchange.permit = At::Over;
                book.waiting -= 1;
                book.gone += 1;
            }
            At::Future | At::Body => self.ends(at, Ended::Cancelled),
            At::Handle | At::Taken(_) | At::Over => {}
        }
    }

    fn take(&mut self, at: usize) -> Result<(), Fault> {
        let exchange = &mut self.exchanges[at];
        let Some(handle) = exchange.handles.first() else { return Ok(()) };
        let taken = handle.take();
        same(
            "there was a permit to take",
            taken.is_some(),
            matches!(exchange.permit, At::Future | At::Handle),
        )?;
        if let Some(permit) = taken {
            exchange.permit = At::Taken(permit);
        }
        Ok(())
    }

    fn drop_handle(&mut self, at: usize) {
        let exchange = &mut self.exchanges[at];
        exchange.handles.pop();
        if exchange.handles.is_empty() && matches!(exchange.permit, At::Handle) {
            self.ends(at, Ended::Finished);
        }
    }

    fn give_back(&mut self, at: usize) {
        if let At::Taken(_) = self.exchanges[at].permit {
            self.ends(at, Ended::Finished);
        }
    }

    fn advance(&mut self, ms: u64) {
        self.clock.block_on(tokio::time::advance(Duration::from_millis(ms)));
        let nanos = ms * MS;
        for exchange in &mut self.exchanges {
            let book = &mut self.books[exchange.script.key];
            match exchange.permit {
                At::Unpolled | At::Over => {}
                At::Waiting => {
                    book.waited += nanos;
                    exchange.waited += nanos;
                }
                At::Future => book.headers += nanos,
                At::Body | At::Handle | At::Taken(_) => book.body += nanos,
            }
            match exchange.permit {
                // Also when the permit was taken out of the handle, and is back.
                At::Future | At::Taken(_) | At::Over if !exchange.resolved => exchange.to_headers += nanos,
                At::Body => exchange.in_body += nanos,
                _ => {}
            }
        }
    }

    /// A permit goes, unless somebody has taken it.
    fn ends(&mut self, at: usize, ended: Ended) {
        let exchange = &mut self.exchanges[at];
        let book = &mut self.books[exchange.script.key];
        match (std::mem::replace(&mut exchange.permit, At::Over), ended) {
            (At::Taken(permit), Ended::Failed | Ended::Cancelled) => exchange.permit = At::Taken(permit),
            (At::Over, _) => {}
            (_, ended) => book.ends(ended),
        }
    }

    // --- compare

    fn compare(&self) -> Result<(), Fault> {
        for (name, book) in NAMES.iter().zip(&self.books) {
            let Some(real) = self.slots.stats(*name) else {
                // Those who came after the close.
                continue;
            };
            let book = if self.statistics { *book } else { Book { headers: 0, body: 0, ..*book } };
            same(&format!("slot {name:?}"), Book::of(&real)?, book)?;
        }
        let total = self.slots.snapshot().total;
        let in_flight = self.books.iter().map(|book| book.in_flight).sum::<usize>();
        same("total in flight", total.in_flight, in_flight)?;
        hold("in flight <= total", total.limit.is_none_or(|limit| in_flight <= limit))
    }
}

// === impl Exchange ===

impl Exchange {
    /// Whether nothing of it is left.
    fn is_over(&self) -> bool {
        let gone = self.future.is_none() && self.body.is_none() && self.handles.is_empty();
        gone && matches!(self.permit, At::Over)
    }

    fn compare(&self) -> Result<(), Fault> {
        let Some(timings) = &self.timings else { return Ok(()) };
        match self.permit {
            At::Body => same("timings: in the body", timings.body(), None),
            _ => hold("timings: in the body", timings.body().is_none_or(|it| nanos(it) == self.in_body)),
        }
    }
}
