//! Ten thousand overrides and a thousand patterns: a look-up of a slot that is there costs what it costs with none.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use allocation_counter::measure;
use tower_slot::{KeyRef, SlotConfig, SlotConfigBuilder, SlotLimits, Slots};

fn limits() -> SlotLimits {
    SlotLimits::new().concurrency(9).delay(Duration::ZERO)
}

fn many() -> SlotConfigBuilder {
    let config =
        (0..10_000).fold(SlotConfig::builder(), |config, n| config.slot(format!("h{n}.test"), limits()));
    (0..1_000).fold(config, |config, n| config.slot(format!("*.p{n}.test"), limits()))
}

/// Hosts with an override, under a pattern, under none; and in capitals.
const HOSTS: [&str; 5] = ["h7777.test", "x.y.p777.test", "other.example", "a.b.c.d.e.f.g.test", "H7777.Test"];

/// How many allocations the look-ups make once the slots are there.
fn allocations(slots: &Slots) -> [u64; HOSTS.len()] {
    HOSTS.map(|host| {
        drop(slots.try_acquire(KeyRef::host(host)).unwrap());
        measure(|| drop(slots.try_acquire(KeyRef::host(host)).unwrap())).count_total
    })
}

// L5, S5
#[test]
fn a_lookup_of_a_slot_that_is_there_allocates_nothing_however_much_is_set() {
    let (none, many) = (SlotConfig::default(), many().build().unwrap());
    assert_eq!(allocations(&Slots::new(none)), [0; HOSTS.len()]);
    assert_eq!(allocations(&Slots::new(many)), [0; HOSTS.len()]);
}

// L5
#[test]
fn they_hold_for_the_slots_they_name() {
    let slots = Slots::new(many().build().unwrap());
    let concurrency = HOSTS.map(|host| {
        drop(slots.try_acquire(KeyRef::host(host)).unwrap());
        slots.stats(KeyRef::host(host)).unwrap().limits.concurrency.unwrap()
    });
    assert_eq!(concurrency, [9, 9, 8, 8, 9]);
}
