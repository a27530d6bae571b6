//! Ten thousand overrides and a thousand patterns: a look-up of a slot that is there costs what it costs with none.
//!
//! Instructions are counted by callgrind, in a process of its own that runs one test of this file with
//! `TOWER_SLOT_OVERRIDES` set. Without valgrind the test says so and passes.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
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

// --- instructions

#[inline(never)]
fn counted_lookups(slots: &Slots, n: usize) {
    for host in HOSTS.into_iter().cycle().take(n) {
        drop(slots.try_acquire(KeyRef::host(host)).unwrap());
    }
}

/// How many instructions one look-up takes.
fn instructions(overrides: &str) -> u64 {
    let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{overrides}.overrides.callgrind"));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*counted_lookups*"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_lookup_takes_as_many_instructions_however_much_is_set"])
        .env("TOWER_SLOT_OVERRIDES", overrides)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = std::fs::read_to_string(profile).unwrap();
    let summary = profile.lines().find_map(|line| line.strip_prefix("summary: ")).unwrap();
    summary.trim().parse::<u64>().unwrap() / 1_000
}

// L5
#[test]
fn a_lookup_takes_as_many_instructions_however_much_is_set() {
    if let Ok(overrides) = std::env::var("TOWER_SLOT_OVERRIDES") {
        let slots =
            Slots::new(if overrides == "many" { many() } else { SlotConfig::builder() }.build().unwrap());
        // The slots are made, and all that is done only once is done.
        HOSTS.iter().for_each(|host| drop(slots.try_acquire(KeyRef::host(host)).unwrap()));
        return counted_lookups(&slots, 1_000);
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("there is no valgrind: nothing was counted");
        return;
    }
    let (none, many) = (instructions("none"), instructions("many"));
    println!("a look-up takes {none} instructions with nothing set, {many} with much");
    assert!(none > 100, "something was counted");
    // Where names fall in the table differs from run to run; hence not to the last one.
    assert!(many.abs_diff(none) * 50 <= none, "{many} instead of {none}");
}
