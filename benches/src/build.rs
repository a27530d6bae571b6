//! Tells the crate which compiler builds it: counts of instructions and times depend on it.

use std::process::Command;

fn main() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().expect("rustc answers").stdout;
    println!("cargo::rustc-env=BUILT_BY={}", String::from_utf8_lossy(&version).trim());
    println!("cargo::rustc-env=BUILT_FOR={}", std::env::var("TARGET").expect("cargo says for what"));
    println!("cargo::rerun-if-changed=src/build.rs");
}
