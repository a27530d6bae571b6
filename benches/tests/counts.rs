//! Counts: the instructions of a request through a slot, and the lines of memory that it finds in no cache, stay what
//! `counts/` says, give or take 5 %.
//!
//! Callgrind counts them in the program `count`. They depend on the compiler, so the files say which one it was; for
//! another one nothing is compared, and a note says so. After a change that is meant to change them:
//!
//! ```sh
//! WRITE_COUNTS=1 cargo test --release -p tower-slot-bench --test counts
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;

use serde::{Deserialize, Serialize};
use tower_slot_bench::machine::{RUSTC, TARGET};
use tower_slot_bench::variants::{HOSTS, VARIANTS};

/// What a count may differ by, up or down: a file that promises too much would hide the next change.
const TOLERANCE: f64 = 0.05;

/// So many that what the layers keep for them is far more than the cache holds.
const MANY_HOSTS: usize = 4_000;

/// A cache that is the same on every machine, its last level smaller than most.
const CACHE: [&str; 4] = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=262144,16,64"];

/// What was counted for each variant, and with what. The mean of many requests, all of them to slots that are there.
#[derive(Debug, Deserialize, Serialize)]
struct Counts {
    rustc: String,
    target: String,
    instructions: BTreeMap<String, f64>,
    /// Of a request to one of many hosts.
    cold_lines: BTreeMap<String, f64>,
}

// S5
#[test]
fn a_request_takes_as_many_instructions_and_lines_of_memory_as_were_written_down() {
    if cfg!(debug_assertions) {
        return note("this is no release build (cargo test --release)");
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        return note("there is no valgrind");
    }
    if std::env::var_os("WRITE_COUNTS").is_some() {
        return Counts::now().write();
    }
    let committed = Counts::read();
    if (committed.rustc.as_str(), committed.target.as_str()) != (RUSTC, TARGET) {
        return note(&format!(
            "{} says what {} makes for {}, and this is {RUSTC} for {TARGET}",
            Counts::path().display(),
            committed.rustc,
            committed.target
        ));
    }
    let now = Counts::now();
    // Both are compared, so that one run shows all.
    let same = [
        is_same("instructions", &committed.instructions, &now.instructions),
        is_same("cold lines", &committed.cold_lines, &now.cold_lines),
    ];
    assert_eq!(
        same, [true; 2],
        "if that is meant: WRITE_COUNTS=1 cargo test --release -p tower-slot-bench --test counts"
    );
}

fn is_same(what: &str, committed: &BTreeMap<String, f64>, now: &BTreeMap<String, f64>) -> bool {
    // The others are there to be looked at: their maps differ from run to run.
    let is_same = |(name, now): (&String, &f64)| {
        let was = committed.get(name).copied().unwrap_or_default();
        println!("{name}: {was} {what} written down, {now} counted");
        !name.starts_with("slot") || (now - was).abs() <= was * TOLERANCE
    };
    let different = now.iter().filter(|count| !is_same(*count)).count();
    different == 0 && now.keys().eq(committed.keys())
}

/// Seen although the test passes: the harness keeps only what the print macros write.
fn note(why: &str) {
    let _ = writeln!(io::stderr(), "\nnote: nothing was counted and compared: {why}");
}

// === impl Counts ===

impl Counts {
    /// A file for each build: with telemetry all counts are others.
    fn path() -> PathBuf {
        let name = if cfg!(feature = "telemetry") { "telemetry.toml" } else { "plain.toml" };
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("counts").join(name)
    }

    fn read() -> Self {
        toml::from_str(&fs::read_to_string(Self::path()).unwrap()).unwrap()
    }

    fn write(&self) {
        fs::write(Self::path(), toml::to_string(self).unwrap()).unwrap();
    }

    fn now() -> Self {
        let each = |count: fn(&str) -> f64| {
            VARIANTS.iter().map(|variant| (variant.name.to_owned(), count(variant.name))).collect()
        };
        let (instructions, cold_lines) = (each(instructions), each(cold_lines));
        Self { rustc: RUSTC.into(), target: TARGET.into(), instructions, cold_lines }
    }
}

fn instructions(variant: &str) -> f64 {
    per_request(variant, HOSTS, &[])[0].round()
}

/// What the last level does not have, of the lines that are read and those that are only written.
fn cold_lines(variant: &str) -> f64 {
    // Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw; zeros at the end are left out.
    let counts = per_request(variant, MANY_HOSTS, &CACHE);
    let lines: f64 = counts.iter().skip(7).sum();
    (lines * 10.0).round() / 10.0
}

/// What callgrind counts for one of several thousand requests.
fn per_request(variant: &str, hosts: usize, args: &[&str]) -> Vec<f64> {
    const REQUESTS: usize = 4_000;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*counted_requests*")
        .args(args)
        .args([env!("CARGO_BIN_EXE_count"), variant, &REQUESTS.to_string(), &hosts.to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let (_, counts) = said.rsplit_once("Collected : ").unwrap();
    let counts = counts.lines().next().unwrap().split_whitespace();
    let counts: Vec<f64> = counts.map(|count| count.parse::<f64>().unwrap() / REQUESTS as f64).collect();
    assert!(counts[0] > 1.0, "{variant} was counted");
    counts
}
