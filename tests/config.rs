//! The configuration: what is refused and how, which limits are in force where, and durations too long for any clock.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use futures_util::FutureExt;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::time::{Instant, advance};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};
use tower_slot::{
    Hold, Jitter, KeyRef, Limits, SlotConfig, SlotConfigBuilder, SlotErrorKind, SlotLimits, Slots, WaitReason,
};

/// What durations are capped to.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
const MILLI: Duration = Duration::from_millis(1);

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn slots(builder: SlotConfigBuilder) -> Slots {
    Slots::new(builder.build().unwrap())
}

/// The limits in force in a slot, which is made if it is not there.
fn limits_of(slots: &Slots, key: &str) -> Limits {
    drop(slots.try_acquire(key));
    slots.stats(key).unwrap().limits
}

/// Values to set, each or not.
#[derive(Clone, Debug, Default)]
struct Set {
    concurrency: Option<Option<usize>>,
    delay: Option<Duration>,
    jitter: Option<Jitter>,
    queue_capacity: Option<Option<usize>>,
    wait_timeout: Option<Option<Duration>>,
    hold: Option<Hold>,
}

/// Calls the setters, which the builder has as well as a slot's limits.
macro_rules! set {
    ($set:expr, $on:expr) => {{
        let (set, mut on) = (&$set, $on);
        on = match set.concurrency {
            Some(Some(n)) => on.concurrency(n),
            Some(None) => on.unlimited_concurrency(),
            None => on,
        };
        on = match set.queue_capacity {
            Some(Some(n)) => on.queue_capacity(n),
            Some(None) => on.unbounded_queue(),
            None => on,
        };
        on = match set.wait_timeout {
            Some(Some(timeout)) => on.wait_timeout(timeout),
            Some(None) => on.no_wait_timeout(),
            None => on,
        };
        on = set.delay.into_iter().fold(on, |on, delay| on.delay(delay));
        on = set.jitter.into_iter().fold(on, |on, jitter| on.jitter(jitter));
        set.hold.into_iter().fold(on, |on, hold| on.hold(hold))
    }};
}

impl Set {
    fn limits(&self) -> SlotLimits {
        set!(*self, SlotLimits::new())
    }

    /// What is in force where this lies over `base`, field by field.
    fn over(&self, base: Limits) -> Limits {
        let mut limits = base;
        limits.concurrency = self.concurrency.unwrap_or(limits.concurrency);
        limits.delay = self.delay.unwrap_or(limits.delay);
        limits.jitter = self.jitter.unwrap_or(limits.jitter);
        limits.queue_capacity = self.queue_capacity.unwrap_or(limits.queue_capacity);
        limits.wait_timeout = self.wait_timeout.unwrap_or(limits.wait_timeout);
        limits.hold = self.hold.unwrap_or(limits.hold);
        limits
    }
}

// --- refused

/// Every bad value of a limit, beside a good one: for all slots, for one, and the field.
fn bad_values() -> Vec<(SlotConfigBuilder, SlotLimits, &'static str)> {
    let (builder, limits) = (SlotConfig::builder().delay(seconds(7)), SlotLimits::new().delay(seconds(7)));
    let mut bad = vec![(builder.clone().concurrency(0), limits.clone().concurrency(0), "concurrency")];
    let beyond = [2.0, 1.0 + f64::EPSILON, -0.1, -f64::MIN_POSITIVE];
    for ratio in beyond.into_iter().chain([f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY]) {
        let jitter = Jitter::ratio(ratio);
        bad.push((builder.clone().jitter(jitter), limits.clone().jitter(jitter), "jitter"));
    }
    bad
}

/// Names that are neither exact nor a pattern.
const BAD_NAMES: [&str; 13] = [
    "*", "*.", "**", "**.com", "*.*", "*.*.com", "*.a.*", "a.*", "a*", "a*.com", "*a.com", "*.A.com",
    "*.a.coM",
];

