//! Every way in which a request can end, under every kind of limit and hold: the permit comes back in that
//! moment, once, and the next request gets it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod client;
mod in_memory;
#[path = "../support/net.rs"]
mod net;
mod on_sockets;
mod prompter;
mod scene;
#[path = "../support/mod.rs"]
mod support;
