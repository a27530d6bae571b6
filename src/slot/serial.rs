//! Statistics as data, in whatever format serde writes.
//!
//! Times are seconds, as floating point, in fields that end in `_s`. A moment means nothing to another process, so it
//! is told as the time until then.

use std::time::Duration;

use serde_core::ser::{Serialize, SerializeStruct, Serializer};
use tokio::time::Instant;

use super::stats::{Counts, Phases, Recycled, SlotStats, Snapshot, TotalStats};
use crate::error::WaitReason;
use crate::hold::Hold;
use crate::jitter::{Jitter, Kind};
use crate::limits::Limits;

/// A slot as it was looked at; moments are told from the second of the two on.
struct Seen<'a>(&'a SlotStats, Instant);

/// Writes a struct field by field.
macro_rules! fields {
    ($serializer:expr, $name:literal, { $($field:literal: $value:expr,)* }) => {{
        let fields: &[&str] = &[$($field),*];
        let mut object = $serializer.serialize_struct($name, fields.len())?;
        $(object.serialize_field($field, &$value)?;)*
        object.end()
    }};
}

// === impl Snapshot ===

/// `slots`, `recycled` and `total`; moments are told from [`at`](Snapshot::at) on.
///
/// Times are seconds, in fields that end in `_s`; what is unlimited, or not there, is null. So in JSON:
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), tower_slot::BoxError> {
/// # use {std::time::Duration, tower_slot::{Jitter, SlotConfig, Slots}};
/// # let config = SlotConfig::builder().concurrency(2).delay(Duration::from_millis(200)).jitter(Jitter::ratio(0.5));
/// # let slots = Slots::new(config.total_concurrency(64).build()?);
/// # let permit = slots.acquire("a.com").await?;
/// # tokio::time::advance(Duration::from_millis(1500)).await;
/// assert_eq!(serde_json::to_value(slots.snapshot())?, serde_json::json!({
///     "slots": [{
///         "key": "a.com",
///         "limits": {
///             "concurrency": 2,
///             "delay_s": 0.2,
///             "jitter": {"ratio": 0.5},      // or {"up_to_s": 0.1}
///             "queue_capacity": null,
///             "wait_timeout_s": null,
///             "hold": "body"                 // or "headers"
///         },
///         "in_flight": 1,
///         "waiting": 0,
///         "reason": null,                    // or "concurrency", "pace", "total"
///         "oldest_permit_s": 1.5,
///         "oldest_waiter_s": null,
///         "next_start_in_s": null,
///         "paused_for_s": null,
///         "stalled_s": null,
///         "times": {"concurrency_s": 0.0, "pace_s": 0.0, "total_s": 0.0, "connection_s": 0.0, "headers_s": 0.0, "body_s": 1.5},
///         "longest": {"concurrency_s": 0.0, "pace_s": 0.0, "total_s": 0.0, "connection_s": 0.0, "headers_s": 0.0, "body_s": 0.0},
///         "counts": {
///             "asked": 1, "started": 1, "refused": 0, "timed_out": 0, "gone": 0,
///             "finished": 0, "failed": 0, "cancelled": 0
///         }
///     }],
///     "recycled": {
///         "slots": 0,
///         "times": {"concurrency_s": 0.0, "pace_s": 0.0, "total_s": 0.0, "connection_s": 0.0, "headers_s": 0.0, "body_s": 0.0},
///         "longest": {"concurrency_s": 0.0, "pace_s": 0.0, "total_s": 0.0, "connection_s": 0.0, "headers_s": 0.0, "body_s": 0.0},
///         "counts": {
///             "asked": 0, "started": 0, "refused": 0, "timed_out": 0, "gone": 0,
///             "finished": 0, "failed": 0, "cancelled": 0
///         }
///     },
///     "total": {"limit": 64, "in_flight": 1, "line": 0}
/// }));
/// # Ok(()) }
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fields!(serializer, "Snapshot", {
            "slots": self.slots.iter().map(|slot| Seen(slot, self.at)).collect::<Vec<_>>(),
            "recycled": self.recycled,
            "total": self.total,
        })
    }
}

// === impl SlotStats ===

/// As in a [`Snapshot`]; moments are told from when this is called.
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for SlotStats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Seen(self, Instant::now()).serialize(serializer)
    }
}

impl Serialize for Seen<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(slot, now) = self;
        let until =
            |moment: Option<Instant>| moment.map(|moment| seconds(moment.saturating_duration_since(*now)));
        fields!(serializer, "SlotStats", {
            "key": slot.key.as_str(),
            "limits": slot.limits,
            "in_flight": slot.in_flight,
            "waiting": slot.waiting,
            "reason": slot.reason.map(WaitReason::as_str),
            "oldest_permit_s": slot.oldest_permit.map(seconds),
            "oldest_waiter_s": slot.oldest_waiter.map(seconds),
            "next_start_in_s": until(slot.next_start),
            "paused_for_s": until(slot.paused_until),
            "stalled_s": slot.stalled.map(seconds),
            "times": slot.times,
            "longest": slot.longest,
            "counts": slot.counts,
        })
    }
}

// === impl Limits, Jitter ===

/// As in a [`Snapshot`].
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for Limits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fields!(serializer, "Limits", {
            "concurrency": self.concurrency,
            "delay_s": seconds(self.delay),
            "jitter": self.jitter,
            "queue_capacity": self.queue_capacity,
            "wait_timeout_s": self.wait_timeout.map(seconds),
            "hold": match self.hold {
                Hold::Body => "body",
                Hold::Headers => "headers",
            },
        })
    }
}

/// As in a [`Snapshot`].
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for Jitter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Kind::Ratio(ratio) => fields!(serializer, "Jitter", { "ratio": ratio, }),
            Kind::UpTo(max) => fields!(serializer, "Jitter", { "up_to_s": seconds(max), }),
        }
    }
}

// === impl Phases, Counts, Recycled, TotalStats ===

/// As in a [`Snapshot`].
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for Phases {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fields!(serializer, "Phases", {
            "concurrency_s": seconds(self.concurrency),
            "pace_s": seconds(self.pace),
            "total_s": seconds(self.total),
            "connection_s": seconds(self.connection),
            "headers_s": seconds(self.headers),
            "body_s": seconds(self.body),
        })
    }
}

/// As in a [`Snapshot`].
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fields!(serializer, "Counts", {
            "asked": self.asked,
            "started": self.started,
            "refused": self.refused,
            "timed_out": self.timed_out,
            "gone": self.gone,
            "finished": self.finished,
            "failed": self.failed,
            "cancelled": self.cancelled,
        })
    }
}

/// As in a [`Snapshot`].
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for Recycled {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fields!(serializer, "Recycled", {
            "slots": self.slots,
            "times": self.times,
            "longest": self.longest,
            "counts": self.counts,
        })
    }
}

/// As in a [`Snapshot`].
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for TotalStats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fields!(serializer, "TotalStats", {
            "limit": self.limit,
            "in_flight": self.in_flight,
            "line": self.line,
        })
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