#[test]
fn a_bad_value_is_refused_by_an_error_that_names_slot_and_field() {
    // L1, case 26
    for (builder, limits, field) in bad_values() {
        let error = builder.build().unwrap_err();
        assert_eq!((error.slot(), error.field()), (None, field));
        assert!(error.to_string().starts_with(&format!("all slots: {field}: ")), "{error}");
        for name in ["api", "", "A.com", "*.a.com"] {
            let error = SlotConfig::builder().slot(name, limits.clone()).build().unwrap_err();
            assert_eq!((error.slot().unwrap().as_str(), error.field()), (name, field));
            assert!(error.to_string().starts_with(&format!("slot {name:?}: {field}: ")), "{error}");
        }
    }
    for (builder, field) in [
        (SlotConfig::builder().total_concurrency(0), "total_concurrency"),
        (SlotConfig::builder().max_slots(0), "max_slots"),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!((error.slot(), error.field()), (None, field));
        assert!(error.to_string().starts_with(&format!("all slots: {field}: ")), "{error}");
    }
}

#[test]
fn a_malformed_pattern_is_refused() {
    // L1, L5
    for name in BAD_NAMES {
        let error = SlotConfig::builder().slot(name, SlotLimits::new()).build().unwrap_err();
        assert_eq!((error.slot().unwrap().as_str(), error.field()), (name, "name"));
        assert!(error.to_string().starts_with(&format!("slot {name:?}: name: ")), "{error}");
    }
    for name in ["*.a", "*.a.com", "*.xn--p1ai", "*.a_b.test", "*.0.2.1", ".a.com", "A.com", ""] {
        assert!(SlotConfig::builder().slot(name, SlotLimits::new()).build().is_ok(), "{name}");
    }
}

#[test]
fn a_single_dot_is_a_name_like_any_other() {
    // K3, L5
    let slots = slots(SlotConfig::builder().slot(".", SlotLimits::new().concurrency(3)));
    assert_eq!(limits_of(&slots, ".").concurrency, Some(3));
}

#[test]
fn a_pattern_that_no_host_can_match_is_refused() {
    // L5: host keys have no dot at the end.
    for name in ["*.a.com.", "*.."] {
        let error = SlotConfig::builder().slot(name, SlotLimits::new()).build().unwrap_err();
        assert_eq!((error.slot().unwrap().as_str(), error.field()), (name, "name"));
    }
}

#[test]
fn of_several_bad_values_the_first_is_reported_in_an_order_of_its_own() {
    // L1: the defaults, then the slots by name, then what concerns all slots; not the order of the calls.
    let none = SlotLimits::new();
    let mut builder = SlotConfig::builder().max_slots(0).total_concurrency(0);
    let first = |builder: &SlotConfigBuilder| {
        let error = builder.clone().build().unwrap_err();
        (error.slot().map(|slot| slot.as_str().to_owned()), error.field())
    };
    assert_eq!(first(&builder), (None, "total_concurrency"));
    builder = builder.slot("c", none.clone().jitter(Jitter::ratio(2.0)));
    assert_eq!(first(&builder), (Some("c".into()), "jitter"));
    builder = builder.slot("b*", none.clone().concurrency(0));
    assert_eq!(first(&builder), (Some("b*".into()), "name"));
    builder = builder.slot("a", none.concurrency(0).jitter(Jitter::ratio(2.0)));
    assert_eq!(first(&builder), (Some("a".into()), "concurrency"));
    builder = builder.jitter(Jitter::ratio(2.0));
    assert_eq!(first(&builder), (None, "jitter"));
}

#[test]
fn setters_never_fail_and_the_last_value_is_the_one_that_counts() {
    // L1
    let limits = SlotLimits::new().concurrency(0).jitter(Jitter::ratio(f64::NAN));
    let builder = SlotConfig::builder().concurrency(0).total_concurrency(0).max_slots(0);
    let builder = builder.jitter(Jitter::ratio(-1.0)).slot("a", limits);
    let good = SlotLimits::new().concurrency(2).jitter(Jitter::ratio(0.25));
    let builder =
        builder.concurrency(3).jitter(Jitter::NONE).unlimited_total().unlimited_slots().slot("a", good);
    let slots = slots(builder);
    assert_eq!(limits_of(&slots, "a").concurrency, Some(2));
    assert_eq!(limits_of(&slots, "a").jitter, Jitter::ratio(0.25));
    assert_eq!(limits_of(&slots, "b").concurrency, Some(3));
}

