//! Counts: the instructions of a request stay what `counts/` says, give or take 5 %.
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
use tower_slot_bench::variants::VARIANTS;

/// What a count may differ by, up or down: a file that promises too much would hide the next change.
const TOLERANCE: f64 = 0.05;

/// What was counted, and with what.
#[derive(Debug, Deserialize, Serialize)]
struct Counts {
    rustc: String,
    target: String,
    instructions: BTreeMap<String, u64>,
}

// S5
#[test]
fn a_request_takes_as_many_instructions_as_were_written_down() {
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
    let differs = |(name, now): (&String, &u64)| {
        let was = committed.instructions.get(name).copied().unwrap_or_default();
        println!("{name}: {was} instructions written down, {now} counted");
        (*now as f64 - was as f64).abs() > was as f64 * TOLERANCE
    };
    let different = now.instructions.iter().filter(|count| differs(*count)).count();
    let same_names = now.instructions.keys().eq(committed.instructions.keys());
    assert!(
        different == 0 && same_names,
        "if that is meant: WRITE_COUNTS=1 cargo test --release -p tower-slot-bench --test counts"
    );
}

/// Seen although the test passes: the harness keeps only what the print macros write.
fn note(why: &str) {
    let _ = writeln!(io::stderr(), "\nnote: no instructions were compared: {why}");
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
        let count = |name: &str| (name.to_owned(), per_request(name));
        let instructions = VARIANTS.iter().map(|variant| count(variant.name)).collect();
        Self { rustc: RUSTC.into(), target: TARGET.into(), instructions }
    }
}

/// The mean of some thousand requests, all of them to slots that are there.
fn per_request(variant: &str) -> u64 {
    const REQUESTS: u64 = 4_000;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*counted_requests*")
        .args([env!("CARGO_BIN_EXE_count"), variant, &REQUESTS.to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let (_, count) = said.rsplit_once("Collected : ").unwrap();
    let count: u64 = count.split_whitespace().next().unwrap().parse().unwrap();
    assert!(count > REQUESTS, "{variant} was counted");
    count / REQUESTS
}
