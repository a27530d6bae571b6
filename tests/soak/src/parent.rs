//! The first process: starts the others, shows how they are, and says how it ended.

use std::env;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::figures::Figures;
use crate::{BoxError, Run};

/// A process that ends with its handle.
struct Process(Child);

pub(crate) fn run(run: &Run) -> Result<(), BoxError> {
    let Run { time, seed, clients, .. } = *run;
    println!("{clients} clients for {}, --seed {seed}", humantime::format_duration(time));
    let (mut server, output) = Process::start(run, &["server".into()])?;
    let mut port = String::new();
    BufReader::new(output).read_line(&mut port)?;
    let mut processes = Vec::new();
    let latest = Arc::new(Mutex::new(vec![Figures::default(); clients]));
    let mut readers = Vec::new();
    for number in 0..clients {
        let role = ["client".into(), number.to_string(), port.trim().into()];
        let (process, output) = Process::start(run, &role)?;
        processes.push(process);
        let latest = latest.clone();
        readers.push(std::thread::spawn(move || read(output, number, &latest)));
    }
    let sum = || {
        let mut sum = Figures::default();
        let latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.iter().for_each(|figures| sum.add(figures));
        sum
    };

    let bar =
        if io::stderr().is_terminal() { ProgressBar::new(time.as_secs()) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{wide_bar} {elapsed}/{len}s\n{msg}")?);
    let begin = Instant::now();
    let mut ended = vec![false; clients];
    while ended.contains(&false) {
        sleep(Duration::from_millis(100));
        bar.set_position(begin.elapsed().as_secs());
        bar.set_message(sum().to_string());
        for (number, process) in processes.iter_mut().enumerate() {
            let Some(status) = process.0.try_wait()? else { continue };
            if !status.success() {
                println!("until then {}", sum());
                return Err(format!("client {number} ended with {status}; --seed {seed}").into());
            }
            ended[number] = true;
        }
        if let Some(status) = server.0.try_wait()? {
            return Err(format!("the server ended with {status}; --seed {seed}").into());
        }
    }
    for reader in readers {
        reader.join().map_err(|_| "a reader panicked")??;
    }
    bar.finish_and_clear();
    println!("{}", sum());
    Ok(())
}

/// Keeps the latest figures of one client.
fn read(output: ChildStdout, number: usize, latest: &Mutex<Vec<Figures>>) -> Result<(), BoxError> {
    for line in BufReader::new(output).lines() {
        let figures = serde_json::from_str(&line?)?;
        latest.lock().unwrap_or_else(PoisonError::into_inner)[number] = figures;
    }
    Ok(())
}

// === impl Process ===

impl Process {
    /// Starts this program again, in that role.
    fn start(run: &Run, role: &[String]) -> Result<(Self, ChildStdout), BoxError> {
        let time = humantime::format_duration(run.time).to_string();
        let mut child = Command::new(env::current_exe()?)
            .args(role)
            .args(["--for", &time, "--seed", &run.seed.to_string(), "--workers", &run.workers.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        Ok((Self(child), output))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
