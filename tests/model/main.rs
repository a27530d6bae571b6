//! The crate against a model of the contract, under random schedules: the same starts at the same moments in the
//! same order, the same refusals, the same statistics, after every step.
//!
//! `SLOT_SCHEDULES` says how many schedules; `--nocapture` shows how much was done.

mod compare;
mod drive;
mod gaps;
mod model;
mod schedule;

use std::cell::Cell;

use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestError, TestRunner};
use tokio::runtime::Builder;

use self::drive::Figures;
use self::schedule::Schedule;

/// How many schedules there are by default.
const SCHEDULES: u32 = 2_000;

fn config() -> Config {
    let cases = std::env::var("SLOT_SCHEDULES").ok();
    Config {
        cases: cases.map_or(SCHEDULES, |cases| cases.parse().expect("SLOT_SCHEDULES is a number")),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/model/regressions.txt"))),
        max_shrink_iters: 20_000,
        ..Config::default()
    }
}

// L2 to L6, Q1 to Q7, G1, V1, V3
#[test]
fn crate_and_model_agree_under_any_schedule() {
    let clock = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let figures = Cell::new(Figures::default());
    let outcome = TestRunner::new(config()).run(&Schedule::any(80), |schedule| {
        let more = drive::run(&clock, &schedule).map_err(TestCaseError::fail)?;
        figures.set(figures.get().plus(more));
        Ok(())
    });
    eprintln!("{:#?}", figures.get());
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(fault, schedule)) => panic!("{fault}\n{schedule}"),
        Err(error) => panic!("{error}"),
    }
}