#[test]
fn the_edges_of_what_can_be_are_allowed() {
    // L1
    let edges = [
        Set { concurrency: Some(Some(1)), queue_capacity: Some(Some(0)), ..Set::default() },
        Set { concurrency: Some(Some(usize::MAX)), queue_capacity: Some(Some(usize::MAX)), ..Set::default() },
        Set { jitter: Some(Jitter::ratio(0.0)), delay: Some(Duration::ZERO), ..Set::default() },
        Set { jitter: Some(Jitter::ratio(-0.0)), wait_timeout: Some(Some(Duration::ZERO)), ..Set::default() },
        Set { jitter: Some(Jitter::ratio(1.0)), delay: Some(LONGEST), ..Set::default() },
        Set {
            jitter: Some(Jitter::ratio(f64::MIN_POSITIVE)),
            delay: Some(Duration::from_nanos(1)),
            ..Set::default()
        },
        Set {
            jitter: Some(Jitter::up_to(Duration::ZERO)),
            wait_timeout: Some(Some(LONGEST)),
            ..Set::default()
        },
        Set { jitter: Some(Jitter::up_to(LONGEST)), ..Set::default() },
    ];
    for set in edges {
        for slots in in_every_way(&set) {
            assert_eq!(limits_of(&slots, "x.a.com"), set.over(Limits::default()));
        }
    }
    let builder = SlotConfig::builder().total_concurrency(1).max_slots(1).idle_timeout(Duration::ZERO);
    assert_eq!(slots(builder).snapshot().total.limit, Some(1));
}

#[test]
fn a_change_is_refused_with_the_error_of_the_build_and_changes_nothing() {
    // L1, L6
    let builder = SlotConfig::builder().concurrency(3).total_concurrency(9);
    let builder = builder.slot("a.com", SlotLimits::new().delay(MILLI));
    let slots = slots(builder.slot("*.a.com", SlotLimits::new().queue_capacity(5)));
    let names = ["a.com", "x.a.com", "b.com"];
    let before = names.map(|name| limits_of(&slots, name));
    for (builder, limits, _) in bad_values() {
        assert_eq!(slots.configure_default(limits.clone()), Err(builder.build().unwrap_err()));
        for name in names.into_iter().chain(["*.a.com", "*.b.com", "new.test"]) {
            let error = SlotConfig::builder().slot(name, limits.clone()).build().unwrap_err();
            assert_eq!(slots.configure(name, limits.clone()), Err(error));
        }
    }
    for name in BAD_NAMES {
        let limits = SlotLimits::new().delay(seconds(7));
        let error = SlotConfig::builder().slot(name, limits.clone()).build().unwrap_err();
        assert_eq!(slots.configure(name, limits), Err(error));
    }
    let error = SlotConfig::builder().total_concurrency(0).build().unwrap_err();
    assert_eq!(slots.configure_total(Some(0)), Err(error));

    assert_eq!(names.map(|name| limits_of(&slots, name)), before);
    // Neither for slots that are made later.
    assert_eq!(limits_of(&slots, "y.a.com"), before[1]);
    assert_eq!(
        [limits_of(&slots, "new.test"), limits_of(&slots, "y.b.com")],
        [(); 2].map(|()| before[2].clone())
    );
    assert_eq!(slots.snapshot().total.limit, Some(9));
}

#[test]
fn a_refused_change_names_no_slot() {
    // L1, G4: a slot that is named does not count against their number.
    let slots = slots(SlotConfig::builder().max_slots(1));
    let _permit = slots.try_acquire("a").unwrap();
    slots.configure("b", SlotLimits::new().concurrency(0)).unwrap_err();
    assert_eq!(slots.try_acquire("b").unwrap_err().kind(), SlotErrorKind::TooManySlots);
    slots.configure("b", SlotLimits::new().concurrency(1)).unwrap();
    drop(slots.try_acquire("b").unwrap());
}

// --- in force

