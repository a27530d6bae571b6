//! Drives the crate and the model with one schedule and compares them after every step. Futures are polled by
//! hand, on a paused clock, and only when they were woken, unless a schedule says otherwise.

use std::future::Future;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::Instant;
use tower_slot::{SlotConfig, SlotErrorKind, SlotKey, SlotPermit, Slots};

use crate::compare::{Fault, hold, limits, same, same_stall};
use crate::model::{Model, Waiter};
use crate::schedule::{NAMES, PATTERNS, Schedule, Setup, Spread, Step, Target};
use crate::tasks::{Permit, Ring, Task, Waiting};
use crate::words::{Answer, Id, MS};

/// The crate, the model, and those who wait.
pub(crate) struct Drive<'a> {
    pub(crate) clock: &'a Runtime,
    pub(crate) epoch: Instant,
    pub(crate) slots: Slots,
    pub(crate) model: Model,
    /// How many of the names are used.
    pub(crate) names: usize,
    pub(crate) tasks: Vec<Task>,
    pub(crate) permits: Vec<Permit>,
    pub(crate) drained: Vec<Waiting>,
    next_id: Id,
    /// By slot: those that started since it stands in line for the total without being called, as bits.
    passed: [Option<u8>; NAMES.len()],
    /// By slot: when the last one started.
    pub(crate) last: [Option<u64>; NAMES.len()],
    figures: Figures,
}

/// How much was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) schedules: u64,
    pub(crate) steps: u64,
    pub(crate) polls: u64,
    pub(crate) starts: u64,
    pub(crate) refusals: u64,
    pub(crate) dropped: u64,
    pub(crate) wakes: u64,
    pub(crate) recycled: u64,
}

/// Runs a schedule from its beginning to the end of all who wait.
pub(crate) fn run(clock: &Runtime, schedule: &Schedule) -> Result<Figures, Fault> {
    let _time = clock.enter();
    fastrand::seed(schedule.setup.seed);
    let mut drive = Drive::new(clock, &schedule.setup);
    for (at, step) in schedule.steps.iter().enumerate() {
        drive.step(step).map_err(|fault| format!("step {at}, {step:?}: {fault}"))?;
    }
    drive.finish().map_err(|fault| format!("afterwards: {fault}"))?;
    Ok(drive.figures)
}

// === impl Drive ===

