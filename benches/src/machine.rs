//! What figures depend on.

use std::fmt;
use std::time::SystemTime;

/// Those whose versions are told.
const CRATES: [&str; 8] =
    ["tower-slot", "tokio", "tower", "tower-http", "governor", "dashmap", "hyper", "hyper-util"];

/// The compiler that built this.
pub const RUSTC: &str = env!("BUILT_BY");
pub const TARGET: &str = env!("BUILT_FOR");

/// The machine as it is now; Display is a few lines.
pub struct Machine;

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let now = humantime::format_rfc3339_seconds(SystemTime::now());
        let load = read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ");
        writeln!(f, "{now}, {cores} cores of {}, load {load}", cpu())?;
        writeln!(f, "{RUSTC}, {TARGET}")?;
        let versions = CRATES.map(|name| format!("{name} {}", version(name)));
        write!(f, "{}", versions.join(", "))
    }
}

fn cpu() -> String {
    let info = read("/proc/cpuinfo");
    let model = info.lines().find(|line| line.starts_with("model name"));
    model.and_then(|line| line.split_once(": ")).map_or("an unknown CPU", |(_, model)| model).to_owned()
}

/// The version in the lock file; the last one, where there are several.
fn version(name: &str) -> &str {
    let lock = include_str!("../../Cargo.lock");
    let packages = lock.rsplit("[[package]]\n");
    let mut named = packages.filter_map(|package| {
        let (its, rest) = package.strip_prefix("name = \"")?.split_once("\"\nversion = \"")?;
        (its == name).then(|| rest.split('"').next())?
    });
    named.next().unwrap_or("unknown")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
