//! Random traffic: the limits in force, and what callers do with their requests.

use std::fmt;
use std::time::Duration;

use proptest::prelude::*;
use tower_slot::{Hold, SlotConfig};

use crate::script::Script;

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    concurrency: usize,
    total: Option<usize>,
    delay: u64,
    timeout: Option<u64>,
    capacity: Option<usize>,
    pub(crate) hold: Hold,
    pub(crate) statistics: bool,
    /// After how many steps somebody looks at the slots: what is told without a lock waits until then.
    pub(crate) looks: usize,
    pub(crate) steps: Vec<Move>,
}

/// One step; a pick is taken modulo the number of requests.
#[derive(Clone, Debug)]
pub(crate) enum Move {
    Call(Script),
    /// Polls the response future, or the body.
    Poll(usize),
    PollAll,
    /// Drops the response future or the body.
    Drop(usize),
    /// Takes the permit out of the handle for an upgrade.
    Take(usize),
    DropHandle(usize),
    /// Drops the permit that was taken.
    GiveBack(usize),
    Advance(u64),
    Close,
}

// === impl Traffic ===

impl Traffic {
    pub(crate) fn any(steps: usize) -> impl Strategy<Value = Self> {
        let some = |most: usize| prop_oneof![Just(None), (0..most).prop_map(Some)];
        let limits = (1..4_usize, some(3), prop_oneof![2 => Just(0), 1 => 0..4_u64], some(8), some(4));
        let hold = prop_oneof![3 => Just(Hold::Body), 1 => Just(Hold::Headers)];
        let sight = (prop_oneof![4 => Just(true), 1 => Just(false)], prop_oneof![Just(1), 2..20_usize]);
        (limits, hold, sight, proptest::collection::vec(Move::any(), 1..=steps)).prop_map(
            |((concurrency, total, delay, timeout, capacity), hold, (statistics, looks), steps)| Self {
                concurrency,
                total: total.map(|total| total + 1),
                delay,
                timeout: timeout.map(|timeout| timeout as u64),
                capacity,
                hold,
                statistics,
                looks,
                steps,
            },
        )
    }

    pub(crate) fn config(&self) -> SlotConfig {
        let mut config = SlotConfig::builder()
            .concurrency(self.concurrency)
            .delay(Duration::from_millis(self.delay))
            .hold(self.hold)
            .statistics(self.statistics)
            .max_slots(64);
        if let Some(total) = self.total {
            config = config.total_concurrency(total);
        }
        if let Some(timeout) = self.timeout {
            config = config.wait_timeout(Duration::from_millis(timeout));
        }
        if let Some(capacity) = self.capacity {
            config = config.queue_capacity(capacity);
        }
        config.build().expect("it has no fault")
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { concurrency, total, delay, timeout, capacity, hold, statistics, looks, steps } = self;
        writeln!(f, "concurrency {concurrency}, total {total:?}, delay {delay}, timeout {timeout:?}")?;
        writeln!(f, "capacity {capacity:?}, hold {hold:?}, statistics {statistics}, looks {looks}")?;
        steps.iter().enumerate().try_for_each(|(at, step)| writeln!(f, "{at:3} {step:?}"))
    }
}

// === impl Move ===

impl Move {
    fn any() -> impl Strategy<Value = Self> {
        let pick = || 0..16_usize;
        prop_oneof![
            20 => Script::any().prop_map(Self::Call),
            20 => pick().prop_map(Self::Poll),
            10 => Just(Self::PollAll),
            8 => pick().prop_map(Self::Drop),
            4 => pick().prop_map(Self::Take),
            4 => pick().prop_map(Self::DropHandle),
            3 => pick().prop_map(Self::GiveBack),
            8 => (1..4_u64).prop_map(Self::Advance),
            1 => prop_oneof![4 => Just(Self::PollAll), 1 => Just(Self::Close)],
        ]
    }
}