impl<'a> Drive<'a> {
    fn new(clock: &'a Runtime, setup: &Setup) -> Self {
        let mut config = SlotConfig::builder()
            .idle_timeout(Duration::from_millis(setup.idle_timeout))
            .max_slots(setup.max_slots);
        if let Some(total) = setup.total {
            config = config.total_concurrency(total);
        }
        for (target, change) in &setup.named {
            config = config.slot(name(*target), limits(*change));
        }
        let epoch = Instant::now();
        let slots = Slots::new(config.build().expect("it has no fault"));
        for change in &setup.defaults {
            slots.configure_default(limits(*change)).expect("it has no fault");
        }
        Self {
            clock,
            epoch,
            slots,
            model: Model::new(setup),
            names: setup.slots,
            tasks: Vec::new(),
            permits: Vec::new(),
            drained: Vec::new(),
            next_id: 0,
            passed: [None; NAMES.len()],
            last: [None; NAMES.len()],
            figures: Figures::default(),
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), Fault> {
        self.figures.steps += 1;
        match *step {
            Step::Acquire { slot, polled } => {
                let at = self.acquire(slot % self.names)?;
                if polled {
                    self.poll(at)?;
                }
            }
            Step::TryAcquire { slot } => self.try_acquire(slot % self.names)?,
            Step::FirstPoll { pick } => self.poll_one(pick, |task| !task.polled)?,
            Step::Poll { pick } => self.poll_one(pick, |task| task.woken.is_some())?,
            Step::Move { pick } => {
                let others = |task: &Task| task.polled;
                if let Some(at) = self.pick(pick, others) {
                    self.tasks[at].ring = Ring::default();
                    self.poll(at)?;
                }
            }
            Step::Settle { order } => self.settle(order)?,
            Step::Drop { pick } => {
                if let Some(at) = self.pick(pick, |_| true) {
                    let Task { id, key, future, .. } = self.tasks.remove(at);
                    drop(future);
                    self.model.forget(key, id);
                    self.figures.dropped += 1;
                }
            }
            Step::Release { pick } => {
                if !self.permits.is_empty() {
                    self.release(pick % self.permits.len());
                }
            }
            Step::Run { ms, order } => self.run(ms, order)?,
            Step::Stall { ms } => (0..ms).for_each(|_| self.advance()),
            Step::Configure { target, change } => {
                match target {
                    Target::Default => self.slots.configure_default(limits(change)),
                    _ => self.slots.configure(name(target), limits(change)),
                }
                .expect("it has no fault");
                self.model.configure(target, change);
                self.learn()?;
                self.model.look_again();
            }
            Step::Total { limit } => {
                self.slots.configure_total(limit).expect("it has no fault");
                self.model.total = limit;
            }
            Step::Pause { slot, ms } => {
                let key = slot % self.names;
                self.slots.pause(NAMES[key], self.instant(self.model.now + ms * MS));
                self.model.pause(key, self.model.now + ms * MS);
                self.model.look_again();
            }
            Step::Resume { slot } => {
                self.slots.resume(NAMES[slot % self.names]);
                self.model.resume(slot % self.names);
                self.learn()?;
            }
            Step::RetainRecent => {
                self.slots.retain_recent();
                self.retained()?;
            }
            Step::Drained => self.drained.push(Waiting {
                future: Box::pin(self.slots.drained()),
                ring: Ring::default(),
                polled: false,
            }),
            Step::Close => {
                self.slots.close();
                self.model.close();
            }
        }
        self.compare()
    }

    /// Lets all who wait come to their end.
    fn finish(&mut self) -> Result<(), Fault> {
        for (key, name) in NAMES.iter().enumerate().take(self.names) {
            self.slots.resume(*name);
            self.model.resume(key);
        }
        self.learn()?;
        while let Some(at) = self.tasks.iter().position(|task| !task.polled) {
            self.poll(at)?;
        }
        self.settle(0)?;
        for _ in 0..400 {
            if self.tasks.is_empty() {
                break;
            }
            while !self.permits.is_empty() {
                self.release(0);
            }
            self.compare()?;
            self.settle(0)?;
            self.run(1, 0)?;
        }
        hold("all who wait come to an end", self.tasks.is_empty())?;
        self.permits.clear();
        let snapshot = self.slots.snapshot();
        same("in flight at the end", snapshot.total.in_flight, 0)?;
        same("in line at the end", snapshot.total.line, 0)?;
        self.figures.recycled = snapshot.recycled.slots;
        Ok(())
    }

    // --- act

    fn acquire(&mut self, key: usize) -> Result<usize, Fault> {
        let id = self.id();
        let future = Box::pin(self.slots.acquire(NAMES[key]));
        self.tasks.push(Task {
            id,
            key,
            future,
            ring: Ring::default(),
            polled: false,
            woken: None,
            by_timer: false,
        });
        self.swept(key)?;
        self.model.acquire(key, id);
        Ok(self.tasks.len() - 1)
    }

    fn try_acquire(&mut self, key: usize) -> Result<(), Fault> {
        let id = self.id();
        let stalled = self.stalled(key);
        let real = Poll::Ready(self.slots.try_acquire(NAMES[key]));
        self.swept(key)?;
        let answer = self.model.try_acquire(key, id);
        same("what came of it", self.answer(&real), answer)?;
        match real {
            Poll::Ready(Ok(permit)) => self.started(key, id, permit),
            Poll::Ready(Err(error)) => same_stall(error.stalled(), stalled),
            Poll::Pending => Ok(()),
        }
    }

    fn poll(&mut self, at: usize) -> Result<(), Fault> {
        self.figures.polls += 1;
        self.hear(false);
        let stalled = self.stalled(self.tasks[at].key).filter(|_| self.model.has_slot(self.tasks[at].id));
        let task = &mut self.tasks[at];
        let (id, key) = (task.id, task.key);
        let front = self.model.slots.get(&key).and_then(|slot| slot.queue.first());
        let front = front.map(|first| first.id);
        // One that only its own timer woke is not late when it times out.
        let on_time = task.by_timer && front == Some(id);
        (task.polled, task.woken, task.by_timer) = (true, None, false);
        let real = task.future.as_mut().poll(&mut Context::from_waker(&task.ring.waker()));
        hold("no future wakes itself", !task.ring.rung())?;
        let answer = self.model.poll(key, id);
        let started = answer == Answer::Started;
        same(&format!("poll of {id}"), self.answer(&real), answer)?;
        hold("first in, first out", !started || front.is_none_or(|front| front == id))?;
        match real {
            Poll::Pending => {}
            Poll::Ready(real) => {
                // Finished futures are dropped later than they resolve, as callers do.
                let _done = self.tasks.remove(at);
                match real {
                    Ok(permit) => self.started(key, id, permit)?,
                    Err(error) => {
                        self.figures.refusals += 1;
                        let on_time = on_time && error.kind() == SlotErrorKind::WaitTimeout;
                        same_stall(error.stalled(), stalled.filter(|_| !on_time))?;
                    }
                }
            }
        }
        self.compare().map_err(|fault| format!("after the poll of {id}: {fault}"))
    }

    fn started(&mut self, key: usize, id: Id, permit: SlotPermit) -> Result<(), Fault> {
        self.figures.starts += 1;
        self.permits.push(Permit { id, key, permit });
        let in_flight = |key: usize| self.permits.iter().filter(|permit| permit.key == key).count();
        let limits = self.model.slots[&key].limits;
        hold("in flight <= concurrency", limits.concurrency.is_none_or(|most| in_flight(key) <= most))?;
        hold("in flight <= total", self.model.total.is_none_or(|most| self.permits.len() <= most))?;
        let least = match limits.jitter {
            Spread::Percent(percent) => limits.delay * (100 - u64::from(percent)) / 100,
            Spread::UpTo(_) => limits.delay,
        };
        let last = self.last[key].replace(self.model.now);
        hold("the shortest gap", last.is_none_or(|last| self.model.now >= last + least))?;
        for (other, passed) in self.passed.iter_mut().enumerate().filter(|(other, _)| *other != key) {
            if let Some(passed) = passed {
                let fair =
                    format!("{:?} does not start twice while {:?} is in line", NAMES[key], NAMES[other]);
                hold(&fair, *passed & 1 << key == 0)?;
                *passed |= 1 << key;
            }
        }
        self.learn()
    }

    fn release(&mut self, at: usize) {
        let Permit { id, key, permit } = self.permits.remove(at);
        drop(permit);
        self.model.release(key, id);
    }

    fn poll_one(&mut self, pick: usize, of: impl Fn(&Task) -> bool) -> Result<(), Fault> {
        self.pick(pick, of).map_or(Ok(()), |at| self.poll(at))
    }

    /// Polls all who were woken, in some order, until nobody is; then whatever can start has started.
    fn settle(&mut self, mut order: u64) -> Result<(), Fault> {
        self.hear(false);
        for _ in 0..10_000 {
            order = order.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let Some(at) = self.pick((order >> 33) as usize, |task| task.woken.is_some()) else {
                return self.is_settled();
            };
            self.poll(at)?;
        }
        Err("they wake each other without end".to_owned())
    }

    fn is_settled(&self) -> Result<(), Fault> {
        for (key, slot) in &self.model.slots {
            let Some(first) = slot.queue.first() else { continue };
            hold("nobody waits after the close", !self.model.closed)?;
            let lost = |what: &str| format!("a wakeup was lost: {} of {:?} {what}", first.id, NAMES[*key]);
            let reason = self.model.shut(*key);
            hold(&lost("can start"), reason.is_some())?;
            hold(&lost("waits for something else"), reason == slot.reason)?;
            let late = |waiter: &Waiter| waiter.deadline.is_some_and(|deadline| deadline <= self.model.now);
            hold(&lost("or a later one is over time"), !slot.queue.iter().any(late))?;
        }
        Ok(())
    }

    fn run(&mut self, ms: u64, order: u64) -> Result<(), Fault> {
        self.settle(order)?;
        for passed in 0..ms {
            self.advance();
            self.settle(order ^ passed)?;
        }
        Ok(())
    }

    /// One millisecond passes.
    fn advance(&mut self) {
        self.hear(false);
        self.clock.block_on(tokio::time::advance(Duration::from_millis(1)));
        self.model.advance(MS);
        self.hear(true);
    }

    /// Notes who was woken, by timers or by the slots.
    pub(crate) fn hear(&mut self, by_timers: bool) {
        for task in &mut self.tasks {
            let rings = task.ring.take();
            self.figures.wakes += rings;
            if rings > 0 {
                task.by_timer = by_timers && task.woken.is_none_or(|_| task.by_timer);
                task.woken = task.woken.or(Some(self.model.now));
            }
        }
    }

    fn pick(&self, pick: usize, of: impl Fn(&Task) -> bool) -> Option<usize> {
        let matching = || self.tasks.iter().enumerate().filter(|(_, task)| of(task));
        let count = matching().count();
        (count > 0).then(|| matching().nth(pick % count)).flatten().map(|(at, _)| at)
    }

    fn id(&mut self) -> Id {
        self.next_id += 1;
        self.next_id
    }
}

// === impl Figures ===

impl Figures {
    pub(crate) fn plus(self, more: Self) -> Self {
        Self {
            schedules: self.schedules + 1,
            steps: self.steps + more.steps,
            polls: self.polls + more.polls,
            starts: self.starts + more.starts,
            refusals: self.refusals + more.refusals,
            dropped: self.dropped + more.dropped,
            wakes: self.wakes + more.wakes,
            recycled: self.recycled + more.recycled,
        }
    }
}

/// The name of a slot or a pattern.
fn name(target: Target) -> SlotKey {
    match target {
        Target::Slot(key) => NAMES[key].into(),
        Target::Pattern(pattern) => PATTERNS[pattern].into(),
        Target::Default => panic!("the defaults have no name"),
    }
}
