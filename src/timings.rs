//! Timings of one response: where its request spent the time.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::WaitReason;
use crate::key::SlotKey;

/// Where a request spent its time; in the response's extensions when the layer has
/// [`timings`](crate::SlotLayer::timings). Clones show the same.
#[derive(Clone, Debug)]
pub struct SlotTimings(Arc<Timings>);

#[derive(Debug)]
struct Timings {
    slot: SlotKey,
    /// By reason, in nanoseconds.
    waited: [u64; 3],
    connection: OnceLock<u64>,
    headers: OnceLock<u64>,
    /// Set when the permit is given back.
    body: OnceLock<u64>,
}

// === impl SlotTimings ===

impl SlotTimings {
    /// Of a request that starts now.
    #[cold]
    pub(crate) fn new(slot: &SlotKey, waited: [u64; 3]) -> Self {
        let (connection, headers, body) = Default::default();
        Self(Arc::new(Timings { slot: slot.clone(), waited, connection, headers, body }))
    }

    /// Returns the slot's key.
    #[must_use]
    pub fn slot(&self) -> &SlotKey {
        &self.0.slot
    }

    /// Returns how long it waited in the slot, from the first poll to the start.
    #[must_use]
    pub fn waited(&self) -> Duration {
        WaitReason::ALL.into_iter().map(|reason| self.waited_for(reason)).sum()
    }

    /// Returns how much of the wait was for `reason`.
    #[must_use]
    pub fn waited_for(&self, reason: WaitReason) -> Duration {
        Duration::from_nanos(self.0.waited[reason as usize])
    }

    /// Returns how long it took from the start until the client had a connection: known with
    /// `SlotLayer::connection_times`, if the client tells.
    #[must_use]
    pub fn to_connection(&self) -> Option<Duration> {
        self.0.connection.get().copied().map(Duration::from_nanos)
    }

    /// Returns how long it took to the response's headers: from the connection where that is known, else from the
    /// start.
    #[must_use]
    pub fn to_headers(&self) -> Duration {
        // Nobody sees these before.
        self.0.headers.get().copied().map(Duration::from_nanos).unwrap_or_default()
    }

    /// Returns how long it took from the headers until the permit was given back: known when the body has ended
    /// or was dropped, and only if the body held a permit.
    #[must_use]
    pub fn body(&self) -> Option<Duration> {
        self.0.body.get().copied().map(Duration::from_nanos)
    }

    #[cfg(feature = "connection")]
    pub(crate) fn connected(&self, nanos: u64) {
        let _ = self.0.connection.set(nanos);
    }

    pub(crate) fn headers_came(&self, nanos: u64) {
        let _ = self.0.headers.set(nanos);
    }

    pub(crate) fn body_ended(&self, nanos: u64) {
        let _ = self.0.body.set(nanos);
    }
}
