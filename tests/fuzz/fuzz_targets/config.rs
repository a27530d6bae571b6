//! Configurations from arbitrary text: nothing panics, and what was accepted can be used.
//!
//! Run with `cargo +nightly fuzz run --fuzz-dir tests/fuzz config -- -max_total_time=60`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tower_slot::{KeyRef, SlotConfig, Slots};

fn try_out(config: SlotConfig) {
    let slots = Slots::new(config.clone());
    for host in ["", "a", "a.test", "x.cdn.test", "[::1]:80"] {
        let _ = slots.try_acquire(KeyRef::host(host));
        let _ = slots.try_acquire(KeyRef::name(host));
    }
    slots.reload(config);
    let _ = slots.snapshot();
}

fuzz_target!(|text: &str| {
    if let Ok(config) = toml::from_str(text) {
        try_out(config);
    }
    if let Ok(config) = serde_json::from_str(text) {
        try_out(config);
    }
});
