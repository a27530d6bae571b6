//! Schedules that have found a fault in the crate. A seed holds only as long as the strategies stay as they are.

use crate::schedule::{Change, Schedule, Setup, Step, Target};

/// Each with what was wrong.
pub(crate) fn schedules() -> [(&'static str, Schedule); 4] {
    let acquire = |slot| Step::Acquire { slot, polled: true };
    let release = Step::Release { pick: 0 };
    let one = Setup {
        seed: 0,
        slots: 2,
        defaults: vec![Change::Concurrency(Some(1))],
        named: Vec::new(),
        total: None,
        idle_timeout: 60_000,
        max_slots: 64,
    };
    [
        (
            "the longest wait by reason was not kept",
            Schedule {
                setup: one.clone(),
                steps: vec![acquire(0), acquire(0), Step::Run { ms: 1, order: 0 }, release.clone()],
            },
        ),
        (
            "a first waiter woken by its own wait timeout did not count as stalled",
            Schedule {
                setup: Setup { defaults: vec![one.defaults[0], Change::Timeout(Some(1))], ..one.clone() },
                steps: vec![acquire(0), acquire(0), Step::Stall { ms: 2 }, release.clone()],
            },
        ),
        (
            "a slot that does not count was evicted, and made no room",
            Schedule {
                setup: Setup {
                    named: vec![(Target::Slot(1), Change::Delay(0))],
                    max_slots: 1,
                    slots: 3,
                    ..one.clone()
                },
                steps: vec![acquire(1), release.clone(), acquire(0), release, acquire(2)],
            },
        ),
        (
            "a try after the close did not tell what the slot waits for",
            Schedule {
                setup: one,
                steps: vec![acquire(0), acquire(0), Step::Close, Step::TryAcquire { slot: 0 }],
            },
        ),
    ]
}
