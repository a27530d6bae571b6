//! Cost: what a waiter costs does not depend on how many others wait.
//!
//! Instructions are counted by callgrind, in a process of its own that runs one test of this file with
//! `TOWER_SLOT_WAITERS` set. Without valgrind the test says so and passes.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};

use tower_slot::{Acquire, SlotConfig, SlotError, SlotPermit, Slots};

type Waiters = Vec<Pin<Box<Option<Acquire>>>>;

// --- instructions

/// What is counted, by the name of the function that does it, and how often it is done for each who waits.
const COUNTED: [(&str, f64); 4] = [
    ("counted_queueing", 1.0),
    ("counted_looking", 0.1),
    ("counted_leaving", 0.5),
    ("counted_starting", 0.5),
];

fn poll(waiter: &mut Pin<Box<Option<Acquire>>>) -> Option<Poll<Result<SlotPermit, SlotError>>> {
    let cx = &mut Context::from_waker(Waker::noop());
    waiter.as_mut().as_pin_mut().map(|waiter| waiter.poll(cx))
}

#[inline(never)]
fn counted_queueing(waiters: &mut Waiters) {
    for waiter in waiters {
        assert!(matches!(poll(waiter), Some(Poll::Pending)));
    }
}

#[inline(never)]
fn counted_looking(slots: &Slots, n: usize) {
    for _ in 0..n / 10 {
        assert_eq!(slots.stats("a").unwrap().waiting, n);
    }
}

#[inline(never)]
fn counted_leaving(waiters: &mut Waiters, who: &[usize]) {
    for place in who {
        waiters[*place].as_mut().set(None);
    }
}

#[inline(never)]
fn counted_starting(waiters: &mut Waiters) {
    for waiter in waiters {
        match poll(waiter) {
            Some(Poll::Ready(Ok(permit))) => drop(permit),
            Some(_) => panic!("it is the first one, and there is room"),
            None => {}
        }
    }
}

/// `n` wait in one slot. Half of them leave, in random order; then the others start, one after the other.
fn work(n: usize) {
    let slots = Slots::new(SlotConfig::builder().concurrency(1).build().unwrap());
    let permit = slots.try_acquire("a").unwrap();
    let mut waiters: Waiters = (0..n).map(|_| Box::pin(Some(slots.acquire("a")))).collect();
    let mut order: Vec<_> = (0..n).collect();
    fastrand::Rng::with_seed(7).shuffle(&mut order);
    counted_queueing(&mut waiters);
    counted_looking(&slots, n);
    counted_leaving(&mut waiters, &order[..n / 2]);
    drop(permit);
    counted_starting(&mut waiters);
    let counts = slots.stats("a").unwrap().counts;
    assert_eq!((counts.gone, counts.finished), (n as u64 / 2, n as u64 / 2 + 1));
}

/// How many instructions each of the counted functions takes for one of those it is about, if `n` wait.
fn instructions(n: usize) -> [f64; 4] {
    let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{n}.callgrind"));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*counted_*"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_waiter_costs_the_same_however_many_wait"])
        .env("TOWER_SLOT_WAITERS", n.to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = std::fs::read_to_string(profile).unwrap();
    COUNTED.map(|(counted, share)| cost_of(&profile, counted) / (n as f64 * share))
}

/// The instructions of all calls of the function `counted`, and of all that it calls.
fn cost_of(profile: &str, counted: &str) -> f64 {
    // `fn=(12) name` or `cfn=(12) name` the first time, `(12)` later; after a `cfn` comes a line `calls=`, and
    // then one with a place and the cost.
    let names = profile.lines().filter(|line| line.starts_with("fn=") || line.starts_with("cfn="));
    let named = names.filter_map(|line| line.split_once('=')?.1.split_once(' '));
    let (id, _) = named.into_iter().find(|(_, name)| name.contains(counted)).unwrap();
    let mut lines = profile.lines();
    let mut cost = 0.0;
    while let Some(line) = lines.next() {
        if line.strip_prefix("cfn=").is_some_and(|called| called.split(' ').next() == Some(id)) {
            cost += lines.nth(1).unwrap().split(' ').nth(1).unwrap().parse::<f64>().unwrap();
        }
    }
    cost
}

// Q1, Q5, V1
#[test]
fn a_waiter_costs_the_same_however_many_wait() {
    if let Ok(n) = std::env::var("TOWER_SLOT_WAITERS") {
        return work(n.parse().unwrap());
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("there is no valgrind: nothing was counted");
        return;
    }
    // From small to large, so that a cost that grows is seen before it takes hours to count.
    let mut few = instructions(1_000);
    for n in [10_000, 100_000] {
        let many = instructions(n);
        for ((counted, _), (few, many)) in COUNTED.into_iter().zip(few.into_iter().zip(many)) {
            println!("{counted}: {many:.0} instructions each if {n} wait, {few:.0} if a tenth of them do");
            assert!(few > 100.0, "something was counted");
            assert!(many <= 1.2 * few, "{counted}: {many} instead of {few}");
        }
        few = many;
    }
}