#[tokio::test(start_paused = true)]
async fn where_nothing_is_set_the_defaults_are_in_force() {
    // L1
    for config in [SlotConfig::default(), SlotConfig::builder().build().unwrap()] {
        let slots = Slots::new(config);
        let permits: Vec<_> = (0..8).map(|_| slots.try_acquire("a").unwrap()).collect();
        let refused = slots.try_acquire("a").unwrap_err();
        assert_eq!(
            (refused.kind(), refused.reason()),
            (SlotErrorKind::QueueFull, Some(WaitReason::Concurrency))
        );
        let limits = slots.stats("a").unwrap().limits;
        assert_eq!(limits.concurrency, Some(8));
        assert_eq!((limits.delay, limits.jitter), (Duration::ZERO, Jitter::NONE));
        assert_eq!((limits.queue_capacity, limits.wait_timeout, limits.hold), (None, None, Hold::Body));
        assert_eq!(slots.snapshot().total.limit, None);
        drop(permits);
        advance(seconds(60) - MILLI).await;
        slots.retain_recent();
        assert_eq!(slots.len(), 1);
        advance(MILLI).await;
        slots.retain_recent();
        assert_eq!(slots.len(), 0);
    }
}

#[test]
fn a_pattern_matches_subdomains_and_nothing_else() {
    // L5
    let slots = slots(SlotConfig::builder().slot("*.example.com", SlotLimits::new().concurrency(3)));
    for name in ["a.example.com", "a.b.example.com", "example.com.example.com", "_.example.com"] {
        assert_eq!(limits_of(&slots, name).concurrency, Some(3), "{name}");
    }
    let others = [
        "example.com",
        "badexample.com",
        "a-example.com",
        "com",
        "",
        "example.com.a",
        "a.example.com.",
        "a.example.com:80",
        "a.example.com.test",
        "A.EXAMPLE.COM",
        "a.example.co",
        "aexample.com",
    ];
    for name in others {
        assert_eq!(limits_of(&slots, name).concurrency, Some(8), "{name}");
    }
    // Each is a slot of its own, and what it is called on the way there does not matter.
    drop(slots.try_acquire(KeyRef::host("C.Example.Com.:80")).unwrap());
    assert_eq!(slots.stats("c.example.com").unwrap().limits.concurrency, Some(3));
    assert_eq!(slots.len(), 4 + others.len() + 1);
}

#[test]
fn a_name_with_nothing_before_the_dot_is_no_subdomain() {
    // L5
    let slots = slots(SlotConfig::builder().slot("*.example.com", SlotLimits::new().concurrency(3)));
    assert_eq!(limits_of(&slots, ".example.com").concurrency, Some(8));
}

#[test]
fn of_two_patterns_only_the_longer_one_counts() {
    // L5
    let long = ("*.b.com", SlotLimits::new().concurrency(2));
    let short = ("*.com", SlotLimits::new().concurrency(1).queue_capacity(1));
    for [(first, its), (second, others)] in [[long.clone(), short.clone()], [short, long]] {
        let slots = slots(SlotConfig::builder().queue_capacity(9).slot(first, its).slot(second, others));
        let limits = limits_of(&slots, "a.b.com");
        assert_eq!((limits.concurrency, limits.queue_capacity), (Some(2), Some(9)));
        let limits = limits_of(&slots, "b.com");
        assert_eq!((limits.concurrency, limits.queue_capacity), (Some(1), Some(1)));
    }
}

#[test]
fn the_same_name_twice_adds_up_and_the_later_value_wins() {
    // L5, L6
    let once = Set { concurrency: Some(Some(1)), delay: Some(seconds(1)), ..Set::default() };
    let again = Set { concurrency: Some(None), queue_capacity: Some(Some(2)), ..Set::default() };
    let both = again.over(once.over(Limits::default()));
    for name in ["a.b.com", "*.b.com", "*.com"] {
        let built = slots(SlotConfig::builder().slot(name, once.limits()).slot(name, again.limits()));
        assert_eq!(limits_of(&built, "a.b.com"), both);
        let changed = slots(SlotConfig::builder().slot(name, once.limits()));
        changed.configure(name, again.limits()).unwrap();
        assert_eq!(limits_of(&changed, "a.b.com"), both);
    }
    let changed = slots(set!(once, SlotConfig::builder()));
    changed.configure_default(again.limits()).unwrap();
    assert_eq!(limits_of(&changed, "a.b.com"), both);
}

/// The names that have limits, `None` for the defaults.
const NAMED: [Option<&str>; 4] = [None, Some("*.test"), Some("*.b.test"), Some("x.b.test")];

