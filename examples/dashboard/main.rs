//! A page that shows the slots of a running crawl, and lets you pause them and change their limits.
//!
//! `cargo run --features serde --example dashboard` crawls a small site of its own, on loopback and without an end, and
//! prints the address of the page; Ctrl-C ends it. The page gets each snapshot as a server-sent event. With the feature
//! `connection` too, the time to a connection is shown apart.

mod control;
mod crawl;
mod feed;
mod page;

use std::{net::Ipv4Addr, time::Duration};

use clap::Parser;
use tokio::{net::TcpListener, signal::ctrl_c, time::sleep};
use tower_slot::BoxError;

/// Shows the slots of a running crawl on a page.
#[derive(Parser)]
#[command(name = "dashboard", version)]
struct Args {
    /// Where the page is, on loopback; 0 for whatever port is free
    #[arg(long, value_name = "PORT", default_value = "0")]
    port: u16,

    /// How long to run: 30s, 5m; until Ctrl-C unless said
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Option<Duration>,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let args = Args::parse();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await?;
    let address = listener.local_addr()?;

    let slots = crawl::start().await?;
    let app = page::router(slots, address);
    println!("http://{address}/");

    let time_is_over = async {
        match args.time {
            Some(time) => sleep(time).await,
            None => std::future::pending().await,
        }
    };
    // Pages stay connected for as long as they are open: nobody waits for them.
    tokio::select! {
        served = axum::serve(listener, app) => served?,
        pressed = ctrl_c() => pressed?,
        () = time_is_over => {}
    }
    Ok(())
}
