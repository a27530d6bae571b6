//! Random schedules: what is set at the beginning, and what happens then. They shrink to few and small steps.

use std::fmt;

use proptest::prelude::*;

/// The names of the slots, in order; the second to the last match the first pattern, the last both.
pub(crate) const NAMES: [&str; 4] = ["a", "b.x", "c.x", "d.c.x"];

/// Patterns, the longer one last.
pub(crate) const PATTERNS: [&str; 2] = ["*.x", "*.c.x"];

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) setup: Setup,
    pub(crate) steps: Vec<Step>,
}

/// What holds at the beginning.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// For the draws of the jitter.
    pub(crate) seed: u64,
    /// How many of the names are used.
    pub(crate) slots: usize,
    pub(crate) defaults: Vec<Change>,
    pub(crate) named: Vec<(Target, Change)>,
    pub(crate) total: Option<usize>,
    /// In milliseconds.
    pub(crate) idle_timeout: u64,
    pub(crate) max_slots: usize,
}

/// One step. A pick is taken modulo the number of what there is to pick from; times are in milliseconds.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A future is made; it is polled at once or left alone for now.
    Acquire {
        slot: usize,
        polled: bool,
    },
    TryAcquire {
        slot: usize,
    },
    /// A future that was never polled is polled.
    FirstPoll {
        pick: usize,
    },
    /// One of those that were woken is polled.
    Poll {
        pick: usize,
    },
    /// A future is polled although nobody woke it, or not this time, and by another task than before.
    Move {
        pick: usize,
    },
    /// All that were woken are polled, in an order that follows from the number.
    Settle {
        order: u64,
    },
    /// A future is dropped, wherever it stands.
    Drop {
        pick: usize,
    },
    /// A permit is given back.
    Release {
        pick: usize,
    },
    /// Time goes on by one millisecond after the other; after each, all that were woken are polled.
    Run {
        ms: u64,
        order: u64,
    },
    /// Time goes on and nobody polls.
    Stall {
        ms: u64,
    },
    Configure {
        target: Target,
        change: Change,
    },
    Total {
        limit: Option<usize>,
    },
    Pause {
        slot: usize,
        ms: u64,
    },
    Resume {
        slot: usize,
    },
    RetainRecent,
    /// Somebody waits for the slots to be drained.
    Drained,
    Close,
}

/// What a change is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Default,
    Slot(usize),
    Pattern(usize),
}

/// One limit; `None` is unlimited, times are in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Concurrency(Option<usize>),
    Delay(u64),
    Jitter(Spread),
    Capacity(Option<usize>),
    Timeout(Option<u64>),
}

/// Jitter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Spread {
    Percent(u8),
    UpTo(u64),
}

// === impl Schedule ===

impl Schedule {
    pub(crate) fn any(steps: usize) -> impl Strategy<Value = Self> {
        (Setup::any(), proptest::collection::vec(Step::any(), 1..=steps))
            .prop_map(|(setup, steps)| Self { setup, steps })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.setup)?;
        self.steps.iter().enumerate().try_for_each(|(at, step)| writeln!(f, "{at:3} {step:?}"))
    }
}

// === impl Setup ===

impl Setup {
    fn any() -> impl Strategy<Value = Self> {
        let total = prop_oneof![1 => Just(None), 4 => (1..4_usize).prop_map(Some)];
        let idle_timeout = prop_oneof![0..20_u64, Just(60_000)];
        let crowded = (1..4_usize).prop_map(|n| Change::Concurrency(Some(n)));
        let defaults = (crowded, proptest::collection::vec(Change::any(), 0..4))
            .prop_map(|(crowded, changes)| [&[crowded], &changes[..]].concat());
        let named = proptest::collection::vec((Target::named(), Change::any()), 0..4);
        let max_slots = prop_oneof![3 => Just(64), 1 => 1..4_usize];
        (any::<u64>(), 2..=NAMES.len(), defaults, named, total, idle_timeout, max_slots).prop_map(
            |(seed, slots, defaults, named, total, idle_timeout, max_slots)| Self {
                seed,
                slots,
                defaults,
                named,
                total,
                idle_timeout,
                max_slots,
            },
        )
    }
}

// === impl Step ===

impl Step {
    fn any() -> impl Strategy<Value = Self> {
        let slot = || 0..NAMES.len();
        let pick = || 0..16_usize;
        prop_oneof![
            24 => (slot(), prop::bool::weighted(0.85)).prop_map(|(slot, polled)| Self::Acquire { slot, polled }),
            3 => slot().prop_map(|slot| Self::TryAcquire { slot }),
            3 => pick().prop_map(|pick| Self::FirstPoll { pick }),
            6 => pick().prop_map(|pick| Self::Poll { pick }),
            3 => pick().prop_map(|pick| Self::Move { pick }),
            8 => any::<u64>().prop_map(|order| Self::Settle { order }),
            7 => pick().prop_map(|pick| Self::Drop { pick }),
            16 => pick().prop_map(|pick| Self::Release { pick }),
            12 => (1..8_u64, any::<u64>()).prop_map(|(ms, order)| Self::Run { ms, order }),
            3 => (1..8_u64).prop_map(|ms| Self::Stall { ms }),
            6 => (Target::any(), Change::any()).prop_map(|(target, change)| Self::Configure { target, change }),
            4 => prop_oneof![1 => Just(None), 5 => (1..4_usize).prop_map(Some)].prop_map(|limit| Self::Total { limit }),
            3 => (slot(), 0..12_u64).prop_map(|(slot, ms)| Self::Pause { slot, ms }),
            2 => slot().prop_map(|slot| Self::Resume { slot }),
            2 => Just(Self::RetainRecent),
            1 => prop_oneof![9 => Just(Self::Drained), 1 => Just(Self::Close)],
        ]
    }
}

// === impl Target ===

impl Target {
    fn any() -> impl Strategy<Value = Self> {
        prop_oneof![2 => Just(Self::Default), 5 => Self::named()]
    }

    fn named() -> impl Strategy<Value = Self> {
        prop_oneof![
            4 => (0..NAMES.len()).prop_map(Self::Slot),
            1 => (0..PATTERNS.len()).prop_map(Self::Pattern),
        ]
    }
}

// === impl Change ===

impl Change {
    fn any() -> impl Strategy<Value = Self> {
        let spread = prop_oneof![
            1 => Just(Spread::Percent(0)),
            2 => (1..=100_u8).prop_map(Spread::Percent),
            1 => (0..8_u64).prop_map(Spread::UpTo),
        ];
        prop_oneof![
            6 => prop_oneof![1 => Just(None), 6 => (1..4_usize).prop_map(Some)].prop_map(Self::Concurrency),
            5 => (0..10_u64).prop_map(Self::Delay),
            2 => spread.prop_map(Self::Jitter),
            3 => prop_oneof![1 => Just(None), 3 => (0..4_usize).prop_map(Some)].prop_map(Self::Capacity),
            4 => prop_oneof![1 => Just(None), 3 => (0..20_u64).prop_map(Some)].prop_map(Self::Timeout),
        ]
    }
}
