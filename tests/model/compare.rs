//! Compares all that the crate shows with the model.

use std::fmt::Debug;
use std::future::Future;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use tower_slot::{
    Counts, Jitter, Phases, SlotError, SlotErrorKind, SlotLimits, SlotPermit, SlotStats, WaitReason,
};

use crate::drive::Drive;
use crate::model::Slot;
use crate::schedule::{Change, NAMES, Spread};
use crate::settings::Limits;
use crate::tasks::Waiting;
use crate::words::{Answer, Kind, MS, Reason, Refusal, Sums};

/// What is wrong.
pub(crate) type Fault = String;

/// Fails unless both are the same.
pub(crate) fn same<T: PartialEq + Debug>(what: &str, real: T, model: T) -> Result<(), Fault> {
    match real == model {
        true => Ok(()),
        false => Err(format!("{what}: {real:?} in the crate, {model:?} in the model")),
    }
}

/// Fails unless it holds.
pub(crate) fn hold(rule: &str, holds: bool) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(format!("broken: {rule}")) }
}

/// A change as the crate takes it.
pub(crate) fn limits(change: Change) -> SlotLimits {
    let limits = SlotLimits::new();
    match change {
        Change::Concurrency(Some(n)) => limits.concurrency(n),
        Change::Concurrency(None) => limits.unlimited_concurrency(),
        Change::Delay(ms) => limits.delay(Duration::from_millis(ms)),
        Change::Jitter(spread) => limits.jitter(jitter(spread)),
        Change::Capacity(Some(n)) => limits.queue_capacity(n),
        Change::Capacity(None) => limits.unbounded_queue(),
        Change::Timeout(Some(ms)) => limits.wait_timeout(Duration::from_millis(ms)),
        Change::Timeout(None) => limits.no_wait_timeout(),
    }
}

fn jitter(spread: Spread) -> Jitter {
    match spread {
        Spread::Percent(percent) => Jitter::ratio(f64::from(percent) / 100.0),
        Spread::UpTo(ms) => Jitter::up_to(Duration::from_millis(ms)),
    }
}

