//! A resolver with a table of its own, for tests without a network.

#![allow(dead_code, reason = "every test file uses a part of it")]
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Request;
use tower_slot::{BoxError, Extracted, KeyExtractor, Resolve, Resolving, SlotKey};

/// Knows what it was told. Clones share what they know and count.
#[derive(Clone, Default)]
pub(crate) struct Hosts {
    known: Arc<Mutex<HashMap<String, Vec<IpAddr>>>>,
    asked: Arc<Mutex<Vec<String>>>,
    /// How long each look-up takes.
    takes: Duration,
    /// Whether each look-up turns the addresses round.
    turns: bool,
}

impl Hosts {
    pub(crate) fn slow(takes: Duration) -> Self {
        Self { takes, ..Self::default() }
    }

    pub(crate) fn turning() -> Self {
        Self { turns: true, ..Self::default() }
    }

    pub(crate) fn set(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        self.known.lock().unwrap().insert(name.to_owned(), addresses);
    }

    /// How many look-ups there were.
    pub(crate) fn lookups(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Resolve for Hosts {
    fn resolve(&self, host: &str) -> Resolving {
        let (this, host) = (self.clone(), host.to_owned());
        this.asked.lock().unwrap().push(host.clone());
        Box::pin(async move {
            if !this.takes.is_zero() {
                tokio::time::sleep(this.takes).await;
            }
            let mut known = this.known.lock().unwrap();
            let addresses = known.get_mut(&host).ok_or("no such host")?;
            if this.turns {
                addresses.rotate_left(1);
            }
            Ok(addresses.clone())
        })
    }
}

/// The key that `extractor` has for `request`, waited for.
pub(crate) async fn key(
    extractor: &impl KeyExtractor<()>,
    request: &Request<()>,
) -> Result<SlotKey, BoxError> {
    match extractor.extract(request) {
        Extracted::Key(key) => Ok(key.into_key()),
        Extracted::Later(key) => key.await,
        _ => Err("neither".into()),
    }
}
