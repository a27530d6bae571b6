//! The crate against a model of the contract, under random schedules: the same starts at the same moments in the
//! same order, the same refusals, the same statistics, after every step.
//!
//! `SLOT_SCHEDULES` says how many schedules; `--nocapture` shows how much was done.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod book;
mod compare;
mod drive;
mod exchange;
mod found;
mod gaps;
mod model;
mod schedule;
mod script;
mod settings;
mod tasks;
mod traffic;
mod words;

use std::cell::Cell;
use std::fmt::Display;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestError, TestRunner};
use tokio::runtime::{Builder, Runtime};

use self::compare::Fault;
use self::drive::Figures;
use self::schedule::Schedule;
use self::traffic::Traffic;

/// How many schedules there are by default.
const SCHEDULES: u32 = 2_000;

fn clock() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// Checks one property; the seeds of failures are kept in a file of that name.
fn check<S: Strategy<Value: Display>>(
    name: &'static str,
    schedules: &S,
    run: impl Fn(&Runtime, &S::Value) -> Result<(), Fault>,
) {
    let clock = clock();
    let cases = std::env::var("SLOT_SCHEDULES").ok();
    let config = Config {
        cases: cases.map_or(SCHEDULES, |cases| cases.parse().expect("SLOT_SCHEDULES is a number")),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(name))),
        max_shrink_iters: 50_000,
        ..Config::default()
    };
    let (runs, failed) = (Cell::new(0), Cell::new(None));
    let outcome = TestRunner::new(config).run(schedules, |schedule| {
        runs.set(runs.get() + 1);
        run(&clock, &schedule).map_err(|fault| {
            // Only the first one counts: the others are attempts to shrink it.
            failed.set(failed.get().or(Some(runs.get())));
            TestCaseError::fail(fault)
        })
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(fault, schedule)) => {
            panic!("schedule {} fails, shrunk it is: {fault}\n{schedule}", failed.get().unwrap_or_default())
        }
        Err(error) => panic!("{error}"),
    }
}

// L2 to L6, Q1 to Q7, G1, G4, V1, V3, case 15
#[test]
fn crate_and_model_agree_under_any_schedule() {
    let figures = Cell::new(Figures::default());
    check("tests/model/schedules.txt", &Schedule::any(80), |clock, schedule| {
        drive::run(clock, schedule).map(|more| figures.set(figures.get().plus(more)))
    });
    eprintln!("{:#?}", figures.get());
}

// B1 to B4, S1, V1, V2, V3, case 6
#[test]
fn counts_add_up_whatever_becomes_of_a_request() {
    let figures = Cell::new((0, 0));
    check("tests/model/requests.txt", &Traffic::any(60), |clock, traffic| {
        let (runs, steps) = figures.get();
        exchange::run(clock, traffic).map(|()| figures.set((runs + 1, steps + traffic.steps.len())))
    });
    eprintln!("{:?} schedules and steps", figures.get());
}

// Q6, G4, V1, V3
#[test]
fn schedules_that_found_faults_find_none() {
    let clock = clock();
    for (fault, schedule) in found::schedules() {
        if let Err(again) = drive::run(&clock, &schedule) {
            panic!("{fault}: {again}\n{schedule}");
        }
    }
}