fn reason(reason: WaitReason) -> Reason {
    match reason {
        WaitReason::Concurrency => Reason::Concurrency,
        WaitReason::Pace => Reason::Pace,
        WaitReason::Total => Reason::Total,
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

fn phases(phases: Phases) -> [u64; 5] {
    let Phases { concurrency, pace, total, headers, body, .. } = phases;
    [concurrency, pace, total, body, headers].map(nanos)
}

/// Fails unless both have stalled for the same time. A timer goes off at most a millisecond late.
pub(crate) fn same_stall(real: Option<Duration>, woken: Option<u64>) -> Result<(), Fault> {
    let near = |woken: u64| real.is_some_and(|real| (woken..woken + MS).contains(&nanos(real)));
    let real = if woken.is_some_and(near) { woken } else { real.map(nanos) };
    same("stalled", real, woken)
}

fn check_counts(real: &Counts, sums: &Sums, in_flight: usize, waiting: usize) -> Result<(), Fault> {
    let started = sums.finished + in_flight as u64;
    same("finished", real.finished, sums.finished)?;
    same("failed and cancelled", (real.failed, real.cancelled), (0, 0))?;
    same("started", real.started, started)?;
    same("refused", real.refused, sums.refused)?;
    same("timed out", real.timed_out, sums.timed_out)?;
    same("gone", real.gone, sums.gone)?;
    same("asked", real.asked, started + sums.refused + sums.timed_out + sums.gone + waiting as u64)
}

fn check_times(real: &Phases, longest: &Phases, sums: &Sums) -> Result<(), Fault> {
    let with_headers = |times: [u64; 4]| [times[0], times[1], times[2], times[3], 0];
    same("times", phases(*real), with_headers(sums.times))?;
    same("longest times", phases(*longest), with_headers(sums.longest))
}

// === impl Drive ===

impl Drive<'_> {
    /// Compares all there is to see.
    pub(crate) fn compare(&mut self) -> Result<(), Fault> {
        self.hear(false);
        for (key, name) in NAMES.iter().enumerate().take(self.names) {
            match (self.slots.stats(*name), self.model.slots.get(&key)) {
                (None, None) => {}
                (None, Some(_)) => self.recycled(key)?,
                (Some(_), None) => return Err(format!("{name:?} came from nowhere")),
                (Some(real), Some(slot)) => {
                    self.compare_slot(key, &real, slot).map_err(|fault| format!("slot {name:?}: {fault}"))?
                }
            }
        }
        self.compare_all()?;
        self.compare_drained()
    }

    /// Follows a look-up, which may have recycled slots before it made one.
    pub(crate) fn swept(&mut self, key: usize) -> Result<(), Fault> {
        // One look serves both: it may take an idle slot for its room before it comes by one that is due.
        let crowded = self.model.is_crowded(key);
        let gone =
            |key: &usize| self.model.slots.contains_key(key) && self.slots.stats(NAMES[*key]).is_none();
        let mut gone = (0..self.names).filter(|other| *other != key).filter(gone).collect::<Vec<_>>();
        let remade = self.slots.snapshot().recycled.slots > self.model.recycled.0 + gone.len() as u64;
        if remade || (self.model.slots.contains_key(&key) && self.slots.stats(NAMES[key]).is_none()) {
            gone.push(key);
        }
        let (swept, evicted): (Vec<_>, Vec<_>) = gone.into_iter().partition(|key| self.model.may_go(*key));
        swept.into_iter().try_for_each(|key| self.recycled(key))?;
        hold("one makes room for one", evicted.len() <= 1)?;
        for other in evicted {
            let fit = crowded && self.model.may_make_room(other);
            hold(&format!("{:?} makes room only if it is idle and counts", NAMES[other]), fit)?;
            self.forget(other);
        }
        let idle =
            self.model.is_crowded(key) && self.model.slots.keys().any(|key| self.model.may_make_room(*key));
        hold("an idle slot makes room for another", !idle)
    }

    fn recycled(&mut self, key: usize) -> Result<(), Fault> {
        hold(&format!("{:?} is recycled when idle", NAMES[key]), self.model.may_go(key))?;
        self.forget(key);
        Ok(())
    }

    /// Checks that all that has to be recycled is.
    pub(crate) fn retained(&self) -> Result<(), Fault> {
        for (key, name) in NAMES.iter().enumerate().take(self.names) {
            let must_go = self.model.slots.contains_key(&key) && self.model.must_go(key);
            hold(
                &format!("{name:?} is idle and gets recycled"),
                !must_go || self.slots.stats(*name).is_none(),
            )?;
        }
        Ok(())
    }

    fn forget(&mut self, key: usize) {
        self.model.recycle(key);
        self.last[key] = None;
    }

    fn compare_slot(&self, key: usize, real: &SlotStats, slot: &Slot) -> Result<(), Fault> {
        let now = self.model.now;
        let Limits { concurrency, delay, jitter: spread, capacity, timeout } = slot.limits;
        same("concurrency", real.limits.concurrency, concurrency)?;
        same("delay", nanos(real.limits.delay), delay)?;
        same("jitter", real.limits.jitter, jitter(spread))?;
        same("capacity", real.limits.queue_capacity, capacity)?;
        same("timeout", real.limits.wait_timeout.map(nanos), timeout)?;
        same("in flight", real.in_flight, slot.permits.len())?;
        same("waiting", real.waiting, slot.queue.len())?;
        same("reason", real.reason.map(reason), slot.reason)?;
        same(
            "oldest permit",
            real.oldest_permit.map(nanos),
            slot.permits.first().map(|(_, since)| now - since),
        )?;
        same(
            "oldest waiter",
            real.oldest_waiter.map(nanos),
            slot.queue.first().map(|first| now - first.asked),
        )?;
        same("next start", self.later(real.next_start), Some(slot.next_start()).filter(|next| *next > now))?;
        same("pause", self.later(real.paused_until), Some(slot.paused).filter(|until| *until > now))?;
        same_stall(real.stalled, self.stalled(key))?;
        check_counts(&real.counts, &slot.sums, slot.permits.len(), slot.queue.len())?;
        check_times(&real.times, &real.longest, &slot.sums)
    }

    /// For how long the first waiter has been woken and not polled.
    pub(crate) fn stalled(&self, key: usize) -> Option<u64> {
        let first = self.model.slots.get(&key)?.queue.first()?;
        let woken = self.tasks.iter().find(|task| task.id == first.id)?.woken?;
        Some(self.model.now - woken)
    }

    fn compare_all(&self) -> Result<(), Fault> {
        let real = self.slots.snapshot();
        same("slots", real.slots.len(), self.model.slots.len())?;
        same("total", real.total.limit, self.model.total)?;
        same("total in flight", real.total.in_flight, self.model.in_flight())?;
        same("line", real.total.line, self.model.line.len())?;
        let (count, sums) = &self.model.recycled;
        same("recycled slots", real.recycled.slots, *count)?;
        check_counts(&real.recycled.counts, sums, 0, 0)?;
        check_times(&real.recycled.times, &real.recycled.longest, sums)
    }

    fn compare_drained(&mut self) -> Result<(), Fault> {
        let empty = self.model.closed && self.model.in_flight() == 0;
        for Waiting { future, ring, polled } in &mut self.drained {
            hold("whoever waits for the end is woken", !empty || !*polled || ring.rung())?;
            let real = future.as_mut().poll(&mut Context::from_waker(&ring.waker()));
            same("drained", real.is_ready(), empty)?;
            *polled = true;
        }
        if empty {
            self.drained.clear();
        }
        Ok(())
    }

    /// Learns what the crate has drawn: it has to be within the bounds.
    pub(crate) fn learn(&mut self) -> Result<(), Fault> {
        let now = self.model.now;
        for (key, name) in NAMES.iter().enumerate().take(self.names) {
            let Some(slot) = self.model.slots.get_mut(&key) else { continue };
            let told = self.slots.stats(*name).and_then(|stats| stats.next_start);
            let told = told.map(|told| nanos(told - self.epoch));
            let Some(next) = slot.next.learn(slot.paused.max(now), told) else {
                return Err(format!("next start of {name:?}: {told:?}, not within {:?}", slot.next));
            };
            slot.next = next;
            let limits = slot.limits;
            if let Some(last) = &mut slot.last {
                last.learn(limits, next);
            }
        }
        Ok(())
    }

    pub(crate) fn answer(&self, real: &Poll<Result<SlotPermit, SlotError>>) -> Answer {
        match real {
            Poll::Pending => Answer::Wait,
            Poll::Ready(Ok(_)) => Answer::Started,
            Poll::Ready(Err(error)) => Answer::Refused(Refusal {
                kind: match error.kind() {
                    SlotErrorKind::QueueFull => Kind::QueueFull,
                    SlotErrorKind::WaitTimeout => Kind::WaitTimeout,
                    SlotErrorKind::Closed => Kind::Closed,
                    SlotErrorKind::TooManySlots => Kind::TooManySlots,
                    other => panic!("refused with {other:?}"),
                },
                reason: error.reason().map(reason),
                waited: nanos(error.waited()),
                in_flight: error.in_flight(),
                oldest: error.oldest().map(nanos),
                earliest: self.later(error.earliest_start()),
            }),
        }
    }

    pub(crate) fn instant(&self, nanos: u64) -> Instant {
        self.epoch + Duration::from_nanos(nanos)
    }

    fn later(&self, moment: Option<Instant>) -> Option<u64> {
        moment.map(|moment| nanos(moment - self.epoch))
    }
}
