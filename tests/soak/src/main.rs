//! Soak: processes of clients, each with its own slots, against a server that does all it can wrong. Limits change
//! and slots are recycled meanwhile; every rule that can be checked from outside is checked all the time.
//!
//! It ends with one line of figures, or with 1 and what was broken.

mod changes;
mod client;
mod counted;
mod ending;
mod figures;
mod hosts;
mod ledger;
mod parent;
mod plan;
mod process;
mod server;
mod watch;

use std::io::Write as _;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    run: Run,
    #[command(subcommand)]
    role: Option<Role>,
}

/// One run, the same for all its processes.
#[derive(Args, Clone, Debug)]
struct Run {
    /// For how long clients send requests.
    #[arg(long = "for", value_parser = humantime::parse_duration, default_value = "10m", global = true)]
    time: Duration,
    /// What all that is random follows from; another one each time by default.
    #[arg(long, default_value_t = fastrand::u64(..), hide_default_value = true, global = true)]
    seed: u64,
    /// How many processes of clients there are.
    #[arg(long, default_value_t = 4, global = true)]
    clients: usize,
    /// How many requests each of them has under way at once.
    #[arg(long, default_value_t = 96, global = true)]
    workers: usize,
}

/// What a process that the first one starts is for.
#[derive(Clone, Copy, Debug, Subcommand)]
enum Role {
    #[command(hide = true)]
    Server,
    #[command(hide = true)]
    Client { number: u64, port: u16 },
}

fn main() -> Result<(), BoxError> {
    let Cli { run, role } = Cli::parse();
    match role {
        None => parent::run(&run),
        Some(role) => {
            process::end_with_parent();
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async {
                match role {
                    Role::Server => server::run().await,
                    Role::Client { number, port } => client::run(run, number, port).await,
                }
            })
        }
    }
}

/// Ends the process: a rule was broken.
fn broken(what: std::fmt::Arguments<'_>) -> ! {
    // In one piece: others may be writing too.
    let _ = std::io::stderr().write_all(format!("broken: {what}\n").as_bytes());
    std::process::exit(1)
}

/// Unless `$holds` the rule is broken, and that is the end.
macro_rules! rule {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            $crate::broken(format_args!($($what)+));
        }
    };
}
pub(crate) use rule;