/// Names of slots, and which of the above count there, from the defaults up.
const SLOTS: [(&str, &[usize]); 7] = [
    ("x.b.test", &[0, 2, 3]),
    ("y.b.test", &[0, 2]),
    ("x.x.b.test", &[0, 2]),
    ("b.test", &[0, 1]),
    ("xb.test", &[0, 1]),
    ("test", &[0]),
    ("", &[0]),
];

fn some_limits() -> impl Strategy<Value = Set> {
    fn maybe<T: Clone + std::fmt::Debug + 'static>(
        values: &[T],
    ) -> impl Strategy<Value = Option<T>> + use<T> {
        prop::option::of(select(values.to_vec()))
    }
    let fields = (
        maybe(&[None, Some(1), Some(2), Some(3)]),
        maybe(&[Duration::ZERO, seconds(1), seconds(2)]),
        maybe(&[Jitter::NONE, Jitter::ratio(0.5), Jitter::up_to(seconds(1))]),
        maybe(&[None, Some(0), Some(1), Some(2)]),
        maybe(&[None, Some(Duration::ZERO), Some(seconds(1)), Some(seconds(2))]),
        maybe(&[Hold::Body, Hold::Headers]),
    );
    fields.prop_map(|(concurrency, delay, jitter, queue_capacity, wait_timeout, hold)| Set {
        concurrency,
        delay,
        jitter,
        queue_capacity,
        wait_timeout,
        hold,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// L5, L6: the exact name over the longest pattern over the defaults, field by field and in whatever order they
    /// were given; before the slots are there, and while they are.
    #[test]
    fn limits_merge_field_by_field_whatever_the_order(
        sets in prop::array::uniform4(some_limits()),
        order in Just([0, 1, 2, 3]).prop_shuffle(),
    ) {
        let mut builder = SlotConfig::builder().max_slots(16);
        let changed = slots(builder.clone());
        SLOTS.iter().step_by(2).for_each(|(slot, _)| drop(changed.try_acquire(*slot)));
        for at in order {
            match NAMED[at] {
                Some(name) => {
                    builder = builder.slot(name, sets[at].limits());
                    changed.configure(name, sets[at].limits()).unwrap();
                }
                None => {
                    builder = set!(sets[at], builder);
                    changed.configure_default(sets[at].limits()).unwrap();
                }
            }
        }
        let built = slots(builder);
        for (slot, counting) in SLOTS {
            let expected = counting.iter().fold(Limits::default(), |base, at| sets[*at].over(base));
            prop_assert_eq!(limits_of(&built, slot), expected.clone(), "{} as built", slot);
            prop_assert_eq!(limits_of(&changed, slot), expected, "{} as changed", slot);
        }
    }
}

// --- too long for the clock

/// Durations that count as thirty years, among them those that wrap around in 64 bits.
fn too_long() -> [Duration; 9] {
    [
        LONGEST + Duration::from_nanos(1),
        Duration::from_nanos(u64::MAX),
        Duration::from_micros(u64::MAX),
        Duration::from_millis(u64::MAX),
        seconds(1 << 40),
        // As a float from a file.
        Duration::from_secs_f64(1e18),
        seconds(u64::MAX / 2),
        seconds(u64::MAX),
        Duration::MAX,
    ]
}

/// Slots in which these limits are in force for `x.a.com`, by every way in which they can be set.
fn in_every_way(set: &Set) -> [Slots; 6] {
    let new = SlotConfig::builder;
    let plain = || slots(new());
    let (exact, pattern, defaults) = (plain(), plain(), plain());
    exact.configure("x.a.com", set.limits()).unwrap();
    pattern.configure("*.a.com", set.limits()).unwrap();
    defaults.configure_default(set.limits()).unwrap();
    let built = [set!(*set, new()), new().slot("x.a.com", set.limits()), new().slot("*.a.com", set.limits())];
    let [a, b, c] = built.map(slots);
    [a, b, c, exact, pattern, defaults]
}

#[tokio::test(start_paused = true)]
async fn a_delay_too_long_for_the_clock_counts_as_thirty_years() {
    // L1, L2, cases 27, 28
    let start = Instant::now();
    let mut waiters = Vec::new();
    for delay in too_long() {
        for slots in in_every_way(&Set { delay: Some(delay), ..Set::default() }) {
            // The first starts at once, however long the delay.
            let first = slots.acquire("x.a.com").now_or_never().unwrap().unwrap();
            assert_eq!(slots.stats("x.a.com").unwrap().counts.started, 1);
            drop(first);
            let refused = slots.try_acquire("x.a.com").unwrap_err();
            assert_eq!(
                (refused.reason(), refused.earliest_start()),
                (Some(WaitReason::Pace), Some(start + LONGEST))
            );
            assert_eq!(refused.retry_after(), Some(LONGEST));
            let stats = slots.stats("x.a.com").unwrap();
            assert_eq!((stats.limits.delay, stats.next_start), (LONGEST, Some(start + LONGEST)));
            let mut waiter = spawn(slots.acquire("x.a.com"));
            assert_pending!(waiter.poll());
            waiters.push(waiter);
        }
    }
    advance(LONGEST - MILLI).await;
    waiters.iter_mut().for_each(|waiter| assert_pending!(waiter.poll()));
    advance(MILLI).await;
    for mut waiter in waiters {
        assert!(waiter.is_woken());
        drop(assert_ready!(waiter.poll()).unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_delay_too_long_for_the_clock_can_be_set_while_somebody_waits() {
    // L1, L3, case 27
    for delay in too_long() {
        let slots = slots(SlotConfig::builder().delay(seconds(1)));
        let start = Instant::now();
        drop(slots.try_acquire("a").unwrap());
        let mut waiter = spawn(slots.acquire("a"));
        assert_pending!(waiter.poll());
        slots.configure("a", SlotLimits::new().delay(delay)).unwrap();
        assert_pending!(waiter.poll());
        assert_eq!(slots.stats("a").unwrap().next_start, Some(start + LONGEST));
        advance(seconds(2)).await;
        assert_pending!(waiter.poll());
        slots.configure("a", SlotLimits::new().delay(seconds(3))).unwrap();
        assert_pending!(waiter.poll());
        advance(seconds(1) - MILLI).await;
        assert_pending!(waiter.poll());
        advance(MILLI).await;
        drop(assert_ready!(waiter.poll()).unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_jitter_too_long_for_the_clock_counts_as_thirty_years() {
    // L1, L2, case 27
    let start = Instant::now();
    for max in too_long() {
        let jitter = Some(Jitter::up_to(max));
        for slots in in_every_way(&Set { jitter, delay: Some(max), ..Set::default() }) {
            drop(slots.acquire("x.a.com").now_or_never().unwrap().unwrap());
            let next = slots.stats("x.a.com").unwrap().next_start.unwrap();
            assert!((start + LONGEST..=start + 2 * LONGEST).contains(&next));
            assert_pending!(spawn(slots.acquire("x.a.com")).poll());
        }
        for slots in in_every_way(&Set { jitter, ..Set::default() }) {
            drop(slots.acquire("x.a.com").now_or_never().unwrap().unwrap());
            let next = slots.stats("x.a.com").unwrap().next_start.unwrap();
            assert!((start..=start + LONGEST).contains(&next));
            assert_pending!(spawn(slots.acquire("x.a.com")).poll());
        }
        let jitter = Some(Jitter::ratio(1.0));
        for slots in in_every_way(&Set { jitter, delay: Some(max), ..Set::default() }) {
            drop(slots.acquire("x.a.com").now_or_never().unwrap().unwrap());
            let next = slots.stats("x.a.com").unwrap().next_start.unwrap();
            assert!((start..=start + 2 * LONGEST).contains(&next));
            assert_pending!(spawn(slots.acquire("x.a.com")).poll());
        }
    }
}

#[test]
fn a_jitter_shows_what_it_is_capped_to() {
    // L1, case 27
    for max in too_long() {
        for slots in in_every_way(&Set { jitter: Some(Jitter::up_to(max)), ..Set::default() }) {
            assert_eq!(limits_of(&slots, "x.a.com").jitter, Jitter::up_to(LONGEST));
        }
        assert_eq!(Jitter::up_to(max).gap(max, 0.5), LONGEST + LONGEST / 2);
        assert_eq!(Jitter::ratio(0.0).gap(max, 0.5), LONGEST);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_timeout_too_long_for_the_clock_counts_as_thirty_years() {
    // L1, Q3, case 27
    let mut waiters = Vec::new();
    let mut held = Vec::new();
    for timeout in too_long() {
        let set = Set { concurrency: Some(Some(1)), wait_timeout: Some(Some(timeout)), ..Set::default() };
        for slots in in_every_way(&set) {
            held.push(slots.acquire("x.a.com").now_or_never().unwrap().unwrap());
            assert_eq!(slots.stats("x.a.com").unwrap().limits.wait_timeout, Some(LONGEST));
            let mut waiter = spawn(slots.acquire("x.a.com"));
            assert_pending!(waiter.poll());
            waiters.push(waiter);
        }
    }
    advance(LONGEST - MILLI).await;
    waiters.iter_mut().for_each(|waiter| assert_pending!(waiter.poll()));
    advance(MILLI).await;
    for mut waiter in waiters {
        assert!(waiter.is_woken());
        let error = assert_ready!(waiter.poll()).unwrap_err();
        assert_eq!((error.kind(), error.waited()), (SlotErrorKind::WaitTimeout, LONGEST));
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_timeout_too_long_for_the_clock_counts_as_thirty_years() {
    // L1, G1, case 27
    for idle_timeout in too_long() {
        let slots = slots(SlotConfig::builder().idle_timeout(idle_timeout));
        drop(slots.try_acquire("a").unwrap());
        let mut sweeper = spawn(slots.sweeper());
        assert_pending!(sweeper.poll());
        slots.retain_recent();
        assert_eq!(slots.len(), 1);
        advance(LONGEST - MILLI).await;
        slots.retain_recent();
        assert_pending!(sweeper.poll());
        assert_eq!(slots.len(), 1);
        advance(MILLI).await;
        slots.retain_recent();
        assert_eq!(slots.len(), 0);
    }
}

/// The last moment that the clock can tell.
fn last_moment() -> Instant {
    let (mut last, mut step) = (Instant::now(), seconds(u64::MAX));
    while !step.is_zero() {
        match last.checked_add(step) {
            Some(later) => last = later,
            None => step /= 2,
        }
    }
    last
}

#[tokio::test(start_paused = true)]
async fn a_pause_may_last_to_the_end_of_the_clock() {
    // L1, L6, case 27
    let ends: [fn(Instant) -> Instant; 5] = [
        |now| now + LONGEST,
        |now| now + 2 * LONGEST,
        |now| now + Duration::from_nanos(u64::MAX),
        |now| now + Duration::from_nanos(u64::MAX) + seconds(1),
        |_| last_moment(),
    ];
    for end in ends {
        let slots = slots(SlotConfig::builder());
        let _in_flight = slots.try_acquire("there").unwrap();
        let now = Instant::now();
        let until = end(now);
        for key in ["there", "not there yet"] {
            slots.pause(key, until);
            let refused = slots.try_acquire(key).unwrap_err();
            assert_eq!(refused.reason(), Some(WaitReason::Pace));
            assert!(refused.retry_after().unwrap() >= LONGEST);
            let shown = slots.stats(key).unwrap().paused_until.unwrap();
            assert!(shown == until || shown >= now + 10 * LONGEST, "{:?}", shown - now);
            assert_eq!(refused.earliest_start(), Some(shown));
        }
        let mut waiters = ["there", "not there yet"].map(|key| spawn(slots.acquire(key)));
        waiters.iter_mut().for_each(|waiter| assert_pending!(waiter.poll()));
        advance(LONGEST - MILLI).await;
        waiters.iter_mut().for_each(|waiter| assert_pending!(waiter.poll()));
        for (key, mut waiter) in ["there", "not there yet"].into_iter().zip(waiters) {
            slots.resume(key);
            assert!(waiter.is_woken());
            drop(assert_ready!(waiter.poll()).unwrap());
        }
    }
}

#[test]
fn the_first_request_starts_at_once_although_its_delay_is_longer_than_the_machine_is_up() {
    // L3, case 28: on the real clock, and without a runtime.
    for delay in [seconds(365 * 24 * 60 * 60), LONGEST, Duration::MAX] {
        let slots = slots(SlotConfig::builder().delay(delay).jitter(Jitter::ratio(0.5)));
        assert_eq!(slots.stats("a").map(|stats| stats.next_start), None);
        for key in ["a", "b"] {
            assert!(slots.acquire(key).now_or_never().unwrap().is_ok());
            assert_eq!(slots.stats(key).unwrap().counts.started, 1);
        }
    }
}
