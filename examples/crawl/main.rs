//! A crawl through slots: shown on a site of its own, or done politely on real sites.
//!
//! - `cargo run --release --example crawl` starts a small site on loopback, plays the scenes on it and prints one
//!   table: what each scene should show, and what the server saw. No network is needed.
//! - `cargo run --release --example crawl -- URL..` downloads real pages: a few at a time from each host, with a delay
//!   between them. `--help` tells the rest.
//! - With `--svg FILE` either draws a timeline: where each request spent its time, a lane per slot.
//!
//! The exit code is 0 when all is well, 1 when a scene or a URL failed, and 2 for a bad argument.

mod args;
mod bodies;
mod content;
mod download;
mod line;
mod pace;
mod picture;
mod print;
mod recycle;
mod report;
mod scenes;
mod site;
mod stamp;
mod target;
mod timeline;

use std::{
    error::Error,
    fmt,
    io::{self, Write, stderr, stdout},
    process::ExitCode,
};

use clap::error::ErrorKind;
use tokio::runtime::{Builder, Runtime};
use tower_slot::BoxError;

use crate::{
    args::{Job, Order},
    print::Printer,
    report::Verdict,
    timeline::Timeline,
};

fn main() -> ExitCode {
    let order = match args::parse() {
        Ok(order) => order,
        Err(error) => return refuse(&error),
    };
    match run(order) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            complain(format_args!("error: {}", chain(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}

/// Does the job and returns whether nothing failed.
fn run(Order { job, picture }: Order) -> Result<bool, BoxError> {
    let timeline = Timeline::default();
    let passed = match job {
        Job::Scenes { json } => {
            let rows = Runtime::new()?.block_on(scenes::run(&timeline))?;
            // Here the verdict is the result; whether somebody reads the table to its end does not change it.
            unless_closed(report::write(&rows, json, &mut stdout().lock()))?;
            rows.iter().map(|row| &row.verdict).all(Verdict::passed)
        }
        Job::Download(plan) => {
            // On one thread tasks take their places in the queues in the order of the URLs.
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let mut printer = Printer::new(stdout(), plan.json);
            unless_closed(runtime.block_on(download::run(*plan, &timeline, &mut printer)))?;
            printer.failed() == 0
        }
    };
    if let Some(picture) = picture {
        picture.draw(timeline.lanes())?;
    }
    Ok(passed)
}

/// Takes a reader of our output that has gone away for what it is: one who has seen enough.
fn unless_closed(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Prints help where it was asked for; of an error, its first paragraph in one line.
fn refuse(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // A reader that closes early has seen enough.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let first = text.lines().take_while(|line| !line.is_empty());
    complain(format_args!("{} (see --help)", first.map(str::trim).collect::<Vec<_>>().join(" ")));
    ExitCode::from(2)
}

/// Prints a line on standard error; where that is closed too, the exit code has to do.
fn complain(line: fmt::Arguments<'_>) {
    let _ = writeln!(stderr(), "{line}");
}

/// Returns the text of `error` with all its sources: a client's own text rarely says what went wrong.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        // Some put the text of their source into their own.
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}
