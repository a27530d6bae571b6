//! What the system says of this process.

use std::fs;
use std::io;

/// Ends this process when the one that started it is gone: its end of the pipe closes.
pub(crate) fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(2);
    });
}

/// Resident memory, in KiB.
pub(crate) fn resident() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let field = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = field.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::Error::other("no VmRSS"))
}

/// How many files are open, the one that looks not counted.
pub(crate) fn open_files() -> io::Result<usize> {
    Ok(fs::read_dir("/proc/self/fd")?.count() - 1)
}
